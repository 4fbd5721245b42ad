//! Before an instruction is looked up: operands that mean nothing here are taken off, and what cannot be run is
//! named with a
//! reason.

use std::borrow::Cow;

use crate::error::ParseError;
use crate::syntax::Source;
use crate::syntax::ast::{Class, Instruction, Module, OperandKind};

use super::names::{Meaning, Names};

/// The PTX version from which, and the architecture for which, lanes of a warp must say whom they meet.
const SYNC_VERSION: (u32, u32) = (6, 4);
const SYNC_TARGET: u32 = 70;

/// The instruction without its hint for the level-2 cache: `.L2::cache_hint` and the policy that is its last operand.
pub(super) fn without_hint<'i, 'a>(
    source: &Source<'a>,
    names: &mut Names<'_, 'a>,
    instruction: &'i Instruction<'a>,
) -> Result<Cow<'i, Instruction<'a>>, ParseError> {
    let has = |modifier: &str| instruction.modifiers.contains(&modifier);
    // Those of the copy engine stand in the table.
    let hinted = match instruction.opcode {
        "ld" | "st" | "atom" | "red" => has("L2::cache_hint"),
        "cp" => has("L2::cache_hint") && !has("bulk"),
        _ => false,
    };
    if !hinted {
        return Ok(Cow::Borrowed(instruction));
    }
    let mut instruction = instruction.clone();
    instruction.modifiers.retain(|m| *m != "L2::cache_hint");
    let policy = instruction.operands.pop();
    let is_policy = match policy.as_ref().map(|operand| &operand.kind) {
        Some(&OperandKind::Name(name)) => {
            matches!(names.find(instruction.scope, name), Some(Meaning::Register(r)) if r.class == Class::Double)
        }
        Some(OperandKind::Integer(_)) => true,
        _ => false,
    };
    if !is_policy {
        let span = policy.map_or(instruction.span, |operand| operand.span);
        return Err(source.error(span, "expected a cache policy: a 64-bit register"));
    }
    Ok(Cow::Owned(instruction))
}

/// Refuses what assemblers refuse by version and architecture: votes and shuffles that do not say which lanes meet.
pub(super) fn check_sync(
    source: &Source<'_>,
    module: &Module<'_>,
    instruction: &Instruction<'_>,
) -> Result<(), ParseError> {
    if !matches!(instruction.opcode, "vote" | "shfl") || instruction.modifiers.contains(&"sync") {
        return Ok(());
    }
    let target = module.target.first().map_or("", |target| target.text);
    let number = target.trim_start_matches("sm_").trim_end_matches(['a', 'f']).parse::<u32>();
    if module.version < SYNC_VERSION || number.is_ok_and(|number| number < SYNC_TARGET) {
        return Ok(());
    }
    let message = format!(
        "`{}` without `.sync` is not supported for sm_70 and later from PTX version 6.4 on",
        instruction.opcode
    );
    Err(source.error(instruction.span, message))
}

/// Why an instruction is not run, and what to use instead, where there is more to say than that it is unknown.
pub(super) fn reason(instruction: &Instruction<'_>) -> Option<&'static str> {
    let has = |modifiers: &[&str]| instruction.modifiers.iter().any(|m| modifiers.contains(m));
    Some(match instruction.opcode {
        "tex" | "tld4" | "txq" | "istypep" | "suld" | "sust" | "sured" | "suq" => {
            "textures and surfaces are not supported: read and write the memory itself, with `ld.global` and `st.global`"
        }
        "tcgen05" => "the emulator stands for GPUs up to compute capability 9.0",
        "mma" | "wmma" if has(&["s4", "u4", "b1"]) => {
            "products of integers below 8 bits are not supported: unpack them to `.s8` or `.u8`"
        }
        "mma" | "wgmma" if has(&["sp", "sp::ordered_metadata"]) => {
            "products with sparse matrices are not supported"
        }
        "multimem" => "memory of several GPUs is not supported",
        "red" if has(&["async"]) => "`red.async` is not supported: use `red.shared::cluster`",
        "tensormap" => "tensor maps are made by the host: changing one in a kernel is not supported",
        _ if has(&["b128"]) => "128-bit registers are not supported",
        _ => return None,
    })
}
