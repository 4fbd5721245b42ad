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
    ptx::griddepcontrol_launch_dependents();
    ptx::griddepcontrol_wait();
}
