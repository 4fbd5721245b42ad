//! What the tests share: ranks of every kind, and numbers.

use std::net::TcpListener;
use std::time::Duration;

use warpsmith::{Device, Element, Tensor};
use warpsmith_parallel::launch::{self, Meeting};
use warpsmith_parallel::{Communicator, Launch, Result};

/// How long ranks wait where all of them come.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A port that nobody has.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it has an address").port()
}

/// Calls `work` on ranks that are connected over TCP.
pub(crate) fn over_tcp<R: Send>(
    size: usize,
    limit: Duration,
    work: impl Fn(Communicator) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    met(Meeting::Address(format!("127.0.0.1:{}", free_port())), size, limit, work)
}

/// Calls `work` on ranks that meet like that.
pub(crate) fn met<R: Send>(
    meeting: Meeting,
    size: usize,
    limit: Duration,
    work: impl Fn(Communicator) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let (meeting, work) = (meeting.clone(), &work);
                scope.spawn(move || work(Communicator::connect(&Launch::new(rank, size, meeting)?, limit)?))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

/// Calls `work` on ranks of either kind.
pub(crate) fn on_both<R: Send>(size: usize, work: impl Fn(Communicator) -> Result<R> + Sync) -> Vec<Vec<R>> {
    let local = launch::threads_within(LIMIT, size, &work).expect("no rank fails");
    let tcp = over_tcp(size, LIMIT, &work).into_iter().map(|result| result.expect("no rank fails"));
    vec![local, tcp.collect()]
}

/// A vector on the CPU.
pub(crate) fn vector<T: Element>(elements: &[T]) -> Tensor<T> {
    Tensor::from_slice(&Device::cpu(), elements, [elements.len()]).expect("it fits")
}

/// Numbers that follow from a seed alone (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    /// From −1 to less than 1.
    pub(crate) fn signed(&mut self) -> f32 {
        ((self.next() >> 40) as f32 / (1u64 << 23) as f32) - 1.0
    }

    pub(crate) fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.signed()).collect()
    }

    /// Whole numbers from −4 to 4, whose sums of products are exact.
    pub(crate) fn whole(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| (self.next() % 9) as f32 - 4.0).collect()
    }
}

/// u of f32.
pub(crate) const F32_UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// Holds a result against the exact one: within `relative` of it, and within `absolute` times the sum of the terms' sizes.
pub(crate) fn expect_close(found: &[f32], exact: &[(f64, f64)], relative: f64, absolute: f64, what: &str) {
    assert_eq!(found.len(), exact.len(), "{what}");
    for (at, (&found, &(exact, sizes))) in found.iter().zip(exact).enumerate() {
        let apart = (f64::from(found) - exact).abs();
        let bound = relative * exact.abs() + absolute * sizes;
        // NaN is never close.
        assert!(apart <= bound, "{what}: {found} at {at}, expected {exact} within {bound:e}");
    }
}

/// A matrix of f32 on the host.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) numbers: Vec<f32>,
}

impl Matrix {
    pub(crate) fn new(rows: usize, columns: usize, numbers: Vec<f32>) -> Self {
        assert_eq!(numbers.len(), rows * columns);
        Self { rows, columns, numbers }
    }

    pub(crate) fn tensor(&self, device: &Device) -> Tensor<f32> {
        Tensor::from_slice(device, &self.numbers, [self.rows, self.columns]).expect("it fits")
    }

    /// Each element of `self otherᵀ` in f64, and the sum of the sizes of its terms.
    pub(crate) fn product(&self, other: &Self) -> Vec<(f64, f64)> {
        let row = |matrix: &Self, at: usize| {
            matrix.numbers[at * matrix.columns..(at + 1) * matrix.columns].to_vec()
        };
        let mut all = Vec::new();
        for one in 0..self.rows {
            for two in 0..other.rows {
                let terms: Vec<f64> = row(self, one)
                    .iter()
                    .zip(row(other, two))
                    .map(|(&a, b)| f64::from(a) * f64::from(b))
                    .collect();
                all.push((terms.iter().sum(), terms.iter().map(|term| term.abs()).sum()));
            }
        }
        all
    }
}
