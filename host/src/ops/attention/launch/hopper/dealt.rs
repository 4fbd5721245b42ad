//! The kernels whose keys are dealt to several blocks.

use warpsmith_dsl::attention::hopper::{AttentionShape, Tile};
use warpsmith_dsl::attention::portable::{Parts, Tensors};
use warpsmith_dsl::attention::scores::ScoreOperands;
use warpsmith_dsl::attention::work::{Sequences, Sizes};
use warpsmith_dsl::launch::{Declaration, GlobalMut, Kernel, TensorMap};
use warpsmith_kernels::attention_hopper::AttentionParams;

use super::super::super::check::Checked;
use super::super::super::{AttentionInput, AttentionKeys};
use super::{Kernels, launch};
use crate::device::Device;
use crate::error::Result;
use crate::stream::Stream;
use crate::tensor::Tensor;

/// The arguments of a kernel.
type Args = (TensorMap, TensorMap, Tensors, GlobalMut<f32>, Parts, ScoreOperands, AttentionParams);

/// A kernel, its tile, and how it is launched.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Dealt {
    declaration: Declaration,
    pub(in super::super) rows: u32,
    pub(in super::super) keys: u32,
    launch: unsafe fn(&Device, &Stream, u32, Args) -> Result<()>,
}

impl Dealt {
    pub(super) fn of<K: Kernel<Args = Args>, S: AttentionShape>() -> Self {
        let (rows, keys) = (Tile::<S, false>::BLOCK_ROWS, Tile::<S, false>::BLOCK_KEYS);
        Self { declaration: K::DECLARATION, rows, keys, launch: launch::<Args, K> }
    }

    /// The kernel that serves an attention, if there is one.
    pub(in super::super) fn serving<T: AttentionInput, K: AttentionKeys<T>>(
        checked: &Checked<'_, '_, T, K>,
    ) -> Option<Self> {
        let problem = &checked.problem;
        if !checked.has_hopper() || !checked.is_plain() || problem.is_packed {
            return None;
        }
        <T as Kernels>::dealt(problem.width.max(problem.value_width))
    }

    /// The kernel's name.
    pub(in super::super) fn name(&self) -> &'static str {
        self.declaration.name
    }

    /// Launches the kernel on up to `planned` blocks.
    ///
    /// # Safety
    ///
    /// The arguments are valid for what the kernel does with them, and so are K and V: the sizes are in its tiles, there is room for all parts, operands change no
    /// scores, and sequences are not packed.
    pub(in super::super) unsafe fn launch<T: AttentionInput, K: AttentionKeys<T>>(
        &self,
        checked: &Checked<'_, '_, T, K>,
        planned: u32,
        q: &Tensor<T>,
        keys: [&Tensor<T>; 2],
        (tensors, lse, parts, operands): (Tensors, GlobalMut<f32>, Parts, ScoreOperands),
        (sizes, sequences): (Sizes, Sequences),
    ) -> Result<()> {
        let stream = &checked.stream;
        let ([k, v], ends) = checked.maps_of_keys(q, keys, self.keys)?;
        let counter = stream.scratch(1, 0)?;
        let params = AttentionParams {
            sizes,
            sequences,
            ends,
            taken: counter.zeros(),
            factor: checked.problem.scale * std::f32::consts::LOG2_E,
            reserved: 0,
        };
        let items = u64::from(sizes.tiles) * u64::from(sizes.rows_of_heads) * u64::from(parts.count);
        let blocks = stream.persistent_blocks(planned, items, |multiprocessors| multiprocessors);
        let args = (k, v, tensors, lse, parts, operands, params);
        // SAFETY: the caller's promise; the maps are of K and V, and the counter is the stream's, which launches one kernel after the other.
        unsafe { (self.launch)(stream.device(), stream, blocks, args) }
    }
}
