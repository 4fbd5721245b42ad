//! A main loop through registers, for rows that the copy engines do not take as they are.
//!
//! Two slots of shared memory take turns. During the products of one, what the next needs is on its way to registers.
//! From there it goes to the other slot. A barrier a slot says that it is complete, and the one before it free.

use crate::ptx;
use crate::shared::SharedAddress;
use crate::thread;

/// A thread's share of reading the rows of an operand and of putting them into a slot.
///
/// # Safety
///
/// All-zero bits are a value of `Words`.
pub(super) unsafe trait SlotReader {
    /// What a thread reads of a slot.
    type Words: Copy;

    /// Reads this thread's share of slot `slot` along K; zeros where there is none.
    ///
    /// # Safety
    ///
    /// The operand is valid for reads; nothing writes it while the kernel runs.
    unsafe fn read(&self, slot: u32) -> Self::Words;

    /// Puts it into the rows at `to`.
    ///
    /// # Safety
    ///
    /// `to` has room for the rows, a multiple of 1024; no other thread touches them until a barrier.
    unsafe fn put(&self, to: SharedAddress, words: &Self::Words);
}

/// What is made of the slots. (A closure might be left a function of its own.)
pub(super) trait SlotProducts {
    /// Adds the products of the slot at `slot`.
    ///
    /// # Safety
    ///
    /// The slot is complete; all threads of the block call it.
    unsafe fn add(&mut self, slot: SharedAddress);
}

/// Where the operands of a slot are.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    /// How many there are along K.
    pub(super) count: u32,
    /// Bytes of each.
    pub(super) bytes: u32,
    /// Where in each the rows of B begin.
    pub(super) b_offset: u32,
}

/// Fills slots at the beginning of the block's dynamic shared memory, and adds the products of each.
///
/// # Safety
///
/// All threads of the block call it, with the same slots, of which two fit the block's memory. The readers may read, and their rows are within a slot.
#[inline(always)]
pub(super) unsafe fn multiply<A: SlotReader, B: SlotReader, P: SlotProducts>(
    a: &A,
    b: &B,
    slots: Slots,
    products: &mut P,
) {
    let ring = SharedAddress::dynamic();
    let (mut at, mut before) = (ring, ring.offset(slots.bytes));
    let mut slot = ptx::opaque(0);
    while slot <= slots.count {
        // SAFETY: the readers' promise.
        let mut read: (A::Words, B::Words) = unsafe { core::mem::zeroed() };
        if slot < slots.count {
            // SAFETY: the caller's promise.
            unsafe { read = (a.read(slot), b.read(slot)) };
        }
        if slot > 0 {
            // SAFETY: the barrier below has made the slot visible; all threads of the block are here.
            unsafe { products.add(before) };
        }
        // SAFETY: the products of the slot that this takes the place of were made before the last barrier. All threads of the block
        // run the loop as often.
        unsafe {
            if slot < slots.count {
                a.put(at, &read.0);
                b.put(at.offset(slots.b_offset), &read.1);
            }
            thread::sync_threads();
        }
        (at, before) = (before, at);
        // Opaque, so that neither the first slot nor the last gets code of its own.
        slot = ptx::opaque(slot + 1);
    }
}
