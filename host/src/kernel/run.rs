//! Launches without `unsafe`: of kernels that are safe functions, with tensors as their arguments.

use warpsmith_dsl::atomic::GlobalAtomics;
use warpsmith_dsl::launch::{Declaration, GlobalMut, Kernel, KernelParam, SafeKernel};
use warpsmith_dsl::slice::{GlobalMatrix, GlobalMatrixMut, GlobalSlice, GlobalSliceMut};

use super::TypedKernel;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::{Operand, Stream};
use crate::tensor::{Element, Span, Tensor};

/// How many threads a launch needs, which its blocks cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent([usize; 3]);

impl From<usize> for Extent {
    /// So many threads along x.
    fn from(threads: usize) -> Self {
        Self([threads, 1, 1])
    }
}

impl From<[usize; 2]> for Extent {
    /// A thread for each element of so many rows (along y) and columns (along x).
    fn from([rows, columns]: [usize; 2]) -> Self {
        Self([columns, rows, 1])
    }
}

/// A tensor that a launch uses.
pub struct Used<'a> {
    operand: &'a dyn Operand,
    device: &'a Device,
    span: Span<'a>,
    is_written: bool,
}

impl<'a> Used<'a> {
    fn of<T: Element>(tensor: &'a Tensor<T>, is_written: bool) -> Self {
        Self { operand: tensor, device: tensor.device(), span: tensor.span(), is_written }
    }

    /// Whether one of the two is written where the other one may have an element.
    fn conflicts(&self, other: &Used<'_>) -> bool {
        (self.is_written || other.is_written) && self.span.meets(&other.span)
    }
}

/// What a safe launch takes for a parameter of type `P`: a number for itself, a tensor for a slice or a matrix.
pub trait LaunchArg<P> {
    /// The parameter's value, for the parameter `name` of `kernel`. The kernel touches what it describes until the work that uses
    /// [`used`](Self::used) is done.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`], [`Error::Stride`] and [`Error::ReadOnly`] if the tensor is none of these.
    fn param(&mut self, kernel: &'static str, name: &'static str) -> Result<P>;

    /// The tensor that it is.
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "nothing outside the crate can call this")]
    fn used(&self) -> Option<Used<'_>>;
}

macro_rules! numbers {
    ($($number:ty),*) => { $(
        impl LaunchArg<$number> for $number {
            fn param(&mut self, _: &'static str, _: &'static str) -> Result<$number> {
                Ok(*self)
            }

            #[allow(private_interfaces)]
            fn used(&self) -> Option<Used<'_>> {
                None
            }
        }
    )* };
}
numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

impl<T: Element> Tensor<T> {
    /// The tensor as a slice, whose elements are neighbours.
    fn length_of_slice(&self, kernel: &'static str, name: &'static str) -> Result<u64> {
        if !self.is_contiguous() {
            let expected = "those of a tensor without gaps".into();
            return Err(Error::Stride {
                operation: kernel,
                operand: name,
                expected,
                actual: self.strides().to_vec(),
            });
        }
        Ok(self.len() as u64)
    }

    /// Rows, columns, and the elements from one row to the next.
    fn sizes_of_matrix(&self, kernel: &'static str, name: &'static str) -> Result<(u32, u32, u64)> {
        let sizes: Option<[u32; 2]> = match *self.shape() {
            [rows, columns] => {
                u32::try_from(rows).ok().zip(u32::try_from(columns).ok()).map(<[u32; 2]>::from)
            }
            _ => None,
        };
        let Some([rows, columns]) = sizes else {
            return Err(Error::Shape {
                operation: kernel,
                operand: name,
                expected: "a matrix, of less than 2³² rows and columns".into(),
                actual: self.shape().to_vec(),
            });
        };
        let [stride, between] = [self.strides()[0], self.strides()[1]];
        let fits = (columns <= 1 || between == 1) && (rows <= 1 || stride >= columns as usize);
        if !fits && !self.is_empty() {
            return Err(Error::Stride {
                operation: kernel,
                operand: name,
                expected: "1 between columns, and rows that do not overlap".into(),
                actual: self.strides().to_vec(),
            });
        }
        Ok((rows, columns, stride as u64))
    }

    /// The address, of a tensor that may be written.
    fn written(&mut self, kernel: &'static str, name: &'static str) -> Result<GlobalMut<T::Device>> {
        self.expect_writable(kernel, name)?;
        Ok(self.arg_mut())
    }
}

macro_rules! tensors {
    ($($param:ident of $tensor:ty, $is_written:literal: |$self:ident, $kernel:ident, $name:ident| $value:expr;)*) => { $(
        impl<T: Element> LaunchArg<$param<T::Device>> for $tensor
        where
            T::Device: Copy,
        {
            fn param(&mut self, $kernel: &'static str, $name: &'static str) -> Result<$param<T::Device>> {
                let $self = self;
                // SAFETY: the elements are the tensor's, which views without gaps or in rows that do not overlap describe. They are there,
                // ordered with their other uses, until the work is done that `used` is handed over for. `run` refuses what another argument
                // writes, or reads where this one is written.
                Ok(unsafe { $value })
            }

            #[allow(private_interfaces)]
            fn used(&self) -> Option<Used<'_>> {
                Some(Used::of(self, $is_written))
            }
        }
    )* };
}
tensors! {
    GlobalSlice of &Tensor<T>, false: |x, kernel, name| {
        GlobalSlice::new(x.arg(), x.length_of_slice(kernel, name)?)
    };
    GlobalMatrix of &Tensor<T>, false: |x, kernel, name| {
        let (rows, columns, stride) = x.sizes_of_matrix(kernel, name)?;
        GlobalMatrix::new(x.arg(), rows, columns, stride)
    };
    GlobalSliceMut of &mut Tensor<T>, true: |x, kernel, name| {
        let length = x.length_of_slice(kernel, name)?;
        GlobalSliceMut::new(x.written(kernel, name)?, length)
    };
    GlobalAtomics of &mut Tensor<T>, true: |x, kernel, name| {
        let length = x.length_of_slice(kernel, name)?;
        GlobalAtomics::new(x.written(kernel, name)?, length)
    };
    GlobalMatrixMut of &mut Tensor<T>, true: |x, kernel, name| {
        let (rows, columns, stride) = x.sizes_of_matrix(kernel, name)?;
        GlobalMatrixMut::new(x.written(kernel, name)?, rows, columns, stride)
    };
}

/// The arguments of a safe launch: a tuple of [`LaunchArg`]s.
pub trait LaunchArgs<P> {
    /// The parameters' values, for the kernel of this name, which gives its parameters these names.
    ///
    /// # Errors
    ///
    /// As for [`LaunchArg::param`].
    fn params(&mut self, kernel: &'static str, names: &'static [&'static str]) -> Result<P>;

    /// The tensors among them, each with the place of its argument.
    #[doc(hidden)]
    #[allow(private_interfaces, reason = "nothing outside the crate can call this")]
    fn used(&self) -> Vec<(usize, Used<'_>)>;
}

macro_rules! launch_args {
    ($($arg:ident $param:ident $index:tt),*) => {
        impl<$($param: KernelParam, $arg: LaunchArg<$param>),*> LaunchArgs<($($param,)*)> for ($($arg,)*) {
            fn params(&mut self, kernel: &'static str, names: &'static [&'static str]) -> Result<($($param,)*)> {
                Ok(($(self.$index.param(kernel, name_of(names, $index))?,)*))
            }

            #[allow(private_interfaces)]
            fn used(&self) -> Vec<(usize, Used<'_>)> {
                let used = [$(($index, self.$index.used())),*];
                used.into_iter().filter_map(|(index, used)| Some((index, used?))).collect()
            }
        }
    };
}
impl LaunchArgs<()> for () {
    fn params(&mut self, _: &'static str, _: &'static [&'static str]) -> Result<()> {
        Ok(())
    }

    #[allow(private_interfaces)]
    fn used(&self) -> Vec<(usize, Used<'_>)> {
        Vec::new()
    }
}
launch_args!(A P 0);
launch_args!(A P 0, B Q 1);
launch_args!(A P 0, B Q 1, C R 2);
launch_args!(A P 0, B Q 1, C R 2, D S 3);
launch_args!(A P 0, B Q 1, C R 2, D S 3, E T 4);
launch_args!(A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5);
launch_args!(A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5, G V 6);
launch_args!(A P 0, B Q 1, C R 2, D S 3, E T 4, F U 5, G V 6, H W 7);

impl<K: SafeKernel> TypedKernel<K> {
    /// Launches `grid` blocks with these tensors and numbers; nothing where `grid` has no blocks.
    ///
    /// The work is ordered with every other use of the tensors, as by [`Stream::with_operands`]. Errors name the kernel and its parameter.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] and [`Error::Stride`] for a tensor that is no slice or matrix, [`Error::ReadOnly`] for one that is
    /// written and may not be, [`Error::DeviceMismatch`] for one on another device than the stream. [`Error::Overlap`] if one that is written shares memory with
    /// another, as [`Tensor::shares_memory`](crate::Tensor::shares_memory) tells. [`Error::LaunchLimit`] for a grid of more threads than 64 bits count.
    /// Otherwise as for [`launch`](Self::launch).
    pub fn run<A: LaunchArgs<K::Args>>(&self, stream: &Stream, grid: [u32; 3], mut args: A) -> Result<()> {
        let Declaration { name: kernel, params: names, .. } = K::DECLARATION;
        let params = args.params(kernel, names)?;
        let used = args.used();
        expect_apart(&used, kernel, names)?;
        self.function().device().expect_same(kernel, "stream", stream.device())?;
        for (index, used) in &used {
            stream.device().expect_same(kernel, name_of(names, *index), used.device)?;
        }
        expect_countable(&K::DECLARATION, grid)?;
        let operands: Vec<&dyn Operand> = used.iter().map(|(_, used)| used.operand).collect();
        stream.with_operands(&operands, || {
            if grid.contains(&0) {
                return Ok(());
            }
            // SAFETY: the entry is what the safe function was compiled to, as who made this kernel has checked or promised. It asks for memory that its
            // arguments describe, which is that of tensors. What is written shares no memory with another argument. Tensors are freed in the order of their
            // home streams, which `with_operands` makes wait for this work.
            unsafe { self.launch(stream, grid, params) }
        })
    }

    /// As [`run`](Self::run), on as many blocks as have a thread for each of `extent`: a number of elements, or `[rows,
    /// columns]`.
    ///
    /// # Errors
    ///
    /// As for [`run`](Self::run).
    pub fn run_over<A: LaunchArgs<K::Args>>(
        &self,
        stream: &Stream,
        extent: impl Into<Extent>,
        args: A,
    ) -> Result<()> {
        self.run(stream, grid_for::<K>(extent.into()), args)
    }
}

/// The blocks that cover an extent. Numbers that no grid has are refused by the launch.
fn grid_for<K: Kernel>(Extent(extent): Extent) -> [u32; 3] {
    let blocks = |axis: usize| extent[axis].div_ceil(K::DECLARATION.block[axis].max(1) as usize);
    [0, 1, 2].map(|axis| u32::try_from(blocks(axis)).unwrap_or(u32::MAX))
}

/// Refuses a grid whose threads 64 bits do not count: their indices would be those of others.
fn expect_countable(declaration: &Declaration, grid: [u32; 3]) -> Result<()> {
    let lengths = declaration.block.into_iter().chain(grid);
    match lengths.into_iter().try_fold(1u64, |product, length| product.checked_mul(u64::from(length))) {
        Some(_) => Ok(()),
        None => Err(Error::LaunchLimit {
            kernel: declaration.name.to_owned(),
            quantity: "the grid",
            expected: format!("less than 2⁶⁴ threads in blocks of {:?}", declaration.block),
            actual: format!("{grid:?}"),
        }),
    }
}

fn name_of(names: &[&'static str], index: usize) -> &'static str {
    names.get(index).copied().unwrap_or("?")
}

/// Refuses a tensor that is written and shares memory with another.
fn expect_apart(
    used: &[(usize, Used<'_>)],
    kernel: &'static str,
    names: &'static [&'static str],
) -> Result<()> {
    for (index, (at, own)) in used.iter().enumerate() {
        for (other_at, other) in &used[index + 1..] {
            if own.conflicts(other) {
                let (written, read) = if own.is_written { (at, other_at) } else { (other_at, at) };
                return Err(Error::Overlap {
                    operation: kernel,
                    operand: name_of(names, *written),
                    other: name_of(names, *read),
                });
            }
        }
    }
    Ok(())
}

/// What arguments are that a kernel only reads: their values, and the tensors among them, each with its name.
pub(crate) struct Resolved<'a, P> {
    pub(crate) values: P,
    pub(crate) used: Vec<(&'static str, &'a dyn Operand, Span<'a>)>,
}

/// Resolves arguments of the names `names`, none of which is written.
pub(crate) fn resolve<'a, P, A: LaunchArgs<P>>(
    operation: &'static str,
    args: &'a mut A,
    names: &'static [&'static str],
) -> Result<Resolved<'a, P>> {
    let values = args.params(operation, names)?;
    let mut used = Vec::new();
    for (index, Used { operand, span, is_written, .. }) in args.used() {
        let name = name_of(names, index);
        if is_written {
            return Err(Error::Argument {
                operation,
                argument: name,
                expected: "a tensor that is only read".into(),
                actual: "one that is written".into(),
            });
        }
        used.push((name, operand, span));
    }
    Ok(Resolved { values, used })
}
