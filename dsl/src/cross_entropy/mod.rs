//! The cross-entropy of rows of logits, its gradient, and what both take of all rows.
//!
//! Of a row with logits x and label l it is
//!
//! ```text
//! z = cap · tanh(x / cap), or x        lse = ln Σ exp(z)
//! loss = (1 − ε) (lse − z[l]) + ε (lse − mean(z)) + ζ lse²
//! d loss / dx = ((1 + 2 ζ lse) · softmax(z) − (1 − ε) · [column = l] − ε / V) · dz/dx
//! ```
//!
//! A row that fits the registers of those who share it is read once, and written once if its gradient is wanted. A wider one is read again for that.
//!
//! Sums over rows are of parts in fixed order, so that they are the same bits each time.

mod labels;
mod rows;

pub use labels::{LabelKind, Labels, MAX_PARTS, count_labels, sum_losses};
pub use rows::{CrossEntropyParams, cross_entropy_rows};
