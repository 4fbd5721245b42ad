//! How the kernels of the family `kv_cache` are run: sequences of different lengths, some of whose tokens do not count or are beyond the capacity, in every type; and tokens that are
//! counted.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use warpsmith_dsl::attention::cache::{AppendParams, Appended, PositionParams, THREADS};
use warpsmith_dsl::launch::{Global, GlobalMut};
use warpsmith_emulator::{Config, LaunchError, Module, Report};

use super::Problem;
use super::rows::{Operands, number};

/// The problems that an entry of this family is run on; none if the name is no such entry's.
pub(super) fn problems(name: &str) -> Option<Vec<Box<dyn Problem>>> {
    let rest = name.strip_prefix("kv_cache_")?;
    if rest == "positions" {
        let all = [
            Positions { shape: [2, 3], first: Some(&[4, 9]), offsets: None },
            Positions { shape: [3, 70], first: None, offsets: None },
            Positions { shape: [1, 9], first: None, offsets: Some(&[1, 3, 3, 8]) },
            Positions { shape: [1, 9], first: Some(&[6, 5, 7]), offsets: Some(&[1, 3, 3, 8]) },
            Positions {
                shape: [1, 300],
                first: Some(&[7, 0, 2, 5, 1]),
                offsets: Some(&[0, 1, 130, 130, 200, 300]),
            },
        ];
        return Some(all.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect());
    }
    let (is_any, rest) = match (rest.strip_prefix("append_any_"), rest.strip_prefix("append_")) {
        (Some(rest), _) => (true, rest),
        (None, rest) => (false, rest?),
    };
    let of = match rest {
        "b16" => Kind::B16,
        "b32" => Kind::B32,
        "fp8_f16" => Kind::F16,
        "fp8_bf16" => Kind::Bf16,
        _ => return None,
    };
    let chunk = if is_any { 1 } else { 16 / of.bytes() };
    let case = Append {
        of,
        columns: [chunk, 3 * chunk],
        gap: chunk,
        lengths: Some([2, 4, 0]),
        rows: None,
        next: true,
        scales: [Some(true), None],
        is_e5m2: false,
    };
    let all = [
        case,
        Append { rows: Some([1, 9, 0]), scales: [Some(false), Some(true)], is_e5m2: true, ..case },
        Append {
            lengths: None,
            columns: [5 * chunk, chunk],
            gap: 0,
            next: false,
            scales: [None, Some(false)],
            ..case
        },
        // More than the block's threads.
        Append { columns: [70 * chunk, 2 * chunk], lengths: Some([9, 3, 1]), ..case },
    ];
    Some(all.into_iter().map(|case| Box::new(case) as Box<dyn Problem>).collect())
}

/// Words of a number of tokens, as the emulator has them.
fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[derive(Clone, Copy, Debug)]
struct Positions {
    /// Sequences, and tokens of each; of packed sequences one, and all tokens.
    shape: [usize; 2],
    first: Option<&'static [u32]>,
    offsets: Option<&'static [u32]>,
}

impl Positions {
    fn position(&self, token: usize) -> u32 {
        let (sequence, place) = match self.offsets {
            Some(offsets) => {
                let is_in = |of: &[u32]| (of[0]..of[1]).contains(&(token as u32));
                // A token of no sequence has the position 0.
                let Some(sequence) = offsets.windows(2).position(is_in) else { return 0 };
                (sequence, token as u32 - offsets[sequence])
            }
            None => (token / self.shape[1], (token % self.shape[1]) as u32),
        };
        self.first.map_or(0, |first| first[sequence]) + place
    }
}

impl Problem for Positions {
    fn name(&self) -> &str {
        if self.offsets.is_some() { "packed" } else { "in order" }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let mut operands = Operands::new(config);
        let tokens = self.shape[0] * self.shape[1];
        let after: Vec<u32> = (0..tokens).map(|token| self.position(token)).collect();
        let positions = operands.words(None, &after)?;
        let place = |words: Option<&[u32]>| words.map_or(Ok(0), |words| operands.bytes(&bytes_of(words)));
        let (first, offsets) = (place(self.first)?, place(self.offsets)?);
        let p = PositionParams {
            first: Global::new(first),
            offsets: Global::new(offsets),
            positions: GlobalMut::new(positions),
            tokens: tokens as u32,
            length: self.shape[1] as u32,
            sequences: self.offsets.map_or(0, |offsets| offsets.len() as u32 - 1),
            reserved: 0,
        };
        operands.launch(module, shared_bytes, [(tokens as u32).div_ceil(THREADS), 1], (p,))
    }
}

/// What elements are, and become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    B16,
    B32,
    F16,
    Bf16,
}

impl Kind {
    /// Bytes of a new element.
    const fn bytes(self) -> usize {
        if matches!(self, Self::B32) { 4 } else { 2 }
    }

    fn put(self, value: f64) -> Vec<u8> {
        match self {
            Self::F16 | Self::B16 => f16::from_f64(value).to_le_bytes().to_vec(),
            Self::Bf16 => bf16::from_f64(value).to_le_bytes().to_vec(),
            Self::B32 => (value as f32).to_le_bytes().to_vec(),
        }
    }

    /// What is stored of a number whose scale this is.
    fn stored(self, value: f64, scale: f64, is_e5m2: bool) -> Vec<u8> {
        match (self, is_e5m2) {
            (Self::B16 | Self::B32, _) => self.put(value),
            (_, false) => vec![F8E4M3::from_f64(value / scale).to_bits()],
            (_, true) => vec![F8E5M2::from_f64(value / scale).to_bits()],
        }
    }
}

/// Sequences, the most tokens of each, new tokens of each, and heads.
const BATCH: usize = 3;
const CAPACITY: usize = 6;
const TOKENS: usize = 4;
const HEADS: usize = 2;
/// The length that all sequences have where they are alike.
const LENGTH: usize = 1;

#[derive(Clone, Copy, Debug)]
struct Append {
    of: Kind,
    /// Of keys and values.
    columns: [usize; 2],
    /// Elements between heads of new ones.
    gap: usize,
    lengths: Option<[u32; BATCH]>,
    rows: Option<[u32; BATCH]>,
    next: bool,
    /// Of keys and values; whether each head has one of its own.
    scales: [Option<bool>; 2],
    is_e5m2: bool,
}

impl Append {
    fn length(&self, sequence: usize) -> usize {
        self.lengths.map_or(LENGTH, |lengths| lengths[sequence] as usize).min(CAPACITY)
    }

    fn rows(&self, sequence: usize) -> usize {
        self.rows.map_or(TOKENS, |rows| TOKENS.min(rows[sequence] as usize))
    }

    /// Multiples of 1/64 up to 448, and what is between the numbers of 8 bits. None has bits that are a NaN's.
    fn number(which: usize, at: usize) -> f64 {
        number(which as u64, at) * [1.0, 30.0, 1.0 / 64.0][at % 3]
    }

    /// Powers of two, so that quotients are exact.
    fn scale(&self, which: usize, head: usize) -> f64 {
        match self.scales[which] {
            None => 1.0,
            Some(false) => 0.5,
            Some(true) => [2.0, 0.25][head],
        }
    }

    /// Places keys or values, and their cache as words with what they have to be afterwards.
    fn appended(&self, operands: &mut Operands, which: usize) -> Result<Appended, LaunchError> {
        let (of, columns) = (self.of, self.columns[which]);
        let (head, token) = (columns + self.gap, HEADS * (columns + self.gap));
        let mut new = of.put(f64::NAN).repeat(BATCH * TOKENS * token);
        let is_narrowed = matches!(of, Kind::F16 | Kind::Bf16);
        let size = if is_narrowed { 1 } else { of.bytes() };
        let count = (BATCH * CAPACITY * HEADS * columns * size).next_multiple_of(4);
        let mut after = vec![0x11u8; count];
        let before = after.clone();
        for (b, t, h, column) in places(columns) {
            let at = b * TOKENS * token + t * token + h * head + column;
            let value = Self::number(which, at);
            new[at * of.bytes()..][..of.bytes()].copy_from_slice(&of.put(value));
            let place = self.length(b) + t;
            if t < self.rows(b) && place < CAPACITY {
                let to = (((b * CAPACITY + place) * HEADS + h) * columns + column) * size;
                let rounded = match of {
                    Kind::F16 => f16::from_f64(value).to_f64(),
                    Kind::Bf16 => bf16::from_f64(value).to_f64(),
                    _ => value,
                };
                let stored = of.stored(rounded, self.scale(which, h), self.is_e5m2);
                after[to..][..size].copy_from_slice(&stored);
            }
        }
        let words = |bytes: &[u8]| -> Vec<u32> {
            let (words, _) = bytes.as_chunks::<4>();
            words.iter().map(|word| u32::from_le_bytes(*word)).collect()
        };
        let to = operands.words(Some(&words(&before)), &words(&after))?;
        let scales: Vec<u32> = match self.scales[which].filter(|_| is_narrowed) {
            None => Vec::new(),
            Some(of_heads) => (0..if of_heads { HEADS } else { 1 })
                .map(|head| (self.scale(which, head) as f32).to_bits())
                .collect(),
        };
        let scale = if scales.is_empty() { 0 } else { operands.bytes(&bytes_of(&scales))? };
        Ok(Appended {
            from: Global::new(operands.bytes(&new)?),
            to: GlobalMut::new(to),
            scale: Global::new(scale),
            from_sequence: (TOKENS * token) as u64,
            from_token: token as u64,
            from_head: head as u64,
            columns: columns as u32,
            scale_head: u32::from(scales.len() > 1),
        })
    }
}

/// Every sequence, token, head and column.
fn places(columns: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
    (0..BATCH * TOKENS * HEADS * columns).map(move |at| {
        let (row, column) = (at / columns, at % columns);
        (row / HEADS / TOKENS, row / HEADS % TOKENS, row % HEADS, column)
    })
}

impl Problem for Append {
    fn name(&self) -> &str {
        if self.lengths.is_some() { "lengths" } else { "one length" }
    }

    fn run(&self, module: &Module, shared_bytes: u32, config: Config) -> Result<(Report, bool), LaunchError> {
        let mut operands = Operands::new(config);
        let (k, v) = (self.appended(&mut operands, 0)?, self.appended(&mut operands, 1)?);
        let after = |b: usize| (self.length(b) + self.rows(b)).min(CAPACITY) as u32;
        let next = match self.next {
            true => operands.words(None, &[0, 1, 2].map(after))?,
            false => 0,
        };
        let place =
            |words: Option<[u32; BATCH]>| words.map_or(Ok(0), |words| operands.bytes(&bytes_of(&words)));
        let (lengths, rows) = (place(self.lengths)?, place(self.rows)?);
        let p = AppendParams {
            k,
            v,
            lengths: Global::new(lengths),
            rows: Global::new(rows),
            next: GlobalMut::new(next),
            length: LENGTH as u32,
            tokens: TOKENS as u32,
            heads: HEADS as u32,
            capacity: CAPACITY as u32,
            is_e5m2: u32::from(self.is_e5m2),
            reserved: 0,
        };
        operands.launch(module, shared_bytes, [(BATCH * TOKENS) as u32, 1], (p,))
    }
}
