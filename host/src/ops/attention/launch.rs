//! Attention on a GPU or in the emulator.
//!
//! Hopper's kernels take many rows. Those for every GPU take what is left: other GPUs, keys in pages, and so few rows that one tile of theirs has those of all heads that
//! share keys.
//!
//! The kernel follows from the heads, the lengths of the axes and the GPU. Parts of keys follow from a sequence's own keys and the length of the axis of rows. So the
//! sequences beside one do not change its bits, as long as the axes are the same.

pub(super) mod hopper;
mod instances;
mod portable;

pub(super) use instances::{Instance, Kernels as PortableKernels};
pub(super) use portable::strided;
use warpsmith_dsl::attention::portable::{Fp8Keys, Pages};
use warpsmith_dsl::attention::scores::{PAIRED_BIAS, PAIRED_MASK, ScoreOperands, ScoreStrides};
use warpsmith_dsl::attention::window::Window;
use warpsmith_dsl::attention::work::{Sequences, Sizes};
use warpsmith_dsl::launch::Global;

use super::backward::Kernels as GradientKernels;
use super::check::Checked;
use super::operands::Operands;
use super::problem::Problem;
use super::{Alignment, AttentionInput, AttentionKeys, OPERATION};
use crate::error::{Error, Result};
use crate::ops::{CHUNK_BYTES, Implementation, repack};
use crate::stream::Stream;
use crate::tensor::{DType, Element, Tensor};

/// The most columns of Q and of V.
pub(super) const MAX_COLUMNS: usize = 256;
/// What lengths of sequences are below.
pub(super) const MAX_LENGTH: usize = 1 << 30;

/// The kernels of an element type.
#[doc(hidden)]
pub trait Kernels: hopper::Kernels + PortableKernels + GradientKernels {}

impl<T: hopper::Kernels + PortableKernels + GradientKernels> Kernels for T {}

/// How an attention is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Rows of the heads that share keys alternate in a tile, and a sequence's keys are dealt to several blocks, whose sums another launch adds up, if they are enough.
    Split,
    /// By Hopper's kernels: a block has rows, and all keys.
    Hopper,
    /// By the kernels for every GPU, in the same way.
    Whole,
}

impl Way {
    /// Every way, in the order in which they are considered.
    pub const ALL: [Self; 3] = [Self::Split, Self::Hopper, Self::Whole];
}

/// What computes an attention.
enum Plan<T: Element> {
    Hopper(hopper::Plan),
    /// Also by Hopper's kernels whose keys are dealt to blocks.
    Portable(Box<portable::Plan<T>>),
}

impl<T: AttentionInput> Plan<T> {
    fn new<K: AttentionKeys<T>>(checked: &Checked<'_, '_, T, K>) -> Result<Self> {
        let problem = &checked.problem;
        let is_small = problem.rows < MAX_LENGTH && problem.keys < MAX_LENGTH;
        let plan = |(way, asked)| match way {
            Way::Split => portable::Plan::split(checked, asked).map(|plan| Self::Portable(Box::new(plan))),
            Way::Hopper => hopper::Plan::new(checked).map(Self::Hopper),
            Way::Whole => portable::Plan::whole(checked).map(|plan| Self::Portable(Box::new(plan))),
        };
        let asked = checked.operands.way.map(|way| (way, true));
        let ways = asked.into_iter().chain(Way::ALL.map(|way| (way, false)));
        ways.filter(|_| is_small).find_map(plan).ok_or_else(|| no_kernel(checked))
    }
}

/// Which kernels [`launch`] would launch.
pub(super) fn implementation<T: AttentionInput, K: AttentionKeys<T>>(
    checked: &Checked<'_, '_, T, K>,
) -> Result<Implementation> {
    Ok(match Plan::new(checked)? {
        Plan::Hopper(plan) => plan.implementation(checked),
        Plan::Portable(plan) => plan.implementation(checked),
    })
}

/// Launches the kernels that compute `y` and, where it is there, `lse`. The results have elements.
pub(super) fn launch<T: AttentionInput, K: AttentionKeys<T>>(
    checked: &Checked<'_, '_, T, K>,
    y: &mut Tensor<T>,
    lse: Option<&mut Tensor<f32>>,
) -> Result<()> {
    match Plan::new(checked)? {
        Plan::Hopper(plan) => plan.launch(checked, y, lse),
        Plan::Portable(plan) => plan.launch(checked, y, lse),
    }
}

/// The error where no kernel of the device can compute the attention.
fn no_kernel<T: AttentionInput, K: AttentionKeys<T>>(checked: &Checked<'_, '_, T, K>) -> Error {
    let device = checked.stream.device();
    let properties = device.properties();
    let (major, minor) = properties.compute_capability;
    let &Problem { width, value_width, batch, heads, rows, keys, .. } = &checked.problem;
    let (dtype, of_keys) = (T::DTYPE, K::DTYPE);
    Error::UnsupportedDevice {
        operation: OPERATION,
        device: device.to_string(),
        expected: format!(
            "compute capability 8.0 or later, 16-bit q where k has 8 bits, at most {MAX_COLUMNS} columns of q and of v (in f32 128 of q, where a block has less than 112 KiB of shared memory), and less than 2^30 rows and keys, and 2^31 tiles of all heads and sequences"
        ),
        actual: format!(
            "compute capability {major}.{minor}, {dtype} with keys of {of_keys}, {width} and {value_width} columns, {batch} sequences of {heads} heads, {rows} rows and {keys} keys, {} KiB of shared memory",
            properties.max_shared_per_block / 1024
        ),
    }
}

/// The window as kernels take it.
pub(super) fn window(problem: &Problem) -> Window {
    let window = problem.window;
    // What no row and key are apart by is no bound.
    let most = problem.rows.max(problem.keys) as u64;
    let bound = |keys: Option<u32>| keys.filter(|&keys| u64::from(keys) < most).unwrap_or(Window::UNBOUNDED);
    Window {
        left: bound(window.left()),
        right: bound(window.right()),
        is_bottom_right: u32::from(window.alignment() == Alignment::BottomRight),
        reserved: 0,
    }
}

impl Problem {
    /// Heads of all sequences, or of all packed sequences together.
    pub(super) fn all_heads(&self) -> usize {
        if self.is_packed { self.heads } else { self.batch * self.heads }
    }

    /// Whether anything happens to scores but a multiplication by a positive number, and what places decide.
    pub(super) fn changes_scores(&self) -> bool {
        let is_positive = self.scale > 0.0 && (self.scale * std::f32::consts::LOG2_E).is_normal();
        let options = [self.mask_strides.is_some(), self.bias_strides.is_some(), self.block_mask.is_some()];
        !is_positive || self.soft_cap.is_some() || self.slopes_stride.is_some() || options.contains(&true)
    }

    /// Whether kernels may load elements of an operand of these strides, which has one for each score, in pairs of keys.
    fn is_paired<U: Element>(&self, operand: Option<&Tensor<U>>, strides: Option<[u64; 4]>) -> bool {
        let (Some(operand), Some([sequence, head, row, key])) = (operand, strides) else { return false };
        let first = operand.arg().address() / size_of::<U>() as u64;
        key == 1 && (first | sequence | head | row | self.keys as u64).is_multiple_of(2)
    }

    /// What kernels are told of the sizes: one tile, and heads whose rows do not alternate.
    pub(super) fn sizes(&self) -> Sizes {
        Sizes {
            lse_batch: if self.is_packed { 0 } else { (self.heads * self.rows) as u64 },
            lse_head: self.rows as u64,
            batch: self.batch as u32,
            heads: self.heads as u32,
            group: (self.heads / self.key_heads.max(1)) as u32,
            pack: 1,
            rows: self.rows as u32,
            keys: self.keys as u32,
            tiles: 1,
            section: self.all_heads().max(1) as u32,
            rows_of_heads: self.all_heads() as u32,
            reserved: 0,
            window: window(self),
        }
    }
}

impl<T: AttentionInput, K: AttentionKeys<T>> Operands<'_, T, K> {
    /// Where sequences begin and how long they are, as kernels take it.
    pub(super) fn sequences(&self) -> Sequences {
        let vector = |tensor: Option<&Tensor<u32>>| tensor.map_or(Global::new(0), Tensor::arg);
        let [lengths_q, lengths_k] = self.lengths;
        let packing = self.packing.as_ref();
        Sequences {
            offsets_q: vector(packing.map(|packing| packing.q)),
            offsets_k: vector(packing.map(|packing| packing.k)),
            lengths_q: vector(lengths_q),
            lengths_k: vector(lengths_k),
        }
    }
}

impl<T: AttentionInput, K: AttentionKeys<T>> Checked<'_, '_, T, K> {
    /// Whether kernels read q, and k, in place. Those that are turned before are without gaps.
    pub(super) fn are_in_place(&self) -> [bool; 2] {
        let of = self.operands;
        let Some(rotary) = &of.rotary else { return [is_aligned(of.q), is_aligned(of.k)] };
        let is_dense = (self.problem.width * size_of::<T>()).is_multiple_of(CHUNK_BYTES);
        [is_dense, if rotary.turns_keys() { is_dense } else { is_aligned(of.k) }]
    }

    /// The pages of keys and values, as kernels take them.
    fn pages(&self) -> Pages {
        let Some((table, paging)) = self.operands.pages.zip(self.problem.pages) else {
            return Pages { table: Global::new(0), sequence: 0, size: 1, count: 1 };
        };
        Pages {
            table: table.arg(),
            sequence: paging.table_stride,
            size: paging.size as u32,
            count: paging.pages as u32,
        }
    }

    /// The format and the scales of keys and values of 8 bits, as kernels take them.
    fn fp8_keys(&self) -> Fp8Keys {
        let [k_scale, v_scale] =
            self.operands.scales.map(|scales| scales.map_or(Global::new(0), Tensor::arg));
        let [k_head, v_head] = self.problem.scales_per_head.map(u32::from);
        Fp8Keys {
            k_scale,
            v_scale,
            k_head,
            v_head,
            is_e5m2: u32::from(K::DTYPE == DType::F8E5M2),
            reserved: 0,
        }
    }

    /// What changes scores, as kernels take it.
    pub(super) fn score_operands(&self) -> ScoreOperands {
        let (operands, problem) = (self.operands, &self.problem);
        let strides = |strides: Option<[u64; 4]>| {
            let [sequence, head, row, key] = strides.unwrap_or_default();
            ScoreStrides { sequence, head, row, key }
        };
        let bytes = |tensor: Option<&Tensor<u8>>| tensor.map_or(Global::new(0), Tensor::arg);
        let numbers = |tensor: Option<&Tensor<f32>>| tensor.map_or(Global::new(0), Tensor::arg);
        let (block_strides, [block_rows, block_keys]) = problem.block_mask.unwrap_or(([0; 4], [1; 2]));
        ScoreOperands {
            bias: Global::new(operands.bias.map_or(0, |bias| bias.arg().address())),
            bias_strides: strides(problem.bias_strides),
            mask: bytes(operands.mask),
            mask_strides: strides(problem.mask_strides),
            blocks: bytes(operands.block_mask.as_ref().map(|blocks| blocks.mask)),
            block_strides: strides(Some(block_strides)),
            slopes: numbers(operands.slopes),
            slopes_sequence: problem.slopes_stride.unwrap_or(0),
            sinks: numbers(operands.sinks),
            block_rows,
            block_keys,
            scale: problem.scale,
            cap: problem.soft_cap.unwrap_or(0.0),
            counts_from_last: u32::from(problem.window.alignment() == Alignment::BottomRight),
            paired: u32::from(problem.is_paired(operands.bias, problem.bias_strides)) * PAIRED_BIAS
                + u32::from(problem.is_paired(operands.mask, problem.mask_strides)) * PAIRED_MASK,
        }
    }
}

/// Whether kernels read a tensor in place: its rows start at multiples of 16 bytes.
pub(super) fn is_aligned<T: Element>(x: &Tensor<T>) -> bool {
    let of_axes = x.shape().iter().zip(x.strides()).take(x.rank() - 1);
    let strides = of_axes.filter(|&(&length, _)| length > 1).fold(0, |all, (_, &stride)| all | stride);
    (x.arg().address() | (strides * size_of::<T>()) as u64).is_multiple_of(CHUNK_BYTES as u64)
}

/// A tensor that kernels read in place: this one, or a copy.
pub(super) fn aligned<T: Element>(x: &Tensor<T>, stream: &Stream) -> Result<Tensor<T>> {
    if is_aligned(x) { Ok(x.clone()) } else { repack(x).on(stream).run() }
}
