//! `#[kernel]`, `#[product_kernels]`, `#[row_kernels]` and `#[derive(KernelParam)]`: one signature for the device's entry point and the host's typed launch.
//!
//! Both are re-exported, and documented, by `warpsmith-dsl`.

use proc_macro::TokenStream;

mod epilogue;
mod function;
mod kernel;
mod param;
mod product;
mod rows;
mod source;

/// Makes a function a GPU kernel.
///
/// ```text
/// /// y = a x + y
/// #[kernel(family = axpy, block = [256, 1, 1])]
/// pub unsafe fn axpy(x: Global<f32>, y: GlobalMut<f32>, a: f32, n: u32) { … }
///
/// /// A generic kernel lists its instances: the entry's name and the generic arguments of each.
/// #[kernel(
///     family = copy, block = [T::THREADS, 1, 1], min_blocks = 2, shared = T::SHARED_BYTES,
///     instances = [copy_f16 = <F16>, copy_f32 = <f32>],
/// )]
/// pub unsafe fn copy<T: Copyable>(from: Global<T>, to: GlobalMut<T>, n: u32) { … }
/// ```
///
/// | key | meaning | default |
/// |---|---|---|
/// | `family` | the kernel family: the Cargo feature that compiles it, and the name of its PTX file | the file that it stands in |
/// | `block` | threads of a block along x, y, z; every launch uses exactly these | required |
/// | `cluster` | blocks of a cluster along x, y, z; every launch uses exactly these (sm_90) | `[1, 1, 1]` |
/// | `min_blocks` | blocks that one multiprocessor must hold at a time, which bounds a thread's registers | 1 |
/// | `shared` | dynamic shared memory of a block, in bytes | 0 |
/// | `dependent_launch` | whether a launch may begin while those before it run; all its threads wait for them first. No effect before sm_90 | false |
/// | `instances` | for a generic function: `entry_name = <arguments>`, … | the function itself |
///
/// The values may use the function's generic parameters. For `nvptx64` each instance becomes a PTX entry. For the host
/// the attribute adds a type under the function's name, with the same generic parameters, which implements
/// `launch::Kernel` for each instance. It also adds a static `NAME_INSTANCES` with all declarations. The function
/// itself remains, so that its body is type-checked on stable Rust.
///
/// A function that is not `unsafe` is a kernel that its launch cannot harm: then the type implements `launch::SafeKernel` too, and the host launches it
/// with tensors, checked, without `unsafe`. What such a function promises:
///
/// - It holds for every grid: any number of blocks along x, y and z, also more or fewer than there is work for. Two blocks write an element only by
///   atomics. `thread::index_1d`, `thread::indices`, `block::index_in_grid` and `block::indices` name what one thread or block alone has.
/// - It holds for all values of its arguments, and all sizes of its slices and matrices.
/// - It may rely on the block, the cluster and the shared memory that the attribute states.
///
/// So it is sound only as a kernel. The attribute adds a first parameter, `launch::EntryToken`, for which only the entry has an argument: no other kernel calls
/// it as if it were a function of its own. A fingerprint of its source stands in the PTX and in the type, and a launch without `unsafe` asks for both to agree.
///
/// The function must return nothing. Its parameters must be plain names, of types that implement `launch::KernelParam`
/// or of references to such types. A launch passes both by value. For `x: &T` the kernel gets the place in constant
/// memory where the launch has put the `T`, instead of a copy (sm_70, PTX ISA 7.7).
#[proc_macro_attribute]
pub fn kernel(attribute: TokenStream, item: TokenStream) -> TokenStream {
    kernel::expand(attribute.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes the kernels of a matrix product with an epilogue of one's own: all variants that the library's planner chooses from.
///
/// The epilogue is a `pub` function of the sum. A parameter with `#[row]` has a number for each row, one with `#[column]` for each column. They come before
/// those that are the same for all elements, of type `f32`, `u32` or `i32`. Beside the sum there are at most 8.
///
/// ```text
/// /// `softplus(scale of the row · sum + bias of the column)`
/// #[product_kernels(softplus_f16: F16 -> f32, softplus_bf16: Bf16 -> f32)]
/// pub fn softplus(sum: f32, #[row] scale: f32, #[column(Bf16)] bias: f32) -> f32 {
///     let x = scale * sum + bias;
///     x.max(0.0) + math::ln(1.0 + math::exp(-x.abs()))
/// }
/// ```
///
/// `(Bf16)` is the type of the numbers in memory: `f32` unless it is named. A launch takes a tensor for each parameter of rows or columns, which has to have
/// as many elements as the output has rows or columns. A struct `Softplus` of the operands stands beside the function.
///
/// An epilogue that reads at other places is a struct, which implements `ProductEpilogue`:
///
/// ```text
/// /// `offset + scale of the group of columns · sum`
/// #[product_kernels(grouped_f16: F16 -> f32)]
/// pub struct Grouped {
///     scales: GlobalSlice<f32>,
///     group: u32,
///     offset: f32,
/// }
///
/// impl ProductEpilogue for Grouped {
///     type Row = ();
///     type Column = f32;
///     fn row(&self, _: u32) {}
///     fn column(&self, column: u32) -> f32 { self.scales.get((column / self.group.max(1)) as usize).unwrap_or(0.0) }
///     fn apply(&self, _: (), scale: f32, sum: f32) -> f32 { self.offset + scale * sum }
/// }
/// ```
///
/// Its fields are numbers, and slices or matrices of global memory, in an order that leaves no padding; a launch takes a tensor for a slice.
///
/// Each `name: Input -> Output` gives kernels for operands of one type: `F16` or `Bf16`, and a result of the same type or of `f32`. The
/// attribute adds a type `name`, which the host gives to `warpsmith::ops::fused::product`.
///
/// Build the file for `sm_80` and `sm_90a`: the latter has the variants for Hopper.
#[proc_macro_attribute]
pub fn product_kernels(attribute: TokenStream, item: TokenStream) -> TokenStream {
    product::expand(attribute.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Makes the kernels of an operation on rows with a function of one's own: all variants that the library chooses from.
///
/// ```text
/// /// `(offset + weight[c]) · x / √(mean of x² + ε)`
/// #[row_kernels(rms_norm_bf16: Bf16 -> Bf16, rms_norm_f32: f32 -> f32)]
/// pub struct RmsNorm {
///     weight: GlobalSlice<f32>,
///     offset: f32,
///     epsilon: f32,
/// }
///
/// impl RowFunction for RmsNorm {
///     const PASSES: &'static [Reduction] = &[Reduction::Sum];
///
///     fn term(&self, _pass: usize, x: f32, _column: u32, _row: Row) -> f32 { x * x }
///
///     fn finish(&self, x: f32, column: u32, row: Row) -> f32 {
///         let mean = row.found[0] / row.columns as f32;
///         let weight = self.offset + self.weight.get(column as usize).unwrap_or(0.0);
///         weight * x * math::rsqrt(mean + self.epsilon)
///     }
/// }
/// ```
///
/// Each `name: Input -> Output` gives kernels for rows of one type and results of another: `F16`, `Bf16` or `f32`. The attribute makes the struct a kernel
/// parameter, and adds a type `name`, which the host gives to `warpsmith::ops::fused::rows`. The struct's fields are numbers, and slices or matrices of global
/// memory, in an order that leaves no padding; a launch takes a tensor for a slice.
///
/// Build the file for `sm_80` and `sm_90a`: the latter has clusters for rows that are longer than a block has registers for.
#[proc_macro_attribute]
pub fn row_kernels(attribute: TokenStream, item: TokenStream) -> TokenStream {
    rows::expand(attribute.into(), item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Implements `launch::KernelParam` for a `#[repr(C)]` or `#[repr(transparent)]` struct, after checking that every field
/// implements it and that the struct has no padding.
#[proc_macro_derive(KernelParam)]
pub fn kernel_param(item: TokenStream) -> TokenStream {
    param::expand(item.into()).unwrap_or_else(syn::Error::into_compile_error).into()
}
