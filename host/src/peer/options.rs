//! How much of a device's memory a cache takes, and what the memory behind it is: from the program, the environment, or by default.

use std::ffi::OsString;

use crate::error::{Error, Result};

/// The variable that says how many MiB of a device's memory a cache takes.
pub const CAPACITY_VARIABLE: &str = "PEER_HBM_CACHE_MB";
/// The variable that says whether rows are in managed memory: `1` or `0`.
pub const MANAGED_VARIABLE: &str = "PEER_USE_MANAGED_MEMORY";
/// The MiB of a device's memory that a cache takes where nothing else is said.
pub const DEFAULT_CAPACITY_MIB: u64 = 16_384;

/// Where a layer keeps its experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExpertMemory {
    /// On the device if the capacity of a cache holds all of them, else behind a cache.
    #[default]
    Auto,
    /// On the device.
    Resident,
    /// In host memory, behind a cache on the device.
    Cached,
}

/// How large a cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capacity {
    Slots(usize),
    Mebibytes(u64),
}

/// What a program says of a cache; what it leaves open, the environment says, and else the default.
///
/// `PEER_HBM_CACHE_MB` is the capacity in MiB, 16384 by default; of a default no more is taken than 7/8 of the memory that the device has free.
/// `PEER_USE_MANAGED_MEMORY=1` puts the rows behind the cache into memory that the driver manages, rather than pinned memory. Other values are
/// errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheOptions {
    capacity: Option<Capacity>,
    managed: Option<bool>,
    poison: bool,
}

/// Options, once the environment has been asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    capacity: Capacity,
    /// Whether nobody asked for this capacity.
    default_capacity: bool,
    pub(crate) managed: bool,
    pub(crate) poison: bool,
}

impl CacheOptions {
    /// A cache of `slots` rows, at least 1.
    #[must_use]
    pub fn slots(self, slots: usize) -> Self {
        Self { capacity: Some(Capacity::Slots(slots)), ..self }
    }

    /// A cache of as many rows as `mebibytes` MiB hold.
    #[must_use]
    pub fn mebibytes(self, mebibytes: u64) -> Self {
        Self { capacity: Some(Capacity::Mebibytes(mebibytes)), ..self }
    }

    /// Whether the rows behind the cache are in memory that the driver manages, rather than pinned memory. Only GPUs know the difference.
    #[must_use]
    pub fn managed(self, managed: bool) -> Self {
        Self { managed: Some(managed), ..self }
    }

    /// Whether slots are overwritten with bits that are NaN as floating-point numbers when they lose their row, and before they get their first. For
    /// tests of what reads them: results do not change, only time does.
    #[must_use]
    pub fn poison(self, poison: bool) -> Self {
        Self { poison, ..self }
    }

    /// With what the environment says of that which is left open.
    pub(crate) fn settings(&self) -> Result<Settings> {
        self.settings_with(|name| std::env::var_os(name))
    }

    fn settings_with(&self, variable: impl Fn(&str) -> Option<OsString>) -> Result<Settings> {
        let capacity = match self.capacity {
            Some(capacity) => Some(capacity),
            None => variable(CAPACITY_VARIABLE)
                .map(|value| parse(CAPACITY_VARIABLE, "a whole number of MiB, at least 1", &value, mebibytes))
                .transpose()?,
        };
        let managed = match self.managed {
            Some(managed) => managed,
            None => variable(MANAGED_VARIABLE)
                .map(|value| parse(MANAGED_VARIABLE, "`0` or `1`", &value, flag))
                .transpose()?
                .unwrap_or(false),
        };
        let argument = match capacity {
            Some(Capacity::Slots(0)) => Some("slots"),
            Some(Capacity::Mebibytes(0)) => Some("mebibytes"),
            _ => None,
        };
        if let Some(argument) = argument {
            return Err(Error::Argument {
                operation: OPERATION,
                argument,
                expected: "at least 1".into(),
                actual: "0".into(),
            });
        }
        Ok(Settings {
            capacity: capacity.unwrap_or(Capacity::Mebibytes(DEFAULT_CAPACITY_MIB)),
            default_capacity: capacity.is_none(),
            managed,
            poison: self.poison,
        })
    }
}

/// What the errors of this module are about.
const OPERATION: &str = "making a cache";

fn mebibytes(text: &str) -> Option<Capacity> {
    text.trim().parse().ok().filter(|&number| number > 0).map(Capacity::Mebibytes)
}

fn flag(text: &str) -> Option<bool> {
    match text.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn parse<T>(
    variable: &'static str,
    expected: &str,
    value: &OsString,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T> {
    value.to_str().and_then(parse).ok_or_else(|| Error::Argument {
        operation: OPERATION,
        argument: variable,
        expected: expected.into(),
        actual: format!("`{}`", value.to_string_lossy()),
    })
}

impl Settings {
    /// The slots of a cache of `rows` rows of `row_bytes` bytes each, on a device with `free` bytes of memory free.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the capacity does not hold one row.
    pub(crate) fn slots(&self, rows: usize, row_bytes: usize, free: u64) -> Result<usize> {
        let row_bytes = row_bytes.max(1) as u64;
        let bytes = match self.capacity {
            Capacity::Slots(slots) => return Ok(slots.min(rows)),
            Capacity::Mebibytes(mebibytes) => mebibytes.saturating_mul(1 << 20),
        };
        let bytes = if self.default_capacity { bytes.min(free - free / 8) } else { bytes };
        match bytes / row_bytes {
            0 if rows != 0 => Err(Error::Argument {
                operation: OPERATION,
                argument: "capacity",
                expected: format!("at least {row_bytes} bytes, one row"),
                actual: format!("{bytes} bytes"),
            }),
            slots => Ok(usize::try_from(slots).unwrap_or(usize::MAX).min(rows)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{CAPACITY_VARIABLE, CacheOptions, MANAGED_VARIABLE, Settings};
    use crate::error::{Error, Result};

    fn settings(options: CacheOptions, capacity: Option<&str>, managed: Option<&str>) -> Result<Settings> {
        options.settings_with(|name| match name {
            CAPACITY_VARIABLE => capacity.map(OsString::from),
            MANAGED_VARIABLE => managed.map(OsString::from),
            other => panic!("{other} is nobody's variable"),
        })
    }

    fn slots(settings: Result<Settings>, free: u64) -> usize {
        settings.unwrap().slots(1 << 30, 4096, free).unwrap()
    }

    const MIB: u64 = 1 << 20;
    const LARGE: u64 = 1 << 40;

    #[test]
    fn the_program_goes_before_the_environment_and_that_before_the_default() {
        let none = CacheOptions::default();
        assert_eq!(slots(settings(none, None, None), LARGE), 16_384 * 256);
        assert_eq!(slots(settings(none, Some("3"), None), LARGE), 3 * 256);
        assert_eq!(slots(settings(none.mebibytes(2), Some("3"), None), LARGE), 2 * 256);
        assert_eq!(slots(settings(none.slots(5), Some("nonsense"), None), LARGE), 5);
        assert!(!settings(none, None, None).unwrap().managed);
        assert!(settings(none, None, Some("1")).unwrap().managed);
        assert!(!settings(none, None, Some("0")).unwrap().managed);
        assert!(!settings(none.managed(false), None, Some("1")).unwrap().managed);
    }

    #[test]
    fn only_a_default_gives_way_to_what_is_free() {
        let none = CacheOptions::default();
        assert_eq!(slots(settings(none, None, None), 8 * MIB), 7 * 256);
        assert_eq!(slots(settings(none, Some("9"), None), 8 * MIB), 9 * 256);
        assert_eq!(slots(settings(none.slots(7), None, None), 0), 7);
    }

    #[test]
    fn no_more_slots_than_rows_and_at_least_one_row_is_taken() {
        let settings = settings(CacheOptions::default().mebibytes(1), None, None).unwrap();
        assert_eq!(settings.slots(10, 4096, LARGE).unwrap(), 10);
        assert_eq!(settings.slots(0, 4096, LARGE).unwrap(), 0);
        let error = settings.slots(10, 2 << 20, LARGE).unwrap_err().to_string();
        assert!(error.contains("1048576 bytes") && error.contains("2097152"), "{error}");
    }

    #[test]
    fn other_values_of_a_variable_are_errors_that_name_both() {
        let bad = |capacity, managed| settings(CacheOptions::default(), capacity, managed).unwrap_err();
        for value in ["", "0", "-1", "1.5", "16GB", "99999999999999999999"] {
            let error = bad(Some(value), None);
            assert!(matches!(error, Error::Argument { argument: CAPACITY_VARIABLE, .. }), "{error}");
            assert!(error.to_string().contains(&format!("PEER_HBM_CACHE_MB is `{value}`")), "{error}");
        }
        for value in ["", "2", "yes", "true"] {
            let error = bad(None, Some(value)).to_string();
            assert!(error.contains(&format!("PEER_USE_MANAGED_MEMORY is `{value}`")), "{error}");
        }
        assert!(settings(CacheOptions::default().slots(0), None, None).is_err());
        assert!(settings(CacheOptions::default().mebibytes(0), None, None).is_err());
    }
}
