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
}
