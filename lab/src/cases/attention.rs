//! Attentions.

use std::fmt::Write as _;

use warpsmith::DType;
use warpsmith::ops::attention::{Way, Window};

use super::data::Data;

/// The sequences of an attention, and how they are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sequences {
    /// So many, all with as many rows and keys.
    Equal {
        /// Sequences.
        batch: usize,
        /// Rows of each.
        rows: usize,
        /// Keys of each.
        keys: usize,
    },
    /// In tensors of so many rows and keys each, of which the first ones count. What is beyond is NaN.
    Padded {
        /// Rows of each, with those that do not count.
        rows: usize,
        /// Keys of each, with those that do not count.
        keys: usize,
        /// How many rows and keys of each count.
        lengths: Vec<[usize; 2]>,
    },
    /// One after the other: the rows and keys of each.
    Packed(Vec<[usize; 2]>),
}

impl Sequences {
    /// How many there are.
    #[must_use]
    pub fn batch(&self) -> usize {
        match self {
            Self::Equal { batch, .. } => *batch,
            Self::Padded { lengths, .. } | Self::Packed(lengths) => lengths.len(),
        }
    }

    /// The rows and keys of sequence `b` that count.
    #[must_use]
    pub fn lengths(&self, b: usize) -> [usize; 2] {
        match self {
            Self::Equal { rows, keys, .. } => [*rows, *keys],
            Self::Padded { lengths, .. } | Self::Packed(lengths) => lengths[b],
        }
    }

    /// The lengths of the axes of q and k before the heads: matrices, rows, keys. Packed sequences are one matrix.
    #[must_use]
    pub fn axes(&self) -> [usize; 3] {
        match self {
            Self::Equal { batch, rows, keys } => [*batch, *rows, *keys],
            Self::Padded { rows, keys, lengths } => [lengths.len(), *rows, *keys],
            Self::Packed(lengths) => {
                let sum = |which: usize| {
                    lengths.iter().fold(0usize, |sum, lengths| sum.saturating_add(lengths[which]))
                };
                [1, sum(0), sum(1)]
            }
        }
    }
}

/// How queries, keys, values and results are in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AttentionLayout {
    /// The heads of a row one after the other, without gaps.
    #[default]
    Rows,
    /// The rows of a head one after the other.
    Heads,
    /// As `Rows`, between other heads and in wider rows, as of a tensor that holds queries, keys and values.
    Among,
}

/// One attention to validate.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionCase {
    /// The elements' type: f16, bf16 or f32.
    pub dtype: DType,
    /// Rows and keys.
    pub sequences: Sequences,
    /// Heads of keys and values.
    pub key_heads: usize,
    /// Heads of queries for each of them.
    pub group: usize,
    /// Elements of a query and a key.
    pub width: usize,
    /// Elements of a value.
    pub value_width: usize,
    /// The keys that a row attends to by its place.
    pub window: Window,
    /// Multiplies the products; 1/√D if there is none.
    pub scale: Option<f32>,
    /// Bounds the scores.
    pub soft_cap: Option<f32>,
    /// A mask, and which of its axes have the length 1.
    pub mask: Option<[bool; 4]>,
    /// The same of a bias, some elements of which are −∞.
    pub bias: Option<[bool; 4]>,
    /// A mask of blocks, which of its first two axes have the length 1, and the rows and keys of a block.
    pub blocks: Option<([bool; 2], [u32; 2])>,
    /// Slopes of distances: of heads, or of those of each sequence.
    pub slopes: Option<Slopes>,
    /// Whether heads have a logit without a value.
    pub sinks: bool,
    /// The keys of a page, if keys and values are in pages: a divisor of the tensors' keys. Not for packed sequences.
    pub page_size: Option<usize>,
    /// The type of keys and values, if they have 8 bits: f8e4m3 or f8e5m2, where elements are f16 or bf16.
    pub keys_dtype: Option<DType>,
    /// The scales of keys, and of values, of 8 bits.
    pub key_scales: [Option<KeyScales>; 2],
    /// The layout of everything.
    pub layout: AttentionLayout,
    /// How it is computed, where it can be computed so.
    #[doc(hidden)]
    pub way: Option<Way>,
    /// What the elements are drawn from: [`Data::Uniform`], or [`Data::Integers`], with which one key of each row has all the weight, so that results are
    /// exactly its value.
    pub data: Data,
    /// Decides the elements.
    pub seed: u64,
}

/// Whose slopes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slopes {
    /// Of each head.
    OfHeads,
    /// Of each head of each sequence.
    OfSequences,
}

/// Whose scales of keys, or values, there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyScales {
    /// One of all.
    OfTensor,
    /// Of each head.
    OfHeads,
}

impl AttentionCase {
    /// An attention of sequences with as many rows and keys each, without options.
    #[must_use]
    pub fn new(
        dtype: DType,
        [batch, rows, keys]: [usize; 3],
        [key_heads, group]: [usize; 2],
        width: usize,
    ) -> Self {
        Self {
            dtype,
            sequences: Sequences::Equal { batch, rows, keys },
            key_heads,
            group,
            width,
            value_width: width,
            window: Window::default(),
            scale: None,
            soft_cap: None,
            mask: None,
            bias: None,
            blocks: None,
            slopes: None,
            sinks: false,
            page_size: None,
            keys_dtype: None,
            key_scales: [None; 2],
            layout: AttentionLayout::Rows,
            way: None,
            data: Data::Uniform,
            seed: 0,
        }
    }

    /// Heads of queries.
    #[must_use]
    pub fn heads(&self) -> usize {
        self.key_heads.saturating_mul(self.group)
    }

    /// Elements of the results, the logarithms of sums with them.
    #[must_use]
    pub fn elements(&self) -> usize {
        let [matrices, rows, _] = self.sequences.axes();
        let of_row = self.heads().saturating_mul(self.value_width.saturating_add(1));
        matrices.saturating_mul(rows).saturating_mul(of_row)
    }

    /// The sizes in short.
    #[must_use]
    pub fn shape(&self) -> String {
        let [matrices, rows, keys] = self.sequences.axes();
        let (heads, of_keys) = (self.heads(), self.key_heads);
        let widths = if self.width == self.value_width {
            self.width.to_string()
        } else {
            format!("{}/{}", self.width, self.value_width)
        };
        format!("{matrices}×{rows}×{keys} {heads}/{of_keys} heads of {widths}")
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        let mut told = match &self.sequences {
            Sequences::Equal { .. } => String::new(),
            Sequences::Padded { .. } => " padded".into(),
            Sequences::Packed(lengths) => format!(" packed {}", lengths.len()),
        };
        if self.window != Window::default() {
            let side = |side: Option<u32>| side.map_or_else(|| "∞".into(), |side| side.to_string());
            let (left, right) = (side(self.window.left()), side(self.window.right()));
            let _ = write!(told, " window {left}…{right} {:?}", self.window.alignment());
        }
        if let Some(scale) = self.scale {
            let _ = write!(told, " scale {scale}");
        }
        if let Some(cap) = self.soft_cap {
            let _ = write!(told, " cap {cap}");
        }
        let axes =
            |is_one: &[bool]| is_one.iter().map(|&one| if one { '1' } else { 'n' }).collect::<String>();
        if let Some(is_one) = &self.mask {
            let _ = write!(told, " mask {}", axes(is_one));
        }
        if let Some(is_one) = &self.bias {
            let _ = write!(told, " bias {}", axes(is_one));
        }
        if let Some((is_one, [rows, keys])) = &self.blocks {
            let _ = write!(told, " blocks {} of {rows}×{keys}", axes(is_one));
        }
        match self.slopes {
            Some(Slopes::OfHeads) => told.push_str(" alibi"),
            Some(Slopes::OfSequences) => told.push_str(" alibi of sequences"),
            None => {}
        }
        if self.sinks {
            told.push_str(" sinks");
        }
        if let Some(size) = self.page_size {
            let _ = write!(told, " pages of {size}");
        }
        if let Some(dtype) = self.keys_dtype {
            let _ = write!(told, " keys {dtype}");
        }
        for (name, scales) in ["k", "v"].into_iter().zip(self.key_scales) {
            let _ = match scales {
                Some(KeyScales::OfTensor) => write!(told, " scaled {name}"),
                Some(KeyScales::OfHeads) => write!(told, " scaled heads of {name}"),
                None => Ok(()),
            };
        }
        if self.layout != AttentionLayout::Rows {
            let _ = write!(told, " layout {:?}", self.layout);
        }
        if let Some(way) = self.way {
            let _ = write!(told, " way {way:?}");
        }
        if self.data == Data::Integers {
            told.push_str(" exact");
        }
        told.trim_start().to_owned()
    }
}
