//! warpsmith's GPU kernels, and the PTX that they compile to.
//!
//! Each module is a kernel family: one file that reads as the algorithm does, load, multiply, transform, store. Built for the
//! GPU it becomes the texts in `ptx/<family>.<architecture>/`, one for each kernel; built for the host it is the kernels' typed
//! signatures, for launches, and this crate carries that PTX, compressed.
//!
//! | family | kernels |
//! |---|---|
//! | [`linear`] | `Y = activation(alpha · X Wᵀ + …)` with every term of [`LinearEpilogue`](warpsmith_dsl::epilogue::LinearEpilogue), in batches, on sm_75 and every later architecture |
//! | [`linear_hopper`] | the same on Hopper, for 16-bit types and TF32 (sm_90a) |
//! | [`linear_hopper_f32`] | the same on Hopper, for f32 at f32 accuracy (sm_90a) |
//! | [`linear_narrow`] | the same, for many rows of few columns (sm_90 and later) |
//! | [`linear_dots`] | the same, for few rows of X in f32, without the tensor cores, on sm_80 and later |
//! | [`linear_skinny`] | the same, for few rows of X or few tiles of Y |
//! | [`linear_strided`] | the same, for small operands with any strides (sm_90 and later) |
//! | [`linear_sums`] | the second pass of a product that is split along K: adds the parts and applies the epilogue (sm_90 and later) |
//! | [`linear_joined`] | the same on Hopper, of 16-bit types, where X and W have more columns in other matrices, as those of an update |
//! | [`linear_modulated`] | the first product of generated updates and their codes, of 16-bit types on Hopper (sm_90a) |
//! | [`linear_update`] | the same with a generated low-rank update, on sm_80 and every later architecture |
//! | [`linear_fp8`] | the same for 8-bit floating-point types, by way of f16, on sm_75 and later |
//! | [`linear_fp8_ada`] | the same, multiplied as they are, on sm_89 and later |
//! | [`linear_fp8_hopper`] | the same on Hopper, multiplied as they are (sm_90a) |
//! | [`linear_update_hopper`] | a linear layer of 16-bit types and generated low-rank updates of it, on Hopper (sm_90a) |
//! | [`generated_update`] | `Y (+)= ((X V) ⊙ codes) U · scaling`, on sm_80 and later |
//! | [`generated_update_cluster`] | the same for few rows, by clusters of blocks (sm_90 and later) |
//! | [`modulate`] | the codes, between two products that compute the updates alone |
//! | [`product_key_topk`] | the k best of n² experts for each query, by two scores of n sub-keys, on sm_80 and later |
//! | [`product_key_topk_cluster`] | the same by clusters of blocks, for up to 32 experts (sm_90 and later) |
//! | [`product_key_gradient`] | the gradients of queries, and what those of sub-keys and of the norm are made of, on sm_80 and later |
//! | [`expert_mlp`] | `y = Σ gate · act(x·u) · v` over the experts that each token uses, on sm_75 and later |
//! | [`expert_mlp_cluster`] | the same for few tokens, by clusters of blocks (sm_90 and later) |
//! | [`expert_mlp_sorted`] | the same for many tokens, in the order of the table, on sm_75 and later |
//! | [`expert_gradient`] | the gradients of x and of the gates, and what those of the experts are made of, on sm_80 and later |
//! | [`repack`] | copies of matrices into aligned rows, transposed where they have to be, on sm_75 and later |
//! | [`expert_cache`] | which rows of a table a step reads, and rows in host memory to slots of a cache, on sm_75 and later |
//! | [`attention`](mod@attention) | attention of 16-bit types, on sm_80 and later, and of few rows anywhere |
//! | [`attention_fp8`](mod@attention_fp8) | the same of keys and values of 8 bits, on sm_80 and later |
//! | [`attention_fp8_ada`](mod@attention_fp8_ada) | the same by an instruction that widens them, on sm_89 and later |
//! | [`attention_gradient`](mod@attention_gradient) | the gradients of attention, on sm_80 and later |
//! | [`attention_gradient_hopper`](mod@attention_gradient_hopper) | the same of 16-bit types on Hopper (sm_90a) |
//! | [`attention_hopper`](mod@attention_hopper) | attention of 16-bit types on Hopper (sm_90a) |
//! | [`kv_cache`](mod@kv_cache) | new keys and values become those of a cache, on sm_80 and later |
//! | [`norm`](mod@norm) | layer norm and RMS norm of rows, and their gradients, on sm_80 and later |
//! | [`norm_cluster`](mod@norm_cluster) | the same for wide rows, by clusters of blocks (sm_90 and later) |
//! | [`column_sums`](mod@column_sums) | the sums of columns that parts of a gradient add up to, on sm_80 and later |
//! | [`linear_gradient`](mod@linear_gradient) | the gradient of a linear layer's sums, and of its bias, on sm_80 and later |
//! | [`update_gradient`](mod@update_gradient) | what the gradients of a generated update have between their products, on sm_80 and later |
//! | [`elementwise`](mod@elementwise) | functions of the elements of tensors of one shape, and their gradients, on sm_80 and later |
//! | [`rotary`](mod@rotary) | rotary position embedding of heads, on sm_80 and later |
//! | [`embedding`](mod@embedding) | rows of a table that ids name, and its gradient, on sm_80 and later |
//! | [`softmax`](mod@softmax) | the softmax of rows, and its gradient, on sm_80 and later |
//! | [`softmax_cluster`](mod@softmax_cluster) | the same for wide rows, by clusters of blocks (sm_90 and later) |
//! | [`cross_entropy`](mod@cross_entropy) | the cross-entropy of rows of logits, and its gradient, on sm_80 and later |
//! | [`cross_entropy_cluster`](mod@cross_entropy_cluster) | the same for wide rows, by clusters of blocks (sm_90 and later) |
//! | [`adamw`](mod@adamw) | AdamW over many tensors: the norm of their gradients, a step's scalars, the update, on sm_80 and later |
//! | [`topk`] | the k largest elements of each row, on sm_80 and later |
//!
//! Each family is a Cargo feature, and all are on by default. A build for the host has the signatures of all kernels, and the PTX
//! of the families whose features are on.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

#[cfg(not(target_arch = "nvptx64"))]
extern crate alloc;

#[cfg(any(feature = "adamw", not(target_arch = "nvptx64")))]
pub mod adamw;
#[cfg(any(feature = "attention", not(target_arch = "nvptx64")))]
pub mod attention;
#[cfg(any(feature = "attention_fp8", not(target_arch = "nvptx64")))]
pub mod attention_fp8;
#[cfg(any(feature = "attention_fp8_ada", not(target_arch = "nvptx64")))]
pub mod attention_fp8_ada;
#[cfg(any(feature = "attention_gradient", not(target_arch = "nvptx64")))]
pub mod attention_gradient;
#[cfg(any(feature = "attention_gradient_hopper", not(target_arch = "nvptx64")))]
pub mod attention_gradient_hopper;
#[cfg(any(feature = "attention_hopper", not(target_arch = "nvptx64")))]
pub mod attention_hopper;
#[cfg(any(
    feature = "attention",
    feature = "attention_fp8",
    feature = "attention_fp8_ada",
    not(target_arch = "nvptx64")
))]
pub mod attention_shapes;
pub mod codes;
#[cfg(any(feature = "column_sums", not(target_arch = "nvptx64")))]
pub mod column_sums;
#[cfg(any(feature = "cross_entropy", not(target_arch = "nvptx64")))]
pub mod cross_entropy;
#[cfg(any(feature = "cross_entropy_cluster", not(target_arch = "nvptx64")))]
pub mod cross_entropy_cluster;
#[cfg(any(feature = "elementwise", not(target_arch = "nvptx64")))]
pub mod elementwise;
#[cfg(any(feature = "embedding", not(target_arch = "nvptx64")))]
pub mod embedding;
#[cfg(any(feature = "expert_cache", not(target_arch = "nvptx64")))]
pub mod expert_cache;
#[cfg(any(feature = "expert_gradient", not(target_arch = "nvptx64")))]
pub mod expert_gradient;
#[cfg(any(feature = "expert_mlp", not(target_arch = "nvptx64")))]
pub mod expert_mlp;
#[cfg(any(feature = "expert_mlp_cluster", not(target_arch = "nvptx64")))]
pub mod expert_mlp_cluster;
#[cfg(any(feature = "expert_mlp_sorted", not(target_arch = "nvptx64")))]
pub mod expert_mlp_sorted;
#[cfg(any(feature = "linear_fp8_ada", feature = "linear_fp8_hopper", not(target_arch = "nvptx64")))]
pub mod fp8;
#[cfg(any(feature = "generated_update", not(target_arch = "nvptx64")))]
pub mod generated_update;
#[cfg(any(feature = "generated_update_cluster", not(target_arch = "nvptx64")))]
pub mod generated_update_cluster;
#[cfg(any(
    feature = "linear_hopper",
    feature = "linear_skinny",
    feature = "linear_joined",
    not(target_arch = "nvptx64")
))]
pub mod hopper;
#[cfg(any(feature = "kv_cache", not(target_arch = "nvptx64")))]
pub mod kv_cache;
#[cfg(any(feature = "linear", not(target_arch = "nvptx64")))]
pub mod linear;
#[cfg(any(feature = "linear_dots", not(target_arch = "nvptx64")))]
pub mod linear_dots;
#[cfg(any(feature = "linear_fp8", not(target_arch = "nvptx64")))]
pub mod linear_fp8;
#[cfg(any(feature = "linear_fp8_ada", not(target_arch = "nvptx64")))]
pub mod linear_fp8_ada;
#[cfg(any(feature = "linear_fp8_hopper", not(target_arch = "nvptx64")))]
pub mod linear_fp8_hopper;
#[cfg(any(feature = "linear_gradient", not(target_arch = "nvptx64")))]
pub mod linear_gradient;
#[cfg(any(feature = "linear_hopper", not(target_arch = "nvptx64")))]
pub mod linear_hopper;
#[cfg(any(feature = "linear_hopper_f32", not(target_arch = "nvptx64")))]
pub mod linear_hopper_f32;
#[cfg(any(feature = "linear_joined", not(target_arch = "nvptx64")))]
pub mod linear_joined;
#[cfg(any(feature = "linear_modulated", not(target_arch = "nvptx64")))]
pub mod linear_modulated;
#[cfg(any(feature = "linear_narrow", not(target_arch = "nvptx64")))]
pub mod linear_narrow;
#[cfg(any(feature = "linear_skinny", not(target_arch = "nvptx64")))]
pub mod linear_skinny;
#[cfg(any(feature = "linear_strided", not(target_arch = "nvptx64")))]
pub mod linear_strided;
#[cfg(any(feature = "linear_sums", not(target_arch = "nvptx64")))]
pub mod linear_sums;
#[cfg(any(feature = "linear_update", not(target_arch = "nvptx64")))]
pub mod linear_update;
#[cfg(any(feature = "linear_update_hopper", not(target_arch = "nvptx64")))]
pub mod linear_update_hopper;
#[cfg(any(feature = "modulate", not(target_arch = "nvptx64")))]
pub mod modulate;
#[cfg(any(feature = "norm", not(target_arch = "nvptx64")))]
pub mod norm;
#[cfg(any(feature = "norm_cluster", not(target_arch = "nvptx64")))]
pub mod norm_cluster;
#[cfg(any(feature = "product_key_gradient", not(target_arch = "nvptx64")))]
pub mod product_key_gradient;
#[cfg(any(feature = "product_key_topk", not(target_arch = "nvptx64")))]
pub mod product_key_topk;
#[cfg(any(feature = "product_key_topk_cluster", not(target_arch = "nvptx64")))]
pub mod product_key_topk_cluster;
#[cfg(any(feature = "repack", not(target_arch = "nvptx64")))]
pub mod repack;
#[cfg(any(feature = "rotary", not(target_arch = "nvptx64")))]
pub mod rotary;
#[cfg(any(
    feature = "linear_skinny",
    feature = "linear_joined",
    feature = "linear_modulated",
    not(target_arch = "nvptx64")
))]
pub mod skinny;
#[cfg(any(feature = "softmax", not(target_arch = "nvptx64")))]
pub mod softmax;
#[cfg(any(feature = "softmax_cluster", not(target_arch = "nvptx64")))]
pub mod softmax_cluster;
#[cfg(any(feature = "topk", not(target_arch = "nvptx64")))]
pub mod topk;
pub mod update;
#[cfg(any(feature = "update_gradient", not(target_arch = "nvptx64")))]
pub mod update_gradient;

#[cfg(not(target_arch = "nvptx64"))]
mod modules;
#[cfg(not(target_arch = "nvptx64"))]
pub use modules::{FAMILIES, Folder, INDEX, MODULES, PtxEntry, PtxModule, Run, TEXTS, runs, unpack};

warpsmith_dsl::device_crate!();
