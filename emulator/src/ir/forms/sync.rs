//! Control, barriers and fences, and operations across the lanes of a warp.

use super::*;

pub(super) static ROWS: &[Form] = rows! {
    // Control.
    "bra", "uni?", "label", |_| Op::Branch;
    "brx", "idx uni?", "b32 targets", |_| Op::BranchIndexed;
    "ret", "uni?", "", |_| Op::Exit;
    "exit", "", "", |_| Op::Exit;
    "alloca", "u32|u64", "=t t #?", |c| Op::Alloca { ty: c.ty(0) };
    "stacksave", "u32|u64", "=t", |c| Op::StackSave(c.ty(0));
    "stackrestore", "u32|u64", "t", |c| Op::StackRestore(c.ty(0));
    "trap", "", "", |_| Op::Trap;
    "brkpt", "", "", |_| Op::Nop;
    "pmevent", "", "#", |_| Op::Nop;
    "nanosleep", "u32", "b32", |_| Op::Nop;

    // Synchronisation.
    "bar", "cta? sync", "b32 b32?", |c| barrier(c, Barrier::Sync, 1);
    "bar", "cta? arrive", "b32 b32", |c| barrier(c, Barrier::Arrive, 1);
    "bar", "cta? red and|or pred", "=pred b32 b32? pred", |c| barrier(c, Barrier::Reduce(vote(c)), 3);
    "bar", "cta? red popc u32", "=b32 b32 b32? pred", |c| barrier(c, Barrier::Count, 3);
    "bar", "warp sync", "b32", |_| Op::BarrierWarp;
    "barrier", "cta? sync aligned?", "b32 b32?", |c| barrier_any(c, Barrier::Sync, 1);
    "barrier", "cta? arrive aligned?", "b32 b32", |c| barrier_any(c, Barrier::Arrive, 1);
    "barrier", "cta? red and|or aligned? pred", "=pred b32 b32? pred",
        |c| barrier_any(c, Barrier::Reduce(vote(c)), 3);
    "barrier", "cta? red popc aligned? u32", "=b32 b32 b32? pred", |c| barrier_any(c, Barrier::Count, 3);
    "membar", "cta|gl|sys", "", |c| Op::Fence { gpu: !c.has("cta") };
    "fence", "sc|acq_rel|acquire|release? cta|cluster|gpu|sys", "",
        |c| Op::Fence { gpu: c.has("gpu") || c.has("sys") };
    "fence", "proxy async global|shared::cta|shared::cluster?", "", async_fence;
    "fence", "proxy alias", "", |_| Op::ProxyFence(ProxyFence::Alias);
    "fence", "mbarrier_init release cluster", "", |_| Op::ProxyFence(ProxyFence::MbarrierInit);
    "barrier", "cluster arrive release|relaxed? aligned?", "",
        |c| Op::ClusterBarrier { what: ClusterBarrier::Arrive, relaxed: c.has("relaxed") };
    "barrier", "cluster wait acquire? aligned?", "",
        |_| Op::ClusterBarrier { what: ClusterBarrier::Wait, relaxed: false };

    // Barriers in shared memory.
    "mbarrier", "init shared|shared::cta? b64", "[] b32", |c| mbarrier(c, Mbarrier::Init);
    "mbarrier", "inval shared|shared::cta? b64", "[]", |c| mbarrier(c, Mbarrier::Invalidate);
    "mbarrier", "expect_tx relaxed? cta|cluster? shared|shared::cta|shared::cluster? b64", "[] b32",
        |c| mbarrier(c, Mbarrier::ExpectBytes);
    "mbarrier", "complete_tx relaxed? cta|cluster? shared|shared::cta|shared::cluster? b64", "[] b32",
        |c| mbarrier(c, Mbarrier::CompleteBytes);
    "mbarrier", "arrive|arrive_drop release|relaxed? cta|cluster? shared|shared::cta|shared::cluster? b64",
        "=b64 [] b32?", arrive;
    "mbarrier", "arrive|arrive_drop expect_tx release|relaxed? cta|cluster? shared|shared::cta|shared::cluster? b64",
        "=b64 [] b32", arrive;
    "mbarrier", "arrive|arrive_drop noComplete release? cta? shared|shared::cta? b64", "=b64 [] b32", arrive;
    "mbarrier", "test_wait acquire|relaxed? cta|cluster? shared|shared::cta? b64", "=pred [] b64", mbarrier_wait;
    "mbarrier", "test_wait parity acquire|relaxed? cta|cluster? shared|shared::cta? b64", "=pred [] b32", mbarrier_wait;
    "mbarrier", "try_wait acquire|relaxed? cta|cluster? shared|shared::cta? b64", "=pred [] b64 b32?", mbarrier_wait;
    "mbarrier", "try_wait parity acquire|relaxed? cta|cluster? shared|shared::cta? b64", "=pred [] b32 b32?",
        mbarrier_wait;
    "mbarrier", "pending_count b64", "=b32 b64", |c| mbarrier(c, Mbarrier::PendingCount);

    // Launches and registers.
    "griddepcontrol", "launch_dependents", "", |_| Op::Grids { wait: false };
    "griddepcontrol", "wait", "", |_| Op::Grids { wait: true };
    "setmaxnreg", "inc sync aligned u32", "#", |_| Op::SetRegisters { more: true };
    "setmaxnreg", "dec sync aligned u32", "#", |_| Op::SetRegisters { more: false };

    // The warp.
    "shfl", "sync up|down|bfly|idx b32", "=b32|pred b32 b32 b32 b32", |c| {
        let names = [("up", Shuffle::Up), ("down", Shuffle::Down), ("bfly", Shuffle::Butterfly)];
        Op::Shuffle { mode: c.pick(&names, Shuffle::Index), sync: true }
    };
    "shfl", "up|down|bfly|idx b32", "=b32|pred b32 b32 b32", |c| {
        let names = [("up", Shuffle::Up), ("down", Shuffle::Down), ("bfly", Shuffle::Butterfly)];
        Op::Shuffle { mode: c.pick(&names, Shuffle::Index), sync: false }
    };
    "vote", "sync all|any|uni pred", "=pred pred b32", |c| Op::Vote { vote: vote(c), sync: true };
    "vote", "sync ballot b32", "=b32 pred b32", |c| Op::Vote { vote: vote(c), sync: true };
    "vote", "all|any|uni pred", "=pred pred", |c| Op::Vote { vote: vote(c), sync: false };
    "vote", "ballot b32", "=b32 pred", |c| Op::Vote { vote: vote(c), sync: false };
    "match", "any sync b32|b64", "=b32 t b32", |c| Op::Match { all: false, ty: c.ty(0) };
    "match", "all sync b32|b64", "=b32|pred t b32", |c| Op::Match { all: true, ty: c.ty(0) };
    "elect", "sync", "=b32|pred b32", |_| Op::Elect;
    "activemask", "b32", "=b32", |_| Op::ActiveMask;
    "redux", "sync add|min|max u32|s32", "=t t b32", redux;
    "redux", "sync and|or|xor b32", "=t t b32", redux;
};
