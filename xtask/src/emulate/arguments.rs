//! A kernel's arguments as text.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use half::{bf16, f16};
use warpsmith_emulator::Machine;

use super::npy;
use crate::random::Random;

/// The type of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Type {
    name: &'static str,
    bytes: usize,
    /// As NumPy names it.
    descr: &'static str,
}

const TYPES: [Type; 12] = [
    Type { name: "u8", bytes: 1, descr: "<u1" },
    Type { name: "s8", bytes: 1, descr: "<i1" },
    Type { name: "u16", bytes: 2, descr: "<u2" },
    Type { name: "s16", bytes: 2, descr: "<i2" },
    Type { name: "u32", bytes: 4, descr: "<u4" },
    Type { name: "s32", bytes: 4, descr: "<i4" },
    Type { name: "u64", bytes: 8, descr: "<u8" },
    Type { name: "s64", bytes: 8, descr: "<i8" },
    Type { name: "f16", bytes: 2, descr: "<f2" },
    // NumPy has no bfloat16; its bits are kept as integers.
    Type { name: "bf16", bytes: 2, descr: "<u2" },
    Type { name: "f32", bytes: 4, descr: "<f4" },
    Type { name: "f64", bytes: 8, descr: "<f8" },
];

impl FromStr for Type {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = TYPES.into_iter().find(|known| known.name == text);
        found.ok_or_else(|| {
            let names: Vec<_> = TYPES.iter().map(|known| known.name).collect();
            anyhow!("`{text}` is no type: expected {}", names.join(", "))
        })
    }
}

impl Type {
    fn is_float(self) -> bool {
        self.name.contains('f')
    }

    /// The bytes of the number nearest to `value`.
    fn encode(self, value: f64) -> Vec<u8> {
        match self.name {
            "f16" => f16::from_f64(value).to_le_bytes().to_vec(),
            "bf16" => bf16::from_f64(value).to_le_bytes().to_vec(),
            "f32" => (value as f32).to_le_bytes().to_vec(),
            "f64" => value.to_le_bytes().to_vec(),
            _ => (value as i64).to_le_bytes()[..self.bytes].to_vec(),
        }
    }

    fn decode(self, bytes: &[u8]) -> f64 {
        let mut wide = [0; 8];
        wide[..self.bytes].copy_from_slice(&bytes[..self.bytes]);
        let bits = u64::from_le_bytes(wide);
        let unused = 64 - 8 * self.bytes as u32;
        match self.name {
            "f16" => f16::from_bits(bits as u16).to_f64(),
            "bf16" => bf16::from_bits(bits as u16).to_f64(),
            "f32" => f32::from_bits(bits as u32).into(),
            "f64" => f64::from_bits(bits),
            name if name.starts_with('s') => ((bits << unused) as i64 >> unused) as f64,
            _ => bits as f64,
        }
    }

    /// The bytes of a number that is written out.
    fn parse(self, text: &str) -> Result<Vec<u8>> {
        let wrong = || anyhow!("`{text}` is no {}", self.name);
        if self.is_float() {
            return Ok(self.encode(text.parse().map_err(|_| wrong())?));
        }
        let value = match text.strip_prefix("0x") {
            Some(digits) => i128::from_str_radix(digits, 16).map_err(|_| wrong())?,
            None => text.parse().map_err(|_| wrong())?,
        };
        let bits = 8 * self.bytes as u32;
        let (least, most) = if self.name.starts_with('s') {
            (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
        } else {
            (0, (1i128 << bits) - 1)
        };
        if !(least..=most).contains(&value) {
            bail!("{value} does not fit {}", self.name);
        }
        Ok(value.to_le_bytes()[..self.bytes].to_vec())
    }
}

/// What is in a buffer before the launch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Contents {
    Nothing,
    Zeros,
    Ones,
    Iota,
    Random,
    File(PathBuf),
}

/// An argument as it was written.
#[derive(Clone, Debug)]
pub(super) struct Argument {
    text: String,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Bytes that are passed as they are.
    Value(Vec<u8>),
    Buffer(Buffer),
}

#[derive(Clone, Debug)]
struct Buffer {
    ty: Type,
    shape: Vec<usize>,
    contents: Contents,
    /// Whether it is a result.
    shown: bool,
    /// The file that the result goes to.
    to: Option<PathBuf>,
}

/// An argument in the machine.
pub(super) struct Bound {
    bytes: Vec<u8>,
    /// The address of a result, and what it is.
    result: Option<(u64, Buffer)>,
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Argument {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let kind = if text == "null" {
            Kind::Value(vec![0; 8])
        } else if let Some(members) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Kind::Value(structure(members)?)
        } else {
            let (first, rest) = text
                .split_once(':')
                .with_context(|| format!("`{text}`: expected a type or a kind, and a colon"))?;
            match first {
                "in" => Kind::Buffer(Buffer::parse(rest, true, false)?),
                "inout" => Kind::Buffer(Buffer::parse(rest, true, true)?),
                "out" => Kind::Buffer(Buffer::parse(rest, false, true)?),
                _ => Kind::Value(first.parse::<Type>()?.parse(rest)?),
            }
        };
        Ok(Self { text: text.to_owned(), kind })
    }
}

/// Numbers one after the other, each at a multiple of its size, as C lays out a struct.
fn structure(members: &str) -> Result<Vec<u8>> {
    let (mut bytes, mut align) = (Vec::<u8>::new(), 1);
    for member in members.split(',') {
        let (ty, value) =
            member.split_once(':').with_context(|| format!("`{member}`: expected TYPE:VALUE"))?;
        let ty: Type = ty.trim().parse()?;
        bytes.resize(bytes.len().next_multiple_of(ty.bytes), 0);
        bytes.extend(ty.parse(value.trim())?);
        align = align.max(ty.bytes);
    }
    bytes.resize(bytes.len().next_multiple_of(align), 0);
    Ok(bytes)
}

impl Buffer {
    fn parse(text: &str, filled: bool, shown: bool) -> Result<Self> {
        let mut parts = text.split(':');
        let ty: Type = parts.next().unwrap_or_default().parse()?;
        let shape = parts.next().context("expected a shape after the type, such as 64x128")?;
        let shape: Vec<usize> = shape
            .split('x')
            .map(|axis| axis.parse().with_context(|| format!("`{axis}` in the shape `{shape}`")))
            .collect::<Result<_>>()?;
        let contents = match if filled { parts.next() } else { None } {
            None if filled => bail!("expected zeros, ones, iota, random or file=PATH after the shape"),
            None => Contents::Nothing,
            Some("zeros") => Contents::Zeros,
            Some("ones") => Contents::Ones,
            Some("iota") => Contents::Iota,
            Some("random") => Contents::Random,
            Some(other) => match other.strip_prefix("file=") {
                Some(path) => Contents::File(path.into()),
                None => bail!("`{other}`: expected zeros, ones, iota, random or file=PATH"),
            },
        };
        let to = match parts.next() {
            None => None,
            Some(target) => match target.strip_prefix("to=").filter(|_| shown) {
                Some(path) => Some(path.into()),
                None => bail!("`{target}`: expected nothing more{}", if shown { ", or to=PATH" } else { "" }),
            },
        };
        Ok(Self { ty, shape, contents, shown, to })
    }

    fn bytes(&self) -> Result<usize> {
        let elements = self.shape.iter().try_fold(self.ty.bytes, |product, &axis| product.checked_mul(axis));
        elements.context("the shape is too large")
    }

    /// Its bytes before the launch; `None` if it is uninitialised.
    fn initial(&self, seed: u64) -> Result<Option<Vec<u8>>> {
        let (ty, bytes) = (self.ty, self.bytes()?);
        let each = |value: &mut dyn FnMut(usize) -> f64| {
            (0..bytes / ty.bytes).flat_map(|at| ty.encode(value(at))).collect()
        };
        Ok(Some(match &self.contents {
            Contents::Nothing => return Ok(None),
            Contents::Zeros => vec![0; bytes],
            Contents::Ones => each(&mut |_| 1.0),
            Contents::Iota => each(&mut |at| at as f64),
            Contents::Random => {
                let mut random = Random::new(seed);
                // Numbers that every type has: multiples of 1/64 below 1 in magnitude, or integers below 100.
                each(&mut |_| match ty.is_float() {
                    true => (random.below(127) as f64 - 63.0) / 64.0,
                    false => random.below(100) as f64,
                })
            }
            Contents::File(path) => {
                let file = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
                let data = if npy::is_npy(&file) {
                    let array = npy::read(&file).with_context(|| path.display().to_string())?;
                    if array.descr != ty.descr || array.shape != self.shape {
                        bail!(
                            "{} has elements {} in the shape {:?}, expected {} in {:?}",
                            path.display(),
                            array.descr,
                            array.shape,
                            ty.descr,
                            self.shape
                        );
                    }
                    array.bytes
                } else {
                    file
                };
                if data.len() != bytes {
                    bail!("{} has {} bytes of elements, expected {bytes}", path.display(), data.len());
                }
                data
            }
        }))
    }
}

impl Argument {
    /// Places a buffer in the machine's memory.
    pub(super) fn bind(&self, machine: &Machine, seed: u64) -> Result<Bound> {
        let buffer = match &self.kind {
            Kind::Value(bytes) => return Ok(Bound { bytes: bytes.clone(), result: None }),
            Kind::Buffer(buffer) => buffer,
        };
        let address = machine.allocate(buffer.bytes()? as u64)?;
        if let Some(initial) = buffer.initial(seed)? {
            machine.write(address, &initial)?;
        }
        let result = buffer.shown.then(|| (address, buffer.clone()));
        Ok(Bound { bytes: address.to_le_bytes().to_vec(), result })
    }
}

impl Bound {
    /// What the kernel gets.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes a result to its file, and says something about it; `None` for what is no result.
    pub(super) fn result(&self, machine: &Machine) -> Result<Option<String>> {
        let Some((address, buffer)) = &self.result else { return Ok(None) };
        let Buffer { ty, shape, to, .. } = buffer;
        let mut bytes = vec![0; buffer.bytes()?];
        machine.read(*address, &mut bytes)?;
        let values: Vec<f64> = bytes.chunks_exact(ty.bytes).map(|element| ty.decode(element)).collect();
        if let Some(path) = to {
            let file = if path.extension().is_some_and(|extension| extension == "npy") {
                npy::write(&npy::Array { descr: ty.descr.into(), shape: shape.clone(), bytes })
            } else {
                bytes
            };
            std::fs::write(path, file).with_context(|| format!("writing {}", path.display()))?;
        }
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let first: Vec<_> = values.iter().take(8).map(f64::to_string).collect();
        let more = if values.len() > 8 { ", …" } else { "" };
        let axes: Vec<_> = shape.iter().map(usize::to_string).collect();
        Ok(Some(format!(
            "{} {}: [{}{more}], from {least} to {most}, mean {mean}",
            ty.name,
            axes.join("x"),
            first.join(", ")
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<Vec<u8>> {
        match text.parse::<Argument>()?.kind {
            Kind::Value(bytes) => Ok(bytes),
            Kind::Buffer(_) => bail!("a buffer"),
        }
    }

    #[test]
    fn numbers_have_the_bytes_of_their_type() {
        assert_eq!(value("u32:5").unwrap(), [5, 0, 0, 0]);
        assert_eq!(value("s16:-2").unwrap(), [0xfe, 0xff]);
        assert_eq!(value("u64:0xffffffffffffffff").unwrap(), [0xff; 8]);
        assert_eq!(value("f32:1.5").unwrap(), 1.5f32.to_le_bytes());
        assert_eq!(value("bf16:-1").unwrap(), [0x80, 0xbf]);
        assert_eq!(value("null").unwrap(), [0; 8]);
    }

    #[test]
    fn a_struct_is_laid_out_as_in_c() {
        let bytes = value("[u8:1,u32:2,u64:3,u16:4]").unwrap();
        assert_eq!(bytes.len(), 24);
        assert_eq!((bytes[0], bytes[4], bytes[8], bytes[16]), (1, 2, 3, 4));
    }

    #[test]
    fn wrong_arguments_are_explained() {
        for (text, part) in [
            ("u32:-1", "does not fit u32"),
            ("u8:256", "does not fit u8"),
            ("u32:five", "`five` is no u32"),
            ("int:5", "`int` is no type"),
            ("5", "expected a type"),
            ("in:f32:16", "expected zeros"),
            ("in:f32:16:twos", "`twos`: expected zeros"),
            ("in:f32:16:ones:to=x", "expected nothing more"),
            ("in:f32:4xb:ones", "`b` in the shape"),
            ("out:f32", "expected a shape"),
            ("[u32:1,u32]", "expected TYPE:VALUE"),
        ] {
            let error = format!("{:#}", text.parse::<Argument>().unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_buffer_is_filled_and_shown() {
        let machine = Machine::default();
        let shown = |text: &str, seed| {
            let bound = text.parse::<Argument>().unwrap().bind(&machine, seed).unwrap();
            bound.result(&machine).unwrap().unwrap()
        };
        let expected = "s16 2x3: [0, 1, 2, 3, 4, 5], from 0 to 5, mean 2.5";
        assert_eq!(shown("inout:s16:2x3:iota", 0), expected);
        assert_eq!(shown("inout:f16:64:random", 1), shown("inout:f16:64:random", 1));
        assert_ne!(shown("inout:f16:64:random", 1), shown("inout:f16:64:random", 2));
    }
}
