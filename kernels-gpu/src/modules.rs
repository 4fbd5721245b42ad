//! The PTX files of this crate.

/// A PTX file that ships inside this crate.
#[derive(Clone, Copy, Debug)]
pub struct PtxModule {
    /// The kernel family, e.g. `linear`.
    pub family: &'static str,
    /// The architecture that it was compiled for, e.g. `(8, 0)` for sm_80.
    pub arch: (u32, u32),
    /// Whether it runs on that architecture only (`sm_90a`), rather than on that and all later ones.
    pub arch_specific: bool,
    /// The PTX text.
    pub text: &'static str,
}

/// Every PTX file of this crate.
pub static MODULES: &[PtxModule] = &[
    PtxModule {
        family: "linear",
        arch: (8, 0),
        arch_specific: false,
        text: include_str!("../ptx/linear.sm_80.ptx"),
    },
    PtxModule {
        family: "linear",
        arch: (7, 5),
        arch_specific: false,
        text: include_str!("../ptx/linear.sm_75.ptx"),
    },
    PtxModule {
        family: "linear_hopper",
        arch: (9, 0),
        arch_specific: true,
        text: include_str!("../ptx/linear_hopper.sm_90a.ptx"),
    },
    PtxModule {
        family: "linear_hopper_f32",
        arch: (9, 0),
        arch_specific: true,
        text: include_str!("../ptx/linear_hopper_f32.sm_90a.ptx"),
    },
    PtxModule {
        family: "linear_narrow",
        arch: (9, 0),
        arch_specific: false,
        text: include_str!("../ptx/linear_narrow.sm_90.ptx"),
    },
    PtxModule {
        family: "linear_skinny",
        arch: (9, 0),
        arch_specific: true,
        text: include_str!("../ptx/linear_skinny.sm_90a.ptx"),
    },
    PtxModule {
        family: "linear_strided",
        arch: (9, 0),
        arch_specific: false,
        text: include_str!("../ptx/linear_strided.sm_90.ptx"),
    },
    PtxModule {
        family: "linear_update",
        arch: (7, 5),
        arch_specific: false,
        text: include_str!("../ptx/linear_update.sm_75.ptx"),
    },
    PtxModule {
        family: "linear_update",
        arch: (8, 0),
        arch_specific: false,
        text: include_str!("../ptx/linear_update.sm_80.ptx"),
    },
    PtxModule {
        family: "linear_fp8",
        arch: (8, 0),
        arch_specific: false,
        text: include_str!("../ptx/linear_fp8.sm_80.ptx"),
    },
    PtxModule {
        family: "linear_fp8",
        arch: (7, 5),
        arch_specific: false,
        text: include_str!("../ptx/linear_fp8.sm_75.ptx"),
    },
    PtxModule {
        family: "linear_fp8_hopper",
        arch: (9, 0),
        arch_specific: true,
        text: include_str!("../ptx/linear_fp8_hopper.sm_90a.ptx"),
    },
    PtxModule {
        family: "generated_update",
        arch: (8, 0),
        arch_specific: false,
        text: include_str!("../ptx/generated_update.sm_80.ptx"),
    },
    PtxModule {
        family: "generated_update_cluster",
        arch: (9, 0),
        arch_specific: false,
        text: include_str!("../ptx/generated_update_cluster.sm_90.ptx"),
    },
    PtxModule {
        family: "linear_update_hopper",
        arch: (9, 0),
        arch_specific: true,
        text: include_str!("../ptx/linear_update_hopper.sm_90a.ptx"),
    },
    PtxModule {
        family: "product_key_topk_cluster",
        arch: (9, 0),
        arch_specific: false,
        text: include_str!("../ptx/product_key_topk_cluster.sm_90.ptx"),
    },
    PtxModule {
        family: "expert_mlp",
        arch: (7, 5),
        arch_specific: false,
        text: include_str!("../ptx/expert_mlp.sm_75.ptx"),
    },
    PtxModule {
        family: "expert_mlp_cluster",
        arch: (9, 0),
        arch_specific: false,
        text: include_str!("../ptx/expert_mlp_cluster.sm_90.ptx"),
    },
    PtxModule {
        family: "expert_mlp_sorted",
        arch: (7, 5),
        arch_specific: false,
        text: include_str!("../ptx/expert_mlp_sorted.sm_75.ptx"),
    },
    PtxModule {
        family: "repack",
        arch: (7, 5),
        arch_specific: false,
        text: include_str!("../ptx/repack.sm_75.ptx"),
    },
    PtxModule {
        family: "expert_cache",
        arch: (7, 5),
        arch_specific: false,
        text: include_str!("../ptx/expert_cache.sm_75.ptx"),
    },
    PtxModule {
        family: "topk",
        arch: (8, 0),
        arch_specific: false,
        text: include_str!("../ptx/topk.sm_80.ptx"),
    },
    PtxModule {
        family: "product_key_topk",
        arch: (8, 0),
        arch_specific: false,
        text: include_str!("../ptx/product_key_topk.sm_80.ptx"),
    },
];
