//! Moving data: registers, loads and stores, atomic operations, copies of `cp.async`.

use super::*;

pub(super) static ROWS: &[Form] = rows! {
    // Moving data.
    "mov", "pred|b16|b32|b64|u16|u32|u64|s16|s32|s64|f16|f32|f64|bf16", "any", |c| unary(c, U::Mov);
    "ld", "volatile|relaxed|acquire|weak? cta|gpu|sys|cluster? param|param::entry|global|shared|shared::cta|shared::cluster|local|const? \
        ca|cg|cs|lu|cv|nc? L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate? \
        L2::64B|L2::128B|L2::256B? v2|v4? b8|u8|s8|b16|u16|s16|f16|bf16|b32|u32|s32|f32|f16x2|bf16x2|b64|u64|s64|f64",
        "=~t*v []", |c| Op::Load { space: space(c), ty: c.ty(0), count: c.vector(), strong: strong(c) };
    "st", "volatile|relaxed|release|weak? cta|gpu|sys|cluster? global|shared|shared::cta|shared::cluster|local? wb|cg|cs|wt? \
        L1::evict_normal|L1::evict_unchanged|L1::evict_first|L1::evict_last|L1::no_allocate? v2|v4? \
        b8|u8|s8|b16|u16|s16|f16|bf16|b32|u32|s32|f32|f16x2|bf16x2|b64|u64|s64|f64",
        "[] ~t*v", |c| Op::Store { space: space(c), ty: c.ty(0), count: c.vector(), strong: strong(c) };
    "prefetch", "global|local? L1|L2", "[]", |_| Op::Nop;
    "prefetchu", "L1", "[]", |_| Op::Nop;
    "cvta", "global|shared|shared::cta|shared::cluster|local|const|param u64|b64", "=t t",
        |c| Op::Cvta { space: space(c), to_space: false };
    "cvta", "to global|shared|shared::cta|shared::cluster|local|const|param u64|b64", "=t t",
        |c| Op::Cvta { space: space(c), to_space: true };
    "isspacep", "global|shared|shared::cta|shared::cluster|local|const|param", "=pred b64", |c| Op::IsSpace(space(c));

    "mapa", "shared::cluster? u32|u64", "=t t b32", |c| Op::MapAddress { generic: !c.has("shared::cluster") };
    "getctarank", "shared::cluster? u32|u64", "=b32 t", |c| Op::AddressRank { generic: !c.has("shared::cluster") };

    // Atomic operations.
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster? exch b32|b64",
        "=t [] t", |c| atomic(c, true);
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster? cas b32|b64",
        "=t [] t t", |c| atomic(c, true);
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster? and|or|xor b32|b64",
        "=t [] t", |c| atomic(c, true);
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster? add|min|max \
        u32|s32|u64|s64", "=t [] t", |c| atomic(c, true);
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster? inc|dec u32",
        "=t [] t", |c| atomic(c, true);
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster? add f32|f64",
        "=t [] t", |c| atomic(c, true);
    "atom", "relaxed|acquire|release|acq_rel? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster? add noftz \
        f16|f16x2|bf16|bf16x2", "=t [] t", |c| atomic(c, true);
    "red", "relaxed|release? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster? and|or|xor b32|b64",
        "[] t", |c| atomic(c, false);
    "red", "relaxed|release? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster? add|min|max u32|s32|u64|s64",
        "[] t", |c| atomic(c, false);
    "red", "relaxed|release? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster? inc|dec u32", "[] t", |c| atomic(c, false);
    "red", "relaxed|release? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster? add f32|f64", "[] t", |c| atomic(c, false);
    "red", "relaxed|release? cta|cluster|gpu|sys? global|shared|shared::cta|shared::cluster? add noftz f16|f16x2|bf16|bf16x2",
        "[] t", |c| atomic(c, false);

    // Asynchronous copies by lanes.
    "cp", "async ca shared|shared::cta global L2::64B|L2::128B|L2::256B?", "[] [] # b32?", copy_async;
    "cp", "async cg shared|shared::cta global L2::64B|L2::128B|L2::256B?", "[] [] # b32?", copy_async;
    "cp", "async mbarrier arrive noinc? shared|shared::cta? b64", "[]",
        |c| Op::CopyArrive { space: space(c), expected: c.has("noinc") };
    "cp", "async commit_group", "", |_| Op::CopyCommit;
    "cp", "async wait_group", "#", |_| Op::CopyWait { all: false };
    "cp", "async wait_all", "", |_| Op::CopyWait { all: true };
};
