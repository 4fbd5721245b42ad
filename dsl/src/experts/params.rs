//! What the kernels that evaluate experts are told: where rows are, sizes and strides.

use crate::epilogue::Activation;
use crate::launch::{Global, KernelParam};
use crate::ptx;

/// Where the rows of a table of experts are. A kernel parameter.
///
/// A table may be a part of one: `slot_of` is not null, but `host` is. Then the last resident row is zeros, and the experts that have this slot add
/// nothing to an output of finite numbers.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ExpertRows {
    /// Rows on the device, at least 1: all of them, or those that `slot_of` names.
    pub resident: Global<u8>,
    /// All rows, in host memory that the device reads; null if there are none.
    pub host: Global<u8>,
    /// For each row the number of the resident row that holds it, or a larger number than there are; null if all are resident, in their
    /// order.
    pub slot_of: Global<u32>,
    /// Bytes from one row to the next: a multiple of 16.
    pub row_bytes: u64,
    /// The number of rows.
    pub count: u32,
    /// The number of resident rows.
    pub slots: u32,
}

// SAFETY: a fixed layout of kernel parameters, without padding: four fields of eight bytes, then two of four.
unsafe impl KernelParam for ExpertRows {}

impl ExpertRows {
    /// The address of row `id`; none if there is no such row.
    ///
    /// # Safety
    ///
    /// `slot_of`, if it is not null, is valid for reads of `count` numbers.
    #[inline(always)]
    pub(super) unsafe fn find(&self, id: u32) -> Option<u64> {
        if id >= self.count {
            return None;
        }
        let mut slot = id;
        if !self.slot_of.is_null() {
            // SAFETY: the caller's promise.
            slot = unsafe { ptx::ld_global_b32(self.slot_of.offset(id as u64).address()) };
        }
        if slot < self.slots {
            Some(self.resident.address() + slot as u64 * self.row_bytes)
        } else if !self.host.is_null() {
            Some(self.host.address() + id as u64 * self.row_bytes)
        } else {
            None
        }
    }
}

/// What is computed of a token. A kernel parameter.
///
/// A row is `hidden` units, one after the other. A unit is its vector u, its w if there are gated linear units, and its
/// v. Each is in whole chunks of 16 bytes of which the rest is zeros. For formats with scales a chunk follows, in which
/// one word each stands for the scale and the bias of u, v and w.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ExpertParams {
    /// Elements from one row of X to the next.
    pub stride_x: u64,
    /// Elements from one row of Y to the next.
    pub stride_y: u64,
    /// Bytes of a hidden unit: a multiple of 16.
    pub unit_bytes: u64,
    /// Columns of X.
    pub d: u32,
    /// Columns of Y.
    pub o: u32,
    /// Experts of a token, of all heads together.
    pub experts: u32,
    /// Hidden units of an expert; of a token there are less than 2²⁴.
    pub hidden: u32,
    /// Bytes of u, and of w: a multiple of 16.
    pub input_bytes: u32,
    /// Where a unit's v begins: after one or two times `input_bytes`.
    pub v_at: u32,
    /// Where a unit's scales begin, of formats that have them.
    pub scales_at: u32,
    /// Chunks of v that the block adds up at a time: 1 to as many as it has threads.
    pub lanes: u32,
    /// Threads that share the units of a chunk: 1 to [`MAX_SPLITS`](super::MAX_SPLITS); times `lanes` at most the block's threads.
    pub splits: u32,
    /// The activation.
    pub activation: Activation,
    /// The element type of X and Y: [`TYPE_F32`], [`TYPE_F16`] or [`TYPE_BF16`].
    pub element: u32,
    /// Blocks of a cluster, which share a token; not read by kernels without clusters.
    pub cluster: u32,
}

// SAFETY: a fixed layout of kernel parameters, without padding: three fields of eight bytes, then twelve of four.
unsafe impl KernelParam for ExpertParams {}

/// X and Y are f32.
pub const TYPE_F32: u32 = 0;
/// X and Y are f16.
pub const TYPE_F16: u32 = 1;
/// X and Y are bf16.
pub const TYPE_BF16: u32 = 2;
