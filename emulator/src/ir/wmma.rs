//! What instructions of `wmma` do.

use super::types::Ty;

/// How a matrix of `wmma` is dealt out: in the order of its lines, the first to the first lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WmmaPart {
    /// Elements of a line, of all lines, and of a lane; where lanes have more than there is, they begin again.
    pub(crate) line: u16,
    pub(crate) total: u16,
    pub(crate) per_lane: u8,
    /// Bytes of an element.
    pub(crate) bytes: u8,
    /// The lines run across those in memory.
    pub(crate) across: bool,
}

/// A product of `wmma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wmma {
    pub(crate) m: u8,
    pub(crate) n: u8,
    pub(crate) k: u8,
    pub(crate) a: Ty,
    pub(crate) b: Ty,
    pub(crate) c: Ty,
    pub(crate) d: Ty,
    /// A's lines are columns; likewise B's.
    pub(crate) columns: [bool; 2],
    pub(crate) satfinite: bool,
}
