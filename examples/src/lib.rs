//! A ladder of kernels, from vector addition to a small attention. Most files are a screen or two: a kernel, and the test that
//! runs it in the emulator. Those of [`hopper`] and of operations that the library plans are longer.
//!
//! | file | what it adds |
//! |---|---|
//! | [`vector_add`] | a thread for each element |
//! | [`saxpy`] | more elements than threads |
//! | [`reduction`] | sums over a block, and over blocks by a second launch |
//! | [`softmax`] | a block for each row, exponentials |
//! | [`transpose`] | a tile of shared memory, without conflicts of banks |
//! | [`histogram`] | atomics on shared and global memory |
//! | [`tiled_product`] | a matrix product by tiles of shared memory |
//! | [`mma_sync`] | a matrix product on the tensor cores |
//! | [`hopper`] | a matrix product on Hopper, in eight steps |
//! | [`attention`] | a small attention |
//! | [`fused`] | a product with an epilogue of one's own, by the library's main loops |
//! | [`own_product`] | the same, in all of the library's variants, planned by it |
//! | [`own_rows`] | operations on rows with functions of one's own, planned by the library |

pub mod attention;
pub mod fused;
pub mod histogram;
pub mod hopper;
pub mod mma_sync;
pub mod own_product;
pub mod own_rows;
pub mod reduction;
pub mod saxpy;
pub mod softmax;
pub mod tiled_product;
pub mod transpose;
pub mod vector_add;

#[cfg(test)]
mod testing;
