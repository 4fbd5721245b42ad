//! The grid: its place among the launches of a stream; sm_90.

use crate::ptx;

/// Waits for the launches before this one on the stream, after letting the next one begin.
///
/// A kernel that calls this is launched before those before it have ended, as soon as there is room for its blocks: so that their start,
/// and what they do before the call, takes no time of its own. From the call on everything is as if launches followed each other.
///
/// All threads that touch global memory call it before they do so, and at least one thread of every grid calls it: who waits for a launch also
/// relies on those that it has waited for. The host finds the call in the PTX.
#[inline(always)]
pub fn wait_for_earlier_launches() {
    // At once, for the next launch waits in turn.
    let_next_launch_begin();
    wait();
}

/// Waits for the launches before this one on the stream, and only then lets the next one begin.
///
/// What the next launch does before it waits then comes after all launches but this one: it may read everything that this one does not write.
#[inline(always)]
pub fn wait_before_next_launch() {
    wait();
    let_next_launch_begin();
}

/// Lets the next launch on the stream begin once all blocks of this one have come here or ended.
#[inline(always)]
pub fn let_next_launch_begin() {
    ptx::griddepcontrol_launch_dependents();
}

/// Waits for the launches before this one on the stream. Once they have ended, another wait costs next to nothing.
#[inline(always)]
pub fn wait() {
    ptx::griddepcontrol_wait();
}
