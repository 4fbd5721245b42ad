//! What a check reports, and how it is shown.

use std::fmt;

/// What a kernel did wrong, with everything that is needed to find it.
///
/// Its [`Display`](fmt::Display) is a diagnostic in the manner of a compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of error.
    pub kind: FindingKind,
    /// One sentence that says what happened: address, allocation or offset, and values.
    pub message: String,
    /// The entry that ran.
    pub kernel: String,
    /// The name that the module was parsed under.
    pub file: String,
    /// The line in the PTX text, from 1; 0 if the finding concerns no single instruction.
    pub line: u32,
    /// That line.
    pub text: String,
    /// Where the compiler says that the instruction comes from (`.loc`).
    pub source: Option<SourceLine>,
    /// The block, as `%ctaid`.
    pub block: [u32; 3],
    /// The warp's number in its block.
    pub warp: u32,
    /// The lanes concerned, a bit each.
    pub lanes: u32,
    /// The other places that had a part in it: the earlier write of a race, each warp of a deadlock.
    pub related: Vec<Related>,
    /// What usually helps.
    pub hint: Option<String>,
}

/// A line of the program that the PTX was compiled from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceLine {
    /// The file, as the compiler wrote it.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
}

/// Another place that had a part in a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Related {
    /// What happened there.
    pub message: String,
    /// The line in the PTX text, from 1.
    pub line: u32,
    /// That line.
    pub text: String,
    /// Where the compiler says that it comes from.
    pub source: Option<SourceLine>,
}

/// The kinds of [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FindingKind {
    /// An access outside every allocation, or beyond the end of a variable or of shared memory.
    OutOfBounds,
    /// An access to memory that had been freed.
    UseAfterFree,
    /// An address that is not a multiple of the access size.
    Misaligned,
    /// A value that nothing wrote decides a branch, an address or a store to global memory.
    Uninitialised,
    /// Two accesses to shared memory, one of them a write, that no barrier orders.
    SharedRace,
    /// Two accesses to global memory, one of them a write, that nothing orders.
    GlobalRace,
    /// The destination of an asynchronous copy was touched before the copy had been waited for.
    AsynchronousCopy,
    /// A register of an asynchronous matrix product was touched before the product had been waited for, or without a fence.
    AsynchronousProduct,
    /// The warps of a warpgroup do not execute the same product, or its operands are none.
    WarpgroupMisuse,
    /// The copy engine or a matrix unit would not see an ordinary write, or the other way round: a proxy fence is missing.
    ProxyFence,
    /// A stage of shared memory that a thread has read is given back, and the copy engine overwrites it, with no proxy fence in between.
    UnfencedRead,
    /// Global memory was touched before `griddepcontrol.wait`, when the grids that write it may still run.
    GridDependency,
    /// `setmaxnreg` asks for what cannot be.
    Registers,
    /// A copy of a box names something that is no tensor map, or one that does not fit it.
    TensorMap,
    /// No warp can go on.
    BarrierDeadlock,
    /// A barrier was used in a way that PTX does not define.
    BarrierMisuse,
    /// Lanes that had to execute an instruction together did not.
    Divergence,
    /// The kernel executed `trap`.
    Trap,
    /// An `assert` of the kernel failed.
    Assertion,
    /// A call of what is no function, or of one with other parameters.
    BadCall,
    /// The frames of a thread's functions do not fit its stack.
    StackOverflow,
    /// A store to memory that may only be read.
    ReadOnly,
    /// A block ran more instructions than the limit.
    Budget,
}

impl FindingKind {
    /// The name that the diagnostic shows in brackets.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OutOfBounds => "out-of-bounds",
            Self::UseAfterFree => "use-after-free",
            Self::Misaligned => "misaligned",
            Self::Uninitialised => "uninitialised",
            Self::GlobalRace => "global-race",
            Self::SharedRace => "shared-race",
            Self::AsynchronousCopy => "asynchronous-copy",
            Self::AsynchronousProduct => "asynchronous-product",
            Self::WarpgroupMisuse => "warpgroup-misuse",
            Self::ProxyFence => "proxy-fence",
            Self::UnfencedRead => "unfenced-read",
            Self::GridDependency => "grid-dependency",
            Self::Registers => "registers",
            Self::TensorMap => "tensor-map",
            Self::BarrierDeadlock => "barrier-deadlock",
            Self::BarrierMisuse => "barrier-misuse",
            Self::Divergence => "divergence",
            Self::Trap => "trap",
            Self::Assertion => "assertion",
            Self::BadCall => "bad-call",
            Self::StackOverflow => "stack-overflow",
            Self::ReadOnly => "read-only",
            Self::Budget => "budget",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error[{}]: {}", self.kind.name(), self.message)?;
        let width =
            self.related.iter().map(|r| r.line).chain([self.line]).max().unwrap_or(0).to_string().len();
        excerpt(f, width, &self.file, self.line, &self.text, self.source.as_ref())?;
        let [x, y, z] = self.block;
        writeln!(
            f,
            "{:width$} = kernel `{}`, block ({x}, {y}, {z}), warp {}{}{}",
            "",
            self.kernel,
            self.warp,
            // Of a race between blocks the lanes are not known.
            if self.lanes == 0 { "" } else { ", " },
            Lanes(self.lanes)
        )?;
        for related in &self.related {
            writeln!(f, "{:width$} note: {}", "", related.message)?;
            excerpt(f, width, &self.file, related.line, &related.text, related.source.as_ref())?;
        }
        if let Some(hint) = &self.hint {
            writeln!(f, "{:width$} = help: {hint}", "")?;
        }
        Ok(())
    }
}

fn excerpt(
    f: &mut fmt::Formatter<'_>,
    width: usize,
    file: &str,
    line: u32,
    text: &str,
    source: Option<&SourceLine>,
) -> fmt::Result {
    if line == 0 {
        return Ok(());
    }
    write!(f, "{:width$}--> {file}:{line}", "")?;
    if let Some(source) = source {
        write!(f, " (from {}:{})", source.file, source.line)?;
    }
    writeln!(f, "\n{:width$} |\n{line:width$} | {}\n{:width$} |", "", text.trim_end(), "")
}

/// Shows a mask of lanes as ranges: `lanes 0-3, 8`.
pub(crate) struct Lanes(pub(crate) u32);

impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return Ok(());
        }
        if self.0 == u32::MAX {
            return f.write_str("all lanes");
        }
        f.write_str(if self.0.is_power_of_two() { "lane " } else { "lanes " })?;
        let mut rest = self.0;
        let mut first = true;
        while rest != 0 {
            let start = rest.trailing_zeros();
            let length = (rest >> start).trailing_ones();
            if !first {
                f.write_str(", ")?;
            }
            first = false;
            match length {
                1 => write!(f, "{start}")?,
                _ => write!(f, "{start}-{}", start + length - 1)?,
            }
            rest &= !(((1u64 << length) - 1) << start) as u32;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_shown_as_ranges() {
        assert_eq!(Lanes(0b1).to_string(), "lane 0");
        assert_eq!(Lanes(0b1_0000_1111).to_string(), "lanes 0-3, 8");
        assert_eq!(Lanes(0xc000_0000).to_string(), "lanes 30-31");
        assert_eq!(Lanes(u32::MAX).to_string(), "all lanes");
    }

    fn finding() -> Finding {
        Finding {
            kind: FindingKind::SharedRace,
            message: "read of shared memory at byte 16 races with the write by warp 2".into(),
            kernel: "scan".into(),
            file: "scan.ptx".into(),
            line: 104,
            text: "\tld.shared.b32 %r1, [%r2];  ".into(),
            source: Some(SourceLine { file: "src/scan.rs".into(), line: 31 }),
            block: [1, 0, 2],
            warp: 3,
            lanes: 0b111,
            related: vec![Related {
                message: "the write by warp 2".into(),
                line: 98,
                text: "\tst.shared.b32 [%r3], %r4;".into(),
                source: None,
            }],
            hint: Some("put a barrier between the two".into()),
        }
    }

    #[test]
    fn a_finding_shows_both_places_and_what_helps() {
        let expected = "\
error[shared-race]: read of shared memory at byte 16 races with the write by warp 2
   --> scan.ptx:104 (from src/scan.rs:31)
    |
104 | \tld.shared.b32 %r1, [%r2];
    |
    = kernel `scan`, block (1, 0, 2), warp 3, lanes 0-2
    note: the write by warp 2
   --> scan.ptx:98
    |
 98 | \tst.shared.b32 [%r3], %r4;
    |
    = help: put a barrier between the two
";
        assert_eq!(finding().to_string(), expected);
    }

    #[test]
    fn a_finding_of_no_instruction_and_no_other_party_is_two_lines() {
        let bare = Finding { line: 0, related: Vec::new(), hint: None, lanes: 0, ..finding() };
        let expected = "\
error[shared-race]: read of shared memory at byte 16 races with the write by warp 2
  = kernel `scan`, block (1, 0, 2), warp 3
";
        assert_eq!(bare.to_string(), expected);
    }

    #[test]
    fn every_kind_shows_under_a_name_of_its_own() {
        use FindingKind::*;
        const KINDS: [FindingKind; 23] = [
            OutOfBounds,
            UseAfterFree,
            Misaligned,
            Uninitialised,
            GlobalRace,
            SharedRace,
            AsynchronousCopy,
            AsynchronousProduct,
            WarpgroupMisuse,
            ProxyFence,
            UnfencedRead,
            GridDependency,
            Registers,
            TensorMap,
            BarrierDeadlock,
            BarrierMisuse,
            Divergence,
            Trap,
            Assertion,
            BadCall,
            StackOverflow,
            ReadOnly,
            Budget,
        ];
        let names: std::collections::HashSet<_> = KINDS.into_iter().map(FindingKind::name).collect();
        assert_eq!(names.len(), KINDS.len());
        for kind in KINDS {
            let shown = Finding { kind, ..finding() }.to_string();
            assert!(shown.starts_with(&format!("error[{}]: ", kind.name())), "{shown}");
        }
    }
}
