//! Loads from shared memory that may still be in flight when their warp gives back what they read.
//!
//! A load is only certain to have read its bytes when something waits for it. Neither program order nor an arrival at an mbarrier does:
//! ptxas 13.0 issues an arrival before the loads ahead of it have returned, also with `bar.warp.sync` in between, and moves products
//! that use them behind it. The memory model allows this, since the copy that the arrival lets go on writes through another proxy.
//! What waits is a fence, a barrier of the block or cluster, an atomic operation, a wait at an mbarrier, and whatever needs the value for
//! more than another register: a store, an address of either, a branch.
//!
//! The analysis of a kernel's text finds the loads from which a path leads to an arrival, or to a copy into shared memory, with nothing
//! on the way that waits for every load. Sound kernels have few of them or none.

use super::allocate::Blocks;
use super::op::{BulkCopy, Mbarrier, Op, ProxyFence, Strength, TensorCopy};
use super::program::Instruction;
use crate::syntax::ast::Space;

/// What an instruction means for loads that are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnReads {
    /// It only makes registers of registers and memory, and may come later, as the loads do.
    Follows,
    /// It waits for those that it depends on.
    Needs,
    /// The same, and what was read may be overwritten from then on.
    Gives,
    /// It waits for all of them.
    Waits,
}

impl Instruction {
    /// What it means for loads that are in flight.
    pub(crate) fn on_reads(&self) -> OnReads {
        use OnReads::{Follows, Gives, Needs, Waits};
        match self.op {
            Op::Unary(..)
            | Op::Binary(..)
            | Op::Ternary(..)
            | Op::Bfi(_)
            | Op::Lop3
            | Op::Carry(..)
            | Op::Setp(_)
            | Op::Set(..)
            | Op::Convert(_)
            | Op::ConvertPack(_)
            | Op::Pack(..)
            | Op::Unpack(..)
            | Op::ReadSpecial(..)
            | Op::Cvta { .. }
            | Op::IsSpace(_)
            | Op::MapAddress { .. }
            | Op::AddressRank { .. }
            | Op::Shuffle { .. }
            | Op::Vote { .. }
            | Op::Match { .. }
            | Op::ActiveMask
            | Op::Redux(..)
            | Op::Elect
            | Op::CreatePolicy
            | Op::LoadMatrix { .. }
            | Op::Mma(_) => Follows,
            Op::Load { space, strength: Strength::Weak, .. } if space != Space::Local => Follows,
            Op::Mbarrier { what: Mbarrier::Arrive { expect: false, .. }, .. }
            | Op::TensorCopy { what: TensorCopy::Load(_), .. }
            | Op::BulkCopy(BulkCopy::Load(_) | BulkCopy::ToPeer(_)) => Gives,
            Op::Branch
            | Op::BranchIndexed
            | Op::BarrierWarp
            | Op::Exit
            | Op::Nop
            | Op::ProxyFence(
                ProxyFence::Alias | ProxyFence::TensorMap | ProxyFence::Async { shared: false, .. },
            )
            | Op::Grids { wait: false }
            | Op::StoreMatrix { .. }
            | Op::PrefetchMap(_)
            | Op::TensorCopy { .. }
            | Op::BulkCopy(_)
            | Op::StoreAsync { .. }
            | Op::BulkCommit
            | Op::BulkWait { .. }
            | Op::CopyAsync { .. }
            | Op::CopyCommit => Needs,
            Op::Mbarrier { what: Mbarrier::Arrive { expect: true, .. } | Mbarrier::ExpectBytes, .. } => Needs,
            Op::Store { space, strength: Strength::Weak, .. } if space != Space::Local => Needs,
            _ => Waits,
        }
    }

    /// Whether it is an ordinary load that may be from shared memory.
    fn reads_shared(&self) -> bool {
        match self.op {
            Op::Load { space, strength, .. } => {
                strength == Strength::Weak && matches!(space, Space::Shared | Space::Cluster | Space::Generic)
            }
            Op::LoadMatrix { .. } => true,
            _ => false,
        }
    }
}

/// For each instruction, whether it is a load that may be in flight when its bytes are given back; empty if there is none.
pub(super) fn late_loads(code: &[Instruction]) -> Vec<bool> {
    if !code.iter().any(|i| i.op.fills_shared()) || !code.iter().any(Instruction::reads_shared) {
        return Vec::new();
    }
    let blocks = Blocks::new(code);
    // Whether a path leads from a block's start, or from behind an instruction, to where bytes are given back.
    let before = |range: std::ops::Range<usize>, behind: bool| {
        code[range].iter().rev().fold(behind, |gives, instruction| match instruction.on_reads() {
            OnReads::Gives => true,
            // One that is guarded may not be executed.
            OnReads::Waits => gives && instruction.guard.is_some(),
            OnReads::Follows | OnReads::Needs => gives,
        })
    };
    let count = blocks.starts.len();
    let mut at_start = vec![false; count];
    let behind =
        |at_start: &[bool], block: usize| blocks.successors[block].iter().any(|&next| at_start[next]);
    let mut waiting: Vec<usize> = (0..count).collect();
    while let Some(block) = waiting.pop() {
        if !at_start[block] && before(blocks.range(block), behind(&at_start, block)) {
            at_start[block] = true;
            waiting.extend(&blocks.predecessors[block]);
        }
    }
    let mut late = vec![false; code.len()];
    for block in 0..count {
        let mut gives = behind(&at_start, block);
        for at in blocks.range(block).rev() {
            late[at] = gives && code[at].reads_shared();
            gives = before(at..at + 1, gives);
        }
    }
    if late.contains(&true) { late } else { Vec::new() }
}
