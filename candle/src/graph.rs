//! Results in candle's graph: custom operations that have run already, with their gradients.
//!
//! candle's custom operations take at most three tensors. Where more of an operation's operands are tracked, those
//! beyond the second are operands of a *carrier*, a
//! custom operation of its own. Its result, of one element that nobody reads, is the third operand. The backward
//! pass of the operation computes all gradients
//! and leaves those of the carrier's operands in a [`Gradients`]; the carrier's backward pass, which follows, takes
//! them from there.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, DType, Layout, Result as CandleResult, Shape,
    Storage, Tensor,
};

use crate::error::Result;
use crate::memory::Computed;

/// The gradients of an operation, by its result and the gradient of that: one for each operand that was attached.
pub(crate) type Backward = dyn Fn(&Tensor, &Tensor) -> Result<Vec<Option<Tensor>>> + Send + Sync;

/// Puts a result into the graph, as that of `operands`, of which some are tracked.
///
/// `backward` has the gradients of all of them in that order; what it has for an operand that is not tracked is left
/// out.
pub(crate) fn attach(
    operation: &'static str,
    computed: Computed,
    operands: &[&Tensor],
    backward: impl Fn(&Tensor, &Tensor) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
) -> Result<Tensor> {
    let tracked: Vec<(usize, &Tensor)> =
        operands.iter().enumerate().filter(|(_, operand)| operand.track_op()).map(|(i, &t)| (i, t)).collect();
    if tracked.is_empty() {
        return Ok(computed.detached());
    }
    let gradients = Arc::new(Gradients { backward: Box::new(backward), left: Mutex::default() });
    node(operation, computed, &tracked, true, &gradients)
}

/// The result of a custom operation on up to two of the operands and a carrier of the others, or on three.
fn node(
    operation: &'static str,
    computed: Computed,
    operands: &[(usize, &Tensor)],
    is_operation: bool,
    gradients: &Arc<Gradients>,
) -> Result<Tensor> {
    let carrier;
    let (direct, others) = operands.split_at(if operands.len() > 3 { 2 } else { operands.len() });
    let mut tensors: Vec<&Tensor> = direct.iter().map(|&(_, tensor)| tensor).collect();
    if let Some((_, first)) = others.first() {
        let element = Tensor::zeros(1, DType::F32, first.device())?;
        let storage = element.storage_and_layout().0.try_clone(element.layout())?;
        let element = Computed { storage, shape: Shape::from(1) };
        carrier = node(operation, element, others, false, gradients)?;
        tensors.push(&carrier);
    }
    let node = Node {
        operation,
        result: Mutex::new(Some(computed)),
        operands: direct.iter().map(|&(index, _)| index).collect(),
        is_operation,
        gradients: gradients.clone(),
    };
    Ok(match tensors[..] {
        [a] => a.apply_op1(node)?,
        [a, b] => a.apply_op2(b, node)?,
        [a, b, c, ..] => a.apply_op3(b, c, node)?,
        [] => return Err(candle_core::Error::msg(format!("{operation}: nothing is tracked")).into()),
    })
}

/// The gradients that a backward pass has computed, until the carriers' backward passes take them.
struct Gradients {
    backward: Box<Backward>,
    /// Those of each thread: passes over one graph on several threads are apart.
    left: Mutex<Vec<(ThreadId, Vec<Option<Tensor>>)>>,
}

impl Gradients {
    /// Computes all, instead of what a pass of this thread that failed may have left.
    fn compute(&self, y: &Tensor, dy: &Tensor) -> Result<()> {
        let computed = (self.backward)(&y.detach(), &dy.detach())?;
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|(thread, _)| *thread != thread::current().id());
        left.push((thread::current().id(), computed));
        Ok(())
    }

    /// That of operand number `index`. The last one that is taken leaves no entry.
    fn take(&self, index: usize) -> Option<Tensor> {
        self.left
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter_mut()
            .find(|(thread, _)| *thread == thread::current().id())
            .and_then(|(_, gradients)| gradients.get_mut(index)?.take())
    }

    /// Forgets what is left of those of operands that are not tracked.
    fn forget(&self) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|(thread, _)| *thread != thread::current().id());
    }
}

/// A custom operation: the operation itself, or a carrier of some of its operands.
struct Node {
    operation: &'static str,
    /// Given to candle when it applies the operation.
    result: Mutex<Option<Computed>>,
    /// The places of its operands among the operation's, without its carrier.
    operands: Vec<usize>,
    is_operation: bool,
    gradients: Arc<Gradients>,
}

impl Node {
    fn forward(&self) -> CandleResult<(Storage, Shape)> {
        let result = self.result.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Computed { storage, shape } =
            result.ok_or_else(|| candle_core::Error::msg(format!("{}: applied twice", self.operation)))?;
        Ok((storage, shape))
    }

    fn on_cpu(&self) -> CandleResult<(CpuStorage, Shape)> {
        match self.forward()? {
            (Storage::Cpu(storage), shape) => Ok((storage, shape)),
            _ => Err(self.elsewhere()),
        }
    }

    fn on_gpu(&self) -> CandleResult<(CudaStorage, Shape)> {
        match self.forward()? {
            (Storage::Cuda(storage), shape) => Ok((storage, shape)),
            _ => Err(self.elsewhere()),
        }
    }

    fn elsewhere(&self) -> candle_core::Error {
        candle_core::Error::msg(format!("{}: the result is on another device", self.operation))
    }

    /// The gradients of all operands, and of the carrier if `carrier` is there: nobody reads that, but its backward
    /// pass has to run.
    fn backward(
        &self,
        y: &Tensor,
        dy: &Tensor,
        carrier: Option<&Tensor>,
    ) -> CandleResult<[Option<Tensor>; 3]> {
        if self.is_operation {
            self.gradients.compute(y, dy)?;
        }
        let mut all = [const { None }; 3];
        for (place, &operand) in all.iter_mut().zip(&self.operands) {
            *place = self.gradients.take(operand);
        }
        match carrier {
            Some(carrier) => all[self.operands.len()] = Some(carrier.zeros_like()?),
            None => self.gradients.forget(),
        }
        Ok(all)
    }
}

/// What custom operations have in common, with a `_` for each operand.
macro_rules! forward {
    ($($operand:tt)+) => {
        fn name(&self) -> &'static str {
            self.operation
        }

        fn cpu_fwd(&self, $($operand: &CpuStorage, $operand: &Layout),+) -> CandleResult<(CpuStorage, Shape)> {
            self.on_cpu()
        }

        fn cuda_fwd(&self, $($operand: &CudaStorage, $operand: &Layout),+) -> CandleResult<(CudaStorage, Shape)> {
            self.on_gpu()
        }
    };
}

impl CustomOp1 for Node {
    forward! { _ }

    fn bwd(&self, _: &Tensor, y: &Tensor, dy: &Tensor) -> CandleResult<Option<Tensor>> {
        let [a, ..] = self.backward(y, dy, None)?;
        Ok(a)
    }
}

impl CustomOp2 for Node {
    forward! { _ _ }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> CandleResult<(Option<Tensor>, Option<Tensor>)> {
        let [a, b, _] = self.backward(y, dy, None)?;
        Ok((a, b))
    }
}

impl CustomOp3 for Node {
    forward! { _ _ _ }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        c: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> CandleResult<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let carrier = (self.operands.len() == 2).then_some(c);
        let [a, b, c] = self.backward(y, dy, carrier)?;
        Ok((a, b, c))
    }
}
