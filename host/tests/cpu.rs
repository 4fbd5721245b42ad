//! The CPU device within a program's own parallel work, and sizes that no machine holds.
//!
//! Needs no GPU. The first test takes rayon's own threads, as a program does that calls operations from `par_iter`.

use std::sync::mpsc;
use std::time::Duration;

use rayon::prelude::*;
use warpsmith::ops::{self, Activation};
use warpsmith::{Device, Error, Tensor};

/// Far longer than the work takes on one slow core.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn operations_in_parallel_tasks_wait_for_no_lock_of_their_own_thread() {
    let (done, finished) = mpsc::channel();
    std::thread::spawn(move || {
        let device = Device::cpu();
        let rows = 521;
        let weights = Tensor::from_slice(&device, &vec![1f32; rows * 64], [rows, 64]).expect("it fits");
        let x = Tensor::from_slice(&device, &vec![1f32; 200 * 64], [200, 64]).expect("it fits");
        let w = weights.slice(0, 0..512).expect("the rows are there");
        let free = weights.slice(0, 520..521).expect("the row is there");
        (0..400).into_par_iter().for_each(|task| {
            if task % 4 == 0 {
                let y = ops::linear(&x, &w).activation(Activation::Relu).run().expect("the shapes fit");
                assert!(y.to_vec().expect("it is readable").iter().all(|&y| y == 64.0));
            } else {
                free.clone().write_slice(&[task as f32; 64]).expect("the lengths are the same");
            }
        });
        let row = free.to_vec().expect("it is readable");
        assert!(row.iter().all(|&value| value == row[0]), "one write is whole: {row:?}");
        done.send(()).expect("the test waits");
    });
    // A deadlock must fail, not hang.
    finished.recv_timeout(PATIENCE).expect("the tasks finish and none of them panics");
}

#[test]
fn shapes_that_overflow_are_errors() {
    let cpu = Device::cpu();
    let empty = Tensor::<f32>::zeros(&cpu, [0]).expect("nothing to allocate");
    let reshaped = empty.reshape([0, usize::MAX, 2]);
    assert!(matches!(reshaped, Err(Error::SizeLimit { .. })), "{reshaped:?}");
    assert_eq!(empty.reshape([3, 0, 2]).expect("it has no elements either").shape(), [3, 0, 2]);
}

#[test]
fn results_beyond_the_memory_are_errors() {
    let cpu = Device::cpu();
    // More than any machine addresses, but no overflow.
    let x = Tensor::<f32>::zeros(&cpu, [1 << 46, 0]).expect("nothing to allocate");
    let w = Tensor::<f32>::zeros(&cpu, [4, 0]).expect("nothing to allocate");
    let y = ops::linear(&x, &w).run();
    assert!(matches!(y, Err(Error::OutOfMemory { .. })), "{y:?}");
}
