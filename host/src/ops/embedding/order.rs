//! Tokens in the order of their ids, and where each different id begins.

use warpsmith_dsl::embedding::order::{DIGIT_BITS, DIGITS, DistinctParams, PassParams, TILE, pitch};
use warpsmith_dsl::launch::Global;
use warpsmith_kernels::embedding::{embedding_count, embedding_distinct, embedding_order, embedding_sums};

use super::{EmbeddingId, ids_arg};
use crate::error::Result;
use crate::stream::{Operand, Stream};
use crate::tensor::Tensor;

/// Ids in ascending order, and the tokens that have them.
pub(in crate::ops) struct Order {
    pub(super) keys: Tensor<u32>,
    pub(super) tokens: Tensor<u32>,
}

impl Order {
    fn new(stream: &Stream, count: usize) -> Result<Self> {
        Ok(Self { keys: Tensor::uninit_on(stream, [count])?, tokens: Tensor::uninit_on(stream, [count])? })
    }

    fn tiles(&self) -> u32 {
        (self.keys.len() as u32).div_ceil(TILE)
    }

    /// The order of the ids, of which there are some, of a table of `vocabulary` rows. Those that are out of range come last.
    pub(in crate::ops) fn of<I: EmbeddingId>(
        ids: &Tensor<I>,
        vocabulary: usize,
        stream: &Stream,
    ) -> Result<Self> {
        let (device, count) = (stream.device(), ids.len());
        let ids = ids.contiguous_on(stream)?;
        let (mut sorted, mut other) = (Self::new(stream, count)?, Self::new(stream, count)?);
        let tiles = sorted.tiles();
        // Of each tile, and of all.
        let of_tiles = DIGITS as usize * pitch(tiles) as usize;
        let mut counts = Tensor::<u32>::uninit_on(stream, [of_tiles + DIGITS as usize])?;
        // An id out of range becomes that of the row behind the last.
        let bits = u32::BITS - (vocabulary as u32).leading_zeros();
        for pass in 0..bits.div_ceil(DIGIT_BITS) {
            std::mem::swap(&mut sorted, &mut other);
            let is_first = pass == 0;
            let params = PassParams {
                ids: ids_arg(&ids, vocabulary),
                keys: if is_first { Global::new(0) } else { other.keys.arg() },
                tokens: if is_first { Global::new(0) } else { other.tokens.arg() },
                sorted_keys: sorted.keys.arg_mut(),
                sorted_tokens: sorted.tokens.arg_mut(),
                counts: counts.arg_mut(),
                count: count as u32,
                tiles,
                shift: pass * DIGIT_BITS,
                reserved: 0,
            };
            let operands: [&dyn Operand; 6] =
                [&ids, &other.keys, &other.tokens, &sorted.keys, &sorted.tokens, &counts];
            let totals = params.counts.offset(of_tiles as u64);
            // SAFETY: the sizes are those of the tensors, which are new but for the ids; a pass reads what the one before has written. Tensors are freed in the
            // order of their home streams, which `with_operands` makes wait for this work.
            stream.with_operands(&operands, || unsafe {
                let grid = [tiles, 1, 1];
                device.kernel::<embedding_count>()?.launch(stream, grid, (params,))?;
                let sums = device.kernel::<embedding_sums>()?;
                sums.launch(stream, [DIGITS, 1, 1], (params.counts, totals, tiles))?;
                device.kernel::<embedding_order>()?.launch(stream, grid, (params,))
            })?;
        }
        Ok(sorted)
    }

    /// Writes the different ids, which are less than `vocabulary`, to `ids` and how many there are to `count`. The result is where each of them begins, and behind the last where that ends.
    /// `ids` has room for as many as there can be, and both are without gaps.
    pub(in crate::ops) fn distinct(
        &self,
        vocabulary: usize,
        stream: &Stream,
        ids: &mut Tensor<u32>,
        count: &mut Tensor<u32>,
    ) -> Result<Tensor<u32>> {
        let (device, tiles) = (stream.device(), self.tiles());
        let mut counts = Tensor::<u32>::uninit_on(stream, [tiles as usize])?;
        let mut starts = Tensor::<u32>::uninit_on(stream, [ids.len() + 1])?;
        let params = DistinctParams {
            keys: self.keys.arg(),
            counts: counts.arg_mut(),
            distinct: ids.arg_mut(),
            starts: starts.arg_mut(),
            count: self.keys.len() as u32,
            limit: vocabulary as u32,
            room: ids.len() as u32,
            reserved: 0,
        };
        let total = count.arg_mut();
        // SAFETY: the sizes are those of the tensors, of which these are new and the results share no memory with anything. There are no more different ids than tokens, nor
        // than rows of the table. As above for when they are freed.
        stream.with_operands(&[&self.keys, &counts, &starts, &*ids, &*count], || unsafe {
            device.kernel::<embedding_distinct<false>>()?.launch(stream, [tiles, 1, 1], (params,))?;
            device.kernel::<embedding_sums>()?.launch(stream, [1, 1, 1], (params.counts, total, tiles))?;
            device.kernel::<embedding_distinct<true>>()?.launch(stream, [tiles, 1, 1], (params,))
        })?;
        Ok(starts)
    }
}
