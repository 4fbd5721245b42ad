//! Look-ups in tables.

use warpsmith::DType;

use super::elementwise::beside;
use super::linear::Placement;

/// One look-up to validate, with its gradient.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingCase {
    /// The type of the table: f16, bf16 or f32.
    pub dtype: DType,
    /// Rows of the table.
    pub vocabulary: usize,
    /// Elements of a row.
    pub columns: usize,
    /// Tokens, of whose ids some are out of range.
    pub tokens: usize,
    /// How many different ids there are at most.
    pub different: usize,
    /// Whether ids have 64 bits.
    pub is_wide: bool,
    /// Where rows are in larger ones.
    pub placement: Placement,
    /// Decides the elements and the ids.
    pub seed: u64,
}

impl EmbeddingCase {
    /// A look-up of as many ids as there are in a table without gaps.
    #[must_use]
    pub fn new(dtype: DType, [vocabulary, columns, tokens]: [usize; 3]) -> Self {
        let placement = Placement { before: 0, after: 0 };
        Self { dtype, vocabulary, columns, tokens, different: vocabulary, is_wide: true, placement, seed: 0 }
    }

    /// The sizes in short.
    #[must_use]
    pub fn shape(&self) -> String {
        format!("{} of {}×{}", self.tokens, self.vocabulary, self.columns)
    }

    /// The options in short.
    #[must_use]
    pub fn options(&self) -> String {
        let mut told = String::from(if self.is_wide { "i64" } else { "u32" });
        if self.different < self.vocabulary {
            told.push_str(&format!(" {} different", self.different));
        }
        told + &beside(self.placement)
    }
}
