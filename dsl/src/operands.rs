//! What a launch makes of the fields of a function of a program's own.

use crate::launch::KernelParam;

/// A function whose fields are operands of a launch. [`product_kernels`](crate::product_kernels) and [`row_kernels`](crate::row_kernels) implement it.
pub trait FieldOperands: KernelParam {
    /// The fields, in order, as a tuple.
    type Operands;
    /// The fields' names, in order.
    const NAMES: &'static [&'static str];

    /// The function with these fields.
    fn from_operands(operands: Self::Operands) -> Self;

    /// The first operand that has to have an element for each of so many rows, or columns, and has another number of them. `None` unless an attribute
    /// knows which those are: a struct may read its fields at any place.
    fn misfit(&self, rows: usize, columns: usize) -> Option<Misfit> {
        let _ = (rows, columns);
        None
    }
}

/// An operand with another number of elements than there are rows, or columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// Its name.
    pub operand: &'static str,
    /// Whether it has to have an element for each row, rather than for each column.
    pub is_of_rows: bool,
    /// How many rows, or columns, there are.
    pub expected: usize,
    /// How many elements it has.
    pub actual: usize,
}
