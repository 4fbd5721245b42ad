//! Rotary position embedding of queries and keys, before there are scores.

use super::operands::Operands;
use super::{AttentionInput, AttentionKeys, OPERATION};
use crate::error::{Error, Result};
use crate::ops::Implementation;
use crate::ops::rotary::{self, Pairing, RotaryOp, RotaryTable};
use crate::stream::Stream;
use crate::tensor::Tensor;

/// How queries and keys are turned; see [`AttentionOp::rotary`](super::AttentionOp::rotary).
///
/// Query i and key j of a sequence have the positions i and j, unless this says otherwise. Of packed sequences each begins at 0.
#[derive(Clone, Copy, Debug)]
#[must_use = "a rotation is an option of an attention"]
pub struct Rotary<'a> {
    table: &'a RotaryTable,
    pairing: Pairing,
    /// Of q and of k.
    offsets: [usize; 2],
    positions: [Option<&'a Tensor<u32>>; 2],
    queries_only: bool,
}

impl<'a> Rotary<'a> {
    /// By the angles of `table`, of which the first `rotary_dim` elements of each head have pairs.
    pub fn new(table: &'a RotaryTable) -> Self {
        Self {
            table,
            pairing: Pairing::default(),
            offsets: [0; 2],
            positions: [None; 2],
            queries_only: false,
        }
    }

    /// Which elements are a pair; [`Pairing::Halves`] unless this says otherwise.
    pub fn pairing(self, pairing: Pairing) -> Self {
        Self { pairing, ..self }
    }

    /// The positions of the first query and of the first key of each sequence. Packed sequences have none.
    pub fn offsets(self, q: usize, k: usize) -> Self {
        Self { offsets: [q, k], ..self }
    }

    /// The position of each query `[B, Sq]`, and of each key `[B, Sk]`, in place of its place and the offset; `[Tq]` and `[Tk]` of packed sequences.
    ///
    /// Where the table lacks a position, the elements that would be turned become NaN.
    pub fn positions(
        self,
        q: impl Into<Option<&'a Tensor<u32>>>,
        k: impl Into<Option<&'a Tensor<u32>>>,
    ) -> Self {
        Self { positions: [q.into(), k.into()], ..self }
    }

    /// Keys are turned already, as those of a cache: only queries are.
    pub fn queries_only(self) -> Self {
        Self { queries_only: true, ..self }
    }

    pub(super) fn turns_keys(&self) -> bool {
        !self.queries_only
    }

    /// The tensors that are read.
    pub(super) fn tensors(&self) -> [Option<(&'static str, &'a Tensor<u32>)>; 2] {
        let [q, k] = self.positions;
        [q.map(|q| ("positions_q", q)), k.map(|k| ("positions_k", k))]
    }

    /// The table's angles.
    pub(super) fn angles(&self) -> &'a Tensor<f32> {
        self.table.angles()
    }
}

impl<'a, T: AttentionInput, K: AttentionKeys<T>> Operands<'a, T, K> {
    /// The error for queries or keys that cannot be turned, of so many rows and keys in each sequence.
    pub(super) fn check_rotary(&self) -> Result<()> {
        let Some(rotary) = self.rotary else { return Ok(()) };
        let turned = rotary.table.rotary_dim();
        if self.q.shape().last().is_some_and(|&width| width < turned) {
            return Err(Error::Shape {
                operation: OPERATION,
                operand: "q",
                expected: format!("heads of at least {turned} elements, which the rotary table turns"),
                actual: self.q.shape().to_vec(),
            });
        }
        let refused = |argument, expected: String, actual: String| {
            Err(Error::Argument { operation: OPERATION, argument, expected, actual })
        };
        let why_not = match (K::native(self.k), self.pages) {
            (None, _) => Some(format!("k is {}", K::DTYPE)),
            (_, Some(_)) => Some("keys are in pages".to_owned()),
            _ => None,
        };
        if let Some(why) = why_not.filter(|_| !rotary.queries_only) {
            return refused("rotary", format!("one of queries only, since {why}"), "one of keys, too".into());
        }
        let sides = [("q", self.q.shape()), ("k", self.k.shape())];
        for (side, (name, shape)) in
            sides.into_iter().enumerate().take(if rotary.queries_only { 1 } else { 2 })
        {
            let tokens = &shape[..shape.len() - 2];
            let (offset, known) = (rotary.offsets[side], rotary.table.positions());
            let [argument, operand] = [["offset_q", "positions_q"], ["offset_k", "positions_k"]][side];
            match rotary.positions[side] {
                Some(positions) => {
                    if positions.shape() != tokens {
                        return Err(Error::Shape {
                            operation: OPERATION,
                            operand,
                            expected: format!("{tokens:?}, as {name} gives"),
                            actual: positions.shape().to_vec(),
                        });
                    }
                }
                None if self.packing.is_some() => {
                    if offset != 0 {
                        return refused(argument, "0 with packed sequences".into(), offset.to_string());
                    }
                }
                None => {
                    let length = tokens.last().copied().unwrap_or(0);
                    if !positions_are_known(shape, offset, known) {
                        let expected =
                            format!("so that {length} positions are within the rotary table's {known}");
                        return refused(argument, expected, offset.to_string());
                    }
                }
            }
        }
        Ok(())
    }

    /// Queries and keys, turned where they are to be.
    pub(super) fn turned(&self, rotary: &Rotary<'a>, stream: &Stream) -> Result<(Tensor<T>, Tensor<K>)> {
        let positions = self.rotary_positions(rotary, stream)?;
        let q = rotary.of(self.q, 0, &positions[0]).on(stream).run()?;
        let k = match K::native(self.k).filter(|_| !rotary.queries_only) {
            Some(k) => K::of_native(rotary.of(k, 1, &positions[1]).on(stream).run()?),
            None => None,
        };
        Ok((q, k.unwrap_or_else(|| self.k.clone())))
    }

    /// Turns gradients of queries and of keys back, those of what has been turned.
    pub(super) fn turn_back(
        &self,
        rotary: &Rotary<'a>,
        gradients: [Option<&mut Tensor<T>>; 2],
        stream: &Stream,
    ) -> Result<()> {
        let positions = self.rotary_positions(rotary, stream)?;
        for (side, gradient) in gradients.into_iter().enumerate().take(1 + usize::from(rotary.turns_keys())) {
            if let Some(gradient) = gradient {
                let from = gradient.clone();
                rotary.of(&from, side, &positions[side]).backward().on(stream).run_into(gradient)?;
            }
        }
        Ok(())
    }

    /// Positions of packed sequences that were not given.
    fn rotary_positions(&self, rotary: &Rotary<'a>, stream: &Stream) -> Result<[Option<Tensor<u32>>; 2]> {
        let Some(packing) = self.packing else { return Ok([None, None]) };
        let of = |side: usize, shape: &[usize], offsets: &Tensor<u32>| {
            let is_needed = rotary.positions[side].is_none() && !(side == 1 && rotary.queries_only);
            is_needed
                .then(|| rotary::positions(&shape[..shape.len() - 2], None, Some(offsets), stream))
                .transpose()
        };
        Ok([of(0, self.q.shape(), packing.q)?, of(1, self.k.shape(), packing.k)?])
    }

    /// What turns queries and keys, without positions that are yet to be made.
    pub(super) fn rotary_implementation(&self, rotary: &Rotary<'a>) -> Result<Implementation> {
        let q = rotary.of(self.q, 0, &None).implementation()?;
        match K::native(self.k).filter(|_| !rotary.queries_only) {
            Some(k) => Ok(q.then(rotary.of(k, 1, &None).implementation()?)),
            None => Ok(q),
        }
    }
}

impl<'a> Rotary<'a> {
    /// The rotation of queries or keys, with these positions if none are given.
    fn of<'x, T: AttentionInput>(
        &self,
        x: &'x Tensor<T>,
        side: usize,
        own: &'x Option<Tensor<u32>>,
    ) -> RotaryOp<'x, T>
    where
        'a: 'x,
    {
        let operation = rotary::rotary(x, self.table).pairing(self.pairing).offset(self.offsets[side]);
        match self.positions[side].or(own.as_ref()) {
            Some(positions) => operation.positions(positions),
            None => operation,
        }
    }
}

/// Whether a table of so many positions has those of tokens that begin at `offset`.
fn positions_are_known(shape: &[usize], offset: usize, known: usize) -> bool {
    let tokens = &shape[..shape.len() - 2];
    tokens.contains(&0) || offset.saturating_add(tokens.last().copied().unwrap_or(0)) <= known
}
