//! NumPy's `.npy` files, of one array of numbers in C order (numpy.lib.format, versions 1 to 3).

use anyhow::{Context, Result, bail};

const MAGIC: &[u8] = b"\x93NUMPY";

/// The contents of a file: the type as NumPy writes it, such as `<f4`, the shape, and the elements.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Array {
    pub(super) descr: String,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: Vec<u8>,
}

/// Whether a file begins as such a file does.
pub(super) fn is_npy(file: &[u8]) -> bool {
    file.starts_with(MAGIC)
}

/// Reads a file.
pub(super) fn read(file: &[u8]) -> Result<Array> {
    let version = *file.get(6).context("the file ends in its header")?;
    let length = |bytes: usize| -> Option<usize> {
        let field = file.get(8..8 + bytes)?;
        Some(field.iter().rev().fold(0, |length, &byte| length << 8 | usize::from(byte)))
    };
    let (start, length) = if version == 1 { (10, length(2)) } else { (12, length(4)) };
    let end = start + length.context("the file ends in its header")?;
    let header = file.get(start..end).context("the file ends in its header")?;
    let header = std::str::from_utf8(header).context("the header is no text")?;
    let after = |key: &str| header.split_once(key).map(|(_, rest)| rest.trim_start_matches([':', ' ']));
    let descr = after("'descr'").and_then(|rest| rest.strip_prefix('\'')?.split('\'').next());
    let shape = after("'shape'").and_then(|rest| rest.strip_prefix('(')?.split(')').next());
    let (Some(descr), Some(shape)) = (descr, shape) else {
        bail!("the header has no type or no shape: {header}")
    };
    if after("'fortran_order'").is_none_or(|rest| !rest.starts_with("False")) {
        bail!("the array is in Fortran's order, expected C's");
    }
    let shape = shape.split(',').map(str::trim).filter(|axis| !axis.is_empty());
    let shape = shape.map(|axis| axis.parse().with_context(|| format!("`{axis}` in the shape")));
    Ok(Array {
        descr: descr.replace(['|', '='], "<"),
        shape: shape.collect::<Result<_>>()?,
        bytes: file[end..].to_vec(),
    })
}

/// Writes a file.
pub(super) fn write(array: &Array) -> Vec<u8> {
    let axes: Vec<_> = array.shape.iter().map(|axis| format!("{axis},")).collect();
    let mut header =
        format!("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", array.descr, axes.join(" "));
    // The elements begin at a multiple of 64.
    let end = (10 + header.len() + 1).next_multiple_of(64);
    header.push_str(&" ".repeat(end - 10 - header.len() - 1));
    header.push('\n');
    let mut file = [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
    file.extend(&array.bytes);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for shape in [vec![], vec![3], vec![2, 1, 3]] {
            let array = Array { descr: "<f4".into(), shape, bytes: vec![1, 2, 3, 4] };
            let file = write(&array);
            assert!(is_npy(&file) && (file.len() - 4).is_multiple_of(64));
            assert_eq!(read(&file).unwrap(), array);
        }
    }

    #[test]
    fn a_broken_file_is_refused() {
        let file = write(&Array { descr: "<f4".into(), shape: vec![3], bytes: vec![] });
        for length in 0..file.len() {
            assert!(!is_npy(&file[..length]) || read(&file[..length]).is_err(), "{length}");
        }
        let fortran = String::from_utf8_lossy(&file[10..]).replace("False", "True ");
        assert!(read(&[&file[..10], fortran.as_bytes()].concat()).is_err());
    }
}
