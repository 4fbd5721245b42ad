//! A retrieval in two parts, of which the second runs beside the experts of the first.

use std::ops::Range;

use super::super::Routing;
use super::super::retrieval::{Division, RoutingInput, divided};
use super::{ProductKeyOp, Sizes, is_chunked};
use crate::device::DeviceKind;
use crate::error::Result;
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};

/// A retrieval in two parts.
pub(in crate::ops::peer) struct Parts<'o, 'a, T: RoutingInput> {
    of: &'o ProductKeyOp<'a, T>,
    sizes: Sizes,
    division: Division<T::Device>,
}

impl<'a, T: RoutingInput> Parts<'_, 'a, T> {
    /// The tokens of both parts.
    pub(in crate::ops::peer) fn tokens(&self) -> [Range<usize>; 2] {
        let first = self.division.first;
        [0..first, first..self.sizes.tokens]
    }

    /// Experts of a token.
    pub(in crate::ops::peer) fn experts(&self) -> usize {
        self.of.heads * self.of.k
    }

    /// Microseconds on an H100 that the second part takes beside other work.
    pub(in crate::ops::peer) fn time(&self) -> f64 {
        self.division.time
    }

    /// What both parts read and write, besides what is new.
    pub(in crate::ops::peer) fn operands(&self) -> Vec<&'a dyn Operand> {
        let ProductKeyOp { x, w_q, keys, bias, .. } = *self.of;
        let mut operands: Vec<&dyn Operand> = vec![x, w_q, keys[0], keys[1]];
        operands.extend(bias.map(|bias| bias as &dyn Operand));
        operands.extend(self.of.of_features().into_iter().map(|(_, tensor)| tensor as &dyn Operand));
        operands
    }

    /// Whether `tensor` shares memory with what both parts read.
    pub(in crate::ops::peer) fn shares_memory<U: Element>(&self, tensor: &Tensor<U>) -> bool {
        let ProductKeyOp { x, w_q, keys: [keys_1, keys_2], bias, .. } = *self.of;
        let of_features = self.of.of_features();
        [Some(x), Some(w_q), Some(keys_1), Some(keys_2), bias]
            .into_iter()
            .flatten()
            .any(|other| tensor.shares_memory(other))
            || of_features.iter().any(|(_, other)| tensor.shares_memory(other))
    }

    /// Queries of all tokens, and room for their routing `[T, H, k]`.
    pub(in crate::ops::peer) fn project(&self, stream: &Stream) -> Result<(Tensor<f32>, Routing)> {
        let shape = [self.sizes.tokens, self.of.heads, self.of.k];
        let (ids, gates) = (Tensor::uninit_on(stream, shape)?, Tensor::uninit_on(stream, shape)?);
        let q = self.of.project(stream)?.flatten_leading()?;
        Ok((q, Routing { ids, gates }))
    }

    /// Finds the experts of a part, the second if `is_beside`, whose queries and routing these are.
    pub(in crate::ops::peer) fn find(
        &self,
        is_beside: bool,
        stream: &Stream,
        q: &Tensor<f32>,
        routing: &mut Routing,
    ) -> Result<()> {
        let sizes = Sizes { tokens: q.shape()[0], ..self.sizes };
        if is_beside {
            return self.of.launch(sizes, &self.division.others, stream, q, routing);
        }
        self.of.launch(sizes, &self.of.choice(sizes)?, stream, q, routing)
    }
}

impl<'a, T: RoutingInput> ProductKeyOp<'a, T> {
    /// How this retrieval is done in two parts, of which the second runs beside the experts of the first; none where all is found at a time, or is too much for two
    /// parts, or where operands are copied first.
    pub(in crate::ops::peer) fn parts(&self) -> Result<Option<Parts<'_, 'a, T>>> {
        let sizes = self.check()?;
        let features = self.of_features();
        let is_as_it_is = self.keys.iter().all(|keys| is_chunked(keys))
            && features.iter().all(|(_, tensor)| tensor.is_contiguous());
        if sizes.tokens == 0 || self.x.device().kind() == DeviceKind::Cpu || !is_as_it_is {
            return Ok(None);
        }
        let (rows, heads) = if sizes.per_head { (1, self.heads) } else { (self.heads, 1) };
        let multiprocessors = self.x.device().properties().multiprocessors;
        let division =
            divided(&T::KERNELS, [sizes.tokens, rows, heads, sizes.n], &self.choice(sizes)?, multiprocessors);
        Ok(division.map(|division| Parts { of: self, sizes, division }))
    }
}
