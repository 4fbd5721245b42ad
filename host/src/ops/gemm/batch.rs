//! Batches: which launches give all matrices of a product, as arithmetic on shapes and strides.
//!
//! Operands of any rank become launches of one problem each: M rows, K, N and a number of matrices, with one stride from matrix to
//! matrix for each operand. Leading axes become rows where the rows of all matrices are evenly spaced and share one B, so that
//! a linear layer's leading axes cost nothing. The rest becomes the batch of a launch, and what has no common stride several
//! launches. No
//! axis is merged into one that is too long for a kernel: what is left of the others is a batch, too.

use crate::ops::SIDE_LIMIT;

/// The operands of a product whose place depends on the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    A,
    B,
    Y,
    Residual,
    Mask,
    Preactivation,
    RowScale,
}

/// How many roles there are.
pub(crate) const ROLES: usize = 7;

/// One number for each operand, in elements of the operand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PerRole([usize; ROLES]);

impl std::ops::Index<Role> for PerRole {
    type Output = usize;

    fn index(&self, role: Role) -> &usize {
        &self.0[role as usize]
    }
}

impl std::ops::IndexMut<Role> for PerRole {
    fn index_mut(&mut self, role: Role) -> &mut usize {
        &mut self.0[role as usize]
    }
}

/// The operands that have a row for each row of the output.
const BY_ROWS: [Role; 6] =
    [Role::A, Role::Y, Role::Residual, Role::Mask, Role::Preactivation, Role::RowScale];

/// The axes of a product beside N and K.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axes {
    /// The leading axes' lengths, with the strides along them; 0 for an operand that is the same for all, or is not there.
    pub(crate) leading: Vec<(usize, PerRole)>,
    /// Rows of a matrix of the output.
    pub(crate) rows: usize,
    /// From one row to the next; 0 for an operand that is the same for all, or is not there.
    pub(crate) row_strides: PerRole,
}

/// Launches that differ in where their operands start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launches {
    /// Rows of a matrix.
    pub(crate) rows: usize,
    /// From one row to the next.
    pub(crate) row_strides: PerRole,
    /// Matrices of a launch.
    pub(crate) batch: usize,
    /// From one matrix to the next.
    pub(crate) batch_strides: PerRole,
    /// The axes of the launches: for each index of them there is one.
    outer: Vec<(usize, PerRole)>,
}

impl Axes {
    /// The fewest launches.
    pub(crate) fn launches(&self) -> Launches {
        let Self { rows, row_strides, .. } = *self;
        let mut axes = merged(&self.leading);
        let (mut rows, mut row_strides) = (rows, row_strides);
        while let Some(&(length, strides)) = axes.last() {
            let evenly_spaced =
                |role: Role| rows == 1 || strides[role] == row_strides[role].saturating_mul(rows);
            let Some(together) = together(rows, length) else { break };
            if strides[Role::B] != 0 || !BY_ROWS.into_iter().all(evenly_spaced) {
                break;
            }
            if rows == 1 {
                row_strides = strides;
            }
            rows = together;
            axes.pop();
        }
        // A kernel takes one vector of row scales for all matrices.
        let (batch, batch_strides) = match axes.last() {
            Some(&(length, strides)) if strides[Role::RowScale] == 0 => {
                axes.pop();
                (length, strides)
            }
            _ => (1, PerRole::default()),
        };
        Launches { rows, row_strides, batch, batch_strides, outer: axes }
    }
}

impl Launches {
    /// How many launches there are.
    pub(crate) fn count(&self) -> usize {
        self.outer.iter().fold(1, |count, (length, _)| count.saturating_mul(*length))
    }

    /// Where the operands of each launch start, from their first elements.
    pub(crate) fn starts(&self) -> impl Iterator<Item = PerRole> {
        (0..self.count()).map(|index| {
            let (mut left, mut start) = (index, PerRole::default());
            for (length, strides) in self.outer.iter().rev() {
                for (start, stride) in start.0.iter_mut().zip(&strides.0) {
                    *start += left % length * stride;
                }
                left /= length;
            }
            start
        })
    }
}

/// The length of two axes as one; `None` if a kernel could not count along that. An axis that is too long by itself stays so.
fn together(outer: usize, inner: usize) -> Option<usize> {
    let length = outer.checked_mul(inner)?;
    (outer == 1 || inner == 1 || (length as u64) < SIDE_LIMIT).then_some(length)
}

/// Axes of length 1 left out, and neighbours merged where each operand has one stride for both.
fn merged(axes: &[(usize, PerRole)]) -> Vec<(usize, PerRole)> {
    let mut merged: Vec<(usize, PerRole)> = Vec::with_capacity(axes.len());
    for &(length, inner) in axes.iter().filter(|(length, _)| *length != 1) {
        if let Some((outer_length, outer)) = merged.last_mut() {
            let goes_on = |(outer, inner): (&usize, &usize)| *outer == inner.saturating_mul(length);
            if let Some(together) = together(*outer_length, length)
                && outer.0.iter().zip(&inner.0).all(goes_on)
            {
                (*outer_length, *outer) = (together, inner);
                continue;
            }
        }
        merged.push((length, inner));
    }
    merged
}

/// The shape that two operands' leading axes have together: equal, or 1 or missing in one of them. `None` if they have none.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let length =
        |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
    (0..rank)
        .map(|axis| match (length(a, axis), length(b, axis)) {
            (a, b) if a == b || b == 1 => Some(a),
            (1, b) => Some(b),
            _ => None,
        })
        .collect()
}

/// The strides of leading axes that are broadcast to `rank` of them: 0 along those that have length 1 or are missing.
pub(crate) fn broadcast_strides(shape: &[usize], strides: &[usize], rank: usize) -> Vec<usize> {
    let missing = rank.saturating_sub(shape.len());
    let own = shape.iter().zip(strides).map(|(&length, &stride)| if length == 1 { 0 } else { stride });
    std::iter::repeat_n(0, missing).chain(own).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_role(pairs: &[(Role, usize)]) -> PerRole {
        let mut all = PerRole::default();
        for &(role, stride) in pairs {
            all[role] = stride;
        }
        all
    }

    /// The places of a role's rows, in the order of the output's rows: by the axes, and by the launches.
    fn rows_of(axes: &Axes, role: Role) -> (Vec<usize>, Vec<usize>) {
        let mut places = vec![0];
        for &(length, strides) in &axes.leading {
            places = places
                .into_iter()
                .flat_map(|place| (0..length).map(move |i| place + i * strides[role]))
                .collect();
        }
        let with_rows = |places: Vec<usize>, rows: usize, stride: usize| -> Vec<usize> {
            places.into_iter().flat_map(|at| (0..rows).map(move |i| at + i * stride)).collect()
        };
        let direct = with_rows(places, axes.rows, axes.row_strides[role]);
        let launches = axes.launches();
        let matrices = launches
            .starts()
            .flat_map(|start| {
                (0..launches.batch).map(move |i| start[role] + i * launches.batch_strides[role])
            })
            .collect();
        (direct, with_rows(matrices, launches.rows, launches.row_strides[role]))
    }

    fn check(axes: &Axes) {
        // B is not asked for by rows, but where it is the same for all rows it counts as one that has them.
        for role in BY_ROWS {
            let (direct, launched) = rows_of(axes, role);
            assert_eq!(direct, launched, "{role:?} of {axes:?}");
        }
    }

    #[test]
    fn leading_axes_of_a_linear_layer_are_rows() {
        let rows = |a: usize, y: usize| per_role(&[(Role::A, a), (Role::Y, y), (Role::RowScale, 1)]);
        let leading = vec![
            (3, per_role(&[(Role::A, 5 * 7 * 20), (Role::Y, 5 * 7 * 9), (Role::RowScale, 35)])),
            (5, per_role(&[(Role::A, 7 * 20), (Role::Y, 7 * 9), (Role::RowScale, 7)])),
        ];
        let axes = Axes { leading, rows: 7, row_strides: rows(20, 9) };
        let launches = axes.launches();
        assert_eq!((launches.rows, launches.batch, launches.count()), (105, 1, 1));
        assert_eq!(launches.row_strides, rows(20, 9));
        check(&axes);
    }

    /// Of x `[.., rows, 8]`, which would be too many rows for a kernel if all were together.
    #[test]
    fn leading_axes_that_would_be_too_many_rows_are_a_batch() {
        const HALF: usize = 1 << 15;
        let of = |leading: &[usize], rows: usize| {
            let mut stride = per_role(&[(Role::A, 8 * rows), (Role::Y, 9 * rows)]);
            let mut axes = Vec::new();
            for &length in leading.iter().rev() {
                axes.insert(0, (length, stride));
                stride.0.iter_mut().for_each(|stride| *stride *= length);
            }
            Axes { leading: axes, rows, row_strides: per_role(&[(Role::A, 8), (Role::Y, 9)]) }
        };
        let sizes = |axes: Axes| {
            let Launches { rows, batch, .. } = axes.launches();
            (rows, batch, axes.launches().count())
        };
        assert_eq!(sizes(of(&[HALF], HALF)), (HALF * HALF, 1, 1));
        // 2³¹ rows, which is one too many, and the longest that is not.
        assert_eq!(sizes(of(&[2 * HALF], HALF)), (HALF, 2 * HALF, 1));
        assert_eq!(sizes(of(&[HALF], 2 * HALF - 1)), (HALF * (2 * HALF - 1), 1, 1));
        assert_eq!(sizes(of(&[1 << 16], 1 << 16)), (1 << 16, 1 << 16, 1));
        // The last axis becomes rows where it fits, and axes that are no rows are one batch, unless that would be too long as well.
        assert_eq!(sizes(of(&[4, HALF], HALF)), (HALF, 4 * HALF, 1));
        assert_eq!(sizes(of(&[2, 1 << 20, 1 << 12], 4)), (4 << 12, 2 << 20, 1));
        assert_eq!(sizes(of(&[3, 1 << 30], 4)), (4, 1 << 30, 3));
        assert_eq!(sizes(of(&[1 << 20, 1 << 20], 1)), (1 << 20, 1 << 20, 1));
        let launches = of(&[1 << 20, 1 << 20], 1).launches();
        assert_eq!((launches.row_strides[Role::A], launches.batch_strides[Role::A]), (8, 8 << 20));
        // No merging makes an axis that is too long by itself any shorter: that is the error of its operand.
        assert_eq!(sizes(of(&[], 1 << 32)), (1 << 32, 1, 1));
        assert_eq!(sizes(of(&[1 << 32], 1)), (1 << 32, 1, 1));
    }

    #[test]
    fn matrices_that_are_apart_are_a_batch_and_one_row_each_is_rows() {
        let apart = per_role(&[(Role::A, 200), (Role::Y, 9 * 7)]);
        let axes = Axes {
            leading: vec![(4, apart)],
            rows: 7,
            row_strides: per_role(&[(Role::A, 20), (Role::Y, 9)]),
        };
        let launches = axes.launches();
        assert_eq!((launches.rows, launches.batch, launches.count()), (7, 4, 1));
        check(&axes);
        let axes = Axes { rows: 1, ..axes };
        let launches = axes.launches();
        assert_eq!((launches.rows, launches.batch, launches.row_strides), (4, 1, apart));
        check(&axes);
    }

    #[test]
    fn every_operand_of_its_own_is_a_batch_and_no_rows() {
        let own = per_role(&[(Role::A, 140), (Role::B, 180), (Role::Y, 63)]);
        let axes =
            Axes { leading: vec![(4, own)], rows: 7, row_strides: per_role(&[(Role::A, 20), (Role::Y, 9)]) };
        let launches = axes.launches();
        assert_eq!((launches.rows, launches.batch, launches.batch_strides), (7, 4, own));
        check(&axes);
    }

    #[test]
    fn axes_without_a_common_stride_are_several_launches() {
        // A [2, 1, M, K] and B [3, K, N].
        let leading = vec![
            (2, per_role(&[(Role::A, 140), (Role::Y, 3 * 63)])),
            (3, per_role(&[(Role::B, 180), (Role::Y, 63)])),
        ];
        let axes = Axes { leading, rows: 7, row_strides: per_role(&[(Role::A, 20), (Role::Y, 9)]) };
        let launches = axes.launches();
        assert_eq!((launches.batch, launches.count()), (3, 2));
        assert_eq!(
            launches.starts().map(|start| (start[Role::A], start[Role::Y])).collect::<Vec<_>>(),
            [(0, 0), (140, 189)]
        );
        check(&axes);
    }

    #[test]
    fn row_scales_that_differ_from_matrix_to_matrix_are_several_launches() {
        let apart = per_role(&[(Role::A, 200), (Role::Y, 63), (Role::RowScale, 7)]);
        let strides = per_role(&[(Role::A, 20), (Role::Y, 9), (Role::RowScale, 1)]);
        let axes = Axes { leading: vec![(4, apart)], rows: 7, row_strides: strides };
        assert_eq!((axes.launches().batch, axes.launches().count()), (1, 4));
        check(&axes);
    }

    #[test]
    fn shapes_are_broadcast_as_usual() {
        assert_eq!(broadcast(&[2, 3], &[2, 3]), Some(vec![2, 3]));
        assert_eq!(broadcast(&[2, 1], &[3]), Some(vec![2, 3]));
        assert_eq!(broadcast(&[], &[4, 5]), Some(vec![4, 5]));
        assert_eq!(broadcast(&[0], &[1]), Some(vec![0]));
        assert_eq!(broadcast(&[2], &[3]), None);
        assert_eq!(broadcast(&[2, 3], &[2]), None);
        assert_eq!(broadcast_strides(&[1, 3], &[30, 10], 3), [0, 0, 10]);
    }
}
