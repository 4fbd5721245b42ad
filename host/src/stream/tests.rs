//! Branches of streams: which one a stream gets, and what waits for its work. Those of GPUs are run with `--ignored` where there is one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use half::bf16;

use super::Stream;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::ops::linear;
use crate::tensor::Tensor;

/// How the work on a branch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Success,
    Failure,
    Panic,
    /// The host waits for the branch, which is an error where that is being captured.
    Wait,
}

impl End {
    fn happen(self, branch: &Stream) -> Result<()> {
        match self {
            Self::Success => Ok(()),
            Self::Failure => Err(Error::Emulator { operation: "the work", reason: String::new() }),
            Self::Panic => panic!("the work panics, as it is meant to"),
            Self::Wait => branch.synchronize(),
        }
    }

    /// Asserts that it was `work` that came to this end, and gives what it gave.
    fn expect<R>(self, work: impl FnOnce() -> Result<R>) -> Option<R> {
        let outcome = catch_unwind(AssertUnwindSafe(work));
        let is_this = match &outcome {
            Ok(Ok(_)) => self == Self::Success,
            Ok(Err(Error::Emulator { operation: "the work", .. })) => self == Self::Failure,
            Ok(Err(Error::Driver { operation: "waiting for a stream", .. })) => self == Self::Wait,
            Ok(Err(_)) => false,
            Err(_) => self == Self::Panic,
        };
        assert!(is_this, "{self:?}, but {:?}", outcome.map(|result| result.map(drop)));
        outcome.ok()?.ok()
    }
}

#[test]
fn a_thread_s_default_stream_is_its_own_and_ends_with_the_work() {
    let (device, other) = (Device::emulator(), Device::emulator());
    let usual = device.default_stream();
    let [outer, inner] = [(); 2].map(|()| device.new_stream().expect("there is no limit"));
    outer.as_default(|| {
        let tensor = Tensor::<f32>::zeros(&device, [3]).expect("it fits");
        assert!(tensor.home_stream() == outer && other.default_stream() != outer);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            inner.as_default(|| {
                assert!(device.default_stream() == inner);
                panic!("the work panics, as it is meant to");
            });
        }));
        assert!(panicked.is_err() && device.default_stream() == outer);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(device.default_stream() == usual));
        });
    });
    assert!(device.default_stream() == usual);
}

#[test]
fn a_branch_comes_back_to_its_stream_and_to_no_other() {
    let device = Device::emulator();
    let [one, other] = [(); 2].map(|()| device.new_stream().expect("there is no limit"));
    let branch_of = |stream: &Stream| {
        let branch = stream.beside(&[], |branch| Ok(branch.handle().clone()));
        branch.expect("nothing fails")
    };
    let (first, of_other) = (branch_of(&one), branch_of(&other));
    let mut second = None;
    for end in [End::Success, End::Failure, End::Panic] {
        end.expect(|| {
            one.beside(&[], |branch| {
                // One that has work is not had by another.
                let inner = branch_of(&one);
                let pair = [branch.handle(), &inner];
                let second = second.get_or_insert_with(|| inner.clone());
                for expected in [&first, second] {
                    assert_eq!(
                        pair.iter().filter(|handle| Arc::ptr_eq(handle, expected)).count(),
                        1,
                        "{end:?}"
                    );
                }
                end.happen(branch)
            })
        });
        assert!(Arc::ptr_eq(&branch_of(&other), &of_other), "{end:?}");
    }
    // Branches are there as long as their stream is.
    let branch = Arc::downgrade(&first);
    drop((first, second));
    branch_of(&other);
    assert!(branch.upgrade().is_some());
    drop(one);
    branch_of(&other);
    assert!(branch.upgrade().is_none());
}

/// Rows and columns of matrices of ones.
const SIDE: usize = 2048;

/// Matrices on a GPU: one of ones, and results whose home is a stream of their own.
struct OnGpu {
    ones: Tensor<bf16>,
    stream: Stream,
    /// The results of the products before the last one, and of that.
    to: [Tensor<bf16>; 2],
}

impl OnGpu {
    fn new() -> Self {
        let device = Device::cuda(0).expect("there is a GPU");
        let stream = device.new_stream().expect("there is no limit");
        let values = vec![bf16::ONE; SIDE * SIDE];
        let ones = Tensor::from_slice(&device, &values, [SIDE, SIDE]).expect("there is memory");
        let to = [(); 2].map(|()| Tensor::zeros_on(&stream, [SIDE, SIDE]).expect("there is memory"));
        let all = Self { ones, stream, to };
        // Loads the kernel.
        all.multiply(&all.stream, 2).expect("nothing is wrong");
        all
    }

    /// Enqueues so many products on `stream`, which take a GPU longer than the host.
    fn multiply(&self, stream: &Stream, count: usize) -> Result<()> {
        let [mut others, mut last] = self.to.clone();
        let product = linear(&self.ones, &self.ones).on(stream);
        (1..count).try_for_each(|_| product.run_into(&mut others))?;
        product.run_into(&mut last)
    }

    /// Calls `work` beside the stream.
    fn beside<R>(&self, work: impl FnOnce(&Stream) -> Result<R>) -> Result<R> {
        let [others, last] = &self.to;
        self.stream.beside(&[&self.ones, others, last], work)
    }

    /// Makes the last result another one.
    fn forget(&self) {
        let mut last = self.to[1].clone();
        let zeros = Tensor::zeros_on(&self.stream, [SIDE, SIDE]).expect("there is memory");
        last.copy_from(&zeros).expect("nothing is wrong");
    }

    /// Whether the last result is that of a product, as the stream has it now.
    fn is_multiplied(&self) -> bool {
        let row = self.to[1].slice(0, SIDE - 1..SIDE).expect("there are rows");
        // A power of two, and so a bfloat16.
        row.to_vec().expect("a result").iter().all(|value| value.to_f32() == SIDE as f32)
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_stream_waits_for_its_branch_however_the_work_ends() {
    let gpu = OnGpu::new();
    for end in [End::Success, End::Failure, End::Panic] {
        gpu.forget();
        let mut done = None;
        end.expect(|| {
            gpu.beside(|branch| {
                gpu.multiply(branch, 400)?;
                done = Some(branch.record()?);
                end.happen(branch)
            })
        });
        let is_done = done.expect("it came so far").is_done().expect("nothing fails");
        assert!(!is_done, "{end:?}: the host does not wait, and so has to have something to wait for");
        assert!(gpu.is_multiplied(), "{end:?}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_capture_has_the_work_of_branches_and_none_that_fails() {
    let gpu = OnGpu::new();
    for end in [End::Success, End::Failure, End::Panic, End::Wait] {
        let mut calls = 0;
        let work = || {
            // Two branches, one after the other.
            gpu.beside(|branch| gpu.multiply(branch, 2))?;
            calls += 1;
            gpu.beside(|branch| {
                gpu.multiply(branch, 200)?;
                // The second call is recorded.
                if calls == 2 { end.happen(branch) } else { Ok(()) }
            })
        };
        // SAFETY: nobody else has the stream, and the work borrows the tensors that it uses.
        let graph = end.expect(|| unsafe { gpu.stream.capture(work) });
        assert!(!gpu.stream.is_capturing());
        if let Some(mut graph) = graph {
            for _ in 0..3 {
                gpu.forget();
                graph.launch().expect("nothing fails");
                assert!(gpu.is_multiplied());
            }
        }
        // The stream and its branches are as they were.
        gpu.forget();
        gpu.beside(|branch| gpu.multiply(branch, 2)).expect("nothing fails");
        assert!(gpu.is_multiplied(), "{end:?}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn streams_beside_one_that_is_recorded_have_branches_that_are_not() {
    let gpu = OnGpu::new();
    let other = gpu.ones.device().new_stream().expect("there is no limit");
    let beside_both = || {
        gpu.beside(|branch| gpu.multiply(branch, 1))?;
        // Not a part of what is recorded, and refused on what is.
        other.beside(&[], |branch| branch.record().map(drop))
    };
    beside_both().expect("nothing fails");
    // SAFETY: nobody else has the stream, and the work borrows the tensors that it uses.
    unsafe { gpu.stream.capture(beside_both) }.expect("nothing fails");
    other.synchronize().expect("nothing fails");
}
