//! From the syntax tree to typed instructions.
//!
//! | module | what it is |
//! |---|---|
//! | `forms`, `form` | the table of everything the emulator knows, and how its rows are matched |
//! | `accept` | what is left out, and why |
//! | `lower`, `operands` | find each instruction's row, resolve its operands and check them |
//! | `names` | what a name in a body means |
//! | `functions`, `layout`, `link` | who calls whom, where variables are, and an entry with its functions as one
//! kernel |
//! | `allocate` | gives registers their slots |
//! | `op`, `scalar`, `video`, `wmma`, `types`, `program` | what comes out |
//! | `late`, `turing` | loads that may be in flight; what is refused to modules for sm_75 |

mod accept;
pub(crate) mod allocate;
pub(crate) mod form;
pub(crate) mod forms;
mod functions;
pub(crate) mod late;
mod layout;
mod link;
pub(crate) mod lower;
mod names;
pub(crate) mod op;
mod operands;
pub(crate) mod program;
mod scalar;
pub(crate) mod turing;
pub(crate) mod types;
pub(crate) mod video;
pub(crate) mod wmma;

pub(crate) use lower::translate;
