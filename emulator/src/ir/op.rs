//! The typed operations: what an instruction does, once its modifiers are understood.

pub(crate) use super::scalar::{
    Binary, Carry, Combine, Compare, Mode, Permute, Property, Relation, Ternary, Unary,
};
use super::types::Ty;
pub(crate) use super::video::{Select, Video, VideoKind, VideoMerge, VideoSimd};
pub(crate) use super::wmma::{Wmma, WmmaPart};
use crate::numeric::convert::Conversion;
use crate::syntax::ast::Space;

/// A reduction or an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Atomic {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Inc,
    Dec,
    Exchange,
    CompareExchange,
}

impl Atomic {
    /// Whether such operations on integers leave the same in any order. Counting up or down to a limit does if all have the same one, which
    /// nobody can know.
    fn commutes(self) -> bool {
        matches!(self, Self::Add | Self::Min | Self::Max | Self::And | Self::Or | Self::Xor)
    }
}

/// How an access takes part in synchronisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Strength {
    /// Not at all: it must not meet others unordered.
    Weak,
    /// It may meet others; fences around it order what is before and behind them.
    Relaxed,
    Acquire,
    Release,
    AcquireRelease,
    /// The same for the threads of the block or the cluster alone.
    RelaxedNear,
    AcquireNear,
    ReleaseNear,
    AcquireReleaseNear,
}

impl Strength {
    pub(crate) fn acquires(self) -> bool {
        matches!(self, Self::Acquire | Self::AcquireRelease | Self::AcquireNear | Self::AcquireReleaseNear)
    }

    pub(crate) fn releases(self) -> bool {
        matches!(self, Self::Release | Self::AcquireRelease | Self::ReleaseNear | Self::AcquireReleaseNear)
    }

    /// Whether it takes part in synchronisation with other clusters, too.
    pub(crate) fn is_far(self) -> bool {
        matches!(self, Self::Relaxed | Self::Acquire | Self::Release | Self::AcquireRelease)
    }

    /// The same within the cluster.
    pub(crate) fn near(self) -> Self {
        match self {
            Self::Relaxed => Self::RelaxedNear,
            Self::Acquire => Self::AcquireNear,
            Self::Release => Self::ReleaseNear,
            Self::AcquireRelease => Self::AcquireReleaseNear,
            other => other,
        }
    }
}

/// How `shfl` finds its source lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

/// What `vote` asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

/// What a barrier does beside waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Barrier {
    Sync,
    Arrive,
    /// Reduces a predicate over the threads.
    Reduce(Vote),
    /// Counts the threads whose predicate holds.
    Count,
}

/// What is done to an mbarrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mbarrier {
    Init,
    Invalidate,
    ExpectBytes,
    CompleteBytes,
    Arrive {
        /// Later phases expect one arrival less.
        drop: bool,
        /// The phase expects more bytes, as the last operand says.
        expect: bool,
        /// An arrival that must not complete the phase.
        no_complete: bool,
        /// An operand says how many arrivals it counts for.
        counted: bool,
    },
    Wait {
        /// By the parity of a phase, not by the state that an arrival gave.
        parity: bool,
        /// It may suspend the thread until the phase completes.
        suspend: bool,
    },
    PendingCount,
}

/// What happens at the barrier of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClusterBarrier {
    Arrive,
    Wait,
}

/// What a proxy fence is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProxyFence {
    /// Between ordinary accesses and those of the copy engine and the matrix units, to all memory or to that of one space.
    Async { shared: bool, global: bool },
    /// Behind writes to a tensor map.
    TensorMap,
    /// Behind the initialisation of mbarriers.
    MbarrierInit,
    /// Between different virtual addresses of the same memory, which there are none of here.
    Alias,
}

/// Whose shared memory the copy engine fills from global memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Destination {
    /// The block's own.
    Own,
    /// That of the block of the cluster that the address names.
    Any,
    /// That of each block of the cluster that a mask names.
    Several,
}

/// What the copy engine does with a box of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TensorCopy {
    Load(Destination),
    Store,
    Reduce(Atomic),
    /// Into the level-2 cache.
    Prefetch,
}

/// What the copy engine does with a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BulkCopy {
    Load(Destination),
    /// To global memory, perhaps as a reduction.
    Store(Option<(Atomic, Ty)>),
    /// From the block's shared memory to that of a block of the cluster.
    ToPeer(Option<(Atomic, Ty)>),
    /// Into the level-2 cache.
    Prefetch,
}

/// The operand types of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Mma {
    pub(crate) k: u8,
    pub(crate) a: Ty,
    pub(crate) b: Ty,
    /// f32, f16 or s32.
    pub(crate) accumulator: Ty,
    /// Integer sums stop at the largest and the smallest value.
    pub(crate) satfinite: bool,
}

/// A matrix product of a warpgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wgmma {
    /// Columns of the result; it has 64 rows.
    pub(crate) n: u16,
    pub(crate) a: Ty,
    pub(crate) b: Ty,
    /// f32, f16 or s32.
    pub(crate) accumulator: Ty,
    /// A comes from registers, not from shared memory.
    pub(crate) registers: bool,
    /// The factor of A is −1; likewise for B.
    pub(crate) negate: [bool; 2],
    /// A is stored with its rows together, not its columns; likewise B.
    pub(crate) transpose: [bool; 2],
    /// Integer sums stop at the largest and the smallest value.
    pub(crate) satfinite: bool,
}

impl Wgmma {
    /// Terms of each sum. A row of A and a column of B have 32 bytes, whatever the type.
    pub(crate) const fn k(self) -> usize {
        32 / self.a.bytes() as usize
    }

    /// Registers that a thread's part of the result takes.
    pub(crate) const fn accumulators(self) -> usize {
        self.n as usize / if matches!(self.accumulator, Ty::F16) { 4 } else { 2 }
    }
}

/// Special registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Special {
    ThreadIndex(u8),
    BlockSize(u8),
    BlockIndex(u8),
    GridSize(u8),
    LaneId,
    WarpId,
    WarpCount,
    MultiprocessorId,
    MultiprocessorCount,
    GridId,
    LaneMask(LaneMask),
    Clock,
    ClockHigh,
    GlobalTimer,
    GlobalTimerHigh,
    DynamicShared,
    TotalShared,
    AggregateShared,
    ReservedShared(Reserved),
    Environment(u8),
    ClusterIndex(u8),
    ClusterCount(u8),
    ClusterBlockIndex(u8),
    ClusterSize(u8),
    ClusterBlockRank,
    ClusterBlockCount,
    IsExplicitCluster,
    WarpSize,
}

/// What a register tells of the shared memory that is set aside for libraries and the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reserved {
    Begin,
    End,
    /// How many bytes there are.
    Size,
    /// The first byte of one of its two parts.
    Part(u8),
}

impl Reserved {
    /// How the names of all these registers begin.
    pub(crate) const NAMES: &str = "%reserved_smem_offset_";
    /// Bytes that a GPU sets aside in each block.
    pub(crate) const BYTES: u32 = 1024;
}

/// The lanes that a lane-mask register names, relative to the own lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum LaneMask {
    Equal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
}

/// An operation. Operands stand beside it, destinations first, in the order of the table of forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Op {
    Unary(Unary, Ty, Mode),
    Binary(Binary, Ty, Mode),
    Ternary(Ternary, Ty, Mode),
    Bfi(Ty),
    /// The table stands in the immediate.
    Lop3,
    /// The same, and whether the result is not zero, combined with a predicate.
    Lop3Test(Combine),
    /// A comparison of both halves of words, to two predicates.
    SetpHalves(Compare),
    /// The same to both halves of a word.
    SetHalves(Compare, Ty),
    /// A video instruction.
    Video(Video),
    VideoSimd(VideoSimd),
    /// Where a lane's part of a matrix of `wmma` is in memory.
    WmmaAddress(WmmaPart),
    Wmma(Wmma),
    /// A product of a few lanes' worth: of f64, or of integers in 8 rows.
    SmallMma {
        ty: Ty,
        b: Ty,
        k: u8,
        rows: u8,
        satfinite: bool,
    },
    Carry(Carry, Ty, bool),
    Setp(Compare),
    /// A comparison whose result is a number: all ones, or 1.0.
    Set(Compare, Ty),
    Convert(Conversion),
    /// Two values to one register; the first operand is the upper half.
    ConvertPack(Conversion),
    /// Joins parts to a whole: number of parts, type of the whole.
    Pack(u8, Ty),
    /// Cuts a whole into parts.
    Unpack(u8, Ty),
    ReadSpecial(Special, Ty),
    Load {
        space: Space,
        ty: Ty,
        count: u8,
        strength: Strength,
        /// Of global memory that nobody may write as long as the launch lasts.
        constant: bool,
    },
    Store {
        space: Space,
        ty: Ty,
        count: u8,
        strength: Strength,
    },
    /// To or from a generic address.
    Cvta {
        space: Space,
        to_space: bool,
    },
    IsSpace(Space),
    Branch,
    BranchIndexed,
    Exit,
    /// `call`: the immediate is the position of the call among the kernel's.
    Call,
    /// Back from a function.
    Return,
    /// The address in local memory of a place of the frame, which the immediate gives.
    FrameAddress,
    /// Takes bytes from the stack: a multiple of the alignment.
    Alloca {
        ty: Ty,
    },
    /// Where the stack ends.
    StackSave(Ty),
    StackRestore(Ty),
    Trap,
    Barrier {
        kind: Barrier,
        aligned: bool,
        counted: bool,
    },
    BarrierWarp,
    /// `sync`: the lanes of a mask meet; otherwise the existing ones take part.
    Shuffle {
        mode: Shuffle,
        sync: bool,
    },
    Vote {
        vote: Vote,
        sync: bool,
    },
    Match {
        all: bool,
        ty: Ty,
    },
    ActiveMask,
    Redux(Atomic, Ty),
    /// Atomic operation; `result` unless it is `red`.
    Atomic {
        op: Atomic,
        space: Space,
        ty: Ty,
        result: bool,
        strength: Strength,
    },
    Fence {
        gpu: bool,
    },
    ProxyFence(ProxyFence),
    Mbarrier {
        what: Mbarrier,
        space: Space,
        /// It orders nothing.
        relaxed: bool,
    },
    ClusterBarrier {
        what: ClusterBarrier,
        relaxed: bool,
    },
    /// The address of the same place in another block's shared memory.
    MapAddress {
        generic: bool,
    },
    /// The rank of the block whose shared memory an address is in.
    AddressRank {
        generic: bool,
    },
    Elect,
    /// Gives registers back to the block, or takes more: the immediate says how many a thread has then.
    SetRegisters {
        more: bool,
    },
    /// Lets an mbarrier know when the lane's copies are done.
    CopyArrive {
        space: Space,
        /// It counts as one of the arrivals that the barrier expects.
        expected: bool,
    },
    /// `griddepcontrol`: waits for the grids before this one, or lets those behind it start.
    Grids {
        wait: bool,
    },
    Nop,
    Mma(Mma),
    Wgmma(Wgmma),
    WgmmaFence,
    WgmmaCommit,
    /// How many groups may still be under way stands in the immediate.
    WgmmaWait,
    LoadMatrix {
        count: u8,
        transpose: bool,
        space: Space,
    },
    StoreMatrix {
        count: u8,
        transpose: bool,
        space: Space,
    },
    /// Bytes of each lane's copy.
    CopyAsync {
        bytes: u8,
        with_source_size: bool,
    },
    TensorCopy {
        what: TensorCopy,
        axes: u8,
    },
    BulkCopy(BulkCopy),
    BulkCommit,
    /// How many groups may still be under way stands in the immediate; `read`: only their sources are waited for.
    BulkWait {
        read: bool,
    },
    /// Elements that each lane stores to a block of the cluster, whose mbarrier counts their bytes.
    StoreAsync {
        ty: Ty,
        count: u8,
    },
    PrefetchMap(Space),
    /// A cache policy, of no consequence for a result.
    CreatePolicy,
    CopyCommit,
    CopyWait {
        all: bool,
    },
}

impl Op {
    /// Whether it can order or carry data between blocks, so that blocks must not run in parallel.
    pub(crate) fn communicates(self) -> bool {
        match self {
            Self::Load { space: Space::Global | Space::Generic, strength, .. }
            | Self::Store { space: Space::Global | Space::Generic, strength, .. } => {
                strength != Strength::Weak
            }
            Self::Atomic { space: Space::Global | Space::Generic, .. } => self.reduction().is_none(),
            Self::Fence { gpu: true }
            | Self::TensorCopy { what: TensorCopy::Reduce(_), .. }
            | Self::BulkCopy(BulkCopy::Store(Some(_))) => true,
            _ => false,
        }
    }

    /// A reduction in global memory that leaves the same in any order, and nobody sees in which: of integers, without a result. Different
    /// ones of the same bytes do not commute with each other.
    pub(crate) fn reduction(self) -> Option<(Atomic, Ty)> {
        let Self::Atomic { op, space: Space::Global | Space::Generic, ty, result, strength } = self else {
            return None;
        };
        let integer = matches!(ty, Ty::B32 | Ty::B64 | Ty::U32 | Ty::U64 | Ty::S32 | Ty::S64);
        (op.commutes() && integer && !result && matches!(strength, Strength::Relaxed | Strength::RelaxedNear))
            .then_some((op, ty))
    }

    /// Whether it uses mbarriers, or memory through another proxy, so that clocks need channels.
    pub(crate) fn uses_engine(self) -> bool {
        matches!(
            self,
            Self::Mbarrier { .. }
                | Self::ProxyFence(_)
                | Self::CopyArrive { .. }
                | Self::TensorCopy { .. }
                | Self::BulkCopy(_)
                | Self::StoreAsync { .. }
                | Self::Wgmma(_)
        )
    }

    /// Whether it may order warps without passing on what they did: they know of each other's progress, and nothing of that stands in clocks.
    pub(crate) fn orders_quietly(self) -> bool {
        match self {
            Self::Load { strength, .. } | Self::Store { strength, .. } => strength != Strength::Weak,
            Self::ClusterBarrier { relaxed, .. } | Self::Mbarrier { relaxed, .. } => relaxed,
            Self::Atomic { .. }
            | Self::CopyArrive { .. }
            | Self::TensorCopy { .. }
            | Self::BulkCopy(_)
            | Self::StoreAsync { .. } => true,
            _ => false,
        }
    }

    /// Whether the copy engine writes shared memory for it.
    pub(crate) fn fills_shared(self) -> bool {
        matches!(
            self,
            Self::TensorCopy { what: TensorCopy::Load(_), .. }
                | Self::BulkCopy(BulkCopy::Load(_) | BulkCopy::ToPeer(_))
        )
    }
}
