//! Traces: what chosen lanes execute, instruction by instruction, with the registers that they read and write.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::code::{Core, Inst};
use super::registers::{CONSTANT, Slot};
use crate::check::{Lanes, SourceLine};
use crate::ir::program::{Operand, file_of};

/// Which lanes to trace. Parsed from `KERNEL[:block=X[.Y[.Z]],warp=W,lane=FIRST[-LAST]]`; what is left out is any.
///
/// ```
/// use warpsmith_emulator::TraceFilter;
/// let filter: TraceFilter = "scan:block=1,lane=0-3".parse()?;
/// assert_eq!((filter.kernel.as_str(), filter.block, filter.warp), ("scan", Some([1, 0, 0]), None));
/// assert_eq!(filter.lanes, 0b1111);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFilter {
    /// A part of the kernels' names; all if empty.
    pub kernel: String,
    /// One block only.
    pub block: Option<[u32; 3]>,
    /// One warp of each block only.
    pub warp: Option<u32>,
    /// Lanes, a bit each.
    pub lanes: u32,
}

impl FromStr for TraceFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kernel, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut filter = Self { kernel: kernel.to_owned(), block: None, warp: None, lanes: u32::MAX };
        let number = |text: &str| {
            text.parse::<u32>().map_err(|_| format!("`{text}` in the filter of a trace: expected a number"))
        };
        for part in rest.split(',').filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("block", index)) => {
                    let mut block = [0; 3];
                    let parts: Vec<_> = index.split('.').collect();
                    if parts.len() > 3 {
                        return Err(format!(
                            "`{index}` in the filter of a trace: a block has three indices at most"
                        ));
                    }
                    for (to, from) in block.iter_mut().zip(parts) {
                        *to = number(from)?;
                    }
                    filter.block = Some(block);
                }
                Some(("warp", index)) => filter.warp = Some(number(index)?),
                Some(("lane", range)) => {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last || last > 31 {
                        return Err(format!(
                            "`{range}` in the filter of a trace: lanes are 0 to 31, the lower one first"
                        ));
                    }
                    filter.lanes = (u32::MAX >> (31 - (last - first))) << first;
                }
                _ => {
                    return Err(format!(
                        "`{part}` in the filter of a trace: expected block=, warp= or lane="
                    ));
                }
            }
        }
        Ok(filter)
    }
}

/// A trace of a machine's launches: which lanes, and where their steps go.
#[derive(Clone)]
pub struct Tracer {
    filter: TraceFilter,
    sink: Arc<dyn Fn(&TraceStep) + Send + Sync>,
}

impl Tracer {
    /// Hands every step of the lanes chosen to `sink`. Blocks run side by side: with more than one, their steps interleave.
    pub fn new(filter: TraceFilter, sink: impl Fn(&TraceStep) + Send + Sync + 'static) -> Self {
        Self { filter, sink: Arc::new(sink) }
    }

    /// Whether a launch of this kernel is traced.
    pub(crate) fn wants(&self, kernel: &str) -> bool {
        kernel.contains(&self.filter.kernel)
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer").field("filter", &self.filter).finish_non_exhaustive()
    }
}

impl PartialEq for Tracer {
    /// Whether both hand the same lanes to the same place.
    fn eq(&self, other: &Self) -> bool {
        self.filter == other.filter && Arc::ptr_eq(&self.sink, &other.sink)
    }
}

impl Eq for Tracer {}

/// An instruction that lanes of a trace executed. Its [`Display`](fmt::Display) is a line, and one for each register.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceStep {
    /// The block, as `%ctaid`.
    pub block: [u32; 3],
    /// The warp's number in its block.
    pub warp: u32,
    /// The lanes that executed it, of those traced.
    pub lanes: u32,
    /// The line in the PTX text, from 1.
    pub line: u32,
    /// That line.
    pub text: String,
    /// Where the compiler says that it comes from.
    pub source: Option<SourceLine>,
    /// The registers that it read, before it was executed.
    pub reads: Vec<TraceValue>,
    /// The registers that it wrote, after it was executed; of a wait, before what it waits for.
    pub writes: Vec<TraceValue>,
}

/// What a register held.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceValue {
    /// Its name in the PTX text.
    pub register: String,
    /// Each lane's bits, from the lowest lane traced on; `None` where nothing wrote it.
    pub values: Vec<(u32, Option<u64>)>,
}

impl fmt::Display for TraceStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.block;
        write!(f, "({x}, {y}, {z}) warp {}, {}", self.warp, Lanes(self.lanes))?;
        write!(f, " | {:>5} | {}", self.line, self.text.trim())?;
        for (arrow, values) in [("  ", &self.reads), ("->", &self.writes)] {
            for value in values {
                write!(f, "\n    {arrow} {value}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for TraceValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show =
            |value: Option<u64>| value.map_or("nothing wrote it".to_owned(), |bits| format!("{bits:#x}"));
        write!(f, "{} = ", self.register)?;
        let mut values = self.values.iter();
        let Some(&(_, first)) = values.next() else { return f.write_str("?") };
        if values.all(|&(_, value)| value == first) {
            return f.write_str(&show(first));
        }
        let each: Vec<_> =
            self.values.iter().map(|&(lane, value)| format!("{lane}: {}", show(value))).collect();
        f.write_str(&each.join(", "))
    }
}

impl Core<'_> {
    /// The step that is about to be executed, if it is traced.
    #[cold]
    pub(super) fn trace_before(&self, inst: &Inst) -> Option<Box<TraceStep>> {
        let filter = &self.launch.trace?.filter;
        let lanes = self.warp.mask & filter.lanes;
        let chosen = filter.block.is_none_or(|block| block == self.block.index)
            && filter.warp.is_none_or(|warp| warp == self.warp.number);
        if lanes == 0 || !chosen {
            return None;
        }
        let instruction = self.launch.kernel.instructions.get(self.warp.pc as usize)?;
        let first = instruction.destinations;
        Some(Box::new(TraceStep {
            block: self.block.index,
            warp: self.warp.number,
            lanes,
            line: instruction.line,
            text: self.launch.text.line(instruction.line),
            source: instruction.location.and_then(|location| self.launch.text.source(location)),
            reads: self.registers(inst, first..instruction.operands.len(), lanes, self.warp.pc),
            writes: Vec::new(),
        }))
    }

    /// Completes a step and hands it on.
    #[cold]
    pub(super) fn trace_after(&self, inst: &Inst, mut step: Box<TraceStep>, pc: u32) {
        let Some(trace) = self.launch.trace else { return };
        let Some(instruction) = self.launch.kernel.instructions.get(pc as usize) else { return };
        step.writes = self.registers(inst, 0..instruction.destinations, step.lanes, pc);
        (trace.sink)(&step);
    }

    /// The registers among some operands of an instruction, with their values in `lanes`.
    fn registers(&self, inst: &Inst, range: std::ops::Range<usize>, lanes: u32, pc: u32) -> Vec<TraceValue> {
        let Some(instruction) = self.launch.kernel.instructions.get(pc as usize) else { return Vec::new() };
        let slots: &[Slot] = if inst.all.is_empty() { &inst.slots } else { &inst.all };
        let registers = &self.warp.registers;
        let mut found: Vec<TraceValue> = Vec::new();
        for at in range {
            let (Some(Operand::Register(register)), Some(&slot)) =
                (instruction.operands.get(at), slots.get(at))
            else {
                continue;
            };
            let Some(name) = self.launch.kernel.names.of(pc as usize, at) else { continue };
            if slot & CONSTANT != 0 || found.iter().any(|value| value.register == name) {
                continue;
            }
            let value = |lane: u32| -> (u32, Option<u64>) {
                let index = lane as usize;
                let (written, bits) = match file_of(register.class) {
                    0 => {
                        let bits = registers.predicate(self.constants, slot);
                        (registers.predicate_written(slot), u64::from(bits >> lane & 1))
                    }
                    1 => {
                        let bits = registers.word(self.constants, slot)[index];
                        (registers.word_written(slot), bits.into())
                    }
                    _ => (registers.double_written(slot), registers.double(self.constants, slot)[index]),
                };
                (lane, (written >> lane & 1 == 1).then_some(bits))
            };
            let values = (0..32).filter(|lane| lanes >> lane & 1 == 1).map(value).collect();
            found.push(TraceValue { register: name.to_owned(), values });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_says_what_it_does_not_understand() {
        let parse = |text: &str| text.parse::<TraceFilter>();
        assert_eq!(parse("k").unwrap().lanes, u32::MAX);
        assert_eq!(parse("k:lane=31,warp=2").unwrap().lanes, 1 << 31);
        assert_eq!(parse("k:lane=0-31").unwrap().lanes, u32::MAX);
        assert_eq!(parse("k:block=1.2.3").unwrap().block, Some([1, 2, 3]));
        for wrong in ["k:lane=32", "k:lane=3-1", "k:warp=x", "k:thread=1", "k:block=1.2.3.4"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
