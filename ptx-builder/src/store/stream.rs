//! Texts as an LZMA stream.

use std::io::{self, Read as _, Write as _};

use lzma_rust2::{EncodeMode, LzmaOptions, LzmaReader, LzmaWriter, MfType};

/// The memory that decompressing may take beside the text, in KiB: a damaged stream may ask for any.
const MOST_MEMORY: u32 = 64 << 10;

/// The longest window in which the compressor looks for what it has seen: more than the texts of any family that ships.
pub(super) const LONGEST_WINDOW: usize = 32 << 20;
const SHORTEST_WINDOW: usize = 64 << 10;

/// Compresses a text to an LZMA stream, as small as it gets: files are read more often than written.
pub(super) fn compress(text: &str, longest_window: usize) -> Vec<u8> {
    // `xz` takes no other window than a power of two. Text has no alignment, so that positions say nothing (`pb`).
    let window = text.len().next_power_of_two().clamp(SHORTEST_WINDOW, longest_window);
    let options = LzmaOptions {
        dict_size: u32::try_from(window).expect("less than 4 GiB"),
        lc: LzmaOptions::LC_DEFAULT,
        lp: LzmaOptions::LP_DEFAULT,
        pb: 0,
        mode: EncodeMode::Normal,
        nice_len: LzmaOptions::NICE_LEN_MAX,
        mf: MfType::Bt4,
        depth_limit: 512,
        preset_dict: None,
    };
    let written = || -> io::Result<Vec<u8>> {
        let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(text.len() as u64))?;
        writer.write_all(text.as_bytes())?;
        writer.finish()
    };
    written().expect("the options are valid, and a vector takes every byte")
}

/// The text of an LZMA stream of at most `most` bytes of text; `None` if it has more.
///
/// # Errors
///
/// What is wrong with the stream.
pub(super) fn decompress(stream: &[u8], most: usize) -> Result<Option<String>, String> {
    let damaged = |error: io::Error| format!("it is no LZMA stream of text: {error}");
    let mut reader = LzmaReader::new_mem_limit(stream, MOST_MEMORY, None).map_err(damaged)?;
    // The end has to be the encoder's: that is what tells damage in the middle.
    reader.set_relaxed_end_condition(false);
    let mut bytes = Vec::new();
    reader.take((most as u64).saturating_add(1)).read_to_end(&mut bytes).map_err(damaged)?;
    if bytes.len() > most {
        return Ok(None);
    }
    let text = String::from_utf8(bytes).map_err(|_| "it is an LZMA stream, but of no text")?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_give_equal_bytes() {
        // Shorter than the window, longer, and none at all.
        let long: String = (0..20_000).map(|line| format!("mov.b32 %r{line}, {};\n", line % 7)).collect();
        assert!(long.len() > 4 * SHORTEST_WINDOW);
        for text in [".version 7.0\n".repeat(1000), String::new(), long] {
            let stream = compress(&text, SHORTEST_WINDOW);
            assert_eq!(stream, compress(&text, SHORTEST_WINDOW));
            assert!(
                decompress(&stream, text.len()).is_ok_and(|found| found.as_ref() == Some(&text)),
                "{} bytes",
                text.len()
            );
        }
    }

    #[test]
    fn a_stream_gives_no_more_bytes_than_are_asked_for() {
        let text = "0123456789".repeat(1000);
        let stream = compress(&text, SHORTEST_WINDOW);
        for most in [0, 1, text.len() - 1] {
            assert_eq!(decompress(&stream, most), Ok(None), "{most}");
        }
        assert_eq!(decompress(&stream, usize::MAX), Ok(Some(text)));
        // A header that states no length, or one that nothing could hold, makes no difference: what is decoded counts.
        let stated = |bytes: u64| [&stream[..5], &bytes.to_le_bytes(), &stream[13..]].concat();
        assert_eq!(decompress(&stated(1 << 60), 5000), Ok(None));
        assert!(decompress(&stated(1 << 60), usize::MAX).is_err());
    }
}
