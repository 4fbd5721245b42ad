//! What a module for an architecture before sm_80 may not use: ptxas refuses it, and so does the emulator.

use crate::syntax::ast::Instruction;

/// The first architecture that programs are not checked for.
pub(crate) const UNCHECKED: u32 = 80;

/// Whether sm_75 lacks an instruction: opcodes, types and modifiers that came with sm_80 or later (PTX ISA, "Target ISA Notes" of each
/// instruction).
pub(crate) fn lacks(instruction: &Instruction<'_>) -> bool {
    let has = |modifier: &str| instruction.modifiers.contains(&modifier);
    let has_any = |modifiers: &[&str]| modifiers.iter().any(|modifier| has(modifier));
    let is_bf16 = has_any(&["bf16", "bf16x2"]);
    if has("L2::cache_hint") || has_any(&["shared::cluster", "cluster"]) {
        return true;
    }
    match instruction.opcode {
        "mbarrier" | "stmatrix" | "wgmma" | "setmaxnreg" | "redux" | "elect" | "griddepcontrol" | "mapa"
        | "getctarank" | "tensormap" | "multimem" | "createpolicy" | "discard" | "applypriority" => true,
        "cp" | "st" => has("async"),
        "red" => has("async") || is_bf16,
        "fence" => (has("proxy") && !has("alias")) || has("mbarrier_init"),
        "mma" => {
            let half = !is_bf16 && !has("tf32");
            !((has("m16n8k8") && half) || has_any(&["m8n8k4", "m8n8k16", "m8n8k32"])) || has("f64")
        }
        "cvt" => is_bf16 || has_any(&["f16x2", "tf32", "relu", "e4m3x2", "e5m2x2", "satfinite"]),
        "min" | "max" => is_bf16 || has_any(&["NaN", "f16", "f16x2", "relu", "xorsign"]),
        "add" | "sub" | "mul" | "fma" | "neg" | "abs" | "ex2" | "tanh" | "set" | "setp" | "atom" => {
            is_bf16 || has_any(&["relu", "oob"])
        }
        _ => false,
    }
}
