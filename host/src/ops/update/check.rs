//! What is checked of the operands of generated low-rank updates before anything runs.

use warpsmith_kernels::codes::MAX_UPDATES;

use super::operands::{CodesOfUpdate, Packed, Updates, has_rows};
use super::{MAX_RANK, Update};
use crate::error::{Error, Result};
use crate::ops::matrix::as_matrix;
use crate::tensor::{Element, Span, Tensor};

/// The operands' names in errors, update by update: V, codes, U, scaling.
const NAMES: [[&str; 3]; MAX_UPDATES] = [
    ["v", "codes", "u"],
    ["v of update 2", "codes of update 2", "u of update 2"],
    ["v of update 3", "codes of update 3", "u of update 3"],
    ["v of update 4", "codes of update 4", "u of update 4"],
    ["v of update 5", "codes of update 5", "u of update 5"],
    ["v of update 6", "codes of update 6", "u of update 6"],
    ["v of update 7", "codes of update 7", "u of update 7"],
    ["v of update 8", "codes of update 8", "u of update 8"],
];

/// Updates whose operands fit together.
#[derive(Clone, Debug)]
pub(super) struct Checked<T: Element> {
    /// The operation's name in errors.
    pub(super) operation: &'static str,
    /// X as a matrix `[M, K1]`, contiguous along K1.
    pub(super) x: Tensor<T>,
    /// V `[K1, R]` and U `[R, K2]` of each update, any strides; none if a layer has packed them.
    pub(super) factors: Vec<(Tensor<T>, Tensor<T>)>,
    /// What a layer has packed.
    pub(super) packed: Option<Packed<T>>,
    /// The codes of each update.
    pub(super) codes: Vec<CodesOfUpdate<T>>,
    /// Rows of X and of the output.
    pub(super) m: usize,
    /// Columns of X.
    pub(super) k: usize,
    /// Columns of U and of the output.
    pub(super) n: usize,
    /// The leading axes of X.
    leading: Vec<usize>,
}

impl<T: Element> Checked<T> {
    pub(super) fn new(operation: &'static str, x: &Tensor<T>, updates: &Updates<'_, T>) -> Result<Self> {
        let Some((&k, leading)) = x.shape().split_last() else {
            let expected = "[.., K1], at least one axis".into();
            return Err(Error::Shape { operation, operand: "x", expected, actual: Vec::new() });
        };
        let mut checked = Self {
            operation,
            x: as_matrix(operation, "x", x)?,
            factors: Vec::new(),
            packed: None,
            codes: Vec::new(),
            m: 0,
            k,
            n: 0,
            leading: leading.to_vec(),
        };
        checked.m = checked.x.shape()[0];
        expect_rows(operation, "x", &checked.x)?;
        match updates {
            Updates::Given(updates) => checked.add_given(updates)?,
            Updates::Packed(packed, codes) => checked.add_packed(packed, codes)?,
        }
        Ok(checked)
    }

    fn add_given(&mut self, updates: &[Update<'_, T>]) -> Result<()> {
        let operation = self.operation;
        expect_count(operation, updates.len())?;
        self.n = updates[0].u.shape().last().copied().unwrap_or(0);
        let mut total = 0;
        for (&Update { v, codes, u, scaling }, [v_name, codes_name, u_name]) in updates.iter().zip(NAMES) {
            for (operand, tensor) in [(v_name, v), (codes_name, codes), (u_name, u)] {
                self.x.device().expect_same(operation, operand, tensor.device())?;
            }
            let k = self.k;
            let &[v_k, rank] = v.shape() else {
                return Err(shape(operation, v_name, format!("[{k}, R], two axes"), v));
            };
            if v_k != k {
                return Err(shape(operation, v_name, format!("[{k}, R], since x has {k} columns"), v));
            }
            expect_rank(operation, v_name, rank)?;
            total += rank;
            let &[u_rank, n] = u.shape() else {
                return Err(shape(operation, u_name, format!("[{rank}, K2], two axes"), u));
            };
            if u_rank != rank {
                let expected = format!("[{rank}, K2], since `{v_name}` has {rank} columns");
                return Err(shape(operation, u_name, expected, u));
            }
            if n != self.n {
                let expected = format!("[{rank}, {}], as the first update's", self.n);
                return Err(shape(operation, u_name, expected, u));
            }
            self.add_codes(codes_name, codes, rank, scaling)?;
            self.factors.push((v.clone(), u.clone()));
        }
        expect_total(operation, total)
    }

    fn add_packed(&mut self, packed: &Packed<T>, codes: &[&Tensor<T>]) -> Result<()> {
        let (operation, k) = (self.operation, self.k);
        self.x.device().expect_same(operation, "v", packed.v.device())?;
        if packed.v.shape()[0] != k {
            let actual = self.x.shape().to_vec();
            let expected = format!("[.., {}], since v has {} rows", packed.v.shape()[0], packed.v.shape()[0]);
            return Err(Error::Shape { operation, operand: "x", expected, actual });
        }
        if codes.len() != packed.parts.len() {
            return Err(Error::Argument {
                operation,
                argument: "number of codes",
                expected: format!("{}, one tensor for each update", packed.parts.len()),
                actual: codes.len().to_string(),
            });
        }
        self.n = packed.u.shape()[1];
        for ((&codes, &(rank, scaling)), [_, name, _]) in codes.iter().zip(&packed.parts).zip(NAMES) {
            self.x.device().expect_same(operation, name, codes.device())?;
            self.add_codes(name, codes, rank, scaling)?;
        }
        self.packed = Some(packed.clone());
        Ok(())
    }

    /// Takes codes `[.., R]` whose leading axes are those of x, or the first of them.
    fn add_codes(
        &mut self,
        operand: &'static str,
        codes: &Tensor<T>,
        rank: usize,
        scaling: f32,
    ) -> Result<()> {
        let (operation, of_x) = (self.operation, &self.leading);
        let wrong = || {
            let all = of_x.iter().map(|length| format!("{length}, ")).collect::<String>();
            let expected = match of_x.len() {
                0 => format!("[{rank}]"),
                1 => format!("[{all}{rank}], or [{rank}] for all rows"),
                _ => format!(
                    "[{all}{rank}], fewer of the leading axes of x before {rank}, or [{rank}] for all rows"
                ),
            };
            shape(operation, operand, expected, codes)
        };
        let Some((&columns, own)) = codes.shape().split_last() else { return Err(wrong()) };
        if columns != rank || own.len() > of_x.len() {
            return Err(wrong());
        }
        let same = own.iter().zip(of_x).take_while(|(own, of_x)| own == of_x).count();
        if own[same..].iter().any(|&length| length != 1) {
            return Err(wrong());
        }
        let matrix = as_matrix(operation, operand, codes)?;
        expect_rows(operation, operand, &matrix)?;
        let rows = of_x[same..].iter().product();
        self.codes.push(CodesOfUpdate { codes: matrix, rows, rank, scaling });
        Ok(())
    }

    /// The sum of the updates' ranks.
    pub(super) fn rank(&self) -> usize {
        self.codes.iter().map(|codes| codes.rank).sum()
    }

    /// The same updates, multiplied by `factor`.
    pub(super) fn scaled(&self, factor: f32) -> Self {
        let mut scaled = self.clone();
        scaled.codes.iter_mut().for_each(|codes| codes.scaling *= factor);
        scaled
    }

    /// The same updates of a copy of X.
    pub(super) fn of_copy(&self, x: Tensor<T>) -> Self {
        Self { x, ..self.clone() }
    }

    /// The output's shape.
    pub(super) fn output_shape(&self) -> Vec<usize> {
        [&self.leading[..], &[self.n]].concat()
    }

    /// Whether the output has no elements.
    pub(super) fn is_empty(&self) -> bool {
        self.m == 0 || self.n == 0
    }

    /// Checks a tensor that is to take the result.
    pub(super) fn expect_output(&self, y: &Tensor<T>) -> Result<()> {
        let operation = self.operation;
        self.x.device().expect_same(operation, "y", y.device())?;
        if y.shape() != self.output_shape() {
            return Err(shape(operation, "y", format!("{:?}, as x and u give", self.output_shape()), y));
        }
        expect_rows(operation, "y", &as_matrix(operation, "y", y)?)?;
        self.expect_apart("y", y)
    }

    /// The error for a written operand that may only be read, or shares memory with one that is read.
    pub(super) fn expect_apart<U: Element>(&self, operand: &'static str, written: &Tensor<U>) -> Result<()> {
        written.expect_writable(self.operation, operand)?;
        self.expect_span_apart(operand, &written.span())
    }

    /// The error for what is written of a written operand that shares memory with one that is read.
    pub(super) fn expect_span_apart(&self, operand: &'static str, written: &Span<'_>) -> Result<()> {
        let overlap = |other| Err(Error::Overlap { operation: self.operation, operand, other });
        if written.meets(&self.x.span()) {
            return overlap("x");
        }
        for (codes, [_, name, _]) in self.codes.iter().zip(NAMES) {
            if written.meets(&codes.codes.span()) {
                return overlap(name);
            }
        }
        let packed = self.packed.iter().map(|packed| (&packed.v, &packed.u));
        let factors = self.factors.iter().map(|(v, u)| (v, u)).chain(packed);
        for ((v, u), [v_name, _, u_name]) in factors.zip(NAMES) {
            if written.meets(&v.span()) {
                return overlap(v_name);
            }
            if written.meets(&u.span()) {
                return overlap(u_name);
            }
        }
        Ok(())
    }
}

/// The error for more updates than run together, or none.
pub(crate) fn expect_count(operation: &'static str, count: usize) -> Result<()> {
    if (1..=MAX_UPDATES).contains(&count) {
        return Ok(());
    }
    Err(Error::Argument {
        operation,
        argument: "number of updates",
        expected: format!("1 to {MAX_UPDATES}"),
        actual: count.to_string(),
    })
}

/// The error for a rank that no kernel takes.
pub(crate) fn expect_rank(operation: &'static str, operand: &'static str, rank: usize) -> Result<()> {
    if (1..=MAX_RANK).contains(&rank) {
        return Ok(());
    }
    let (limit, actual) = (format!("1 to {MAX_RANK}"), rank.to_string());
    Err(Error::SizeLimit { operation, operand, quantity: "rank", limit, actual })
}

/// The error for updates of more ranks together than a kernel takes.
pub(crate) fn expect_total(operation: &'static str, total: usize) -> Result<()> {
    if total <= MAX_RANK {
        return Ok(());
    }
    Err(Error::SizeLimit {
        operation,
        operand: "v",
        quantity: "sum of the updates' ranks",
        limit: format!("at most {MAX_RANK}"),
        actual: total.to_string(),
    })
}

/// The error for a matrix whose rows are not contiguous.
pub(super) fn expect_rows<T: Element>(
    operation: &'static str,
    operand: &'static str,
    matrix: &Tensor<T>,
) -> Result<()> {
    if matrix.is_empty() || has_rows(matrix) {
        return Ok(());
    }
    Err(Error::Stride {
        operation,
        operand,
        expected: "1 along the last axis (`contiguous` makes a copy that has it)".into(),
        actual: matrix.strides().to_vec(),
    })
}

fn shape<T: Element>(
    operation: &'static str,
    operand: &'static str,
    expected: String,
    tensor: &Tensor<T>,
) -> Error {
    Error::Shape { operation, operand, expected, actual: tensor.shape().to_vec() }
}
