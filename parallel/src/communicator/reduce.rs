//! Reductions over ranks in host memory, in the order of the ranks.

use bytemuck::Pod;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use warpsmith::DType;

use super::call::Reduction;

/// A number that is reduced in a type that may be wider.
trait Reduced: Pod {
    type Wide: Copy;
    fn widen(self) -> Self::Wide;
    fn round(wide: Self::Wide) -> Self;
    fn sum(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn max(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn min(a: Self::Wide, b: Self::Wide) -> Self::Wide;
    /// A sum over the number of ranks.
    fn mean(sum: Self::Wide, ranks: usize) -> Self::Wide;
}

macro_rules! floats {
    ($($type:ty: $wide:ty, $widen:expr, $round:expr;)*) => {
        $(
            impl Reduced for $type {
                type Wide = $wide;
                fn widen(self) -> $wide { ($widen)(self) }
                fn round(wide: $wide) -> Self { ($round)(wide) }
                fn sum(a: $wide, b: $wide) -> $wide { a + b }
                fn max(a: $wide, b: $wide) -> $wide { a.max(b) }
                fn min(a: $wide, b: $wide) -> $wide { a.min(b) }
                fn mean(sum: $wide, ranks: usize) -> $wide { sum / ranks as $wide }
            }
        )*
    };
}
floats! {
    F8E4M3: f32, |x: F8E4M3| x.to_f32(), F8E4M3::from_f32;
    F8E5M2: f32, |x: F8E5M2| x.to_f32(), F8E5M2::from_f32;
    f16: f32, f16::to_f32, f16::from_f32;
    bf16: f32, bf16::to_f32, bf16::from_f32;
    f32: f32, std::convert::identity, std::convert::identity;
    f64: f64, std::convert::identity, std::convert::identity;
}

macro_rules! integers {
    ($($type:ty)*) => {
        $(
            impl Reduced for $type {
                type Wide = Self;
                fn widen(self) -> Self { self }
                fn round(wide: Self) -> Self { wide }
                fn sum(a: Self, b: Self) -> Self { a.wrapping_add(b) }
                fn max(a: Self, b: Self) -> Self { a.max(b) }
                fn min(a: Self, b: Self) -> Self { a.min(b) }
                // Means of integers are refused before.
                fn mean(sum: Self, _: usize) -> Self { sum }
            }
        )*
    };
}
integers! { u8 i32 u32 i64 }

fn reduced<T: Reduced>(reduction: Reduction, parts: &[&[u8]]) -> Vec<u8> {
    let Some((first, others)) = parts.split_first() else { return Vec::new() };
    let mut sums: Vec<T::Wide> = elements::<T>(first).map(T::widen).collect();
    let combine = match reduction {
        Reduction::Sum | Reduction::Mean => T::sum,
        Reduction::Max => T::max,
        Reduction::Min => T::min,
    };
    for part in others {
        for (sum, element) in sums.iter_mut().zip(elements::<T>(part)) {
            *sum = combine(*sum, element.widen());
        }
    }
    let results = sums.into_iter().map(|sum| match reduction {
        Reduction::Mean => T::round(T::mean(sum, parts.len())),
        _ => T::round(sum),
    });
    let results: Vec<T> = results.collect();
    bytemuck::cast_slice(&results).to_vec()
}

fn elements<T: Pod>(bytes: &[u8]) -> impl Iterator<Item = T> + '_ {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned)
}

/// The reduction of equally long parts, one of each rank in their order. Floating-point types of 8 and 16 bits are added up in
/// f32 and rounded once. `None` if the type has no reductions.
pub(crate) fn reduce(dtype: DType, reduction: Reduction, parts: &[&[u8]]) -> Option<Vec<u8>> {
    let reduce = match dtype {
        DType::F8E4M3 => reduced::<F8E4M3>,
        DType::F8E5M2 => reduced::<F8E5M2>,
        DType::F16 => reduced::<f16>,
        DType::Bf16 => reduced::<bf16>,
        DType::F32 => reduced::<f32>,
        DType::F64 => reduced::<f64>,
        DType::U8 => reduced::<u8>,
        DType::I32 => reduced::<i32>,
        DType::U32 => reduced::<u32>,
        DType::I64 => reduced::<i64>,
        _ => return None,
    };
    Some(reduce(reduction, parts))
}

#[cfg(test)]
mod tests {
    use super::{DType, Reduction, reduce};

    fn of<T: bytemuck::Pod>(dtype: DType, reduction: Reduction, parts: &[&[T]]) -> Vec<T> {
        let parts: Vec<&[u8]> = parts.iter().map(|part| bytemuck::cast_slice(part)).collect();
        bytemuck::pod_collect_to_vec(&reduce(dtype, reduction, &parts).expect("it is a number"))
    }

    #[test]
    fn integers_wrap_and_compare_with_their_sign() {
        assert_eq!(of::<u8>(DType::U8, Reduction::Sum, &[&[250], &[10]]), [4]);
        assert_eq!(of::<i64>(DType::I64, Reduction::Max, &[&[-5, i64::MIN], &[-7, 3]]), [-5, 3]);
        assert_eq!(of::<u32>(DType::U32, Reduction::Min, &[&[1 << 31], &[7]]), [7]);
    }

    #[test]
    fn floats_are_added_in_the_order_of_the_ranks() {
        let parts: [&[f32]; 3] = [&[1e8], &[-1e8], &[1.0]];
        assert_eq!(of(DType::F32, Reduction::Sum, &parts), [1.0]);
        let parts: [&[f32]; 3] = [&[1.0], &[1e8], &[-1e8]];
        assert_eq!(of(DType::F32, Reduction::Sum, &parts), [0.0]);
    }

    #[test]
    fn sixteen_bits_are_rounded_once() {
        let part = [half::bf16::from_f32(1.0 / 256.0)];
        let one = [half::bf16::ONE];
        // Rounded after each sum, the small numbers would vanish.
        let sum = of(DType::Bf16, Reduction::Sum, &[&one, &part, &part]);
        assert_eq!(sum, [half::bf16::from_f32(1.0 + 2.0 / 256.0)]);
    }

    #[test]
    fn nan_counts_only_where_all_are() {
        let parts: [&[f64]; 2] = [&[f64::NAN, f64::NAN], &[1.0, f64::NAN]];
        let max = of(DType::F64, Reduction::Max, &parts);
        assert_eq!(max[0], 1.0);
        assert!(max[1].is_nan());
    }
}
