//! GPU architectures: names, the PTX version each is compiled to, and what one multiprocessor holds.
//!
//! The numbers are those of the CUDA C++ Programming Guide, "Compute Capabilities". An architecture that is not listed can
//! still be compiled for; only its occupancy is unknown.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// An architecture that PTX is compiled for, such as `sm_80` or `sm_90a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// Major compute capability.
    pub major: u32,
    /// Minor compute capability.
    pub minor: u32,
    /// Whether it is the architecture-specific variant (`sm_90a`), which runs on that architecture only.
    pub specific: bool,
}

/// What limits how many blocks one multiprocessor holds at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessor {
    /// Warps that can be resident.
    pub warps: u32,
    /// Blocks that can be resident.
    pub blocks: u32,
    /// 32-bit registers.
    pub registers: u32,
    /// Shared memory in bytes, the driver's part (1 KiB a block) included.
    pub shared_bytes: u32,
}

impl Arch {
    /// Turing (T4), which lacks asynchronous copies.
    pub const SM_75: Self = Self { major: 7, minor: 5, specific: false };
    /// Ampere (A100) and everything later.
    pub const SM_80: Self = Self { major: 8, minor: 0, specific: false };
    /// Hopper and everything later: clusters, and launches that begin before those that they depend on have ended.
    pub const SM_90: Self = Self { major: 9, minor: 0, specific: false };
    /// Hopper (H100, H200) with `wgmma`, TMA and clusters; no other architecture.
    pub const SM_90A: Self = Self { major: 9, minor: 0, specific: true };

    /// The PTX version to compile to, as major × 10 + minor: the oldest that has what kernels for this architecture use,
    /// because the driver must know it.
    ///
    /// 7.0 (driver 450) has every `mma.sync` and `cp.async` form of `sm_80`; 8.1 (driver 530) is the first with `st.async` of
    /// `sm_90`, and 8.4 (driver 550) with products of 8-bit floating-point types for `sm_89`.
    pub const fn ptx_version(self) -> u32 {
        match (self.major, self.minor) {
            (0..=7, _) => 70,
            (8, 0) => 70,
            (8, 6) => 71,
            (8, 7) => 74,
            (8, 9) => 84,
            (8, _) => 78,
            (9, _) => 81,
            (10, 0) => 86,
            (10, _) => 88,
            (12, 0) => 87,
            _ => 88,
        }
    }

    /// What one multiprocessor holds; `None` for an architecture that is not known here.
    pub const fn multiprocessor(self) -> Option<Multiprocessor> {
        let (warps, blocks, shared_kib) = match (self.major, self.minor) {
            (7, 5) => (32, 16, 65),
            (8, 0) => (64, 32, 164),
            (8, 6) => (48, 16, 100),
            (8, 7) => (48, 16, 164),
            (8, 9) => (48, 24, 100),
            (9, 0) | (10, 0) | (10, 3) => (64, 32, 228),
            (12, 0 | 1) => (48, 24, 100),
            _ => return None,
        };
        Some(Multiprocessor { warps, blocks, registers: 64 * 1024, shared_bytes: shared_kib * 1024 })
    }
}

impl Multiprocessor {
    /// Blocks resident at a time, for blocks of `threads` threads with `registers` each and `shared_bytes` of shared memory.
    ///
    /// Registers are handed out to warps in units of 256; the driver keeps 1 KiB of shared memory a block.
    pub fn resident_blocks(self, threads: u32, registers: u32, shared_bytes: u32) -> u32 {
        let warps = threads.div_ceil(32).max(1);
        let registers_per_warp = (u64::from(registers.max(1)) * 32).next_multiple_of(256);
        let by_registers = u64::from(self.registers) / registers_per_warp / u64::from(warps);
        let by_shared = u64::from(self.shared_bytes) / (u64::from(shared_bytes) + 1024).next_multiple_of(128);
        let blocks = u64::from(self.blocks.min(self.warps / warps)).min(by_registers).min(by_shared);
        u32::try_from(blocks).unwrap_or(self.blocks)
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}{}", self.major, self.minor, if self.specific { "a" } else { "" })
    }
}

impl FromStr for Arch {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let digits = text.strip_prefix("sm_")?;
            let (digits, specific) = match digits.strip_suffix('a') {
                Some(digits) => (digits, true),
                None => (digits, false),
            };
            if !(2..=3).contains(&digits.len()) || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            let number: u32 = digits.parse().ok()?;
            Some(Self { major: number / 10, minor: number % 10, specific })
        };
        parse().ok_or_else(|| Error::Arch { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_a_round_trip() {
        for name in ["sm_80", "sm_86", "sm_90", "sm_90a", "sm_100a", "sm_120"] {
            assert_eq!(name.parse::<Arch>().unwrap().to_string(), name);
        }
        assert_eq!("sm_90a".parse::<Arch>().unwrap(), Arch::SM_90A);
    }

    #[test]
    fn other_names_are_refused_and_named_in_the_error() {
        for name in ["", "80", "sm_", "sm_8", "sm_9a", "compute_80", "sm_80b", "sm_80aa", "sm_-80", "sm_1000"]
        {
            let error = name.parse::<Arch>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
    }

    #[test]
    fn residency_is_limited_by_each_resource_in_turn() {
        let sm_80 = Arch::SM_80.multiprocessor().unwrap();
        assert_eq!(sm_80.resident_blocks(32, 16, 0), 32, "blocks");
        assert_eq!(sm_80.resident_blocks(1024, 32, 0), 2, "warps");
        assert_eq!(sm_80.resident_blocks(256, 255, 0), 1, "registers");
        assert_eq!(sm_80.resident_blocks(256, 128, 0), 2, "registers");
        assert_eq!(sm_80.resident_blocks(128, 32, 80 * 1024), 2, "shared memory");
        assert_eq!(sm_80.resident_blocks(128, 32, u32::MAX), 0, "shared memory");
    }
}
