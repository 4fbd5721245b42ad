//! How a product gets at its operands: one pure function of their layouts and of what the device has kernels for.
//!
//! The kernels read rows that are contiguous along K, fastest in chunks of 16 bytes. An operand with another layout is read in place by slower kernels, at
//! worst element by element, or is copied first ([`repack`](crate::ops::repack)): whatever costs less, by the time that the product takes and the bytes that
//! the copy moves.

use super::cost::of_memory;
use super::problem::is_fp8;
use super::variants::Refusal;
use super::{Access, Limits, Problem, Tile, estimate};
use crate::ops::CHUNK_BYTES;
use crate::tensor::View;

/// The address alignment of the smallest copies that kernels make.
const WORD_BYTES: u64 = 4;
/// Bytes that a copy reads and writes in a nanosecond, on an H100: four fifths of what a plain copy reaches.
const COPY_RATE: u128 = 2_400;
/// What a launch more costs, in picoseconds.
const LAUNCH: u64 = 2_000_000;

/// The layout of an operand's matrices, as the kernels see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Rows contiguous along K; every row starts at a multiple of 16 bytes.
    Chunks,
    /// Rows contiguous along K; every row starts at a multiple of 4 bytes.
    Words,
    /// Contiguous along the rows; every column starts at a multiple of 16 bytes.
    ColumnChunks,
    /// Any other.
    Other,
}

/// The matrices of an operand: where they are, and how far apart. Strides in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperandView<'a> {
    pub(crate) address: u64,
    pub(crate) element_bytes: u64,
    /// Rows, and the stride from one to the next.
    pub(crate) rows: (usize, usize),
    /// Columns: the extent along K.
    pub(crate) columns: (usize, usize),
    /// The leading axes' lengths, and their strides.
    pub(crate) leading: (&'a [usize], &'a [usize]),
}

impl<'a> OperandView<'a> {
    /// That of a tensor `[.., rows, columns]`.
    pub(crate) fn of(view: View<'a>) -> Self {
        let View { element, address, shape, strides } = view;
        let axes = shape.len() - 2;
        Self {
            address,
            element_bytes: element.size() as u64,
            rows: (shape[axes], strides[axes]),
            columns: (shape[axes + 1], strides[axes + 1]),
            leading: (&shape[..axes], &strides[..axes]),
        }
    }
}

impl OperandView<'_> {
    /// Whether neighbouring rows are neighbours in memory. A leading axis may become that of the rows where a matrix has but one, whose own stride
    /// says nothing then.
    fn is_contiguous_along_rows(&self) -> bool {
        let has_one_matrix = self.leading.0.iter().all(|&length| length <= 1);
        if self.rows.0 == 1 { has_one_matrix } else { self.rows.1 == 1 }
    }

    /// Whether it is one matrix, whose rows are contiguous.
    fn is_matrix_of_rows(&self) -> bool {
        let has_one_matrix = self.leading.0.iter().all(|&length| length <= 1);
        has_one_matrix && (self.columns.0 == 1 || self.columns.1 == 1)
    }

    /// The matrices' layout.
    pub(crate) fn layout(&self) -> Layout {
        // Of no columns nothing is read, wherever they are.
        if self.columns.0 == 0 {
            return Layout::Chunks;
        }
        // Has the bits of the address and of every stride that counts.
        let bits = |strides: &mut dyn Iterator<Item = (usize, usize)>| {
            let strides = strides.filter(|&(length, _)| length > 1);
            strides.fold(self.address, |all, (_, stride)| all | (stride as u64 * self.element_bytes))
        };
        let leading = || self.leading.0.iter().copied().zip(self.leading.1.iter().copied());
        let along_k = self.columns.0 == 1 || self.columns.1 == 1;
        let of_rows = bits(&mut leading().chain([self.rows]));
        let of_columns = bits(&mut leading().chain([self.columns]));
        if along_k && of_rows.is_multiple_of(CHUNK_BYTES as u64) {
            Layout::Chunks
        } else if along_k && of_rows.is_multiple_of(WORD_BYTES) {
            Layout::Words
        } else if !along_k && self.is_contiguous_along_rows() && of_columns.is_multiple_of(CHUNK_BYTES as u64)
        {
            Layout::ColumnChunks
        } else {
            Layout::Other
        }
    }

    /// What a copy of the matrices into aligned rows costs, in picoseconds.
    fn copy_cost(&self, limits: &Limits) -> u128 {
        let matrices: usize = self.leading.0.iter().product();
        let elements = matrices as u128 * self.rows.0 as u128 * self.columns.0 as u128;
        let bytes = 2 * elements * u128::from(self.element_bytes);
        bytes * 1_000 / of_memory(COPY_RATE, limits) + u128::from(LAUNCH)
    }
}

/// How kernels can read two operands with these layouts in place, several elements at a time; `None` if none can.
///
/// This is the one place that knows which layouts kernels take.
pub(crate) fn access(a: Layout, b: Layout) -> Option<Access> {
    match (a, b) {
        (Layout::Chunks, Layout::Chunks) => Some(Access::Aligned),
        (Layout::Chunks | Layout::Words, Layout::Chunks | Layout::Words) => Some(Access::Words),
        (Layout::Chunks, Layout::ColumnChunks) => Some(Access::WAcross),
        (Layout::ColumnChunks, Layout::Chunks | Layout::ColumnChunks) => Some(Access::Across),
        _ => None,
    }
}

/// What to do with the operands, and how the kernel reads them then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// Whether A, and whether B, is copied first.
    pub(crate) repack: [bool; 2],
    /// How the kernel reads them.
    pub(crate) access: Access,
}

/// The path that costs least for a product of operands `views`, of which `problem` gives the problem of each launch and how
/// many there are, when some operands have been copied. With a tile that is asked for, the path with the fewest copies.
/// `is_dense` is whether they can be
/// read as [`Access::Dense`] says.
///
/// # Errors
///
/// Why a tile that is asked for would not do, at the path at which it meets most conditions; `None` if no tile of the device would.
pub(crate) fn choose(
    views: [OperandView<'_>; 2],
    is_dense: bool,
    tile: Option<Tile>,
    limits: &Limits,
    problem: impl Fn([bool; 2], Access) -> (Problem, usize),
) -> Result<Path, Option<Refusal>> {
    let (mut best, mut refusal) = (None, None);
    // A copy of rows that are aligned already is worth something where they become one matrix, and the variants for the type compute but one.
    let is_apart = |i: usize| {
        let (problem, launches) = problem([false; 2], Access::Aligned);
        i == 0 && is_fp8(problem.input) && (launches > 1 || problem.batch > 1)
    };
    // Copies last, so that what costs the same is read in place.
    for repack in [[false, false], [true, false], [false, true], [true, true]] {
        let layouts: [Layout; 2] =
            std::array::from_fn(|i| if repack[i] { Layout::Chunks } else { views[i].layout() });
        if (0..2).any(|i| repack[i] && views[i].layout() == Layout::Chunks && !is_apart(i)) {
            continue;
        }
        let mut copies: u128 = (0..2).filter(|&i| repack[i]).map(|i| views[i].copy_cost(limits)).sum();
        if repack == [true; 2] && views.iter().all(OperandView::is_matrix_of_rows) {
            // One launch makes both.
            copies -= u128::from(LAUNCH);
        }
        let dense = (is_dense && repack == [false; 2]).then_some(Access::Dense);
        let fast = access(layouts[0], layouts[1]);
        // For what no faster kernel reads, and where it is asked for.
        let strided = (fast.is_none() || tile == Some(Tile::Strided32x32)).then_some(Access::Strided);
        for access in fast.into_iter().chain(dense).chain(strided) {
            let (problem, launches) = problem(repack, access);
            let path = Path { repack, access };
            let Some(tile) = tile else {
                let Some(time) = estimate(None, &problem, limits) else { continue };
                let cost = time * launches as u128 + copies;
                if best.is_none_or(|(least, _)| cost < least) {
                    best = Some((cost, path));
                }
                continue;
            };
            // A tile that is asked for reads operands in place, if it can.
            match tile.refusal(&problem, limits) {
                None => return Ok(path),
                Some(refused) => refusal = refusal.max(Some(refused)),
            }
        }
    }
    best.map(|(_, path)| path).ok_or(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::ops::Products;
    use crate::ops::gemm::Fused;

    const H100: Limits = Limits {
        compute_capability: (9, 0),
        multiprocessors: 132,
        max_shared_per_block: 232_448,
        shared_per_multiprocessor: 233_472,
        memory_bandwidth: 3_352_320,
        takes_fp8_mma: true,
    };

    fn rows(rows: usize, columns: usize, stride: usize) -> OperandView<'static> {
        OperandView {
            address: 1 << 20,
            element_bytes: 2,
            rows: (rows, stride),
            columns: (columns, 1),
            leading: (&[], &[]),
        }
    }

    fn turned(place: OperandView<'static>, stride: usize) -> OperandView<'static> {
        OperandView { rows: (place.rows.0, 1), columns: (place.columns.0, stride), ..place }
    }

    fn path(a: OperandView<'_>, b: OperandView<'_>, tile: Option<Tile>) -> Option<Path> {
        path_of(a, b, false, tile)
    }

    fn path_of(a: OperandView<'_>, b: OperandView<'_>, is_dense: bool, tile: Option<Tile>) -> Option<Path> {
        let (m, n, k) = (a.rows.0 as u32, b.rows.0 as u32, a.columns.0 as u32);
        choose([a, b], is_dense, tile, &H100, |_, access| {
            let products = Products::Direct;
            (
                Problem {
                    m,
                    n,
                    k,
                    batch: 1,
                    input: DType::Bf16,
                    output: DType::Bf16,
                    access,
                    products,
                    stores_boxes: n.is_multiple_of(8),
                    fused: Fused::Floor,
                    rank: 0,
                },
                1,
            )
        })
        .ok()
    }

    #[test]
    fn operands_that_kernels_read_fast_are_never_copied() {
        for (m, n, k) in [(1, 4096, 4096), (128, 64, 8), (8192, 8192, 8192)] {
            let path = path(rows(m, k, k), rows(n, k, k + 8), None);
            assert_eq!(path, Some(Path { repack: [false; 2], access: Access::Aligned }));
        }
    }

    #[test]
    fn large_operands_of_odd_rows_are_copied_and_a_small_one_is_not() {
        let odd = |m, n, k| path(rows(m, k, k), rows(n, k, k), None).expect("there are kernels");
        assert_eq!(odd(4096, 4096, 4095), Path { repack: [true; 2], access: Access::Aligned });
        assert_eq!(odd(3, 5, 6), Path { repack: [false; 2], access: Access::Words });
        // Rows that start at odd places are read element by element.
        assert_eq!(odd(3, 5, 7), Path { repack: [false; 2], access: Access::Strided });
    }

    /// M, K, N, and microseconds of bf16 with bias and ReLU on an H100, driver 580.159.04, by `cargo xtask bench`: read as
    /// [`Access::Dense`] says, and otherwise.
    const NARROW: [((usize, usize, usize), [f64; 2]); 11] = [
        ((100_000, 100, 100), [23.62, 50.99]),
        ((100_000, 101, 99), [24.86, 57.12]),
        ((100_000, 37, 10), [9.73, 23.47]),
        ((50_000, 100, 20), [9.12, 15.47]),
        ((20_000, 100, 100), [8.76, 13.85]),
        ((10_000, 100, 100), [6.98, 7.71]),
        ((5000, 100, 100), [6.18, 6.33]),
        ((1000, 100, 100), [5.59, 3.64]),
        ((65_536, 64, 64), [13.71, 9.04]),
        ((65_536, 128, 128), [25.61, 13.38]),
        ((100_000, 128, 64), [24.81, 16.84]),
    ];

    #[test]
    fn rows_without_gaps_are_read_as_one_piece_where_that_was_measured_to_be_faster() {
        for ((m, k, n), [dense, other]) in NARROW {
            let (x, w) = (rows(m, k, k), rows(n, k, k));
            let path = path_of(x, w, true, None).expect("there are kernels");
            let (chosen, rest) = if path.access == Access::Dense { (dense, other) } else { (other, dense) };
            assert!(chosen <= 1.05 * rest, "{m}x{k}x{n}: {path:?}");
            assert_ne!(path_of(x, w, false, None).expect("there are kernels").access, Access::Dense);
        }
    }

    #[test]
    fn rows_that_no_other_kernel_reads_need_no_copy_where_they_have_no_gaps() {
        let dense = Some(Path { repack: [false; 2], access: Access::Dense });
        let (x, w) = (rows(100_000, 101, 101), rows(99, 101, 101));
        assert_eq!(path_of(x, turned(w, 99), true, None), dense);
        let asked = |is_dense| path_of(rows(3, 5, 5), rows(7, 5, 5), is_dense, Some(Tile::Narrow16x256));
        assert_eq!(asked(true), dense);
        assert_eq!(asked(false), None);
    }

    /// M, K, N, and microseconds of f16 with bias and ReLU on an H100, driver 580.159.04, by `cargo xtask bench`: read element by element, and
    /// copied into aligned rows first.
    const STRIDED: [((usize, usize, usize), [f64; 2]); 11] = [
        ((127, 127, 127), [3.27, 4.99]),
        ((31, 33, 63), [2.67, 4.50]),
        ((64, 255, 64), [3.59, 4.39]),
        ((255, 255, 255), [4.74, 5.54]),
        ((200, 301, 100), [5.27, 4.85]),
        ((511, 511, 511), [8.32, 7.25]),
        ((1000, 333, 777), [20.06, 10.37]),
        ((16, 1023, 1000), [12.64, 5.63]),
        ((1000, 101, 55), [3.35, 5.49]),
        ((1023, 1023, 1023), [47.77, 15.91]),
        ((33, 4097, 65), [41.5, 6.82]),
    ];

    #[test]
    fn small_operands_at_odd_places_are_read_element_by_element_where_that_was_measured_to_be_faster() {
        for ((m, k, n), [strided, copied]) in STRIDED {
            let path = path(rows(m, k, k), rows(n, k, k), None).expect("there are kernels");
            let (chosen, rest) =
                if path.access == Access::Strided { (strided, copied) } else { (copied, strided) };
            assert!(chosen <= 1.1 * rest, "{m}x{k}x{n}: {path:?}");
        }
        // So are those that lie across, and no others but where it is asked for.
        let (a, b) = (turned(rows(100, 60, 60), 101), turned(rows(90, 60, 60), 91));
        let strided = Some(Path { repack: [false; 2], access: Access::Strided });
        assert_eq!(path(a, b, None), strided);
        let aligned = [rows(64, 64, 64), rows(64, 64, 64)];
        assert_eq!(path(aligned[0], aligned[1], Some(Tile::Strided32x32)), strided);
        assert_eq!(path(aligned[0], aligned[1], None).expect("there are kernels").access, Access::Aligned);
    }

    /// The leading axis may become the rows' own, which are then as far apart as its matrices.
    #[test]
    fn single_rows_of_many_matrices_are_not_contiguous_along_the_rows() {
        let across = OperandView { rows: (1, 1), ..turned(rows(1, 64, 0), 32) };
        assert_eq!(across.layout(), Layout::ColumnChunks);
        for stride in [1, 8] {
            let many = OperandView { rows: (1, stride), leading: (&[4], &[8]), ..across };
            assert_eq!(many.layout(), Layout::Other, "{stride}");
        }
    }

    #[test]
    fn only_the_operand_that_no_kernel_reads_is_copied() {
        let (a, b) = (rows(1024, 1024, 1024), rows(2048, 1024, 1024));
        for (a, b, repack) in [
            (turned(a, 1024), b, [true, false]),
            (a, turned(b, 2048), [false, true]),
            (turned(a, 1024), turned(b, 2048), [true; 2]),
        ] {
            let path_on = |limits: &Limits| {
                choose([a, b], false, None, limits, |_, access| {
                    (
                        Problem {
                            m: 1024,
                            n: 2048,
                            k: 1024,
                            batch: 1,
                            input: DType::Bf16,
                            output: DType::Bf16,
                            access,
                            products: Products::Direct,
                            stores_boxes: true,
                            fused: Fused::Floor,
                            rank: 0,
                        },
                        1,
                    )
                })
                .ok()
            };
            // Hopper's kernels take every layout.
            let access = if repack[0] { Access::Across } else { Access::WAcross };
            assert_eq!(path_on(&H100), Some(Path { repack: [false; 2], access }));
            let portable = Limits { compute_capability: (8, 0), ..H100 };
            assert_eq!(path_on(&portable), Some(Path { repack, access: Access::Aligned }));
        }
        // Columns that are not aligned are copied everywhere.
        let odd = path(turned(a, 1023), b, None);
        assert_eq!(odd, Some(Path { repack: [true, false], access: Access::Aligned }));
    }

    #[test]
    fn a_tile_that_is_asked_for_gets_operands_that_it_can_read() {
        let odd = [rows(100, 62, 62), rows(50, 62, 62)];
        let with = |tile| path(odd[0], odd[1], Some(tile)).map(|path| (path.repack, path.access));
        assert_eq!(with(Tile::HopperPingPong128x128), Some(([true; 2], Access::Aligned)));
        assert_eq!(with(Tile::T16x64), Some(([false; 2], Access::Words)));
    }

    #[test]
    fn layouts_are_told_from_address_and_every_stride_that_counts() {
        let place = rows(10, 64, 64);
        assert_eq!(place.layout(), Layout::Chunks);
        assert_eq!(OperandView { address: 8, ..place }.layout(), Layout::Words);
        assert_eq!(OperandView { address: 2, ..place }.layout(), Layout::Other);
        assert_eq!(OperandView { rows: (10, 66), ..place }.layout(), Layout::Words);
        assert_eq!(OperandView { rows: (10, 65), ..place }.layout(), Layout::Other);
        assert_eq!(OperandView { rows: (1, 65), ..place }.layout(), Layout::Chunks);
        assert_eq!(OperandView { columns: (64, 2), ..place }.layout(), Layout::Other);
        assert_eq!(OperandView { columns: (1, 2), ..place }.layout(), Layout::Chunks);
        assert_eq!(OperandView { columns: (0, 2), address: 2, ..place }.layout(), Layout::Chunks);
        assert_eq!(OperandView { leading: (&[3], &[642]), ..place }.layout(), Layout::Words);
        assert_eq!(OperandView { leading: (&[3], &[641]), ..place }.layout(), Layout::Other);
        assert_eq!(OperandView { leading: (&[1], &[641]), ..place }.layout(), Layout::Chunks);
        assert_eq!(turned(place, 16).layout(), Layout::ColumnChunks);
        assert_eq!(turned(place, 10).layout(), Layout::Other);
    }
}
