//! Copies of two matrices in one launch, for a product both of whose operands are copied.

use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_kernels::repack::{RepackParams, Word2, Word4, Word8, repack_pair};

use super::{CHUNK_BYTES, Launch, Nest, Source, axes, check, padded, repack};
use crate::device::{Device, DeviceKind};
use crate::error::Result;
use crate::ops::SIDE_LIMIT;
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Tensor};

/// The copies of two matrices, as [`repack`] makes them: in one launch if both are a matrix of contiguous rows each.
pub(crate) fn repack_both<T: Element>(x: [&Tensor<T>; 2], stream: &Stream) -> Result<[Tensor<T>; 2]> {
    let [first, second] = x;
    let device = first.device();
    for x in x {
        check(x)?;
    }
    let pair = if device.kind() == DeviceKind::Cpu || x.iter().any(|x| x.is_empty()) {
        None
    } else {
        Pair::of(first, second)?
    };
    let Some(pair) = pair else {
        return Ok([repack(first).on(stream).run()?, repack(second).on(stream).run()?]);
    };
    let copy = |x: &Tensor<T>| -> Result<Tensor<T>> {
        let columns = x.shape()[x.rank() - 1];
        Tensor::uninit_on(stream, padded(x))?.slice(x.rank() - 1, 0..columns)
    };
    let mut copies = [copy(first)?, copy(second)?];
    let targets = copies.each_mut().map(|copy| copy.arg_mut().address());
    let operands: [&dyn Operand; 4] = [first, second, &copies[0], &copies[1]];
    stream.with_operands(&operands, || {
        // SAFETY: the launch was made for these tensors; the copies are new. Tensors are freed in the order of their home streams, which
        // `with_operands` makes wait for this work.
        unsafe { pair.run(device, stream, x.map(|x| x.arg().address()), targets) }
    })?;
    Ok(copies)
}

/// A launch for two matrices.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// The bytes of the words that both are read in.
    word: u64,
    params: [RepackParams; 2],
    blocks: u32,
}

impl Pair {
    /// The launch for two tensors, if each is a matrix of contiguous rows.
    fn of<T: Element>(first: &Tensor<T>, second: &Tensor<T>) -> Result<Option<Self>> {
        let parts = |x: &Tensor<T>| -> Result<Option<Source>> {
            let columns = x.shape()[x.rank() - 1];
            let pitch = columns.next_multiple_of(CHUNK_BYTES / size_of::<T>());
            let nest = Nest::of(&axes(x.shape(), x.strides(), pitch as u64));
            // Refuses what is too large.
            Launch::all(x)?;
            let is_matrix = nest.batch.length == 1 && nest.outer.is_empty();
            Ok(is_matrix.then(|| Source::of(x, &nest)))
        };
        let (Some(first), Some(second)) = (parts(first)?, parts(second)?) else { return Ok(None) };
        let (Some(of_first), Some(of_second)) = (first.word(), second.word()) else { return Ok(None) };
        let word = of_first.min(of_second);
        let launches = [first, second].map(|source| source.launch_rows(word));
        let blocks = launches.iter().map(Launch::blocks).sum::<u64>();
        let blocks = u32::try_from(blocks).ok().filter(|&blocks| u64::from(blocks) < SIDE_LIMIT);
        let params = launches.map(|launch| launch.params);
        Ok(blocks.filter(|_| word > 1).map(|blocks| Self { word, params, blocks }))
    }

    /// Launches the kernel for sources and copies at these addresses.
    ///
    /// # Safety
    ///
    /// They are those of the tensors that the launch was made for; the copies overlap nothing.
    unsafe fn run(
        &self,
        device: &Device,
        stream: &Stream,
        sources: [u64; 2],
        targets: [u64; 2],
    ) -> Result<()> {
        // SAFETY: the caller's promise is the kernels'.
        unsafe {
            match self.word {
                8 => self.launch::<repack_pair<Word8>>(device, stream, sources, targets),
                4 => self.launch::<repack_pair<Word4>>(device, stream, sources, targets),
                _ => self.launch::<repack_pair<Word2>>(device, stream, sources, targets),
            }
        }
    }

    /// # Safety
    ///
    /// As [`run`](Self::run), for the kernel of the words' size.
    unsafe fn launch<K: Kernel<Args = PairArgs>>(
        &self,
        device: &Device,
        stream: &Stream,
        sources: [u64; 2],
        targets: [u64; 2],
    ) -> Result<()> {
        let [first, second] = sources.map(Global::new);
        let [first_copy, second_copy] = targets.map(GlobalMut::new);
        let args = (first, first_copy, second, second_copy, self.params[0], self.params[1]);
        // SAFETY: the caller's promise.
        unsafe { device.kernel::<K>()?.launch(stream, [self.blocks, 1, 1], args) }
    }
}

/// The arguments of a kernel that copies two matrices.
type PairArgs = (Global<u8>, GlobalMut<u8>, Global<u8>, GlobalMut<u8>, RepackParams, RepackParams);

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::Pair;
    use crate::{Device, Tensor};

    #[test]
    fn two_matrices_of_rows_share_a_launch_in_the_smaller_one_s_words() {
        let device = Device::emulator();
        let matrix = |rows: usize, columns: usize| Tensor::<bf16>::zeros(&device, [rows, columns]).unwrap();
        let (odd, even) = (matrix(127, 127), matrix(60, 62));
        let pair = |first: &Tensor<bf16>, second: &Tensor<bf16>| Pair::of(first, second).unwrap();
        let of = |first: &Tensor<bf16>, second: &Tensor<bf16>| {
            pair(first, second).map(|pair| (pair.word, pair.params.map(|of| of.columns)))
        };
        assert_eq!(of(&odd, &odd), Some((2, [127, 127])));
        assert_eq!(of(&odd, &even), Some((2, [127, 62])), "columns are counted in the words of both");
        assert_eq!(of(&even, &even), Some((4, [31, 31])));
        let blocks = |first: &Tensor<bf16>, second: &Tensor<bf16>| pair(first, second).unwrap().blocks;
        assert_eq!(
            blocks(&odd, &even) + blocks(&even, &odd),
            blocks(&odd, &odd) + pair(&even, &even).unwrap().blocks
        );
        // Others have launches of their own.
        let turned = odd.swap_axes(0, 1).unwrap();
        assert!(of(&odd, &turned).is_none());
        let wide = Tensor::<bf16>::zeros(&device, [4, 8, 9]).unwrap();
        let gaps = wide.slice(1, 0..7).unwrap();
        assert!(of(&gaps, &odd).is_none(), "a batch with gaps");
        let bytes = Tensor::<u8>::zeros(&device, [3, 5]).unwrap();
        assert!(Pair::of(&bytes, &bytes).unwrap().is_none(), "bytes");
    }
}
