//! Where a step can be made to fail, by tests.

use crate::error::Result;

/// A place in a step.
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
}

/// The failure that comes next, and how often it does not come before: none, but in tests.
#[derive(Debug, Default)]
pub(super) struct Faults {
    #[cfg(test)]
    pub(super) next: parking_lot::Mutex<Option<(Point, usize)>>,
}

impl Faults {
    /// Fails if this is the place, once.
    #[cfg(test)]
    pub(super) fn at(&self, point: Point) -> Result<()> {
        let mut next = self.next.lock();
        match &mut *next {
            Some((at, after)) if *at == point => match after.checked_sub(1) {
                Some(left) => {
                    *after = left;
                    return Ok(());
                }
                None => *next = None,
            },
            _ => return Ok(()),
        }
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
