//! What a rank calls: the part of a message by which ranks find out that they disagree.

use std::fmt;

use warpsmith::DType;

/// How the elements of all ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reduction {
    /// Their sum. Integers wrap around.
    Sum,
    /// Their sum over the number of ranks, of floating-point types only.
    Mean,
    /// The largest. NaN counts only where all are NaN.
    Max,
    /// The smallest. NaN counts only where all are NaN.
    Min,
}

impl Reduction {
    const ALL: [Self; 4] = [Self::Sum, Self::Mean, Self::Max, Self::Min];
}

impl fmt::Display for Reduction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Max => "max",
            Self::Min => "min",
        })
    }
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    AllReduce(Reduction),
    ReduceScatter(Reduction),
    AllGather,
    Broadcast {
        root: usize,
    },
    AllToAll,
    AllToAllV,
    PointToPoint,
    Barrier,
    /// Bytes of any number from each rank to all, for what this crate has to agree on.
    Agreement,
    /// No call: the group's end on a rank, which has made so many collectives as the number says, and done its part of all. The
    /// message's bytes say how many messages went between the two ranks.
    End,
}

/// A call of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The communicator, of those that were split from the same one.
    pub(crate) group: u64,
    /// How many collectives of the communicator came before.
    pub(crate) number: u64,
    pub(crate) operation: Operation,
    pub(crate) dtype: DType,
    /// Elements; of operations with different counts on each rank none.
    pub(crate) count: usize,
}

const DTYPES: [DType; 10] = [
    DType::F8E4M3,
    DType::F8E5M2,
    DType::F16,
    DType::Bf16,
    DType::F32,
    DType::F64,
    DType::U8,
    DType::I32,
    DType::U32,
    DType::I64,
];

impl Call {
    /// The bytes of an encoded call.
    pub(crate) const BYTES: usize = 34;

    pub(crate) fn encode(&self) -> [u8; Self::BYTES] {
        let (code, detail) = match self.operation {
            Operation::AllReduce(reduction) => (0, reduction as u64),
            Operation::ReduceScatter(reduction) => (1, reduction as u64),
            Operation::AllGather => (2, 0),
            Operation::Broadcast { root } => (3, root as u64),
            Operation::AllToAll => (4, 0),
            Operation::AllToAllV => (5, 0),
            Operation::PointToPoint => (6, 0),
            Operation::Barrier => (7, 0),
            Operation::Agreement => (8, 0),
            Operation::End => (9, 0),
        };
        let dtype = DTYPES.iter().position(|&dtype| dtype == self.dtype).unwrap_or(DTYPES.len());
        let mut bytes = [0; Self::BYTES];
        bytes[0] = code;
        bytes[1] = dtype as u8;
        bytes[2..10].copy_from_slice(&self.number.to_le_bytes());
        bytes[10..18].copy_from_slice(&(self.count as u64).to_le_bytes());
        bytes[18..26].copy_from_slice(&detail.to_le_bytes());
        bytes[26..34].copy_from_slice(&self.group.to_le_bytes());
        bytes
    }

    /// `None` if the bytes are no call's.
    pub(crate) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let detail = usize::try_from(word(18)?).ok()?;
        let reduction = || Reduction::ALL.get(detail).copied();
        let operation = match bytes[0] {
            0 => Operation::AllReduce(reduction()?),
            1 => Operation::ReduceScatter(reduction()?),
            2 => Operation::AllGather,
            3 => Operation::Broadcast { root: detail },
            4 => Operation::AllToAll,
            5 => Operation::AllToAllV,
            6 => Operation::PointToPoint,
            7 => Operation::Barrier,
            8 => Operation::Agreement,
            9 => Operation::End,
            _ => return None,
        };
        let dtype = *DTYPES.get(usize::from(bytes[1]))?;
        let count = usize::try_from(word(10)?).ok()?;
        Some(Self { group: word(26)?, number: word(2)?, operation, dtype, count })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, operation, dtype, count, .. } = self;
        match operation {
            Operation::AllReduce(reduction) => {
                write!(formatter, "all_reduce ({reduction}) of {count} {dtype}")?
            }
            Operation::ReduceScatter(reduction) => {
                write!(formatter, "reduce_scatter ({reduction}) to {count} {dtype}")?;
            }
            Operation::AllGather => write!(formatter, "all_gather of {count} {dtype}")?,
            Operation::Broadcast { root } => {
                write!(formatter, "broadcast from rank {root} of {count} {dtype}")?
            }
            Operation::AllToAll => write!(formatter, "all_to_all of {count} {dtype}")?,
            Operation::AllToAllV => write!(formatter, "all_to_all_v of {dtype}")?,
            Operation::PointToPoint => return write!(formatter, "send or recv of {count} {dtype}"),
            Operation::Barrier => formatter.write_str("barrier")?,
            Operation::Agreement => formatter.write_str("an agreement")?,
            Operation::End => formatter.write_str("the end")?,
        }
        write!(formatter, " as call {number}")
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, DTYPES, Operation, Reduction};

    #[test]
    fn calls_survive_their_encoding() {
        let operations = [
            Operation::AllReduce(Reduction::Mean),
            Operation::ReduceScatter(Reduction::Min),
            Operation::AllGather,
            Operation::Broadcast { root: 7 },
            Operation::AllToAll,
            Operation::AllToAllV,
            Operation::PointToPoint,
            Operation::Barrier,
            Operation::Agreement,
            Operation::End,
        ];
        for (number, operation) in operations.into_iter().enumerate() {
            for dtype in DTYPES {
                let call = Call { group: 1 << 63, number: number as u64, operation, dtype, count: 1 << 40 };
                assert_eq!(Call::decode(&call.encode()), Some(call));
            }
        }
    }

    #[test]
    fn bytes_that_are_no_call_are_refused() {
        let bytes = Call { group: 0, number: 0, operation: Operation::AllGather, dtype: DTYPES[0], count: 1 }
            .encode();
        for (at, value) in [(0, 10), (1, 10)] {
            let mut bytes = bytes;
            bytes[at] = value;
            assert_eq!(Call::decode(&bytes), None);
        }
    }
}
