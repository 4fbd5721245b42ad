//! Failures that are provoked: each has to be an error in time.

use std::time::{Duration, Instant};

use crate::{Communicator, Error, NcclOptions, Reduction, Result, launch};
use warpsmith::{Device, DeviceKind, Tensor};

use super::checks::wrong;
use super::{Options, Rank};

/// Within which every failure has to be an error.
const IN_TIME: Duration = Duration::from_secs(90);

/// A limit for ranks that do not come. NCCL takes seconds to begin.
fn short(options: &Options) -> Duration {
    Duration::from_secs(if options.device == "cuda" { 20 } else { 1 })
}

fn sum(rank: &Rank, count: usize) -> Result<()> {
    let mut tensor = Tensor::<f32>::zeros(&rank.device, [count])?;
    rank.communicator.all_reduce(&mut tensor, Reduction::Sum)?;
    rank.communicator.synchronize(&rank.device)
}

/// Runs ranks of which one errs, and holds the errors of the others to containing one of the words.
fn provoke(
    options: &Options,
    name: &'static str,
    words: &[&str],
    work: impl Fn(&Rank) -> Result<()> + Sync,
) -> Result<()> {
    let start = Instant::now();
    let results = launch::all_threads(short(options), options.ranks, |host| {
        let local_rank = host.rank();
        work(&Rank::new(options, host, local_rank)?)
    })?;
    if start.elapsed() > IN_TIME {
        return Err(wrong(name, format!("an error within {IN_TIME:?}"), format!("{:?}", start.elapsed())));
    }
    for (number, result) in results.into_iter().enumerate() {
        match result {
            // The last rank is the one that errs.
            Ok(()) if number + 1 == options.ranks => {}
            Ok(()) => return Err(wrong(name, "an error".into(), format!("none on rank {number}"))),
            Err(error) if words.iter().any(|word| error.to_string().contains(word)) => {}
            Err(error) => return Err(wrong(name, format!("one of {words:?}"), error.to_string())),
        }
    }
    println!("an error in {:.1} s: {name}", start.elapsed().as_secs_f64());
    Ok(())
}

pub(super) fn all(options: &Options) -> Result<()> {
    if options.ranks < 2 {
        return Ok(());
    }
    let last = options.ranks - 1;
    let is_last = |rank: &Rank| rank.host.rank() == last;
    provoke(options, "a rank that ends", &["is gone"], |rank| {
        sum(rank, 1000)?;
        if is_last(rank) { Ok(()) } else { sum(rank, 1000) }
    })?;
    provoke(options, "a rank that does not come", &["expected within", "is gone"], |rank| {
        sum(rank, 1000)?;
        if is_last(rank) {
            std::thread::sleep(2 * short(options));
            return Ok(());
        }
        sum(rank, 1000)
    })?;
    provoke(options, "ranks that disagree", &["expected the same call"], |rank| {
        let compared = match rank.device.kind() {
            DeviceKind::Cuda(_) => {
                Communicator::nccl(&rank.host, &rank.device, NcclOptions::default().comparing_calls())?
            }
            _ => rank.communicator.clone(),
        };
        let count = if is_last(rank) { 1001 } else { 1000 };
        let mut tensor = Tensor::<f32>::zeros(&rank.device, [count])?;
        compared.all_reduce(&mut tensor, Reduction::Sum)
    })?;
    if options.device == "cuda" {
        two_on_one_gpu(short(options))?;
    }
    Ok(())
}

fn two_on_one_gpu(limit: Duration) -> Result<()> {
    let results = launch::all_threads(limit, 2, |host| {
        Communicator::nccl(&host, &Device::cuda(0)?, NcclOptions::default()).map(drop)
    })?;
    for result in results {
        match result {
            Err(Error::SharedDevice { ranks: [0, 1], .. }) => {}
            Err(error) => return Err(wrong("two ranks on one GPU", "an error".into(), error.to_string())),
            Ok(()) => return Err(wrong("two ranks on one GPU", "an error".into(), "none".into())),
        }
    }
    println!("an error: two ranks on one GPU");
    Ok(())
}
