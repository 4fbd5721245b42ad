//! Warps that do different work: registers handed from one warpgroup to another, one lane elected, kernels that overlap.

macro_rules! setmaxnreg {
    ($name:ident, $direction:literal, $what:literal) => {
        #[doc = concat!("`setmaxnreg.", $direction, ".sync.aligned.u32 REGISTERS`: ", $what, " PTX ISA 8.0, sm_90a.")]
        ///
        /// # Safety
        ///
        /// All threads of the warpgroup execute it. `REGISTERS` is a multiple of 8 from 24 to 256, and the block's warpgroups
        /// have at no time more registers together than at its start.
        #[inline(always)]
        pub unsafe fn $name<const REGISTERS: u32>() {
            const {
                assert!(
                    REGISTERS >= 24 && REGISTERS <= 256 && REGISTERS.is_multiple_of(8),
                    "setmaxnreg takes a multiple of 8 from 24 to 256"
                );
            }
            // SAFETY: the caller's promise is the instruction's.
            unsafe {
                instruction!(concat!("setmaxnreg.", $direction, ".sync.aligned.u32 {};"), const REGISTERS, options(nostack))
            }
        }
    };
}
setmaxnreg!(setmaxnreg_dec, "dec", "gives back registers, so that the thread has `REGISTERS`.");
setmaxnreg!(setmaxnreg_inc, "inc", "waits for registers, so that the thread has `REGISTERS`.");

/// `elect.sync`: whether this lane is the one that was chosen among the warp's. PTX ISA 8.0, sm_90.
///
/// # Safety
///
/// All lanes of the warp execute it.
#[inline(always)]
#[must_use]
pub unsafe fn elect_sync() -> bool {
    let elected: u32;
    // SAFETY: the caller's promise is the instruction's.
    unsafe {
        instruction!(
            "{{ .reg .pred elected; elect.sync _|elected, 0xffffffff; selp.b32 {0}, 1, 0, elected; }}",
            out(reg32) elected, options(nomem, nostack)
        )
    };
    elected != 0
}

/// `griddepcontrol.wait`: waits until the grids that this one depends on have ended and their writes are visible. PTX ISA 7.8,
/// sm_90.
#[inline(always)]
pub fn griddepcontrol_wait() {
    // SAFETY: waiting has no precondition.
    unsafe { instruction!("griddepcontrol.wait;", options(nostack)) }
}

/// `griddepcontrol.launch_dependents`: lets the grids that depend on this one start. PTX ISA 7.8, sm_90.
#[inline(always)]
pub fn griddepcontrol_launch_dependents() {
    // SAFETY: a hint; what the dependents may read is settled by their own waits.
    unsafe { instruction!("griddepcontrol.launch_dependents;", options(nostack)) }
}
