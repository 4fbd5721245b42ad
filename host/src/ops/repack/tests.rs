//! Which axes a copy walks along, and what it refuses.

use super::{Axis, Nest, Source, Variant, axes};

/// A row-major matrix of 2-byte elements.
const ROWS: Source = Source {
    address: 256,
    element: 2,
    rows: 100,
    columns: 64,
    batch: 1,
    row_stride: 64,
    column_stride: 1,
    batch_stride: 0,
    copy_row_stride: 64,
    copy_batch_stride: 6400,
};

#[test]
fn rows_are_read_in_the_largest_words_that_everything_is_aligned_to() {
    let variant = |source: Source| source.launch().variant;
    assert_eq!(variant(ROWS), Variant::Rows(8));
    assert_eq!(variant(Source { address: 260, ..ROWS }), Variant::Rows(4));
    assert_eq!(variant(Source { address: 258, ..ROWS }), Variant::Rows(2));
    assert_eq!(variant(Source { row_stride: 65, ..ROWS }), Variant::Rows(2));
    assert_eq!(variant(Source { row_stride: 65, rows: 1, ..ROWS }), Variant::Rows(8));
    assert_eq!(variant(Source { columns: 62, ..ROWS }), Variant::Rows(4));
    assert_eq!(variant(Source { batch: 2, batch_stride: 6401, ..ROWS }), Variant::Rows(2));
    assert_eq!(variant(Source { element: 1, columns: 63, ..ROWS }), Variant::Rows(1));
    assert_eq!(variant(Source { element: 4, address: 260, ..ROWS }), Variant::Rows(4));
    let params = Source { columns: 62, ..ROWS }.launch().params;
    assert_eq!((params.columns, params.row_stride), (31, 32));
    assert_eq!((params.pitch, params.copy_batch_stride), (128, 12_800), "in bytes");
}

#[test]
fn columns_are_read_in_chunks_where_they_are_aligned() {
    let columns = Source { row_stride: 1, column_stride: 104, ..ROWS };
    let launch = |source: Source| (source.launch().variant, source.launch().params.chunked);
    assert_eq!(launch(columns), (Variant::Transpose(2), 1));
    assert_eq!(launch(Source { address: 264, ..columns }), (Variant::Transpose(2), 0));
    assert_eq!(launch(Source { column_stride: 100, ..columns }), (Variant::Transpose(2), 0));
    assert_eq!(launch(Source { row_stride: 2, ..columns }), (Variant::Transpose(2), 0));
    assert_eq!(launch(Source { batch: 2, batch_stride: 3, ..columns }), (Variant::Transpose(2), 0));
    assert_eq!(launch(Source { element: 4, ..columns }), (Variant::Transpose(4), 1));
}

#[test]
fn grids_cover_every_row_every_chunk_and_every_matrix() {
    for (rows, columns) in [(1, 1), (1, 4096), (33, 7), (1000, 784), (70_000, 3)] {
        let launch = Source { rows, columns, row_stride: columns, ..ROWS }.launch();
        let lanes = 1 << launch.params.lanes_log2;
        let chunks = (columns * 2).div_ceil(16);
        assert_eq!(launch.grid[0], rows.div_ceil(1024 / lanes) * chunks.div_ceil(lanes));
        let across = Source { row_stride: 1, column_stride: rows.max(2), rows, columns, ..ROWS }.launch();
        if columns > 1 {
            assert_eq!(across.grid[0], rows.div_ceil(64) * columns.div_ceil(64));
        }
    }
    for batch in [1, 2, 65_535, 65_536, 1_000_000] {
        let grid = Source { batch, batch_stride: 6400, ..ROWS }.launch().grid;
        assert!(grid[1] * grid[2] >= batch && grid[1] <= 65_535 && grid[2] <= 65_535, "{grid:?}");
    }
}

/// Where rows start in the source and in the copy.
type Places = Vec<(u64, u64)>;

/// The places of all rows, in the order of the tensor's: by the axes, and by the launches, sorted by the copy.
fn places(axes: &[Axis]) -> (Places, Places) {
    let along = |starts: Places, axis: Axis| -> Places {
        let step =
            |(a, b): (u64, u64)| (0..axis.length).map(move |i| (a + i * axis.source, b + i * axis.copy));
        starts.into_iter().flat_map(step).collect()
    };
    let direct = axes.iter().fold(vec![(0, 0)], |starts, &axis| along(starts, axis));
    let nest = Nest::of(axes);
    let mut launched = along(along(nest.starts(), nest.batch), nest.rows);
    launched.sort_unstable_by_key(|&(_, copy)| copy);
    (direct, launched)
}

#[test]
fn a_tensor_without_gaps_is_one_matrix_whatever_its_rank() {
    for shape in [&[6, 10][..], &[3, 6, 10], &[2, 3, 6, 10], &[2, 2, 3, 6, 10], &[2, 1, 3, 6, 10]] {
        let mut strides = vec![1; shape.len()];
        for axis in (0..shape.len() - 1).rev() {
            strides[axis] = strides[axis + 1] * shape[axis + 1];
        }
        let nest = Nest::of(&axes(shape, &strides, 16));
        let rows = shape[..shape.len() - 1].iter().product::<usize>() as u64;
        assert_eq!(nest.rows, Axis { length: rows, source: 10, copy: 16 });
        assert_eq!((nest.batch.length, nest.outer.len()), (1, 0), "{shape:?}");
    }
}

#[test]
fn axes_that_are_apart_are_a_batch_and_then_several_launches() {
    // Transposed matrices in a tensor without gaps: [4, 3, M, K] from [4, 3, K, M].
    let turned = Nest::of(&axes(&[4, 3, 5, 7], &[105, 35, 1, 5], 8));
    assert_eq!(turned.rows, Axis { length: 5, source: 1, copy: 8 });
    assert_eq!(turned.batch, Axis { length: 12, source: 35, copy: 40 });
    assert!(turned.outer.is_empty());
    // Cut along two axes; the longer one that cannot be merged is the batch.
    let cut = Nest::of(&axes(&[2, 3, 5, 7], &[1000, 100, 10, 1], 8));
    assert_eq!((cut.rows.length, cut.batch.length, cut.starts().len()), (5, 3, 2));
    assert_eq!(Nest::of(&axes(&[1, 1, 1, 7], &[9, 9, 9, 1], 8)).starts(), [(0, 0)]);
}

#[test]
fn launches_copy_every_row_once_to_its_own_place() {
    let shapes = [[2, 3, 4, 5], [1, 3, 4, 5], [2, 1, 4, 1], [3, 2, 1, 6], [4, 4, 4, 4]];
    for shape in shapes {
        for order in [[0, 1, 2, 3], [1, 0, 2, 3], [2, 1, 0, 3], [0, 1, 3, 2], [3, 2, 1, 0], [1, 3, 0, 2]] {
            for gap in [0, 1] {
                // Axes lie in memory in this order, innermost last, with `gap` elements more along each.
                let mut strides = [0; 4];
                let mut next = 1;
                for axis in order.into_iter().rev() {
                    strides[axis] = next;
                    next *= shape[axis] + gap;
                }
                let (direct, launched) = places(&axes(&shape, &strides, 8));
                assert_eq!(direct, launched, "{shape:?} of strides {strides:?}");
            }
        }
    }
}

#[test]
fn axes_are_not_merged_into_more_than_a_kernel_counts() {
    let nest = Nest::of(&axes(&[1 << 20, 1 << 15, 1], &[1 << 15, 1, 1], 8));
    assert_eq!((nest.rows.length, nest.batch.length), (1 << 15, 1 << 20));
}
