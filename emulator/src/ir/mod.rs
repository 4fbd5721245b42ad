//! From the syntax tree to typed instructions.
//!
//! `forms` is the table of everything the emulator knows; `lower` finds each instruction's row, resolves its operands
//! and checks them; `allocate` gives registers their slots; `turing` knows what is refused to modules for sm_75.

pub(crate) mod allocate;
pub(crate) mod form;
pub(crate) mod forms;
pub(crate) mod late;
pub(crate) mod lower;
mod names;
pub(crate) mod op;
mod operands;
pub(crate) mod program;
pub(crate) mod turing;
pub(crate) mod types;

pub(crate) use lower::translate;
