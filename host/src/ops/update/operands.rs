//! The operands of generated low-rank updates as kernels take them, and what the choice of a kernel depends on.

use warpsmith_dsl::epilogue::LinearEpilogue;
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_kernels::codes::{Codes, MAX_UPDATES};

use super::Update;
use super::check::Checked;
use crate::cpu::Operand as Number;
use crate::device::Device;
use crate::device::decisions::Key;
use crate::error::{Error, Result};
use crate::ops::gemm::{self, Access, Fused, Limits};
use crate::ops::matrix::row_stride;
use crate::ops::{CHUNK_BYTES, Precision, Products, ROW_LIMIT, SIDE_LIMIT, repack};
use crate::stream::Stream;
use crate::tensor::{DType, Element, Tensor};

/// The updates of an operation: as they were given, or those of a layer, which has packed their V and U.
#[derive(Debug)]
pub(crate) enum Updates<'a, T: Element> {
    Given(Vec<Update<'a, T>>),
    Packed(&'a Packed<T>, Vec<&'a Tensor<T>>),
}

impl<'a, T: Element> Updates<'a, T> {
    /// Adds one; a layer's updates are all there.
    pub(super) fn push(&mut self, update: Update<'a, T>) {
        if let Self::Given(updates) = self {
            updates.push(update);
        }
    }
}

/// V and U of several updates as one, in every layout that kernels read.
#[derive(Clone, Debug)]
pub(crate) struct Packed<T: Element> {
    /// V of all updates, `[K1, R]`, rows contiguous and at multiples of 16 bytes.
    pub(crate) v: Tensor<T>,
    /// The same transposed, `[R, K1]`, rows contiguous and at multiples of 16 bytes.
    pub(crate) vt: Tensor<T>,
    /// U of all updates, `[R, K2]`, rows contiguous and at multiples of 16 bytes.
    pub(crate) u: Tensor<T>,
    /// The same transposed, `[K2, R]`, rows contiguous and at multiples of 16 bytes.
    pub(crate) ut: Tensor<T>,
    /// The rank and the scaling of each update.
    pub(crate) parts: Vec<(usize, f32)>,
}

impl<T: Element> Packed<T> {
    /// Packs V, U and the scaling of each update, which fit together; there is at least one.
    pub(crate) fn new(stream: &Stream, updates: &[(Tensor<T>, Tensor<T>, f32)]) -> Result<Self> {
        let v: Vec<_> = updates.iter().map(|(v, ..)| v.clone()).collect();
        let u: Vec<_> = updates.iter().map(|(_, u, _)| u.clone()).collect();
        let transposed =
            |all: &[Tensor<T>]| all.iter().map(|one| one.swap_axes(0, 1)).collect::<Result<Vec<_>>>();
        let (vt, ut) = (transposed(&v)?, transposed(&u)?);
        Ok(Self {
            v: concatenated(stream, 1, &v)?,
            vt: concatenated(stream, 0, &vt)?,
            u: concatenated(stream, 0, &u)?,
            ut: concatenated(stream, 1, &ut)?,
            parts: updates.iter().map(|(_, u, scaling)| (u.shape()[0], *scaling)).collect(),
        })
    }
}

/// The codes of one update, checked: a row for some neighbouring rows of X.
#[derive(Clone, Debug)]
pub(super) struct CodesOfUpdate<T: Element> {
    /// `[rows of codes, R]`, contiguous along R.
    pub(super) codes: Tensor<T>,
    /// Rows of X that share a row of codes, at least 1.
    pub(super) rows: usize,
    /// The update's rank.
    pub(super) rank: usize,
    /// What the update is multiplied with.
    pub(super) scaling: f32,
}

/// What the choice of a kernel depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    /// Rows of X and Y.
    pub(super) m: u32,
    /// Columns of X, at least 1.
    pub(super) k: u32,
    /// Columns of U and Y.
    pub(super) n: u32,
    /// The sum of the updates' ranks, 1 to [`MAX_RANK`](super::MAX_RANK).
    pub(super) rank: u32,
    /// The operands' type.
    pub(super) dtype: DType,
    /// How the kernel reads X, and W or V: `Aligned` if all of their rows start at multiples of 16 bytes, else `Words`, whatever they are multiples of.
    pub(super) access: Access,
    /// Whether the rows of X start at multiples of 16 bytes.
    pub(super) x_is_chunked: bool,
    /// Whether the rows of U do.
    pub(super) u_is_chunked: bool,
    /// Whether the rows of Y start at multiples of 16 bytes.
    pub(super) y_is_chunked: bool,
    /// Whether an epilogue does no more than to add a bias and to apply an activation. Of the update alone: whether it is not added to Y.
    pub(super) fits_registers: bool,
}

/// What a kernel of the update alone works on: `y = ((x v) ⊙ codes) u`, or `y += …`.
pub(super) struct Alone<'a, T: Element> {
    /// X, `[M, K]`, contiguous along K.
    pub(super) x: &'a Tensor<T>,
    /// V, `[K, R]`, contiguous along R.
    pub(super) v: &'a Tensor<T>,
    /// U, `[R, N]`, contiguous along N.
    pub(super) u: &'a Tensor<T>,
    /// Y, `[M, N]`, contiguous along N.
    pub(super) y: &'a Tensor<T>,
    /// The place of y.
    pub(super) y_arg: GlobalMut<T::Device>,
    /// The codes, times the scaling of each update.
    pub(super) codes: Codes<T::Device>,
    /// Rows of x and y.
    pub(super) m: u32,
    /// Columns of x, rows of v; at least 1.
    pub(super) k: u32,
    /// Columns of u and y.
    pub(super) n: u32,
    /// Whether y is added to.
    pub(super) add: bool,
}

/// What a kernel of a linear operation with updates works on: `y = epilogue(x wᵀ + ((x vtᵀ) ⊙ codes) u)`.
pub(super) struct BoltOn<'a, T: Element> {
    /// X, `[M, K]`, contiguous along K.
    pub(super) x: &'a Tensor<T>,
    /// W, `[N, K]`, contiguous along K; without it the updates alone are computed, by the kernels that can.
    pub(super) w: Option<&'a Tensor<T>>,
    /// V transposed, `[R, K]`, contiguous along K, rows at multiples of 16 bytes.
    pub(super) vt: &'a Tensor<T>,
    /// U, `[R, N]`, contiguous along N, rows at multiples of 16 bytes.
    pub(super) u: &'a Tensor<T>,
    /// Y, `[M, N]`, contiguous along N.
    pub(super) y: &'a Tensor<T>,
    /// The place of y.
    pub(super) y_arg: GlobalMut<T::Device>,
    /// The codes, times the scaling of each update.
    pub(super) codes: Codes<T::Device>,
    /// What is done to the sum of product and update.
    pub(super) epilogue: LinearEpilogue<T::Device, T::Device>,
    /// Rows of x and y.
    pub(super) m: u32,
    /// Rows of w, columns of u and y.
    pub(super) n: u32,
    /// Columns of x, w and vt; at least 1.
    pub(super) k: u32,
}

/// Whether the rows of a matrix are contiguous.
pub(super) fn has_rows<T: Element>(matrix: &Tensor<T>) -> bool {
    matrix.shape()[1] <= 1 || matrix.strides()[1] == 1
}

/// Whether the rows of a matrix are contiguous and start at multiples of 16 bytes.
pub(super) fn is_chunked<T: Element>(matrix: &Tensor<T>) -> bool {
    let stride = row_stride(matrix) * size_of::<T>() as u64;
    has_rows(matrix) && (matrix.arg().address() | stride).is_multiple_of(CHUNK_BYTES as u64)
}

/// What the choice depends on of a device.
pub(super) fn limits(device: &Device) -> Limits {
    let properties = device.properties();
    Limits {
        compute_capability: properties.compute_capability,
        multiprocessors: properties.multiprocessors,
        max_shared_per_block: properties.max_shared_per_block,
        shared_per_multiprocessor: properties.shared_per_multiprocessor,
        // The other ways to compute an update were measured on an H100, and are compared with products there.
        memory_bandwidth: 0,
        takes_fp8_mma: true,
    }
}

/// The error where no kernel runs on the device.
pub(super) fn no_kernel(operation: &'static str, device: &Device) -> Error {
    let (major, minor) = device.properties().compute_capability;
    Error::UnsupportedDevice {
        operation,
        device: device.to_string(),
        expected: "compute capability 7.5 or later, which the kernels of generated updates need".into(),
        actual: format!("compute capability {major}.{minor}"),
    }
}

impl Problem {
    /// A product of the sizes `[M, N, K]`, of operands that are read in place, into a new output.
    pub(super) fn product(&self, [m, n, k]: [u32; 3], output: DType, limits: &Limits) -> gemm::Problem {
        let has_tf32 = gemm::has_tf32(limits.compute_capability);
        gemm::Problem {
            m,
            n,
            k,
            batch: 1,
            input: self.dtype,
            output,
            access: self.access,
            products: Products::choose(self.dtype, k as usize, Precision::default(), has_tf32),
            stores_boxes: (n as usize * output.size()).is_multiple_of(CHUNK_BYTES),
            fused: Fused::Floor,
            rank: 0,
        }
    }

    /// The linear operation without the updates.
    pub(super) fn linear(&self, limits: &Limits) -> gemm::Problem {
        let product = self.product([self.m, self.n, self.k], self.dtype, limits);
        gemm::Problem {
            stores_boxes: self.y_is_chunked && product.stores_boxes,
            fused: if self.fits_registers { Fused::Floor } else { Fused::Terms },
            ..product
        }
    }

    /// A key of what is decided for it.
    pub(super) fn key(&self, kind: &'static str) -> Key {
        let &Self { m, k, n, rank, dtype, access, x_is_chunked, u_is_chunked, y_is_chunked, fits_registers } =
            self;
        let mut key = Key::new(kind);
        for number in [m, k, n, rank] {
            key.number(number as usize);
        }
        key.number(dtype as usize).number(access as usize);
        let all = [x_is_chunked, u_is_chunked, y_is_chunked, fits_registers];
        key.number(all.into_iter().fold(0, |bits, bit| bits << 1 | usize::from(bit)));
        key
    }
}

impl<T: Element + Number> Checked<T> {
    /// The error for a size that no launch takes.
    pub(super) fn check_sizes(&self) -> Result<()> {
        let operation = self.operation;
        let row = (self.k.max(self.n) as u64).saturating_mul(size_of::<T>() as u64);
        for (operand, quantity, size, limit) in [
            ("x", "number of rows", self.m as u64, SIDE_LIMIT),
            ("u", "number of columns", self.n as u64, SIDE_LIMIT),
            (if self.k > self.n { "x" } else { "u" }, "size of a row in bytes", row, ROW_LIMIT),
        ] {
            if size >= limit {
                let (limit, actual) = (format!("less than {limit}"), size.to_string());
                return Err(Error::SizeLimit { operation, operand, quantity, limit, actual });
            }
        }
        Ok(())
    }

    /// What the choice of a kernel of the update alone depends on, for an output with the layout of the matrix `y`, or is new.
    pub(super) fn problem_alone(&self, y: Option<&Tensor<T>>) -> Result<Problem> {
        self.check_sizes()?;
        let [v_is_chunked, u_is_chunked] = self.are_chunked_alone();
        Ok(self.problem(is_chunked(&self.x) && v_is_chunked, u_is_chunked, y))
    }

    /// The problem, with `n` columns of the output.
    pub(super) fn problem(&self, is_aligned: bool, u_is_chunked: bool, y: Option<&Tensor<T>>) -> Problem {
        let y_is_chunked =
            y.map_or((self.n * size_of::<T>()).is_multiple_of(CHUNK_BYTES) || self.m == 1, is_chunked);
        Problem {
            m: self.m as u32,
            k: self.k as u32,
            n: self.n as u32,
            rank: self.rank() as u32,
            dtype: T::DTYPE,
            access: if is_aligned { Access::Aligned } else { Access::Words },
            x_is_chunked: is_chunked(&self.x),
            u_is_chunked,
            y_is_chunked,
            fits_registers: true,
        }
    }

    /// The codes as kernels take them.
    pub(super) fn codes(&self) -> Codes<T::Device> {
        let first = self.codes[0].codes.arg();
        let mut codes = Codes {
            codes: [first; MAX_UPDATES],
            strides: [0; MAX_UPDATES],
            ends: [self.rank() as u32; MAX_UPDATES],
            rows: [1; MAX_UPDATES],
            scaling: [0.0; MAX_UPDATES],
        };
        let mut end = 0;
        for (i, of) in self.codes.iter().enumerate().take(MAX_UPDATES) {
            end += of.rank;
            codes.codes[i] = Global::new(of.codes.arg().address());
            codes.strides[i] = row_stride(&of.codes);
            codes.ends[i] = end as u32;
            // No more than M, a number of 32 bits.
            codes.rows[i] = of.rows.max(1) as u32;
            codes.scaling[i] = of.scaling;
        }
        codes
    }

    /// Whether V and U, as the update alone reads them, have rows that start at multiples of 16 bytes.
    fn are_chunked_alone(&self) -> [bool; 2] {
        match &self.packed {
            Some(packed) => [is_chunked(&packed.v), is_chunked(&packed.u)],
            None => match &self.factors[..] {
                [(v, u)] => [!has_rows(v) || is_chunked(v), !has_rows(u) || is_chunked(u)],
                // Several are put together in rows that are.
                _ => [true; 2],
            },
        }
    }

    /// Operands that [`factors_alone`](Self::factors_alone) copies.
    pub(super) fn copies_alone(&self) -> usize {
        match (&self.packed, &self.factors[..]) {
            (Some(_), _) => 0,
            (None, [(v, u)]) => usize::from(!has_rows(v)) + usize::from(!has_rows(u)),
            (None, several) => 2 * several.len(),
        }
    }

    /// Operands that [`factors_bolt_on`](Self::factors_bolt_on) copies.
    pub(super) fn copies_bolt_on(&self) -> usize {
        match (&self.packed, &self.factors[..]) {
            (Some(_), _) => 0,
            (None, [(v, u)]) => {
                let has_columns = v.swap_axes(0, 1).is_ok_and(|vt| is_chunked(&vt));
                usize::from(!has_columns) + usize::from(!is_chunked(u))
            }
            (None, several) => 2 * several.len(),
        }
    }

    /// V `[K1, R]` and U `[R, K2]` of all updates, contiguous along their rows.
    pub(super) fn factors_alone(&self, stream: &Stream) -> Result<(Tensor<T>, Tensor<T>)> {
        if let Some(packed) = &self.packed {
            return Ok((packed.v.clone(), packed.u.clone()));
        }
        if let [(v, u)] = &self.factors[..] {
            return Ok((with_rows(stream, v)?, with_rows(stream, u)?));
        }
        let v: Vec<_> = self.factors.iter().map(|(v, _)| v.clone()).collect();
        let u: Vec<_> = self.factors.iter().map(|(_, u)| u.clone()).collect();
        Ok((concatenated(stream, 1, &v)?, concatenated(stream, 0, &u)?))
    }

    /// U of all updates transposed, `[K2, R]`, with rows that start at multiples of 16 bytes.
    pub(super) fn expansion_in_chunks(&self, stream: &Stream) -> Result<Tensor<T>> {
        if let Some(packed) = &self.packed {
            return Ok(packed.ut.clone());
        }
        let ut = self.factors.iter().map(|(_, u)| u.swap_axes(0, 1)).collect::<Result<Vec<_>>>()?;
        match &ut[..] {
            [ut] => in_chunks(stream, ut),
            _ => concatenated(stream, 1, &ut),
        }
    }

    /// V transposed, `[R, K1]`, and U `[R, K2]` of all updates, with rows that start at multiples of 16 bytes.
    pub(super) fn factors_bolt_on(&self, stream: &Stream) -> Result<(Tensor<T>, Tensor<T>)> {
        if let Some(packed) = &self.packed {
            return Ok((packed.vt.clone(), packed.u.clone()));
        }
        let (v, u): (Vec<_>, Vec<_>) = self.factors.iter().cloned().unzip();
        let vt = v.iter().map(|v| v.swap_axes(0, 1)).collect::<Result<Vec<_>>>()?;
        match (&vt[..], &u[..]) {
            ([vt], [u]) => Ok((in_chunks(stream, vt)?, in_chunks(stream, u)?)),
            _ => Ok((concatenated(stream, 0, &vt)?, concatenated(stream, 0, &u)?)),
        }
    }
}

/// The matrix itself if its rows are contiguous, else a copy in which they are.
fn with_rows<T: Element>(stream: &Stream, matrix: &Tensor<T>) -> Result<Tensor<T>> {
    if has_rows(matrix) { Ok(matrix.clone()) } else { repack(matrix).on(stream).run() }
}

/// The matrix itself if its rows start at multiples of 16 bytes, else a copy in which they do.
pub(super) fn in_chunks<T: Element>(stream: &Stream, matrix: &Tensor<T>) -> Result<Tensor<T>> {
    if is_chunked(matrix) { Ok(matrix.clone()) } else { repack(matrix).on(stream).run() }
}

/// Matrices below each other (`axis` 0) or beside each other (1), in rows that start at multiples of 16 bytes.
pub(super) fn concatenated<T: Element>(
    stream: &Stream,
    axis: usize,
    matrices: &[Tensor<T>],
) -> Result<Tensor<T>> {
    let along: usize = matrices.iter().map(|matrix| matrix.shape()[axis]).sum();
    let mut shape = matrices.first().map_or([0, 0], |matrix| [matrix.shape()[0], matrix.shape()[1]]);
    shape[axis] = along;
    let padded = shape[1].next_multiple_of(CHUNK_BYTES / size_of::<T>());
    let all = Tensor::zeros_on(stream, [shape[0], padded])?.slice(1, 0..shape[1])?;
    let mut at = 0;
    for matrix in matrices {
        let end = at + matrix.shape()[axis];
        // A copy of single elements is many small ones.
        all.slice(axis, at..end)?.copy_from(&with_rows(stream, matrix)?)?;
        at = end;
    }
    Ok(all)
}
