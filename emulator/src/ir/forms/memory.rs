//! Moving data: registers, loads and stores, atomic operations, copies of `cp.async`.

use super::*;

/// What modifier lists share: types, cache hints, scopes.
macro_rules! list {
    (@ types) => { "b8|u8|s8|b16|u16|s16|b32|u32|s32|f32|b64|u64|s64|f64" };
    (@ eviction) => { "L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate" };
    (@ eviction_if) => { concat!(list!(@ eviction), "?") };
    (@ prefetch_if) => { "L2::64B|L2::128B|L2::256B?" };
    (@ vector_if) => { "v2|v4?" };
    (@ scope) => { "cta|cluster|gpu|sys" };
    (@ ordered) => { "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster?" };
    (@ reduced) => { "relaxed|release? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster?" };
    (@ windows) => { "shared|shared::cta|shared::cluster" };
    (@ $text:literal) => { $text };
    ($($part:tt)*) => { concat!($(list!(@ $part), " "),*) };
}

fn load(c: &Chosen<'_>) -> Op {
    let strength = strength(c, Strength::Weak);
    Op::Load { space: space(c), ty: c.ty(0), count: c.vector(), strength, constant: c.has("nc") }
}

fn store(c: &Chosen<'_>) -> Op {
    Op::Store { space: space(c), ty: c.ty(0), count: c.vector(), strength: strength(c, Strength::Weak) }
}

fn store_async(c: &Chosen<'_>) -> Op {
    Op::StoreAsync { ty: c.ty(0), count: c.vector() }
}

pub(super) static ROWS: &[Form] = rows! {
    // Moving data. Hints for the caches belong to global memory, and a scope to an ordered access.
    "mov", "pred|b16|b32|b64|u16|u32|u64|s16|s32|s64|f32|f64", "any", |c| unary(c, U::Mov);
    "ld", list!("weak?" "param|param::entry|param::func|shared|shared::cta|shared::cluster|local|const"
        "ca|cg|cs|lu|cv?" vector_if types),
        "=~t*v []", load;
    "ld", list!("weak? global? ca|cg|cs|lu|cv?" prefetch_if vector_if types), "=~t*v []", load;
    "ld", list!("weak? global?" eviction prefetch_if vector_if types), "=~t*v []", load;
    "ld", list!("global ca|cg|cs? nc" prefetch_if vector_if types), "=~t*v []", load;
    "ld", list!("global nc" eviction prefetch_if vector_if types), "=~t*v []", load;
    "ld", list!("volatile global?" prefetch_if vector_if types), "=~t*v []", load;
    "ld", list!("volatile" windows vector_if types), "=~t*v []", load;
    "ld", list!("relaxed|acquire" scope "global?" eviction_if prefetch_if vector_if types), "=~t*v []", load;
    "ld", list!("relaxed|acquire" scope windows vector_if types), "=~t*v []", load;
    "st", list!("weak? param|param::func" vector_if types), "[] ~t*v", store;
    "st", list!("weak? shared|shared::cta|shared::cluster|local wb|cg|cs|wt?" vector_if types), "[] ~t*v", store;
    "st", list!("weak? global? wb|cg|cs|wt?" vector_if types), "[] ~t*v", store;
    "st", list!("weak? global?" eviction vector_if types), "[] ~t*v", store;
    "st", list!("volatile global|shared|shared::cta|shared::cluster?" vector_if types), "[] ~t*v", store;
    "st", list!("relaxed|release" scope "global?" eviction_if vector_if types), "[] ~t*v", store;
    "st", list!("relaxed|release" scope windows vector_if types), "[] ~t*v", store;
    "st", "async weak? shared::cluster mbarrier::complete_tx::bytes v2? b32|u32|s32|f32|b64|u64|s64|f64",
        "[] ~t*v []", store_async;
    "st", "async weak? shared::cluster mbarrier::complete_tx::bytes v4 b32|u32|s32|f32", "[] ~t*v []", store_async;
    "prefetch", "global|local? L1|L2", "[]", |_| Op::Nop;
    "prefetch", "global L2::evict_last|L2::evict_normal", "[]", |_| Op::Nop;
    "prefetchu", "L1", "[]", |_| Op::Nop;
    "applypriority", "global? L2::evict_normal", "[] #", |_| Op::Nop;
    "discard", "global? L2", "[] #", |_| Op::Nop;
    "cvta", "global|shared|shared::cta|shared::cluster|local|const|param u64", "=t t",
        |c| Op::Cvta { space: space(c), to_space: false };
    "cvta", "to global|shared|shared::cta|shared::cluster|local|const|param u64", "=t t",
        |c| Op::Cvta { space: space(c), to_space: true };
    "isspacep", "global|shared|shared::cta|shared::cluster|local|const|param", "=pred b64", |c| Op::IsSpace(space(c));

    "mapa", "shared::cluster? u32|u64", "=t t b32", |c| Op::MapAddress { generic: !c.has("shared::cluster") };
    "getctarank", "shared::cluster? u32|u64", "=b32 t", |c| Op::AddressRank { generic: !c.has("shared::cluster") };

    // Atomic operations.
    "atom", list!(ordered "exch b32|b64"), "=t [] t", |c| atomic(c, true);
    "atom", list!(ordered "cas b32|b64"), "=t [] t t", |c| atomic(c, true);
    "atom", list!(ordered "and|or|xor b32|b64"), "=t [] t", |c| atomic(c, true);
    "atom", list!(ordered "min|max u32|s32|u64|s64"), "=t [] t", |c| atomic(c, true);
    "atom", list!(ordered "add u32|s32|u64|f32|f64"), "=t [] t", |c| atomic(c, true);
    "atom", list!(ordered "inc|dec u32"), "=t [] t", |c| atomic(c, true);
    "atom", list!(ordered "add noftz f16|f16x2|bf16|bf16x2"), "=t [] t", |c| atomic(c, true);
    "atom", list!(ordered "cas b16"), "=t [] t t", |c| atomic(c, true);
    "atom", list!(ordered "add v2|v4 f32"), "=t*v [] t*v", |c| atomic(c, true);
    "atom", list!(ordered "add|min|max noftz v2|v4|v8 f16|bf16"), "=t*v [] t*v", |c| atomic(c, true);
    "atom", list!(ordered "add|min|max noftz v2|v4 f16x2|bf16x2"), "=t*v [] t*v", |c| atomic(c, true);
    "red", list!(reduced "add v2|v4 f32"), "[] t*v", |c| atomic(c, false);
    "red", list!(reduced "add|min|max noftz v2|v4|v8 f16|bf16"), "[] t*v", |c| atomic(c, false);
    "red", list!(reduced "add|min|max noftz v2|v4 f16x2|bf16x2"), "[] t*v", |c| atomic(c, false);
    "red", list!(reduced "and|or|xor b32|b64"), "[] t", |c| atomic(c, false);
    "red", list!(reduced "min|max u32|s32|u64|s64"), "[] t", |c| atomic(c, false);
    "red", list!(reduced "add u32|s32|u64|f32|f64"), "[] t", |c| atomic(c, false);
    "red", list!(reduced "inc|dec u32"), "[] t", |c| atomic(c, false);
    "red", list!(reduced "add noftz f16|f16x2|bf16|bf16x2"), "[] t", |c| atomic(c, false);

    // Asynchronous copies by lanes.
    "cp", "async ca shared|shared::cta global L2::64B|L2::128B|L2::256B?", "[] [] # b32?", copy_async;
    "cp", "async cg shared|shared::cta global L2::64B|L2::128B|L2::256B?", "[] [] # b32?", copy_async;
    "cp", "async mbarrier arrive noinc? shared|shared::cta? b64", "[]",
        |c| Op::CopyArrive { space: space(c), expected: c.has("noinc") };
    "cp", "async commit_group", "", |_| Op::CopyCommit;
    "cp", "async wait_group", "#", |_| Op::CopyWait { all: false };
    "cp", "async wait_all", "", |_| Op::CopyWait { all: true };
};
