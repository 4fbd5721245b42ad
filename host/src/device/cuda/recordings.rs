//! Recordings of a GPU's work, and those who wait for the GPU.
//!
//! While any thread records work of a GPU, the driver lets nobody wait for that GPU as a whole: the wait fails, and every recording of it fails too, whatever
//! it was begun with. So who waits lets the recordings of other threads end first, and those that are to begin meanwhile let the waits end.
//!
//! Any number may record at the same time, and any number wait. Who comes while the others are at it, or queue, queues; all who queue are let in together when
//! the others are through. So nobody is kept out for longer than the others' turn.

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem;

use parking_lot::{Condvar, Mutex};

thread_local! {
    /// How many recordings the thread has under way, of whichever GPUs.
    static UNDER_WAY: Cell<usize> = const { Cell::new(0) };
}

/// Those who record a GPU's work and those who wait for it, of whom only one group can be at it.
#[derive(Debug, Default)]
pub(super) struct Recordings {
    groups: Mutex<[Group; 2]>,
    let_in: Condvar,
}

#[derive(Debug, Default)]
struct Group {
    under_way: usize,
    queued: usize,
    /// How often those who queued were let in.
    turns: u64,
}

/// A group's index.
type Of = usize;
const RECORDING: Of = 0;
const WAITING: Of = 1;

/// A recording that is under way on this thread, until it is dropped.
#[derive(Debug)]
pub(super) struct Recording<'a> {
    of: &'a Recordings,
    /// It ends on the thread that it is counted on.
    on_this_thread: PhantomData<*const ()>,
}

/// Keeps recordings out until it is dropped.
#[derive(Debug)]
pub(super) struct NoRecordings<'a> {
    of: &'a Recordings,
}

impl Recordings {
    /// Begins a recording on this thread, when nobody waits.
    pub(super) fn begin(&self) -> Recording<'_> {
        let mut groups = self.groups.lock();
        // A thread that has one under way goes ahead of those who queue to wait: it may be the end of that one that they queue for. Those who are waiting
        // already come to an end by themselves.
        let goes_ahead = UNDER_WAY.get() > 0;
        if groups[WAITING].under_way == 0 && (goes_ahead || groups[WAITING].queued == 0) {
            groups[RECORDING].under_way += 1;
        } else {
            groups[RECORDING].queued += 1;
            let turns = groups[RECORDING].turns;
            self.let_in.wait_while(&mut groups, |groups| groups[RECORDING].turns == turns);
        }
        UNDER_WAY.set(UNDER_WAY.get() + 1);
        Recording { of: self, on_this_thread: PhantomData }
    }

    /// Waits until there are no recordings; none begins until what this gives is dropped.
    ///
    /// `None`, at once, if this thread has recordings under way and there are any of this GPU: its own do not end, and others may queue for their end.
    pub(super) fn wait(&self) -> Option<NoRecordings<'_>> {
        let mut groups = self.groups.lock();
        let goes_ahead = UNDER_WAY.get() > 0;
        if groups[RECORDING].under_way == 0 && (goes_ahead || groups[RECORDING].queued == 0) {
            groups[WAITING].under_way += 1;
        } else if goes_ahead {
            return None;
        } else {
            groups[WAITING].queued += 1;
            let turns = groups[WAITING].turns;
            self.let_in.wait_while(&mut groups, |groups| groups[WAITING].turns == turns);
        }
        Some(NoRecordings { of: self })
    }

    /// Whether any thread records.
    pub(super) fn are_under_way(&self) -> bool {
        self.groups.lock()[RECORDING].under_way > 0
    }

    /// Ends one of a group, and lets those of the other one in if it was the last.
    fn end(&self, group: Of) {
        let mut groups = self.groups.lock();
        groups[group].under_way -= 1;
        let others = 1 - group;
        if groups[group].under_way == 0 && groups[others].queued > 0 {
            groups[others].under_way += mem::take(&mut groups[others].queued);
            groups[others].turns += 1;
            self.let_in.notify_all();
        }
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        UNDER_WAY.set(UNDER_WAY.get() - 1);
        self.of.end(RECORDING);
    }
}

impl Drop for NoRecordings<'_> {
    fn drop(&mut self) {
        self.of.end(WAITING);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Barrier, mpsc};
    use std::thread;
    use std::time::Duration;

    use super::{Of, RECORDING, Recordings, WAITING};

    /// Far longer than any of this takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Fails if `work` does not come to its end: a deadlock must fail, not hang.
    fn ends(work: impl FnOnce() + Send + 'static) {
        let (done, finished) = mpsc::channel();
        thread::spawn(move || {
            work();
            done.send(()).expect("the test waits");
        });
        finished.recv_timeout(PATIENCE).expect("it comes to its end, and does not panic");
    }

    /// Returns when so many of a group queue.
    fn until_queued(recordings: &Recordings, group: Of, count: usize) {
        while recordings.groups.lock()[group].queued != count {
            thread::yield_now();
        }
    }

    #[test]
    fn who_waits_waits_for_the_recordings_of_other_threads() {
        ends(|| {
            let recordings = Recordings::default();
            let through = AtomicUsize::new(0);
            thread::scope(|scope| {
                let recording = recordings.begin();
                let waiting = || {
                    drop(recordings.wait().expect("this thread records nothing"));
                    through.fetch_add(1, Ordering::Relaxed);
                };
                scope.spawn(waiting);
                scope.spawn(waiting);
                until_queued(&recordings, WAITING, 2);
                assert_eq!(through.load(Ordering::Relaxed), 0);
                drop(recording);
            });
            assert_eq!(through.load(Ordering::Relaxed), 2);
        });
    }

    #[test]
    fn recordings_wait_for_those_who_wait_or_queue_before_them() {
        ends(|| {
            let recordings = Recordings::default();
            let order = parking_lot::Mutex::new(Vec::new());
            thread::scope(|scope| {
                let first = recordings.begin();
                scope.spawn(|| {
                    let alone = recordings.wait();
                    until_queued(&recordings, RECORDING, 1);
                    order.lock().push("waited");
                    drop(alone);
                });
                until_queued(&recordings, WAITING, 1);
                scope.spawn(|| {
                    let _second = recordings.begin();
                    order.lock().push("recorded");
                });
                until_queued(&recordings, RECORDING, 1);
                order.lock().push("first");
                drop(first);
            });
            assert_eq!(order.into_inner(), ["first", "waited", "recorded"]);
        });
    }

    #[test]
    fn many_may_record_and_many_may_wait() {
        ends(|| {
            let recordings = Recordings::default();
            let together = Barrier::new(3);
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let recording = recordings.begin();
                        together.wait();
                        drop(recording);
                        let alone = recordings.wait();
                        together.wait();
                        drop(alone);
                    });
                }
            });
        });
    }

    #[test]
    fn who_records_waits_for_no_recording() {
        ends(|| {
            let (recordings, of_another_gpu) = (Recordings::default(), Recordings::default());
            let step = Barrier::new(2);
            let recording = recordings.begin();
            assert!(recordings.wait().is_none(), "its own could never end");
            assert!(of_another_gpu.wait().is_some(), "there are none");
            thread::scope(|scope| {
                scope.spawn(|| {
                    let _recording = of_another_gpu.begin();
                    step.wait();
                    step.wait();
                });
                step.wait();
                assert!(of_another_gpu.wait().is_none(), "that one may queue for the end of this one");
                step.wait();
            });
            drop(recording);
            assert!(recordings.wait().is_some());
        });
    }

    #[test]
    fn recordings_within_recordings_begin_though_somebody_queues() {
        ends(|| {
            let gpus = [Recordings::default(), Recordings::default()];
            let step = Barrier::new(2);
            thread::scope(|scope| {
                // Each has one of a GPU, and takes one of the other, too.
                for (first, second) in [(&gpus[0], &gpus[1]), (&gpus[1], &gpus[0])] {
                    let step = &step;
                    scope.spawn(move || {
                        let outer = first.begin();
                        scope.spawn(|| assert!(first.wait().is_some()));
                        until_queued(first, WAITING, 1);
                        step.wait();
                        let inner = [first.begin(), second.begin()];
                        assert!(first.wait().is_none());
                        drop(inner);
                        assert!(first.wait().is_none(), "the outer one is under way");
                        drop(outer);
                    });
                }
            });
            assert!(gpus.iter().all(|gpu| gpu.wait().is_some()));
        });
    }

    #[test]
    fn recordings_end_in_a_panic_too() {
        ends(|| {
            let recordings = Recordings::default();
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let _recording = recordings.begin();
                panic!("in the work, as it is meant to");
            }));
            assert!(outcome.is_err());
            assert!(recordings.wait().is_some());
            thread::scope(|scope| scope.spawn(|| drop(recordings.begin())).join().expect("it begins"));
        });
    }

    #[test]
    fn recordings_and_waits_keep_each_other_out() {
        ends(|| {
            let recordings = Recordings::default();
            let [recording, waiting] = [AtomicUsize::new(0), AtomicUsize::new(0)];
            // Another one at it than should be is seen, if not each time then in some of many.
            let alone_among = |mine: &AtomicUsize, others: &AtomicUsize| {
                mine.fetch_add(1, Ordering::SeqCst);
                assert_eq!(others.load(Ordering::SeqCst), 0);
                thread::yield_now();
                assert_eq!(others.load(Ordering::SeqCst), 0);
                mine.fetch_sub(1, Ordering::SeqCst);
            };
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for _ in 0..2000 {
                            let _one = recordings.begin();
                            alone_among(&recording, &waiting);
                        }
                    });
                    scope.spawn(|| {
                        for _ in 0..2000 {
                            let _one = recordings.wait();
                            alone_among(&waiting, &recording);
                        }
                    });
                }
            });
        });
    }
}
