//! Where steps, and waiting for them, can be made to fail by tests.

use crate::error::Result;

/// A place in a step, or in what comes after one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// Before ids on the device are noted.
    Note,
    /// When they have been, and the notes are to come back.
    Return,
    /// When they are waited for.
    Wait,
    /// Before anything is planned.
    Plan,
    /// When the lists are allocated.
    Allocation,
    /// When some of the copies have been made.
    Copy,
    /// When all has been enqueued.
    Record,
    /// When all work of the device is waited for.
    Synchronize,
    /// When the last reads and copies are waited for.
    Finish,
}

/// The failures to come, one after the other, and how often each one's place is passed before: none, but in tests.
#[derive(Debug, Default)]
pub(super) struct Faults {
    #[cfg(test)]
    pub(super) next: parking_lot::Mutex<std::collections::VecDeque<(Point, usize)>>,
}

impl Faults {
    /// Fails if this is the place of the next failure, which is over then.
    #[cfg(test)]
    pub(super) fn at(&self, point: Point) -> Result<()> {
        let mut next = self.next.lock();
        match next.front_mut() {
            Some((at, after)) if *at == point => {
                if let Some(left) = after.checked_sub(1) {
                    *after = left;
                    return Ok(());
                }
            }
            _ => return Ok(()),
        }
        next.pop_front();
        Err(crate::Error::Driver {
            operation: "a test",
            code: 999,
            name: "INJECTED".into(),
            message: format!("at {point:?}"),
        })
    }

    #[cfg(not(test))]
    #[inline]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "it can fail in tests")]
    pub(super) fn at(&self, _: Point) -> Result<()> {
        Ok(())
    }
}
