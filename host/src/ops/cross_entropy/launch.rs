//! The cross-entropy on a GPU: the number of rows that count, the rows' losses and gradients, the sum of losses.

use warpsmith_dsl::cross_entropy::{CrossEntropyParams, Labels, MAX_PARTS};
use warpsmith_dsl::launch::{Global, GlobalMut, Kernel};
use warpsmith_dsl::rows::AnyRows;
use warpsmith_kernels::cross_entropy::{label_counts, loss_sums};

use super::{CrossEntropyOp, CrossEntropyOutputs, LabelElement, LogitElement, OPERATION, Reduction};
use crate::device::DeviceKind;
use crate::error::Result;
use crate::ops::Implementation;
use crate::ops::rows::{
    Piece, Plan, RowElement, Shares, Sizes, Variant, as_result_rows, as_rows, is_copied, launch_rows, rows_of,
};
use crate::stream::{Operand, Stream};
use crate::tensor::Tensor;

/// Chunks that a thread of a kernel has.
const CHUNKS: u32 = 4;
/// A part of the rows that a block counts or sums has at least so many.
const PART: u32 = 2048;

/// Into what the rows are divided to be counted or summed. It is the same for every GPU, so that the order of sums is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    /// Rows of each but the last.
    rows: u32,
    count: u32,
}

impl Parts {
    fn of(rows: u32) -> Self {
        let part = rows.div_ceil(MAX_PARTS).max(PART);
        Self { rows: part, count: rows.div_ceil(part) }
    }
}

impl<T: LogitElement, L: LabelElement> CrossEntropyOp<'_, T, L> {
    /// Which implementation [`run`](Self::run) would take.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), for the operands.
    pub fn implementation(&self) -> Result<Implementation> {
        let (sizes, _) = self.check()?;
        let device = self.logits.device();
        if sizes.rows == 0 {
            return Ok(Implementation::Empty);
        }
        if device.kind() == DeviceKind::Cpu {
            return Ok(Implementation::Cpu);
        }
        let is_copy = is_copied(self.logits);
        // A new result is aligned, and so is a copy.
        let rows = if is_copy { Vec::new() } else { vec![rows_of(&self.logits.flatten_leading()?)] };
        let (shares, plan) = self.plan(sizes, &rows);
        let parts = Parts::of(sizes.rows as u32).count;
        let name = Variant::of(shares, plan).of_four::<T::Block, T::BlockAny, T::Cluster, T::ClusterAny>();
        let kernel = |name, blocks| Implementation::kernel(device, name, blocks);
        let mut all = kernel(name, plan.blocks);
        if self.reduction == Reduction::Mean {
            all = kernel(label_counts::DECLARATION.name, parts).then(all);
        }
        if self.reduction != Reduction::None {
            all = all.then(kernel(loss_sums::DECLARATION.name, parts));
        }
        Ok(all.with_copies(usize::from(is_copy) + usize::from(!self.labels.is_contiguous())))
    }

    fn plan(&self, sizes: Sizes, rows: &[AnyRows]) -> (Shares, Plan) {
        let properties = self.logits.device().properties();
        let shares = Shares::of::<T>(sizes.columns, rows, CHUNKS);
        (shares, Plan::in_powers(sizes, shares, properties.max_cluster))
    }

    pub(super) fn launch<G: RowElement>(
        &self,
        sizes: Sizes,
        stream: &Stream,
        outputs: CrossEntropyOutputs<'_, G>,
    ) -> Result<()> {
        let logits = as_rows(self.logits, stream)?;
        let labels = self.labels.contiguous_on(stream)?;
        let gradient = match &outputs.gradient {
            Some(gradient) => Some(as_result_rows(OPERATION, "gradient", gradient)?),
            None => None,
        };
        let parts = Parts::of(sizes.rows as u32);
        let counts = match self.reduction {
            Reduction::Mean => Some(self.count(stream, &labels, sizes, parts)?),
            Reduction::Sum | Reduction::None => None,
        };
        let mut loss = outputs.loss;
        // Losses that are reduced, or not wanted, have a place of their own.
        let mut of_rows = match &loss {
            Some(loss) if self.reduction == Reduction::None => (**loss).clone(),
            _ => Tensor::uninit_on(stream, [sizes.rows])?,
        };
        let mut lse = outputs.lse;
        let (from, to) = (rows_of(&logits), gradient.as_ref().map_or(AnyRows::NONE, rows_of));
        let (shares, plan) = self.plan(sizes, &[from, to]);
        let cap = self.options.soft_cap;
        let (to_loss, of_labels) = (of_rows.arg_mut(), self.device_labels(&labels));
        let to_lse = lse.as_mut().map_or(GlobalMut::new(0), |lse| lse.arg_mut());
        let args = |piece: Piece| {
            let first_label = piece.from(Global::<L::Device>::new(of_labels.base), 1).address();
            let params = CrossEntropyParams {
                gradient: piece.of(to),
                labels: Labels { base: first_label, ..of_labels },
                logits: Global::new(piece.of(from).base),
                logits_stride: from.stride,
                loss: piece.of_vector(to_loss),
                lse: piece.of_vector(to_lse),
                counts: counts.as_ref().map_or(Global::new(0), Tensor::arg),
                device_scale: self.device_scale.map_or(Global::new(0), Tensor::arg),
                parts: parts.count,
                rows: piece.rows,
                columns: sizes.columns as u32,
                threads: plan.threads,
                rounds: plan.rounds,
                smoothing: self.options.smoothing,
                inverse: 1.0 / sizes.columns as f32,
                z_loss: self.options.z_loss,
                cap: cap.unwrap_or(0.0),
                inverse_cap: cap.map_or(0.0, f32::recip),
                gradient_scale: self.gradient_scale,
                reserved: 0,
            };
            (params,)
        };
        let mut operands: Vec<&dyn Operand> = vec![&logits, &labels, &of_rows];
        operands.extend(gradient.as_ref().map(|gradient| gradient as &dyn Operand));
        operands.extend(lse.as_deref().map(|lse| lse as &dyn Operand));
        operands.extend(counts.as_ref().map(|counts| counts as &dyn Operand));
        operands.extend(self.device_scale.map(|scale| scale as &dyn Operand));
        // SAFETY: the sizes and strides are those of the tensors; the plan has all chunks of each row, which are aligned where it says so. Results are new, or were checked to share memory with
        // nothing but a gradient with logits of the same rows. Tensors are freed in the order of their home streams, which `with_operands` makes wait for this work.
        stream.with_operands(&operands, || unsafe {
            match Variant::of(shares, plan) {
                Variant::Block => launch_rows::<T::Block>(stream, plan, sizes.rows, args),
                Variant::BlockAny => launch_rows::<T::BlockAny>(stream, plan, sizes.rows, args),
                Variant::Cluster => launch_rows::<T::Cluster>(stream, plan, sizes.rows, args),
                Variant::ClusterAny => launch_rows::<T::ClusterAny>(stream, plan, sizes.rows, args),
            }
        })?;
        match &mut loss {
            Some(loss) if self.reduction != Reduction::None => {
                sum(stream, (&of_rows, parts), loss, counts.as_ref())
            }
            _ => Ok(()),
        }
    }

    /// The labels, without gaps, as a kernel takes them.
    fn device_labels(&self, labels: &Tensor<L>) -> Labels {
        Labels {
            base: labels.device_address(),
            ignored: self.ignored.unwrap_or(0),
            kind: L::KIND,
            ignores: u32::from(self.ignored.is_some()),
        }
    }

    /// How many labels of each part of the rows count.
    fn count(&self, stream: &Stream, labels: &Tensor<L>, sizes: Sizes, parts: Parts) -> Result<Tensor<u32>> {
        let mut counts = Tensor::uninit_on(stream, [parts.count as usize])?;
        let args = (self.device_labels(labels), counts.arg_mut(), sizes.rows as u32, parts.rows);
        // SAFETY: there are labels for so many rows, and a count for each block; they are new.
        stream.with_operands(&[labels, &counts], || unsafe {
            stream.device().kernel::<label_counts>()?.launch(stream, [parts.count, 1, 1], args)
        })?;
        Ok(counts)
    }
}

/// The sum of losses, or, with counts, their mean: of parts first, if there are several.
fn sum(
    stream: &Stream,
    (losses, parts): (&Tensor<f32>, Parts),
    to: &mut Tensor<f32>,
    counts: Option<&Tensor<u32>>,
) -> Result<()> {
    if parts.count > 1 {
        let mut sums = Tensor::uninit_on(stream, [parts.count as usize])?;
        sum_parts(stream, (losses, parts), &mut sums, None)?;
        return sum_parts(stream, (&sums, Parts::of(parts.count)), to, counts);
    }
    sum_parts(stream, (losses, parts), to, counts)
}

fn sum_parts(
    stream: &Stream,
    (losses, parts): (&Tensor<f32>, Parts),
    sums: &mut Tensor<f32>,
    counts: Option<&Tensor<u32>>,
) -> Result<()> {
    let of_counts = counts.map_or(Global::new(0), Tensor::arg);
    let count = counts.map_or(0, Tensor::len) as u32;
    let args = (losses.arg(), of_counts, sums.arg_mut(), losses.len() as u32, parts.rows, count);
    let mut operands: Vec<&dyn Operand> = vec![losses, sums];
    operands.extend(counts.map(|counts| counts as &dyn Operand));
    // SAFETY: the sizes are those of the tensors, of which the sums have one for each block; they share memory with nothing else.
    stream.with_operands(&operands, || unsafe {
        stream.device().kernel::<loss_sums>()?.launch(stream, [parts.count, 1, 1], args)
    })
}

#[cfg(test)]
mod part_tests {
    use super::Parts;

    #[test]
    fn every_row_is_in_a_part_and_the_parts_of_parts_are_one() {
        for rows in [1, 2047, 2048, 2049, 131_072, 131_073, (1 << 31) - 1] {
            let parts = Parts::of(rows);
            assert!(parts.count <= 64 && u64::from(parts.count) * u64::from(parts.rows) >= rows.into());
            assert!((parts.count - 1) * parts.rows < rows, "{rows}");
            assert_eq!(Parts::of(parts.count).count, 1);
        }
    }
}
