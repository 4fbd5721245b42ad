//! The registers of products that are under way: nobody touches them before the wait, and a fence orders what was done
//! to them before a product takes them.
//!
//! Instructions that name such a register are bound to a check before their own work. Kernels without `wgmma` have none.

use super::super::code::{Core, Flow, Handler, Inst};
use super::super::registers::{Slot, slot_of};
use crate::check::FindingKind;
use crate::ir::op::{Op, Wgmma};
use crate::ir::program::{Kernel, Operand, file_of};

/// What a watched instruction does, and the registers that it shares with products.
pub(crate) struct Watch {
    run: Handler,
    words: Box<[Slot]>,
}

/// Binds the instructions that name registers of products to the check.
pub(crate) fn watch(kernel: &Kernel, code: &mut [Inst]) {
    let mut watched = vec![false; kernel.registers[1] as usize + 1];
    for inst in code.iter() {
        if let Op::Wgmma(shape) = inst.op {
            for &slot in super::Operands::new(inst, shape).registers {
                if let Some(watched) = watched.get_mut(slot as usize) {
                    *watched = true;
                }
            }
        }
    }
    for (inst, instruction) in code.iter_mut().zip(&kernel.instructions) {
        if matches!(inst.op, Op::Wgmma(_)) {
            continue;
        }
        let words: Box<[Slot]> = instruction
            .operands
            .iter()
            .filter(|operand| matches!(operand, Operand::Register(r) if file_of(r.class) == 1))
            .map(|&operand| slot_of(operand, &kernel.registers))
            .filter(|&slot| watched.get(slot as usize) == Some(&true))
            .collect();
        if !words.is_empty() {
            inst.watch = Some(Box::new(Watch { run: inst.run, words }));
            inst.run = run_watched;
        }
    }
}

fn run_watched(core: &mut Core<'_>, inst: &Inst) -> Flow {
    let Some(watch) = &inst.watch else { return Flow::Next };
    if let Err(flow) = core.check_touch(&watch.words) {
        return flow;
    }
    // SAFETY: the handler was bound for this host's level, as this one was.
    unsafe { (watch.run)(core, inst) }
}

/// What was done to the registers that products use.
#[derive(Clone, Debug, Default)]
pub(super) struct Touched {
    /// By slot; empty before the first fence.
    registers: Vec<Register>,
    /// How many fences the warp has executed.
    fences: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Register {
    /// The last product that uses it, plus one, and its instruction.
    product: u64,
    product_at: u32,
    /// The product only reads it.
    fragment: bool,
    /// The fences before another instruction touched it, and that instruction.
    fences: u32,
    touched_at: u32,
}

impl Touched {
    /// `words` is the number of slots.
    pub(super) fn fence(&mut self, words: usize) {
        self.fences += 1;
        self.registers.resize(words + 1, Register::default());
    }

    /// Notes that a product uses registers: the result's, then A's.
    pub(super) fn start(&mut self, slots: &[Slot], results: usize, number: u64, at: u32) {
        for (i, &slot) in slots.iter().enumerate() {
            if let Some(register) = self.registers.get_mut(slot as usize) {
                *register =
                    Register { product: number + 1, product_at: at, fragment: i >= results, ..*register };
            }
        }
    }
}

impl Core<'_> {
    /// Before an instruction that names registers which products use.
    fn check_touch(&mut self, words: &[Slot]) -> Result<(), Flow> {
        let products = &mut self.warp.products;
        if products.registers.registers.is_empty() || !self.launch.checks.asynchronous {
            return Ok(());
        }
        let Touched { registers, fences } = &mut products.registers;
        let mut under_way = None;
        for &slot in words {
            let Some(register) = registers.get_mut(slot as usize) else { continue };
            if register.product > products.complete {
                under_way = Some(*register);
            }
            (register.fences, register.touched_at) = (*fences, self.warp.pc);
        }
        let Some(register) = under_way else { return Ok(()) };
        let role = if register.fragment { "holds A of" } else { "is a sum of" };
        let message =
            format!("this touches a register that {role} a matrix product which was not waited for yet");
        let hint = "`wgmma.commit_group` and `wgmma.wait_group` must come between the product and this";
        Err(self.product_fault(message, hint, ("the product".to_owned(), register.product_at)))
    }

    /// Whether a product may use its registers: the result's, then A's.
    pub(super) fn check_product_registers(&mut self, slots: &[Slot], shape: Wgmma) -> Result<(), Flow> {
        if !self.launch.checks.asynchronous {
            return Ok(());
        }
        let products = &self.warp.products;
        let Touched { registers, fences } = &products.registers;
        if *fences == 0 {
            let message = "the first `wgmma` of a warp needs a `wgmma.fence` before it".to_owned();
            let hint = "`wgmma.fence.sync.aligned` orders what was done to the registers before";
            return Err(self.fail(FindingKind::AsynchronousProduct, u32::MAX, message, Some(hint)));
        }
        for (i, &slot) in slots.iter().enumerate() {
            let Some(&register) = registers.get(slot as usize) else { continue };
            let fragment = i >= shape.accumulators();
            if register.fences == *fences {
                let role = if fragment { "of A" } else { "of its result" };
                let message =
                    format!("`wgmma` takes a register {role} that was touched after the last `wgmma.fence`");
                let hint = "put `wgmma.fence.sync.aligned` between the two";
                return Err(self.product_fault(
                    message,
                    hint,
                    ("the access".to_owned(), register.touched_at),
                ));
            }
            if register.product <= products.complete {
                continue;
            }
            let other = self.launch.code.get(register.product_at as usize).map(|inst| inst.op);
            let same = |other: Wgmma| {
                (other.n, other.a.bytes(), other.accumulator) == (shape.n, shape.a.bytes(), shape.accumulator)
            };
            // Sums may go from product to product of the same shape, and products may share A.
            let allowed = match (fragment, register.fragment) {
                (false, false) => matches!(other, Some(Op::Wgmma(other)) if same(other)),
                (true, true) => true,
                _ => false,
            };
            if !allowed {
                let message = if fragment == register.fragment {
                    "`wgmma` adds to the sums of a product of another shape that was not waited for yet"
                } else if fragment {
                    "`wgmma` takes as A the sums of a product that was not waited for yet"
                } else {
                    "`wgmma` writes to registers that hold A of a product which was not waited for yet"
                };
                let hint = "`wgmma.wait_group` must come between the two";
                let other = ("the other product".to_owned(), register.product_at);
                return Err(self.product_fault(message.to_owned(), hint, other));
            }
        }
        Ok(())
    }

    #[cold]
    fn product_fault(&mut self, message: String, hint: &str, related: (String, u32)) -> Flow {
        let lanes = self.warp.mask;
        self.fail(FindingKind::AsynchronousProduct, lanes, message, Some(hint));
        if let Some(fault) = &mut self.fault {
            fault.related.push(related);
        }
        Flow::Fault
    }
}
