#![doc = include_str!("../README.md")]

mod check;
mod config;
mod error;
mod exec;
pub mod forms;
mod ir;
mod machine;
mod memory;
mod module;
mod numeric;
mod syntax;
mod tensor;
mod testing;

pub use check::{Finding, FindingKind, Related, SourceLine};
pub use config::{Checks, Completion, Config, Limits, Numerics};
pub use error::{LaunchError, MemoryError, ParseError};
pub use exec::trace::{TraceFilter, TraceStep, TraceValue, Tracer};
pub use machine::{LaunchConfig, Machine, Report};
pub use module::{KernelInfo, Module, ParamInfo};
pub use tensor::{
    Interleave, L2Promotion, OobFill, Swizzle, TensorMap, TensorMapArguments, TensorMapError, TensorType,
};
pub use testing::{KernelTest, Outputs, Scalar, TestError};
