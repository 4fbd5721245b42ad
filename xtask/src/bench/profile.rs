//! Launches for a profiler to look at.
//!
//! Under a profiler times mean nothing, and what it is to look at is a few launches among thousands: those with which the fastest of a
//! peer's algorithms is found, say. So the driver tells it where to begin and where to end.

use anyhow::{Context, Result, bail};
use cudarc::driver::{CudaContext, profiler_start, profiler_stop};
use warpsmith::{DeviceKind, Stream};
use warpsmith_lab::benchmark::Subject;

/// Has the profiler look at `launches` launches of each subject, which are named as they begin.
pub(super) fn launch(
    stream: &Stream,
    launches: usize,
    subjects: impl Iterator<Item = (String, Box<dyn Subject>)>,
) -> Result<()> {
    let DeviceKind::Cuda(ordinal) = stream.device().kind() else { bail!("a profiler looks at a GPU") };
    // The profiler is told about the thread's current context.
    let _current = CudaContext::new(ordinal).context("the GPU's context")?;
    for (name, mut subject) in subjects {
        // What only the first launch does is not to be seen.
        subject.enqueue(0)?;
        stream.synchronize()?;
        println!("{name}");
        profiler_start().context("starting the profiler")?;
        let launched = (1..=launches).try_for_each(|index| subject.enqueue(index));
        let done = launched.and_then(|()| stream.synchronize());
        profiler_stop().context("stopping the profiler")?;
        done.with_context(|| format!("launching {name}"))?;
    }
    Ok(())
}
