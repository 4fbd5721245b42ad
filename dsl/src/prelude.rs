//! What most kernels name: `use warpsmith_dsl::prelude::*;`.

pub use crate::atomic::GlobalAtomics;
pub use crate::float::{Bf16, Element, F16};
pub use crate::gemm::product::ProductEpilogue;
pub use crate::launch::{Global, GlobalMut, TensorMap};
pub use crate::rows::{Reduction, Row, RowFunction};
pub use crate::scalar::{Float, Number, Scalar};
pub use crate::shared::{SharedArray, SharedMatrix};
pub use crate::slice::{GlobalMatrix, GlobalMatrixMut, GlobalSlice, GlobalSliceMut};
pub use crate::thread::sync_threads;
pub use crate::{
    KernelParam, block, kernel, math, product_kernels, row_kernels, shared_memory, thread, warp,
};
