//! The formats of C's `printf`, as far as device code has them.

use std::fmt::Write as _;

/// A part of a format: text, or a conversion.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Part<'f> {
    Text(&'f str),
    Conversion(Conversion),
}

/// What an argument is, as it is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    Word,
    Double,
    /// The address of a text.
    Text,
}

impl Argument {
    /// The bytes that it takes, and its alignment.
    pub(crate) fn bytes(self) -> u64 {
        if self == Self::Word { 4 } else { 8 }
    }
}

/// `%-08.3f` and its kin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Conversion {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zeros: bool,
    width: Size,
    precision: Size,
    /// Bytes of an integer.
    bytes: u8,
    kind: u8,
}

/// A width or a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    None,
    Of(usize),
    /// An argument says it.
    Asked,
}

/// Widths and precisions are bounded, so that a text stays in proportion to its format.
const MAX_SIZE: usize = 4096;

/// The parts of a format. What is no conversion stands for itself.
pub(crate) fn parts(format: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        let (text, tail) = rest.split_at(at);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        match conversion(tail) {
            Some((part, length)) => {
                parts.push(part);
                rest = &tail[length..];
            }
            None => {
                parts.push(Part::Text(&tail[..1]));
                rest = &tail[1..];
            }
        }
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
    }
    parts
}

/// The conversion that a text begins with, and its length.
fn conversion(text: &str) -> Option<(Part<'_>, usize)> {
    let bytes = text.as_bytes();
    let mut at = 1;
    let mut found = Conversion {
        left: false,
        plus: false,
        space: false,
        alternate: false,
        zeros: false,
        width: Size::None,
        precision: Size::None,
        bytes: 4,
        kind: 0,
    };
    while let Some(flag) = bytes.get(at) {
        match flag {
            b'-' => found.left = true,
            b'+' => found.plus = true,
            b' ' => found.space = true,
            b'#' => found.alternate = true,
            b'0' => found.zeros = true,
            _ => break,
        }
        at += 1;
    }
    let size = |at: &mut usize| {
        if bytes.get(*at) == Some(&b'*') {
            *at += 1;
            return Size::Asked;
        }
        let start = *at;
        while bytes.get(*at).is_some_and(u8::is_ascii_digit) {
            *at += 1;
        }
        match text[start..*at].parse::<usize>() {
            Ok(size) => Size::Of(size.min(MAX_SIZE)),
            Err(_) => Size::None,
        }
    };
    found.width = size(&mut at);
    if bytes.get(at) == Some(&b'.') {
        at += 1;
        found.precision = match size(&mut at) {
            Size::None => Size::Of(0),
            size => size,
        };
    }
    while let Some(length) = bytes.get(at) {
        match length {
            b'h' => found.bytes = if found.bytes == 2 { 1 } else { 2 },
            b'l' | b'j' | b'z' | b't' | b'q' => found.bytes = 8,
            b'L' => {}
            _ => break,
        }
        at += 1;
    }
    found.kind = *bytes.get(at)?;
    match found.kind {
        b'%' => Some((Part::Text("%"), at + 1)),
        b'd' | b'i' | b'u' | b'o' | b'x' | b'X' | b'c' | b's' | b'p' | b'f' | b'F' | b'e' | b'E' | b'g'
        | b'G' | b'a' | b'A' => Some((Part::Conversion(found), at + 1)),
        _ => None,
    }
}

impl Part<'_> {
    /// What it takes, in order: width and precision where they are asked for, then the value.
    pub(crate) fn arguments(&self) -> Vec<Argument> {
        let Self::Conversion(c) = self else { return Vec::new() };
        let asked = [c.width, c.precision].into_iter().filter(|size| *size == Size::Asked);
        let value = match c.kind {
            b's' => Argument::Text,
            b'c' => Argument::Word,
            b'd' | b'i' | b'u' | b'o' | b'x' | b'X' if c.bytes < 8 => Argument::Word,
            _ => Argument::Double,
        };
        asked.map(|_| Argument::Word).chain([value]).collect()
    }

    /// Writes it; `values` belong to [`Self::arguments`], `text` is what a `%s` names.
    pub(crate) fn write(&self, values: &[u64], text: &str, out: &mut String) {
        let c = match self {
            Self::Text(text) => return out.push_str(text),
            Self::Conversion(conversion) => *conversion,
        };
        let mut values = values.iter().copied();
        let mut size = |size| match size {
            Size::Asked => Size::Of(values.next().unwrap_or(0) as u32 as usize),
            size => size,
        };
        let (mut width, mut precision) = (size(c.width), size(c.precision));
        let mut left = c.left;
        // A width below zero is one with `-`, a precision below zero none.
        if let (Size::Of(given), Size::Asked) = (width, c.width) {
            let given = given as u32 as i32;
            left |= given < 0;
            width = Size::Of((given.unsigned_abs() as usize).min(MAX_SIZE));
        }
        if let (Size::Of(given), Size::Asked) = (precision, c.precision) {
            let given = given as u32 as i32;
            precision = if given < 0 { Size::None } else { Size::Of((given as usize).min(MAX_SIZE)) };
        }
        let precision = if let Size::Of(precision) = precision { Some(precision) } else { None };
        let value = values.next().unwrap_or(0);
        let (sign, digits, numeric) = c.convert(value, text, precision);
        let width = if let Size::Of(width) = width { width } else { 0 };
        let missing = width.saturating_sub(sign.len() + digits.chars().count());
        let integer = matches!(c.kind, b'd' | b'i' | b'u' | b'o' | b'x' | b'X');
        let zeros = c.zeros && !left && numeric && !(integer && precision.is_some());
        match (left, zeros) {
            (true, _) => drop(write!(out, "{sign}{digits}{}", " ".repeat(missing))),
            (_, true) => drop(write!(out, "{sign}{}{digits}", "0".repeat(missing))),
            _ => drop(write!(out, "{}{sign}{digits}", " ".repeat(missing))),
        }
    }
}

impl Conversion {
    /// Sign or prefix, the rest, and whether zeros may stand between.
    fn convert(self, value: u64, text: &str, precision: Option<usize>) -> (&'static str, String, bool) {
        let bits = u32::from(self.bytes) * 8;
        let unsigned = if bits == 64 { value } else { value & ((1 << bits) - 1) };
        let positive = if self.plus {
            "+"
        } else if self.space {
            " "
        } else {
            ""
        };
        let padded = |digits: String| match precision {
            Some(0) if digits == "0" => String::new(),
            Some(count) => format!("{}{digits}", "0".repeat(count.saturating_sub(digits.len()))),
            None => digits,
        };
        match self.kind {
            b'd' | b'i' => {
                let value = (unsigned << (64 - bits)).cast_signed() >> (64 - bits);
                let sign = if value < 0 { "-" } else { positive };
                (sign, padded(value.unsigned_abs().to_string()), true)
            }
            b'u' => ("", padded(unsigned.to_string()), true),
            b'o' => (
                if self.alternate && unsigned != 0 { "0" } else { "" },
                padded(format!("{unsigned:o}")),
                true,
            ),
            b'x' => (
                if self.alternate && unsigned != 0 { "0x" } else { "" },
                padded(format!("{unsigned:x}")),
                true,
            ),
            b'X' => (
                if self.alternate && unsigned != 0 { "0X" } else { "" },
                padded(format!("{unsigned:X}")),
                true,
            ),
            b'p' => ("0x", format!("{value:x}"), false),
            b'c' => ("", char::from(value as u8).to_string(), false),
            b's' => ("", text.chars().take(precision.unwrap_or(usize::MAX)).collect(), false),
            _ => {
                let value = f64::from_bits(value);
                let sign = if value.is_sign_negative() { "-" } else { positive };
                let digits = match value.abs() {
                    value if value.is_nan() => "nan".to_owned(),
                    value if value.is_infinite() => "inf".to_owned(),
                    value => self.float(value, precision),
                };
                let digits = if self.kind.is_ascii_uppercase() { digits.to_uppercase() } else { digits };
                (sign, digits, value.is_finite())
            }
        }
    }

    /// The digits of a finite number that is not negative.
    fn float(self, value: f64, precision: Option<usize>) -> String {
        let digits = precision.unwrap_or(6);
        match self.kind.to_ascii_lowercase() {
            b'f' => {
                let text = format!("{value:.digits$}");
                if self.alternate && digits == 0 { text + "." } else { text }
            }
            b'e' => exponential(value, digits),
            b'a' => hexadecimal(value, precision),
            _ => {
                let digits = digits.max(1);
                // The exponent after rounding to so many digits.
                let rounded = format!("{value:.*e}", digits - 1);
                let exponent = rounded.rsplit('e').next().and_then(|e| e.parse::<i32>().ok()).unwrap_or(0);
                let (mantissa, tail) = if exponent < -4 || exponent >= digits as i32 {
                    let text = exponential(value, digits - 1);
                    let at = text.find('e').unwrap_or(text.len());
                    (text[..at].to_owned(), text[at..].to_owned())
                } else {
                    let behind = (digits as i32 - 1 - exponent).max(0) as usize;
                    (format!("{value:.behind$}"), String::new())
                };
                if self.alternate || !mantissa.contains('.') {
                    return mantissa + &tail;
                }
                mantissa.trim_end_matches('0').trim_end_matches('.').to_owned() + &tail
            }
        }
    }
}

/// `1.5e+00`: the exponent has a sign and at least two digits.
fn exponential(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(exponent) => ('-', exponent),
        None => ('+', exponent),
    };
    format!("{mantissa}e{sign}{exponent:0>2}")
}

/// `0x1.8p+0`.
fn hexadecimal(value: f64, precision: Option<usize>) -> String {
    let bits = value.to_bits();
    let (mut exponent, fraction) = ((bits >> 52) as i32, bits & ((1 << 52) - 1));
    let mut whole = u64::from(exponent != 0) << 52 | fraction;
    exponent = if value == 0.0 { 0 } else { exponent.max(1) - 1023 };
    if let Some(digits) = precision.filter(|&digits| digits < 13) {
        let cut = 52 - 4 * digits as u32;
        let (half, rest) = (1u64 << (cut - 1), whole & ((1 << cut) - 1));
        whole >>= cut;
        whole += u64::from(rest > half || (rest == half && whole & 1 == 1));
        whole <<= cut;
    }
    let digits = format!("{:013x}", whole & ((1 << 52) - 1));
    let digits = match precision {
        Some(count) => format!("{digits:0<count$}")[..count].to_owned(),
        None => digits.trim_end_matches('0').to_owned(),
    };
    let point = if digits.is_empty() { "" } else { "." };
    format!("0x{}{point}{digits}p{exponent:+}", whole >> 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(format: &str, values: &[u64], text: &str) -> String {
        let mut out = String::new();
        let mut values = values.iter().copied();
        for part in parts(format) {
            let taken: Vec<u64> = part.arguments().iter().filter_map(|_| values.next()).collect();
            part.write(&taken, text, &mut out);
        }
        out
    }

    #[test]
    fn integers_and_texts_are_written_as_in_c() {
        let minus = u64::from((-5i32).cast_unsigned());
        assert_eq!(format("%d|%5d|%-5d|%05d|%+d", &[minus, 7, 7, minus, 7], ""), "-5|    7|7    |-0005|+7");
        assert_eq!(
            format("%u %x %X %#x %o %#o", &[minus, 255, 255, 255, 8, 8], ""),
            "4294967291 ff FF 0xff 10 010"
        );
        assert_eq!(format("%lld %hhd %hu %.3d %%", &[u64::MAX, 0x1ff, 0x1_0002, 5], ""), "-1 -1 2 005 %");
        assert_eq!(format("%s|%5.2s|%-4c|%p", &[0, 0, 65, 0xabc], "wxyz"), "wxyz|   wx|A   |0xabc");
        assert_eq!(
            format("%*d|%.*f", &[u64::from((-4i32).cast_unsigned()), 3, 2, 1.005f64.to_bits()], ""),
            "3   |1.00"
        );
        assert_eq!(format("50%; %y %", &[], ""), "50%; %y %");
    }

    #[test]
    fn floats_are_written_as_in_c() {
        let of = |text: &str, value: f64| format(text, &[value.to_bits()], "");
        assert_eq!(of("%f", 1.5), "1.500000");
        assert_eq!(of("%8.2f|", -2.345), "   -2.35|");
        assert_eq!(of("%08.2f|", -2.345), "-0002.35|");
        assert_eq!(of("%e", 12345.678), "1.234568e+04");
        assert_eq!(of("%.0e", 1e-10), "1e-10");
        assert_eq!(of("%g", 0.0001), "0.0001");
        assert_eq!(of("%g", 0.00001), "1e-05");
        assert_eq!(of("%g", 123456.0), "123456");
        assert_eq!(of("%g", 1234567.0), "1.23457e+06");
        assert_eq!(of("%G", f64::INFINITY), "INF");
        assert_eq!(of("%05f|", f64::NEG_INFINITY), " -inf|");
        assert_eq!(of("%a", 1.5), "0x1.8p+0");
        assert_eq!(of("%.1a", 0.1), "0x1.ap-4");
        assert_eq!(of("%a", 0.0), "0x0p+0");
    }
}
