//! Ranks that work together: threads of this process, and processes, or threads that take themselves for processes.

mod checkpoint;
mod collectives;
mod cost;
mod data;
mod experts;
mod failures;
mod pipeline;
mod processes;
mod support;
mod tensor;
mod trace;
