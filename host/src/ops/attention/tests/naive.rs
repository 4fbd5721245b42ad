//! Attention as its definition says, in f64 with all scores at once, and cases that compare the operation with it.

use ndarray::{Array2, Array3, Array4, ArrayD, Axis, Ix3, Ix4, s};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::device::DeviceKind;
use crate::ops::attention::{Alignment, AttentionInput, AttentionKeys, Way};
use crate::weights::FloatElement;
use crate::{Device, Element, Tensor, ops};

/// A case: everything but the elements, which the seed decides.
#[derive(Clone, Debug)]
pub(super) struct Drawn {
    pub(super) batch: usize,
    pub(super) rows: usize,
    pub(super) keys: usize,
    pub(super) key_heads: usize,
    /// Heads of q for each of k.
    pub(super) group: usize,
    pub(super) width: usize,
    pub(super) value_width: usize,
    pub(super) window: Option<(Option<u32>, Option<u32>, Alignment)>,
    /// Packed; mask; bias; blocks; slopes, of sequences; soft cap; sinks; lengths.
    pub(super) switches: [bool; 9],
    /// How q, k, v and y are in memory.
    pub(super) layout: u8,
    /// Scales of k and of v, of all heads or of each, where k and v are of 8 bits.
    pub(super) scales: [Option<bool>; 2],
    /// Keys of a page of k and v, which have pages if it is not 0.
    pub(super) page_size: usize,
    pub(super) seed: u64,
}

/// A sequence of numbers that the seed decides.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 ^ self.0 >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 24
    }

    fn below(&mut self, limit: usize) -> usize {
        self.next() as usize % limit.max(1)
    }

    /// From [−1, 1).
    fn uniform(&mut self) -> f64 {
        (self.next() % (1 << 20)) as f64 / f64::from(1 << 19) - 1.0
    }

    fn rounded<T: FloatElement>(&mut self, shape: [usize; 4], size: f64) -> Array4<T> {
        Array4::from_shape_fn(shape, |_| T::round(self.uniform() * size))
    }

    /// A length for each axis: that of `full`, or 1.
    fn broadcast(&mut self, full: [usize; 4]) -> [usize; 4] {
        full.map(|length| if self.below(3) == 0 { 1 } else { length })
    }
}

/// A tensor of these elements with the layout `layout`: without gaps, heads before rows, in wider rows, or among other heads.
fn placed<T: Element>(device: &Device, elements: &Array4<T>, layout: u8, filler: T) -> Tensor<T> {
    let (batch, rows, heads, width) = elements.dim();
    let view = match layout {
        0 => Tensor::from_array(device, elements),
        1 => Tensor::from_array(device, &elements.view().permuted_axes([0, 2, 1, 3]))
            .and_then(|tensor| tensor.swap_axes(1, 2)),
        2 => {
            let mut wide = Array4::from_elem((batch, rows, heads, width + 3), filler);
            wide.slice_mut(s![.., .., .., 2..width + 2]).assign(elements);
            Tensor::from_array(device, &wide).and_then(|tensor| tensor.slice(3, 2..width + 2))
        }
        _ => {
            let mut wide = Array4::from_elem((batch, rows + 1, heads + 2, width), filler);
            wide.slice_mut(s![.., 1.., 1..=heads, ..]).assign(elements);
            Tensor::from_array(device, &wide)
                .and_then(|tensor| tensor.slice(1, 1..rows + 1)?.slice(2, 1..heads + 1))
        }
    };
    view.expect("it fits")
}

/// Pages in a random order, some of them of no sequence, and how many of each sequence's hold keys.
struct Paged {
    size: usize,
    pages: usize,
    table: Array2<u32>,
    used: Vec<usize>,
}

impl Paged {
    fn new(numbers: &mut Numbers, size: usize, lengths: &[usize], keys: usize) -> Self {
        let (batch, columns) = (lengths.len(), keys / size);
        let pages = batch * columns + 2;
        let mut order: Vec<u32> = (0..pages as u32).collect();
        for last in (1..pages).rev() {
            order.swap(last, numbers.below(last + 1));
        }
        let table = Array2::from_shape_fn((batch, columns), |(b, column)| order[b * columns + column]);
        Self { size, pages, table, used: lengths.iter().map(|length| length.div_ceil(size)).collect() }
    }

    /// The keys or values of each sequence in their pages, and `filler` in the others.
    fn place<T: Copy>(&self, elements: &Array4<T>, filler: T) -> Array4<T> {
        let (_, _, heads, width) = elements.dim();
        let mut pages = Array4::from_elem((self.pages, self.size, heads, width), filler);
        for ((b, column), &page) in self.table.indexed_iter() {
            if column < self.used[b] {
                let keys = column * self.size..(column + 1) * self.size;
                pages.slice_mut(s![page as usize, .., .., ..]).assign(&elements.slice(s![b, keys, .., ..]));
            }
        }
        pages
    }

    /// The table, with anything behind a sequence's length, and numbers beyond the last page for that.
    fn table(&self, numbers: &mut Numbers) -> Array2<u32> {
        Array2::from_shape_fn(self.table.dim(), |(b, column)| {
            let page = self.table[[b, column]];
            let is_last = page as usize == self.pages - 1;
            match column < self.used[b] {
                true if !is_last => page,
                true => page + numbers.below(3) as u32,
                false => numbers.next() as u32,
            }
        })
    }
}

/// What is done to a score, and whether it counts: of the sequence, head, row and key.
struct Terms<'c> {
    scale: f64,
    window: Option<(Option<u32>, Option<u32>, Alignment)>,
    soft_cap: Option<f64>,
    mask: Option<&'c Array4<u8>>,
    bias: Option<&'c Array4<f64>>,
    blocks: Option<(&'c Array4<u8>, [usize; 2])>,
    slope: Option<&'c dyn Fn(usize, usize) -> f64>,
    sinks: Option<&'c [f32]>,
}

/// The element of an array, whose axes of length 1 are repeated.
fn at<T: Copy>(array: &Array4<T>, index: [usize; 4]) -> T {
    let mut index = index;
    for (axis, at) in index.iter_mut().enumerate() {
        *at = if array.shape()[axis] == 1 { 0 } else { *at };
    }
    array[index]
}

/// The rows' results and sums of one head of one sequence, whose rows and keys that count these are.
fn naive(
    [b, h]: [usize; 2],
    (q, k, v): (Array2<f64>, Array2<f64>, Array2<f64>),
    terms: &Terms<'_>,
) -> (Array2<f64>, Vec<f64>) {
    let (rows, keys) = (q.nrows() as i64, k.nrows() as i64);
    let offset = match terms.window {
        Some((.., Alignment::TopLeft)) => 0,
        _ => keys - rows,
    };
    let mut y = Array2::zeros((q.nrows(), v.ncols()));
    let mut sums = Vec::new();
    for i in 0..rows {
        let mut scores = Vec::new();
        for j in 0..keys {
            let (row, key) = (i as usize, j as usize);
            let mut counts = true;
            if let Some((left, right, _)) = terms.window {
                counts &= left.is_none_or(|left| j >= i + offset - i64::from(left));
                counts &= right.is_none_or(|right| j <= i + offset + i64::from(right));
            }
            counts &= terms.mask.is_none_or(|mask| at(mask, [b, h, row, key]) != 0);
            counts &= terms
                .blocks
                .is_none_or(|(mask, [of_rows, of_keys])| at(mask, [b, h, row / of_rows, key / of_keys]) != 0);
            let mut score = terms.scale * q.row(row).dot(&k.row(key));
            if let Some(cap) = terms.soft_cap {
                score = cap * (score / cap).tanh();
            }
            if let Some(bias) = terms.bias {
                score += at(bias, [b, h, row, key]);
            }
            if let Some(slope) = terms.slope {
                score -= slope(b, h) * (i + offset - j).abs() as f64;
            }
            scores.push(if counts { score } else { f64::NEG_INFINITY });
        }
        let sink = terms.sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[h]));
        let largest = scores.iter().copied().fold(sink, f64::max);
        if largest == f64::NEG_INFINITY {
            sums.push(largest);
            continue;
        }
        let sum = (sink - largest).exp() + scores.iter().map(|score| (score - largest).exp()).sum::<f64>();
        for (key, score) in scores.iter().enumerate() {
            y.row_mut(i as usize).scaled_add((score - largest).exp() / sum, &v.row(key));
        }
        sums.push(largest + sum.ln());
    }
    (y, sums)
}

/// A tensor without the axis of sequences if they are packed.
fn flat<T: Element>(tensor: &Tensor<T>, packed: bool) -> Tensor<T> {
    if !packed {
        return tensor.clone();
    }
    let (shape, strides) = (&tensor.shape()[1..], &tensor.strides()[1..]);
    tensor.with_axes(0, shape, strides)
}

/// Runs the case on the device with queries of type T, and keys and values of type K.
pub(super) fn compare<T: AttentionInput + FloatElement, K: AttentionKeys<T> + FloatElement>(
    device: &Device,
    drawn: &Drawn,
) -> Result<(), TestCaseError> {
    let mut numbers = Numbers(drawn.seed);
    let heads = drawn.key_heads * drawn.group;
    let [packed, mask, bias, blocks, slopes, of_sequences, soft_cap, sinks, lengths] = drawn.switches;
    let b = if packed { 1 } else { drawn.batch };
    let sequences = drawn.batch;
    let page_size = if packed { 0 } else { drawn.page_size };
    let keys = drawn.keys.next_multiple_of(page_size.max(1));
    let q = numbers.rounded::<T>([b, drawn.rows, heads, drawn.width], 2.0);
    let k = numbers.rounded::<K>([b, keys, drawn.key_heads, drawn.width], 2.0);
    let v = numbers.rounded::<K>([b, keys, drawn.key_heads, drawn.value_width], 1.0);
    let (nan, no_key) = (T::round(f64::NAN), K::round(f64::NAN));
    // What values are multiplied with makes none of them larger than 1.
    let scales = drawn.scales.map(|of_heads| {
        let count = if of_heads? { drawn.key_heads } else { 1 };
        let scales: Vec<f32> = (0..count).map(|_| 0.25 + 0.75 * numbers.uniform().abs() as f32).collect();
        K::IS_FP8.then_some(scales)
    });
    let full = [drawn.batch, heads, drawn.rows, keys];

    let flags = |numbers: &mut Numbers, shape: [usize; 4]| {
        Array4::from_shape_fn(shape, |_| [0u8, 1, 1, 7, 128][numbers.below(5)])
    };
    let mask = (mask && !packed).then(|| {
        let shape = numbers.broadcast(full);
        flags(&mut numbers, shape)
    });
    let sizes = [1 + numbers.below(9), 1 + numbers.below(20)];
    let blocks = (blocks && !packed).then(|| {
        let shape = numbers.broadcast([drawn.batch, heads, 0, 0]);
        let blocks = [drawn.rows.div_ceil(sizes[0]), keys.div_ceil(sizes[1])];
        flags(&mut numbers, [shape[0], shape[1], blocks[0], blocks[1]])
    });
    let bias = (bias && !packed).then(|| {
        let shape = numbers.broadcast(full);
        let mut bias = numbers.rounded::<T>(shape, 3.0);
        bias.map_inplace(|bias| {
            if numbers.below(9) == 0 {
                *bias = T::round(f64::NEG_INFINITY);
            }
        });
        bias
    });
    let slopes = slopes.then(|| {
        let rows = if of_sequences { sequences } else { 1 };
        Array2::from_shape_fn((rows, heads), |_| numbers.uniform().abs() as f32)
    });
    let soft_cap = soft_cap.then(|| 0.5 + 3.0 * numbers.uniform().abs() as f32);
    let sinks = sinks.then(|| (0..heads).map(|_| 2.0 * numbers.uniform() as f32).collect::<Vec<_>>());
    let mut lengths_of = |most: usize| {
        let some = lengths && !packed;
        some.then(|| (0..sequences).map(|_| numbers.below(most + 3) as u32).collect::<Vec<_>>())
    };
    let lengths = [lengths_of(drawn.rows), lengths_of(keys)];
    let mut offsets_of = |most: usize| {
        let mut offsets: Vec<_> = (0..=sequences).map(|_| numbers.below(most + 3) as u32).collect();
        offsets.sort_unstable();
        offsets
    };
    let offsets = [offsets_of(drawn.rows), offsets_of(keys)];
    let pages = (page_size > 0).then(|| {
        let length = |b: usize| lengths[1].as_ref().map_or(keys, |lengths| keys.min(lengths[b] as usize));
        let lengths: Vec<_> = (0..sequences).map(length).collect();
        Paged::new(&mut numbers, page_size, &lengths, keys)
    });
    let [of_k, of_v] = [&k, &v].map(|elements| {
        pages.as_ref().map_or_else(|| elements.clone(), |pages| pages.place(elements, no_key))
    });
    let q_tensor = flat(&placed(device, &q, drawn.layout, nan), packed);
    let [k_tensor, v_tensor] =
        [&of_k, &of_v].map(|elements| flat(&placed(device, elements, drawn.layout, no_key), packed));
    let table = pages.as_ref().map(|pages| pages.table(&mut numbers));
    // A part of a wider table.
    let table = table.map(|table| {
        let (batch, columns) = table.dim();
        let mut wide = Array2::from_elem((batch, columns + 3), u32::MAX);
        wide.slice_mut(s![.., 1..=columns]).assign(&table);
        let wide = Tensor::from_array(device, &wide).expect("it fits");
        wide.slice(1, 1..columns + 1).expect("it is there")
    });

    let four = |elements: &Option<Array4<u8>>| {
        elements.as_ref().map(|elements| placed(device, elements, drawn.layout, 9))
    };
    let (mask_tensor, block_tensor) = (four(&mask), four(&blocks));
    let bias_tensor = bias.as_ref().map(|bias| placed(device, bias, drawn.layout, nan));
    let vector = |elements: &[f32]| Tensor::from_slice(device, elements, [elements.len()]).expect("it fits");
    let slopes_tensor = slopes.as_ref().map(|slopes| match of_sequences {
        true => Tensor::from_array(device, slopes).expect("it fits"),
        false => vector(&slopes.iter().copied().collect::<Vec<_>>()),
    });
    let sinks_tensor = sinks.as_ref().map(|sinks| vector(sinks));
    let numbers_of =
        |elements: &Vec<u32>| Tensor::from_slice(device, elements, [elements.len()]).expect("it fits");
    let length_tensors = lengths.each_ref().map(|lengths| lengths.as_ref().map(numbers_of));
    let offset_tensors = offsets.each_ref().map(numbers_of);

    let [k_scale, v_scale] = scales.each_ref().map(|scales| scales.as_ref().map(|scales| vector(scales)));
    let mut operation = ops::attention(&q_tensor, &k_tensor, &v_tensor)
        .k_scale(k_scale.as_ref())
        .v_scale(v_scale.as_ref())
        .mask(mask_tensor.as_ref())
        .bias(bias_tensor.as_ref())
        .alibi(slopes_tensor.as_ref())
        .soft_cap(soft_cap)
        .sinks(sinks_tensor.as_ref())
        .way(Way::ALL.get(drawn.seed as usize % 4).copied())
        .pages(table.as_ref())
        .lengths(length_tensors[0].as_ref(), length_tensors[1].as_ref());
    if let Some(blocks) = &block_tensor {
        operation = operation.block_mask(blocks, sizes.map(|size| size as u32));
    }
    if let Some((left, right, alignment)) = drawn.window {
        operation = operation.window(left, right, alignment);
    }
    if packed {
        operation = operation.packed(&offset_tensors[0], &offset_tensors[1]);
    }
    let (y, lse) = operation.run_with_lse().map_err(|error| TestCaseError::fail(error.to_string()))?;

    // Into a result that lies in memory as the operands do.
    let held = Array4::from_elem((b, drawn.rows, heads, drawn.value_width), T::round(0.0));
    let mut into = flat(&placed(device, &held, drawn.layout, nan), packed);
    let mut lse_into = lse.deep_clone().expect("it fits");
    operation
        .run_into_with_lse(&mut into, &mut lse_into)
        .map_err(|error| TestCaseError::fail(error.to_string()))?;
    prop_assert_eq!(into.to_vec().expect("it is there"), y.to_vec().expect("it is there"));
    prop_assert_eq!(lse_into.to_vec().expect("it is there"), lse.to_vec().expect("it is there"));

    let wide = |elements: &Array4<T>| elements.mapv(|element| f64::from(element.to_f32()));
    let scaled = |elements: &Array4<K>, scales: &Option<Vec<f32>>| {
        let scale = |h: usize| {
            scales.as_ref().map_or(1.0, |scales| f64::from(scales[if scales.len() == 1 { 0 } else { h }]))
        };
        Array4::from_shape_fn(elements.dim(), |(b, j, h, d)| {
            scale(h) * f64::from(elements[[b, j, h, d]].to_f32())
        })
    };
    let (k, v) = (scaled(&k, &scales[0]), scaled(&v, &scales[1]));
    let (q, bias) = (wide(&q), bias.as_ref().map(wide));
    let slope = slopes.as_ref().map(|slopes| {
        move |b: usize, h: usize| f64::from(slopes[[if slopes.nrows() == 1 { 0 } else { b }, h]])
    });
    let terms = Terms {
        scale: f64::from((1.0 / (drawn.width as f64).sqrt()) as f32),
        window: drawn.window,
        soft_cap: soft_cap.map(f64::from),
        mask: mask.as_ref(),
        bias: bias.as_ref(),
        blocks: blocks.as_ref().map(|blocks| (blocks, sizes)),
        slope: slope.as_ref().map(|slope| slope as &dyn Fn(usize, usize) -> f64),
        sinks: sinks.as_deref(),
    };
    let mut expected = Array4::<f64>::zeros((b, drawn.rows, heads, drawn.value_width));
    let mut expected_lse = Array3::from_elem((b, heads, drawn.rows), f64::NEG_INFINITY);
    for b in 0..sequences {
        let range = |which: usize, most: usize| {
            if packed {
                let at = |at: usize| most.min(offsets[which][at] as usize);
                return at(b)..at(b + 1);
            }
            0..lengths[which].as_ref().map_or(most, |lengths| most.min(lengths[b] as usize))
        };
        let (of_rows, of_keys) = (range(0, drawn.rows), range(1, keys));
        let batch = if packed { 0 } else { b };
        for h in 0..heads {
            let key_head = h / drawn.group;
            let operands = (
                q.slice(s![batch, of_rows.clone(), h, ..]).to_owned(),
                k.slice(s![batch, of_keys.clone(), key_head, ..]).to_owned(),
                v.slice(s![batch, of_keys.clone(), key_head, ..]).to_owned(),
            );
            let (rows, sums) = naive([b, h], operands, &terms);
            expected.slice_mut(s![batch, of_rows.clone(), h, ..]).assign(&rows);
            for (row, sum) in of_rows.clone().zip(sums) {
                expected_lse[[batch, h, row]] = sum;
            }
        }
    }

    let array = |array: ArrayD<T>| match packed {
        true => array.insert_axis(Axis(0)).into_dimensionality::<Ix4>().expect("four axes"),
        false => array.into_dimensionality::<Ix4>().expect("four axes"),
    };
    let y = wide(&array(y.to_array().expect("it is there")));
    let rounding = f64::from(2f32.powi(match size_of::<T>() {
        4 => -20,
        _ if T::round(1.001) == T::round(1.0) => -8,
        _ => -11,
    }));
    // Kernels round weights, which add up to 1, before they multiply values, of which none is beyond 1.
    let weights = if device.kind() == DeviceKind::Cpu { 0.0 } else { rounding };
    for (index, &expected) in expected.indexed_iter() {
        let (got, error) = (y[index], (y[index] - expected).abs());
        prop_assert!(
            error <= rounding * expected.abs() + weights + 2e-5,
            "{index:?}: {got}, expected {expected}"
        );
    }
    let lse = lse.to_array().expect("it is there");
    let lse = if packed { lse.insert_axis(Axis(0)) } else { lse };
    let lse = lse.into_dimensionality::<Ix3>().expect("three axes");
    for (index, &expected) in expected_lse.indexed_iter() {
        let got = f64::from(lse[index]);
        let is_right = got == expected || (got - expected).abs() <= 1e-5 * (1.0 + expected.abs());
        prop_assert!(is_right, "lse {index:?}: {got}, expected {expected}");
    }
    Ok(())
}
