//! The positions of tokens, which only the device knows.

use warpsmith_dsl::attention::cache::{PositionParams, THREADS};
use warpsmith_dsl::launch::Global;
use warpsmith_kernels::kv_cache::kv_cache_positions;

use crate::device::DeviceKind;
use crate::error::Result;
use crate::stream::{Operand, Stream};
use crate::tensor::Tensor;

/// The positions of tokens `[B, S]`, or of packed sequences `[T]`: the position `first` `[B]` of each sequence's first token, or 0, and the token's place in its sequence.
///
/// Packed sequences begin where `offsets` `[B + 1]` say, and so all begin at 0 or at `first`.
pub(crate) fn positions(
    shape: &[usize],
    first: Option<&Tensor<u32>>,
    offsets: Option<&Tensor<u32>>,
    stream: &Stream,
) -> Result<Tensor<u32>> {
    let mut positions = Tensor::uninit_on(stream, shape)?;
    let tokens = positions.len();
    if tokens == 0 {
        return Ok(positions);
    }
    let length = shape.last().copied().unwrap_or(1);
    if stream.device().kind() == DeviceKind::Cpu {
        let first = first.map(Tensor::to_vec).transpose()?;
        let offsets = offsets.map(Tensor::to_vec).transpose()?;
        let all: Vec<u32> =
            (0..tokens).map(|token| position(token, length, first.as_deref(), offsets.as_deref())).collect();
        positions.write_slice(&all)?;
        return Ok(positions);
    }
    let vector = |tensor: Option<&Tensor<u32>>| tensor.map_or(Global::new(0), Tensor::arg);
    let p = PositionParams {
        first: vector(first),
        offsets: vector(offsets),
        positions: positions.arg_mut(),
        tokens: tokens as u32,
        length: length as u32,
        sequences: offsets.map_or(0, |offsets| offsets.len().saturating_sub(1)) as u32,
        reserved: 0,
    };
    let mut used: Vec<&dyn Operand> = vec![&positions];
    used.extend(first.map(|first| first as &dyn Operand));
    used.extend(offsets.map(|offsets| offsets as &dyn Operand));
    let blocks = (tokens as u64).div_ceil(u64::from(THREADS)) as u32;
    stream.with_operands(&used, || {
        // SAFETY: the sizes are those of the tensors, the result is new. Tensors are freed in the order of their home streams, which `with_operands` makes wait
        // for this work.
        unsafe { stream.device().kernel::<kv_cache_positions>()?.launch(stream, [blocks, 1, 1], (p,)) }
    })?;
    Ok(positions)
}

/// As the kernel has it.
fn position(token: usize, length: usize, first: Option<&[u32]>, offsets: Option<&[u32]>) -> u32 {
    let (sequence, place) = match offsets {
        Some(offsets) => {
            let sequences = offsets.len().saturating_sub(1);
            let begun = offsets[..sequences].partition_point(|&offset| offset as usize <= token);
            // Of no sequence: before the first, or behind the last.
            if begun == 0 || offsets[begun] as usize <= token {
                return 0;
            }
            (begun - 1, (token as u32).saturating_sub(offsets[begun - 1]))
        }
        None => (token / length, (token % length) as u32),
    };
    first.map_or(0, |first| first[sequence]).wrapping_add(place)
}

#[cfg(test)]
mod tests {
    use super::positions;
    use crate::{Device, Tensor};

    #[test]
    fn tokens_are_counted_from_the_first_of_their_sequence() {
        for device in ["cpu", "emulator:8.0"] {
            let device: Device = device.parse().expect("a device");
            let stream = device.default_stream();
            let vector = |all: &[u32]| Tensor::from_slice(&device, all, [all.len()]).expect("it fits");
            let of = |shape: &[usize], first: Option<&[u32]>, offsets: Option<&[u32]>| {
                let (first, offsets) = (first.map(vector), offsets.map(vector));
                let all = positions(shape, first.as_ref(), offsets.as_ref(), &stream).expect("it fits");
                all.to_vec().expect("it is there")
            };
            assert_eq!(of(&[2, 3], None, None), [0, 1, 2, 0, 1, 2]);
            assert_eq!(of(&[2, 3], Some(&[7, 0]), None), [7, 8, 9, 0, 1, 2]);
            assert_eq!(of(&[2, 0], Some(&[7, 0]), None), [0; 0]);
            // The second sequence is empty; before the first there is a token of none.
            assert_eq!(of(&[7], None, Some(&[1, 3, 3, 7])), [0, 0, 1, 0, 1, 2, 3]);
            assert_eq!(of(&[5], Some(&[4, 9]), Some(&[0, 2, 5])), [4, 5, 9, 10, 11]);
            // No sequence at all, and tokens behind the last one: none of them counts on.
            assert_eq!(of(&[2], None, Some(&[0])), [0, 0]);
            assert_eq!(of(&[6], Some(&[4, 9]), Some(&[1, 2, 4])), [0, 4, 9, 10, 0, 0]);
            let many: Vec<u32> = (0..401).map(|i| i % 401).collect();
            assert_eq!(of(&[1, 401], None, None), many);
        }
    }
}
