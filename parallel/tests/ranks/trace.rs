//! What a subscriber of `tracing` sees of collectives.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use warpsmith::{Device, Tensor};
use warpsmith_parallel::Reduction;
use warpsmith_parallel::launch;

use crate::support::{LIMIT, vector};

/// Keeps the names of operations.
#[derive(Clone, Default)]
struct Names(Arc<Mutex<Vec<String>>>);

impl Visit for &Names {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "name" {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{value:?}"));
        }
    }
}

impl Subscriber for Names {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "warpsmith::operation"
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut &*self);
        Id::from_u64(1)
    }

    fn event(&self, _: &Event<'_>) {}
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn each_collective_is_told_by_its_name() {
    let results = launch::threads_within(LIMIT, 2, |communicator| {
        let names = Names::default();
        tracing::subscriber::with_default(names.clone(), || {
            let other = 1 - communicator.rank();
            let mut pair = vector(&[1.0f32, 2.0]);
            let mut one = vector(&[0.0f32]);
            communicator.all_reduce(&mut pair, Reduction::Sum)?;
            communicator.reduce_scatter(&pair, &mut one, Reduction::Sum)?;
            communicator.all_gather(&one, &mut pair)?;
            communicator.broadcast(&mut pair, 0)?;
            let mut received = Tensor::zeros(&Device::cpu(), [2])?;
            communicator.all_to_all(&pair, &mut received)?;
            communicator.all_to_all_v(&pair, &[1, 1], &mut received, &[1, 1])?;
            communicator.send_recv((&pair, other), (&mut received, other))?;
            if communicator.rank() == 0 {
                communicator.send(&pair, 1)?;
            } else {
                communicator.recv(&mut received, 0)?;
            }
            communicator.barrier(&Device::cpu())
        })?;
        let names = names.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(names)
    });
    let results = results.expect("no rank fails");
    let last = ["send", "recv"];
    for (names, last) in results.iter().zip(last) {
        let all = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "all_to_all_v"];
        let expected: Vec<String> =
            all.into_iter().chain(["send_recv", last, "barrier"]).map(|name| format!("{name:?}")).collect();
        assert_eq!(*names, expected);
    }
}
