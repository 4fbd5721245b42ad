//! Copies of tensors and of whole ranges, by the copy engine.

use super::*;
use crate::ir::op::{BulkCopy, Destination, ProxyFence, TensorCopy};

fn tensor(c: &Chosen<'_>, what: TensorCopy) -> Op {
    let axes = [("1d", 1), ("2d", 2), ("3d", 3), ("4d", 4), ("5d", 5)];
    Op::TensorCopy { what, axes: c.pick(&axes, 1) }
}

/// From global memory, to the own block's shared memory or to that of any block.
fn destination(c: &Chosen<'_>) -> Destination {
    match (c.has("shared::cta"), c.has("multicast::cluster")) {
        (true, _) => Destination::Own,
        (_, true) => Destination::Several,
        _ => Destination::Any,
    }
}

fn tensor_load(c: &Chosen<'_>) -> Op {
    tensor(c, TensorCopy::Load(destination(c)))
}

fn tensor_reduce(c: &Chosen<'_>) -> Op {
    tensor(c, TensorCopy::Reduce(reduction(c)))
}

fn bulk_load(c: &Chosen<'_>) -> Op {
    Op::BulkCopy(BulkCopy::Load(destination(c)))
}

fn bulk_store(_: &Chosen<'_>) -> Op {
    Op::BulkCopy(BulkCopy::Store(None))
}

fn bulk_to_peer(_: &Chosen<'_>) -> Op {
    Op::BulkCopy(BulkCopy::ToPeer(None))
}

fn reduction(c: &Chosen<'_>) -> Atomic {
    let names = [
        ("add", Atomic::Add),
        ("min", Atomic::Min),
        ("max", Atomic::Max),
        ("and", Atomic::And),
        ("or", Atomic::Or),
        ("xor", Atomic::Xor),
        ("inc", Atomic::Inc),
        ("dec", Atomic::Dec),
    ];
    c.pick(&names, Atomic::Add)
}

fn bulk_reduce(c: &Chosen<'_>) -> Op {
    Op::BulkCopy(BulkCopy::Store(Some((reduction(c), c.ty(0)))))
}

fn bulk_reduce_to_peer(c: &Chosen<'_>) -> Op {
    Op::BulkCopy(BulkCopy::ToPeer(Some((reduction(c), c.ty(0)))))
}

pub(super) static ROWS: &[Form] = rows! {
    // Boxes of tensors. Optional operands belong to modifiers, so each choice of those is a row.
    "cp", "async bulk tensor 1d|2d|3d|4d|5d tile? shared::cluster|shared::cta global tile? mbarrier::complete_tx::bytes",
        "[] [map] []", tensor_load;
    "cp", "async bulk tensor 1d|2d|3d|4d|5d tile? shared::cluster|shared::cta global tile? mbarrier::complete_tx::bytes \
        L2::cache_hint", "[] [map] [] b64", tensor_load;
    "cp", "async bulk tensor 1d|2d|3d|4d|5d tile? shared::cluster global tile? mbarrier::complete_tx::bytes \
        multicast::cluster", "[] [map] [] b16", tensor_load;
    "cp", "async bulk tensor 1d|2d|3d|4d|5d tile? shared::cluster global tile? mbarrier::complete_tx::bytes \
        multicast::cluster L2::cache_hint", "[] [map] [] b16 b64", tensor_load;
    "cp", "async bulk tensor 1d|2d|3d|4d|5d tile? global shared::cta tile? bulk_group",
        "[map] []", |c| tensor(c, TensorCopy::Store);
    "cp", "async bulk tensor 1d|2d|3d|4d|5d tile? global shared::cta tile? bulk_group L2::cache_hint",
        "[map] [] b64", |c| tensor(c, TensorCopy::Store);
    "cp", "reduce async bulk tensor 1d|2d|3d|4d|5d global shared::cta add|min|max|inc|dec|and|or|xor tile? bulk_group",
        "[map] []", tensor_reduce;
    "cp", "reduce async bulk tensor 1d|2d|3d|4d|5d global shared::cta add|min|max|inc|dec|and|or|xor tile? bulk_group \
        L2::cache_hint", "[map] [] b64", tensor_reduce;
    "cp", "async bulk prefetch tensor 1d|2d|3d|4d|5d L2 global tile?",
        "[map]", |c| tensor(c, TensorCopy::Prefetch);
    "cp", "async bulk prefetch tensor 1d|2d|3d|4d|5d L2 global tile? L2::cache_hint",
        "[map] b64", |c| tensor(c, TensorCopy::Prefetch);

    // Ranges of bytes.
    "cp", "async bulk shared::cluster|shared::cta global mbarrier::complete_tx::bytes", "[] [] b32 []", bulk_load;
    "cp", "async bulk shared::cluster|shared::cta global mbarrier::complete_tx::bytes L2::cache_hint",
        "[] [] b32 [] b64", bulk_load;
    "cp", "async bulk shared::cluster global mbarrier::complete_tx::bytes multicast::cluster",
        "[] [] b32 [] b16", bulk_load;
    "cp", "async bulk shared::cluster global mbarrier::complete_tx::bytes multicast::cluster L2::cache_hint",
        "[] [] b32 [] b16 b64", bulk_load;
    "cp", "async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes", "[] [] b32 []", bulk_to_peer;
    "cp", "async bulk global shared::cta bulk_group", "[] [] b32", bulk_store;
    "cp", "async bulk global shared::cta bulk_group L2::cache_hint", "[] [] b32 b64", bulk_store;
    "cp", "async bulk prefetch L2 global", "[] b32", |_| Op::BulkCopy(BulkCopy::Prefetch);
    "cp", "async bulk prefetch L2 global L2::cache_hint", "[] b32 b64", |_| Op::BulkCopy(BulkCopy::Prefetch);

    // Reductions of ranges.
    "cp", "reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes and|or|xor b32",
        "[] [] b32 []", bulk_reduce_to_peer;
    "cp", "reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes add u32|s32|u64",
        "[] [] b32 []", bulk_reduce_to_peer;
    "cp", "reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes min|max u32|s32",
        "[] [] b32 []", bulk_reduce_to_peer;
    "cp", "reduce async bulk shared::cluster shared::cta mbarrier::complete_tx::bytes inc|dec u32",
        "[] [] b32 []", bulk_reduce_to_peer;
    "cp", "reduce async bulk global shared::cta bulk_group and|or|xor b32|b64", "[] [] b32", bulk_reduce;
    "cp", "reduce async bulk global shared::cta bulk_group add u32|s32|u64|f32|f64", "[] [] b32", bulk_reduce;
    "cp", "reduce async bulk global shared::cta bulk_group min|max u32|s32|u64|s64|f16|bf16", "[] [] b32", bulk_reduce;
    "cp", "reduce async bulk global shared::cta bulk_group inc|dec u32", "[] [] b32", bulk_reduce;
    "cp", "reduce async bulk global shared::cta bulk_group add noftz f16|bf16", "[] [] b32", bulk_reduce;
    "cp", "reduce async bulk global shared::cta bulk_group L2::cache_hint and|or|xor b32|b64",
        "[] [] b32 b64", bulk_reduce;
    "cp", "reduce async bulk global shared::cta bulk_group L2::cache_hint add u32|s32|u64|f32|f64",
        "[] [] b32 b64", bulk_reduce;
    "cp", "reduce async bulk global shared::cta bulk_group L2::cache_hint min|max u32|s32|u64|s64|f16|bf16",
        "[] [] b32 b64", bulk_reduce;
    "cp", "reduce async bulk global shared::cta bulk_group L2::cache_hint inc|dec u32", "[] [] b32 b64", bulk_reduce;
    "cp", "reduce async bulk global shared::cta bulk_group L2::cache_hint add noftz f16|bf16",
        "[] [] b32 b64", bulk_reduce;

    // Groups, and what is known of maps and caches.
    "cp", "async bulk commit_group", "", |_| Op::BulkCommit;
    "cp", "async bulk wait_group read?", "#", |c| Op::BulkWait { read: c.has("read") };
    "prefetch", "param|const? tensormap", "[]", |c| Op::PrefetchMap(space(c));
    "fence", "proxy tensormap::generic release cta|cluster|gpu|sys", "", |_| Op::ProxyFence(ProxyFence::TensorMap);
    "fence", "proxy tensormap::generic acquire cta|cluster|gpu|sys", "[] #", |_| Op::Nop;
    "createpolicy", "range global? L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged \
        L2::evict_first|L2::evict_unchanged? b64", "=b64 [] b32 b32", |_| Op::CreatePolicy;
    "createpolicy", "cvt L2 b64", "=b64 b64", |_| Op::CreatePolicy;
    "createpolicy", "fractional L2::evict_last|L2::evict_normal|L2::evict_first|L2::evict_unchanged \
        L2::evict_first|L2::evict_unchanged? b64", "=b64 f32?", |_| Op::CreatePolicy;
};
