//! Functions that the driver brings with it: `vprintf`, `__assertfail`, `malloc` and `free`.

use super::access::{LOCAL_WINDOW, SHARED_WINDOW, WINDOW, ones};
use super::code::{Core, Flow};
use crate::check::FindingKind;
use crate::ir::op::Strength;
use crate::ir::program::{Builtin, CallSite};
use crate::memory::heap::Freed;
use crate::numeric::printf::{self, Argument};

/// Characters of a string that are read, at most.
const MAX_STRING: usize = 1 << 16;
/// Bytes that the blocks of a cluster print, at most; what comes after is left out.
const MAX_PRINTED: usize = 1 << 20;

impl Core<'_> {
    /// Runs one of these functions, lane by lane.
    pub(super) fn run_builtin(&mut self, builtin: Builtin, site: &CallSite) -> Result<(), Flow> {
        for lane in ones(self.warp.mask) {
            let result = match builtin {
                Builtin::Printf => self.print(lane, site)?,
                Builtin::AssertFail => return Err(self.assertion(lane, site)?),
                Builtin::Malloc => self.allocate_on_heap(lane, site)?,
                Builtin::Free => self.free_on_heap(lane, site)?,
            };
            if let Some(&(offset, size)) = site.results.first() {
                let at = self.frame_place(lane, offset);
                let bytes = result.to_le_bytes();
                let size = (size as usize).min(8);
                self.warp.local.write(at, &bytes[..size], &[true; 8][..size]);
            }
        }
        Ok(())
    }

    /// An argument of at most 8 bytes.
    fn argument(&mut self, lane: usize, site: &CallSite, number: usize) -> Result<u64, Flow> {
        let Some(&(offset, size)) = site.arguments.get(number) else { return Ok(0) };
        let (mut bytes, mut written) = ([0; 8], [true; 8]);
        let size = (size as usize).min(8);
        let at = self.frame_place(lane, offset);
        self.warp.local.read(at, &mut bytes[..size], &mut written[..size]);
        if self.launch.checks.uninitialised && written.contains(&false) {
            return Err(self.uninitialised(1 << lane, "an argument of a function of the driver"));
        }
        Ok(u64::from_le_bytes(bytes))
    }

    /// Bytes at a generic address.
    fn bytes_at(&mut self, lane: usize, address: u64, into: &mut [u8]) -> Result<(), Flow> {
        let length = into.len() as u64;
        let inside = |window: u64, size: u64| {
            let offset = address.wrapping_sub(window);
            (offset < WINDOW && offset + length <= size).then_some(offset)
        };
        if let Some(offset) = inside(LOCAL_WINDOW, u64::from(self.launch.kernel.local)) {
            let at = self.local_offset(lane, offset);
            self.warp.local.read(at, into, &mut []);
            return Ok(());
        }
        if let Some(offset) = inside(SHARED_WINDOW, self.block.shared.len() as u64) {
            self.block.shared.read(offset as usize, into, &mut []);
            return Ok(());
        }
        if let Some((_, allocation)) = self.launch.table.find(address)
            && allocation.base + allocation.bytes() - address >= length
        {
            allocation.storage.read(address - allocation.base, into);
            return Ok(());
        }
        let place = self.launch.table.describe(address);
        let message = format!("a function of the driver reads {length} bytes at {address:#x}: {place}");
        Err(self.fail(FindingKind::OutOfBounds, 1 << lane, message, None))
    }

    /// The text at a generic address, up to its zero.
    fn text_at(&mut self, lane: usize, address: u64) -> Result<String, Flow> {
        let mut text = Vec::new();
        let mut byte = [0];
        while text.len() < MAX_STRING {
            self.bytes_at(lane, address.wrapping_add(text.len() as u64), &mut byte)?;
            if byte[0] == 0 {
                break;
            }
            text.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// `vprintf`: gives the number of arguments.
    fn print(&mut self, lane: usize, site: &CallSite) -> Result<u64, Flow> {
        let format = self.argument(lane, site, 0)?;
        let from = self.argument(lane, site, 1)?;
        let format = self.text_at(lane, format)?;
        let mut offset = 0u64;
        let mut count = 0;
        let mut text = String::new();
        for part in printf::parts(&format) {
            let mut values = [0u64; 3];
            let arguments = part.arguments();
            for (value, argument) in values.iter_mut().zip(&arguments) {
                let size = argument.bytes();
                offset = offset.next_multiple_of(size);
                let mut bytes = [0; 8];
                self.bytes_at(lane, from.wrapping_add(offset), &mut bytes[..size as usize])?;
                *value = u64::from_le_bytes(bytes);
                offset += size;
                count += 1;
            }
            let string = match arguments.last() {
                Some(Argument::Text) => self.text_at(lane, values[arguments.len() - 1])?,
                _ => String::new(),
            };
            part.write(&values[..arguments.len()], &string, &mut text);
        }
        if self.printed.len() + text.len() <= MAX_PRINTED {
            self.printed += &text;
        }
        Ok(count)
    }

    /// `__assertfail`: the finding.
    fn assertion(&mut self, lane: usize, site: &CallSite) -> Result<Flow, Flow> {
        let mut texts = Vec::new();
        for number in [0, 1, 3] {
            let address = self.argument(lane, site, number)?;
            texts.push(self.text_at(lane, address)?);
        }
        let line = self.argument(lane, site, 2)?;
        let message = format!("the assertion `{}` failed at {}:{line} in `{}`", texts[0], texts[1], texts[2]);
        Ok(self.fail(FindingKind::Assertion, 1 << lane, message, None))
    }

    /// `malloc`: the address, or 0.
    fn allocate_on_heap(&mut self, lane: usize, site: &CallSite) -> Result<u64, Flow> {
        let bytes = self.argument(lane, site, 0)?;
        let (launch, table) = (self.launch, self.launch.table);
        let Some((address, again)) = launch.heap.allocate(bytes, table) else { return Ok(0) };
        if again {
            self.synchronise(Strength::Acquire, (true, false), 1 << lane, |_| address);
        }
        Ok(address)
    }

    /// `free`. What was done to the block before is ordered before what its next owner does.
    fn free_on_heap(&mut self, lane: usize, site: &CallSite) -> Result<u64, Flow> {
        let address = self.argument(lane, site, 0)?;
        if address != 0 {
            self.synchronise(Strength::Release, (false, true), 1 << lane, |_| address);
        }
        let message = match self.launch.heap.free(address) {
            Freed::Done => return Ok(0),
            Freed::Twice => format!("a `free` of {address:#x}, which was freed before"),
            Freed::Unknown => format!("a `free` of {address:#x}, which `malloc` did not give"),
        };
        Err(self.fail(FindingKind::UseAfterFree, 1 << lane, message, None))
    }
}
