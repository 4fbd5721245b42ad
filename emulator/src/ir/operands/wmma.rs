//! `wmma.load` and `wmma.store` become ordinary loads and stores, so that every check of those holds for them.

use super::{Draft, Lowering};
use crate::error::ParseError;
use crate::ir::form::Form;
use crate::ir::op::{Op, Strength, WmmaPart};
use crate::ir::program::{Constant, Operand};
use crate::ir::types::Ty;
use crate::syntax::ast::{self, Class, Space};

/// A lane's elements that are moved at once: their address, and the registers.
struct Piece {
    address: Operand,
    values: Vec<Operand>,
}

impl<'a> Lowering<'_, 'a> {
    pub(super) fn wmma_access(
        &mut self,
        text: &ast::Instruction<'a>,
        form: &Form,
        part: WmmaPart,
    ) -> Result<(), ParseError> {
        let mut draft = Draft { guard: self.guard(text)?, ..Draft::new(text) };
        let op = Op::WmmaAddress(part);
        for (specification, operand) in form.operands.split_whitespace().zip(&text.operands) {
            self.operand(&mut draft, op, specification.trim_end_matches('?'), operand)?;
        }
        let first = self.done.len();
        let store = text.modifiers.contains(&"store");
        let mut sources = draft.sources.into_iter();
        // The forms have an address.
        let Some(base) = sources.next() else { return Ok(()) };
        let count =
            usize::from(part.per_lane) * usize::from(part.bytes) / if part.bytes == 8 { 8 } else { 4 };
        let values = if store { sources.by_ref().take(count).collect() } else { draft.destinations };
        let lines = part.total / part.line;
        let stride = match sources.next() {
            Some(stride) => stride,
            None => {
                let stride = if part.across { lines } else { part.line };
                self.constant(Class::Word, Constant::Value(u64::from(stride)))
            }
        };
        let offset = draft.immediates.first().copied().unwrap_or(0);
        let pieces = self.pieces(text, part, [base, stride], offset, values);
        for piece in pieces {
            self.move_piece(text, part, store, piece);
        }
        let guard = draft.guard;
        self.done[first..].iter_mut().for_each(|instruction| instruction.guard = guard);
        Ok(())
    }

    /// The pieces of a lane's elements, none of which reaches beyond a line; their addresses are computed first,
    /// since a load may
    /// overwrite what they come from.
    fn pieces(
        &mut self,
        text: &ast::Instruction<'a>,
        part: WmmaPart,
        [base, stride]: [Operand; 2],
        offset: i64,
        values: Vec<Operand>,
    ) -> Vec<Piece> {
        let place = (text.span.line, text.location);
        let bytes = u16::from(part.bytes);
        let together = if part.across { 1 } else { u16::from(part.per_lane).min(part.line).min(16 / bytes) };
        let address = |first: u16, lowering: &mut Self| {
            let address = Operand::Register(lowering.names.temporary(Class::Double));
            let immediates = [offset, i64::from(first), 0];
            lowering.bare(Op::WmmaAddress(part), vec![address, base, stride], 1, immediates, place);
            address
        };
        let mut pieces = Vec::new();
        // Halves that do not lie side by side are two pieces for one register: the second has none of its own.
        let registers = usize::from((together * bytes).div_ceil(if bytes == 8 { 8 } else { 4 }));
        let mut values = values.into_iter();
        let mut first = 0;
        while first < u16::from(part.per_lane) {
            let own: Vec<Operand> = if part.across && bytes == 2 && first % 2 == 1 {
                Vec::new()
            } else {
                values.by_ref().take(registers).collect()
            };
            pieces.push(Piece { address: address(first, self), values: own });
            first += together;
        }
        pieces
    }

    /// Loads or stores a piece, and with it the one that has the other half of its register.
    fn move_piece(&mut self, text: &ast::Instruction<'a>, part: WmmaPart, store: bool, piece: Piece) {
        let place = (text.span.line, text.location);
        let space = match text.modifiers.iter().find(|m| matches!(**m, "global" | "shared" | "shared::cta")) {
            Some(&"global") => Space::Global,
            Some(_) => Space::Shared,
            None => Space::Generic,
        };
        let strength = Strength::Weak;
        let access = |ty: Ty, address: Operand, values: Vec<Operand>, lowering: &mut Self| {
            let count = values.len() as u8;
            if store {
                let operands = [vec![address], values].concat();
                lowering.bare(Op::Store { space, ty, count, strength }, operands, 0, [0; 3], place);
            } else {
                let operands = [values, vec![address]].concat();
                let op = Op::Load { space, ty, count, strength, constant: false };
                lowering.bare(op, operands, usize::from(count), [0; 3], place);
            }
        };
        let ty = if part.bytes == 8 { Ty::B64 } else { Ty::B32 };
        if !(part.across && part.bytes == 2) {
            access(ty, piece.address, piece.values, self);
            return;
        }
        match piece.values.first() {
            // The lower half comes first; the register waits for the upper one.
            Some(&register) => self.half = Some((piece.address, register)),
            None => {
                let Some((lower, register)) = self.half.take() else { return };
                let halves = [(); 2].map(|()| Operand::Register(self.names.temporary(Class::Half)));
                if store {
                    let operands = vec![halves[0], halves[1], register];
                    self.bare(Op::Unpack(2, Ty::B32), operands, 2, [0; 3], place);
                }
                access(Ty::B16, lower, vec![halves[0]], self);
                access(Ty::B16, piece.address, vec![halves[1]], self);
                if !store {
                    let operands = vec![register, halves[0], halves[1]];
                    self.bare(Op::Pack(2, Ty::B32), operands, 1, [0; 3], place);
                }
            }
        }
    }
}
