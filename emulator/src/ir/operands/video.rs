//! The parts of operands that video instructions select: `%r1.b0`, `%r2.h1`, `%r3.b3210`.

use super::Lowering;
use crate::error::ParseError;
use crate::ir::op::{Op, Video, VideoMerge, VideoSimd};
use crate::syntax::ast::{self, OperandKind};

impl<'a> Lowering<'_, 'a> {
    /// Takes the selections off the operands of a video instruction, and into its operation.
    pub(super) fn video(
        &self,
        text: &ast::Instruction<'a>,
        op: Op,
    ) -> Result<(ast::Instruction<'a>, Op), ParseError> {
        let mut text = text.clone();
        let mut selected = [None; 3];
        for (selected, operand) in selected.iter_mut().zip(&mut text.operands) {
            if let OperandKind::Component(name, part) = operand.kind {
                (*selected, operand.kind) = (Some((part, operand.span)), OperandKind::Name(name));
            }
        }
        let operands = text.operands.len();
        let op = match op {
            Op::Video(mut video) => {
                let mut parts = [(0, 32); 3];
                for (part, selected) in parts.iter_mut().zip(selected) {
                    let Some((name, span)) = selected else { continue };
                    let Some(found) = scalar_part(name) else {
                        return self.error(
                            span,
                            format!("`.{name}` is no part of a word: expected .b0 to .b3, .h0 or .h1"),
                        );
                    };
                    *part = found;
                }
                video.select = [parts[1], parts[2], (0, 32)];
                let mad = matches!(video.kind, crate::ir::op::VideoKind::Mad { .. });
                if selected[0].is_some() {
                    if video.merge != VideoMerge::None || mad {
                        return self.error(text.span, "a second operation takes the whole result");
                    }
                    video.merge = VideoMerge::Insert(parts[0].0, parts[0].1);
                }
                self.count_third(&text, video, mad, operands)?;
                Op::Video(video)
            }
            Op::VideoSimd(mut video) => {
                self.refuse_numbers(&text)?;
                if let Some((name, span)) = selected[0] {
                    let Some(digits) = simd_part(name, video) else {
                        return self.error(span, format!("`.{name}` does not name parts of the result"));
                    };
                    // Each part once, the highest first, as assemblers want them.
                    let rises = digits.is_sorted_by(|low, high| low < high);
                    if digits.iter().any(|&digit| digit >= video.lanes) || digits.is_empty() || !rises {
                        return self.error(span, format!("`.{name}` does not name parts of the result"));
                    }
                    video.mask = digits.iter().fold(0, |mask, digit| mask | 1 << digit);
                }
                let plain = video;
                for (select, selected) in video.select.iter_mut().zip(&selected[1..]) {
                    let Some((name, span)) = *selected else { continue };
                    let digits = simd_part(name, plain).filter(|d| d.len() == usize::from(plain.lanes));
                    let Some(digits) = digits else {
                        let message = format!("`.{name}` does not say a part for each of {}", plain.lanes);
                        return self.error(span, message);
                    };
                    select.iter_mut().zip(digits).for_each(|(to, digit)| *to = digit);
                }
                Op::VideoSimd(video)
            }
            op => op,
        };
        Ok((text, op))
    }

    /// Video instructions on several parts take registers only.
    fn refuse_numbers(&self, text: &ast::Instruction<'a>) -> Result<(), ParseError> {
        let is_number = |operand: &&ast::Operand<'a>| {
            matches!(operand.kind, OperandKind::Integer(_) | OperandKind::Single(_) | OperandKind::Double(_))
        };
        match text.operands.iter().find(is_number) {
            Some(number) => {
                let message =
                    format!("`{}` takes no constants: move the value to a register first", text.opcode);
                self.error(number.span, message)
            }
            None => Ok(()),
        }
    }

    /// The last operand is there where something is done with it.
    fn count_third(
        &self,
        text: &ast::Instruction<'a>,
        video: Video,
        mad: bool,
        operands: usize,
    ) -> Result<(), ParseError> {
        let expected = if video.merge == VideoMerge::None && !mad { 3 } else { 4 };
        if operands == expected {
            return Ok(());
        }
        self.error(text.span, format!("`{}` has {operands} operands, expected {expected}", text.opcode))
    }
}

/// `b0` to `b3`, `h0` and `h1`: the first bit, and how many.
fn scalar_part(name: &str) -> Option<(u8, u8)> {
    let number = name.get(1..)?.parse::<u8>().ok()?;
    match (name.as_bytes()[0], number) {
        (b'b', 0..=3) => Some((8 * number, 8)),
        (b'h', 0..=1) => Some((16 * number, 16)),
        _ => None,
    }
}

/// `h10`, `b7632`: digits, the last belongs to the lowest part. None reaches beyond both operands.
fn simd_part(name: &str, video: VideoSimd) -> Option<Vec<u8>> {
    let letter = if video.lanes == 2 { 'h' } else { 'b' };
    let digits = name.strip_prefix(letter)?;
    let digits = digits.bytes().rev().map(|digit| digit.wrapping_sub(b'0')).collect::<Vec<u8>>();
    digits.iter().all(|&digit| digit < 2 * video.lanes).then_some(digits)
}
