//! Where a warpgroup's rows of Q come from: the copy engine, or [its own lanes](super::dealt).

use super::{AttentionShape, Consumer, Tile};
use crate::attention::work::Work;
use crate::pipeline::{AsyncProxy, FullStage};
use crate::warpgroup::{self, Boxed};

/// Where a warpgroup's rows of Q come from.
pub trait Queries {
    /// Whether rows of several heads may alternate, so that a row's place takes a division.
    const ALTERNATE: bool;

    /// What is given back when the rows have been multiplied.
    type Held;

    /// The rows of the work that warpgroup `index` has, as a tile of shape `S` multiplies them.
    ///
    /// # Safety
    ///
    /// All warps of the warpgroup call it, and no product that reads its rows is under way.
    unsafe fn begin<S: AttentionShape, const CHANGES: bool>(
        &self,
        consumer: &mut Consumer,
        index: u32,
        work: &Work,
    ) -> (Boxed, Self::Held);

    /// Gives the rows back.
    ///
    /// # Safety
    ///
    /// All warps of the warpgroup call it, when the products that read them have completed.
    unsafe fn end(consumer: &mut Consumer, held: Self::Held);
}

/// Rows that the producer has copied.
pub struct CopiedQueries;

impl Queries for CopiedQueries {
    const ALTERNATE: bool = false;

    type Held = FullStage<AsyncProxy>;

    #[inline(always)]
    unsafe fn begin<S: AttentionShape, const CHANGES: bool>(
        &self,
        consumer: &mut Consumer,
        index: u32,
        _: &Work,
    ) -> (Boxed, Self::Held) {
        // SAFETY: the caller's promise.
        let stage = unsafe { consumer.q.wait() };
        let at = Tile::<S, CHANGES>::queries(index);
        (Boxed::at(stage.operand(|_| at), warpgroup::ROWS), stage)
    }

    #[inline(always)]
    unsafe fn end(consumer: &mut Consumer, held: Self::Held) {
        // SAFETY: the caller's promise.
        unsafe { consumer.q.release(held) };
    }
}
