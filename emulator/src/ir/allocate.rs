//! Gives registers their slots.
//!
//! Each body is treated alone: a call keeps its caller's registers.
//!
//! PTX has as many registers as the compiler cares to name, each written once or twice. A warp's registers must stay in
//! the processor's caches, so registers whose lives do not overlap share a slot. A life is the range of instructions,
//! in the order of the text, from the first to the last point where the value may still be read.
//!
//! A register that some path may read before writing it has a slot of its own for the whole kernel: only so is "nothing
//! wrote it" still seen when the kernel runs. So do the registers of a warpgroup's product, which are in use until some
//! later wait.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::op::Op;
use super::program::{Instruction, Operand, Register, file_of};

/// The memory is bounded: beyond this many bits of liveness, every register keeps a slot of its own.
const MAX_BITS: usize = 1 << 27;
/// And so is the work: beyond this many words of liveness computed, likewise. Real kernels need a thousandth of it; text
/// made to need more (thousands of loops that share one head) must not hang the parser.
const MAX_WORK: usize = 1 << 27;

/// Replaces register numbers by slots, and their counts by the number of slots.
pub(crate) fn allocate(instructions: &mut [Instruction], registers: &mut [u32; 3]) {
    let blocks = Blocks::new(instructions);
    for (file, slots_used) in registers.iter_mut().enumerate() {
        let count = *slots_used as usize;
        if count == 0 || blocks.starts.len().saturating_mul(count) > MAX_BITS {
            continue;
        }
        let Some(lives) = lives(instructions, &blocks, file, count) else { continue };
        let (slots, used) = assign(&lives);
        *slots_used = used;
        for instruction in instructions.iter_mut() {
            let guard = instruction.guard.as_mut().map(|(register, _)| register);
            let operands = instruction.operands.iter_mut().filter_map(|operand| match operand {
                Operand::Register(register) => Some(register),
                _ => None,
            });
            for register in operands.chain(guard).filter(|r| file_of(r.class) == file) {
                register.number = slots[register.number as usize];
            }
        }
    }
}

/// The basic blocks of a kernel.
pub(super) struct Blocks {
    /// The first instruction of each, ascending.
    pub(super) starts: Vec<usize>,
    end: usize,
    pub(super) successors: Vec<Vec<usize>>,
    pub(super) predecessors: Vec<Vec<usize>>,
}

impl Blocks {
    pub(super) fn new(code: &[Instruction]) -> Self {
        let mut leaders = vec![false; code.len() + 1];
        leaders[0] = true;
        for (i, instruction) in code.iter().enumerate() {
            for target in jumps(instruction) {
                leaders[target] = true;
            }
            if matches!(instruction.op, Op::Branch | Op::BranchIndexed | Op::Exit | Op::Return | Op::Trap) {
                leaders[i + 1] = true;
            }
        }
        let starts: Vec<usize> = (0..code.len()).filter(|&i| leaders[i]).collect();
        let block_of = |i: usize| starts.partition_point(|&s| s <= i) - 1;
        let successors: Vec<Vec<usize>> = (0..starts.len())
            .map(|b| {
                let end = starts.get(b + 1).copied().unwrap_or(code.len());
                let last = &code[end - 1];
                let mut next: Vec<usize> = jumps(last).map(block_of).collect();
                if falls_through(last) && end < code.len() {
                    next.push(b + 1);
                }
                next.sort_unstable();
                next.dedup();
                next
            })
            .collect();
        let mut predecessors = vec![Vec::new(); starts.len()];
        for (block, next) in successors.iter().enumerate() {
            next.iter().for_each(|&next| predecessors[next].push(block));
        }
        Self { starts, end: code.len(), successors, predecessors }
    }

    pub(super) fn range(&self, block: usize) -> std::ops::Range<usize> {
        self.starts[block]..self.starts.get(block + 1).copied().unwrap_or(self.end)
    }
}

fn jumps(instruction: &Instruction) -> impl Iterator<Item = usize> {
    let direct = matches!(instruction.op, Op::Branch).then_some(instruction.immediates[0] as usize);
    direct.into_iter().chain(instruction.targets.iter().map(|&t| t as usize))
}

fn falls_through(instruction: &Instruction) -> bool {
    instruction.guard.is_some()
        || !matches!(instruction.op, Op::Branch | Op::BranchIndexed | Op::Exit | Op::Return | Op::Trap)
}

fn in_file(file: usize) -> impl Fn(&Operand) -> Option<usize> {
    move |operand| match operand {
        Operand::Register(Register { class, number }) if file_of(*class) == file => Some(*number as usize),
        _ => None,
    }
}

/// What an instruction reads. One that is guarded leaves its destinations as they were in the lanes that are off, which
/// counts as reading them.
fn reads(instruction: &Instruction, file: usize) -> impl Iterator<Item = usize> {
    let guard = instruction
        .guard
        .iter()
        .filter(move |(r, _)| file_of(r.class) == file)
        .map(|(r, _)| r.number as usize);
    // A warpgroup's product adds to its destinations.
    let keeps = instruction.guard.is_some() || matches!(instruction.op, Op::Wgmma(_));
    let first = if keeps { 0 } else { instruction.destinations };
    instruction.operands[first..].iter().filter_map(in_file(file)).chain(guard)
}

fn writes(instruction: &Instruction, file: usize) -> impl Iterator<Item = usize> {
    instruction.operands[..instruction.destinations].iter().filter_map(in_file(file))
}

/// First and last instruction of each register's life, `None` where it has none; nothing if that is too much work.
fn lives(
    code: &[Instruction],
    blocks: &Blocks,
    file: usize,
    count: usize,
) -> Option<Vec<Option<(usize, usize)>>> {
    let words = count.div_ceil(64);
    let n = blocks.starts.len();
    let live_in = live_in(code, blocks, file, words)?;
    let mut lives: Vec<Option<(usize, usize)>> = vec![None; count];
    let extend = |life: &mut Option<(usize, usize)>, at: usize| match life {
        Some((first, last)) => (*first, *last) = ((*first).min(at), (*last).max(at)),
        None => *life = Some((at, at)),
    };
    for block in 0..n {
        let range = blocks.range(block);
        for i in range.clone() {
            for r in reads(&code[i], file).chain(writes(&code[i], file)) {
                extend(&mut lives[r], i);
            }
        }
        let set = |block: usize| &live_in[block * words..][..words];
        for_each_bit(set(block), |r| extend(&mut lives[r], range.start));
        for &next in &blocks.successors[block] {
            for_each_bit(set(next), |r| extend(&mut lives[r], range.end - 1));
        }
    }
    for_each_bit(&live_in[..words], |r| lives[r] = Some((0, code.len())));
    for product in code.iter().filter(|i| matches!(i.op, Op::Wgmma(_))) {
        product.operands.iter().filter_map(in_file(file)).for_each(|r| lives[r] = Some((0, code.len())));
    }
    Some(lives)
}

/// The registers that may be read before they are written, from each block's start on: a set of bits for each block.
fn live_in(code: &[Instruction], blocks: &Blocks, file: usize, words: usize) -> Option<Vec<u64>> {
    let n = blocks.starts.len();
    // What a block reads before writing it is live at its start; what it writes is not, unless it is read first.
    let (mut live_in, mut written) = (vec![0u64; n * words], vec![0u64; n * words]);
    for block in 0..n {
        let (live, w) = (&mut live_in[block * words..][..words], &mut written[block * words..][..words]);
        for instruction in &code[blocks.range(block)] {
            for r in reads(instruction, file) {
                live[r / 64] |= (1 << (r % 64)) & !w[r / 64];
            }
            for r in writes(instruction, file) {
                w[r / 64] |= 1 << (r % 64);
            }
        }
    }
    // Blocks whose start has learned something that their predecessors do not know yet, the last in the text first.
    let mut waiting: BinaryHeap<usize> = (0..n).collect();
    let mut is_waiting = vec![true; n];
    let mut work = 0;
    while let Some(block) = waiting.pop() {
        is_waiting[block] = false;
        for &before in &blocks.predecessors[block] {
            work += words + 1;
            let mut changed = false;
            for i in 0..words {
                let at = before * words + i;
                let live = live_in[at] | (live_in[block * words + i] & !written[at]);
                changed |= live != live_in[at];
                live_in[at] = live;
            }
            if changed && !is_waiting[before] {
                is_waiting[before] = true;
                waiting.push(before);
            }
        }
        if work > MAX_WORK {
            return None;
        }
    }
    Some(live_in)
}

fn for_each_bit(set: &[u64], mut act: impl FnMut(usize)) {
    for (i, &word) in set.iter().enumerate() {
        let mut rest = word;
        while rest != 0 {
            act(i * 64 + rest.trailing_zeros() as usize);
            rest &= rest - 1;
        }
    }
}

/// Gives each life a slot; lives that overlap have different ones.
fn assign(lives: &[Option<(usize, usize)>]) -> (Vec<u32>, u32) {
    let mut order: Vec<usize> = (0..lives.len()).filter(|&r| lives[r].is_some()).collect();
    order.sort_by_key(|&r| lives[r]);
    let mut slots = vec![0; lives.len()];
    let mut used = 0;
    let mut free = BinaryHeap::new();
    let mut active = BinaryHeap::new();
    for r in order {
        let Some((first, last)) = lives[r] else { continue };
        while let Some(&Reverse((end, slot))) = active.peek()
            && end < first
        {
            active.pop();
            free.push(Reverse(slot));
        }
        let slot = match free.pop() {
            Some(Reverse(slot)) => slot,
            None => {
                used += 1;
                used - 1
            }
        };
        slots[r] = slot;
        active.push(Reverse((last, slot)));
    }
    (slots, used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_lives_have_different_slots() {
        let lives = [Some((0, 3)), Some((1, 2)), Some((3, 5)), Some((4, 6)), None];
        let (slots, used) = assign(&lives);
        for (i, a) in lives.iter().enumerate() {
            for (j, b) in lives.iter().enumerate().skip(i + 1) {
                if let (Some(a), Some(b)) = (a, b) {
                    let overlap = a.0 <= b.1 && b.0 <= a.1;
                    assert!(!overlap || slots[i] != slots[j], "{i} and {j}");
                }
            }
        }
        assert_eq!(used, 2);
    }
}
