//! Copies of tensors and of whole ranges, by the copy engine.

use super::*;

pub(super) static ROWS: &[Form] = rows! {};
