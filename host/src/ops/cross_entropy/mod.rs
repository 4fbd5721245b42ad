//! The cross-entropy of rows of logits, and its gradient.
//!
//! [`cross_entropy()`] is the operation. The gradient is written by the kernel that computes the loss, which reads a row once if it fits the registers of those who
//! share it.

mod launch;
mod on_cpu;
mod operation;
#[cfg(test)]
mod tests;

use half::{bf16, f16};
use warpsmith_dsl::cross_entropy::{CrossEntropyParams, LabelKind};
use warpsmith_dsl::float::{Bf16, F16};
use warpsmith_dsl::launch::Kernel;
use warpsmith_kernels::cross_entropy::cross_entropy as block;
use warpsmith_kernels::cross_entropy_cluster::cross_entropy_cluster as cluster;

pub use operation::{CrossEntropyOp, CrossEntropyOutputs, Losses};

use super::rows::RowElement;
use crate::tensor::{Element, Tensor};

/// The operation's name in errors.
const OPERATION: &str = "cross_entropy";
/// The label of rows that do not count, unless another one is named.
pub const IGNORED: i64 = -100;

/// The arguments of a kernel.
type Args<D> = (CrossEntropyParams<D>,);

/// An element type of logits.
pub trait LogitElement: RowElement {
    /// The kernel for aligned rows.
    #[doc(hidden)]
    type Block: Kernel<Args = Args<Self::Device>>;
    /// For rows of any alignment.
    #[doc(hidden)]
    type BlockAny: Kernel<Args = Args<Self::Device>>;
    /// For aligned rows, with a cluster for each.
    #[doc(hidden)]
    type Cluster: Kernel<Args = Args<Self::Device>>;
    /// The same for rows of any alignment.
    #[doc(hidden)]
    type ClusterAny: Kernel<Args = Args<Self::Device>>;
}

macro_rules! logit_elements {
    ($($element:ty, $device:ty, $vector:literal;)*) => {
        $(
            impl LogitElement for $element {
                type Block = block<$device, $vector, 4, true>;
                type BlockAny = block<$device, $vector, 4, false>;
                type Cluster = cluster<$device, $vector, 4, true>;
                type ClusterAny = cluster<$device, $vector, 4, false>;
            }
        )*
    };
}
logit_elements! {
    f16, F16, 8;
    bf16, Bf16, 8;
    f32, f32, 4;
}

/// An integer type of labels: i64, i32 or u32.
pub trait LabelElement: Element + Into<i64> {
    /// The type as kernels are told it.
    #[doc(hidden)]
    const KIND: LabelKind;
}

impl LabelElement for i64 {
    const KIND: LabelKind = LabelKind::I64;
}
impl LabelElement for i32 {
    const KIND: LabelKind = LabelKind::I32;
}
impl LabelElement for u32 {
    const KIND: LabelKind = LabelKind::U32;
}

/// What becomes of the rows' losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum over the number of rows that count, of shape `[1]`; 0 if none does.
    #[default]
    Mean,
    /// Their sum, of shape `[1]`.
    Sum,
    /// They are the result, of the labels' shape.
    None,
}

/// The cross-entropy of each row of `logits` `[.., V]` with the labels `[..]`, and their mean unless another [reduction](CrossEntropyOp::reduction) is set.
///
/// With x a row, l its label, and what the options say, all of it in f32:
///
/// ```text
/// z = cap · tanh(x / cap), or x without a cap        lse = ln Σ exp(z)
/// loss = (1 − ε) (lse − z[l]) + ε (lse − mean(z)) + ζ lse²
/// ```
///
/// A row whose label is [ignored](CrossEntropyOp::ignored_label), −100 unless it is set otherwise, has loss 0 and gradient 0 and does not count in the mean. A row whose
/// label is neither that nor a column, 0 to V − 1, has a loss of NaN, and NaN for its gradient; so it shows in the mean and in the sum. So have rows with NaN or ∞,
/// and rows of nothing but −∞ without a cap.
///
/// Results are the same bits each time. Which losses a row has depends on its columns, the alignment of the logits' rows and the gradient's, and the kind of
/// GPU, not on other rows.
///
/// ```
/// use warpsmith::{Device, Tensor, ops};
///
/// let cpu = Device::cpu();
/// let logits = Tensor::from_slice(&cpu, &[1.0f32, 1.0, 5.0, 5.0, 9.0, 0.0], [3, 2])?;
/// let labels = Tensor::from_slice(&cpu, &[0i64, 1, -100], [3])?;
/// let losses = ops::cross_entropy(&logits, &labels).run_with_gradient()?;
/// assert!((losses.loss.to_vec()?[0] - 2f32.ln()).abs() < 1e-6);
/// assert_eq!(losses.gradient.to_vec()?, [-0.25, 0.25, 0.25, -0.25, 0.0, 0.0]);
/// # Ok::<(), warpsmith::Error>(())
/// ```
pub fn cross_entropy<'a, T: LogitElement, L: LabelElement>(
    logits: &'a Tensor<T>,
    labels: &'a Tensor<L>,
) -> CrossEntropyOp<'a, T, L> {
    CrossEntropyOp::new(logits, labels)
}
