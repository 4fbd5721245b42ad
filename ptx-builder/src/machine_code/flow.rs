//! The flow graph of a section: which instructions may be issued after which.
//!
//! The graph holds every path that a thread can take, and may hold more. A question of the kind "may this load still be in
//! flight here" is answered safely on it.

use super::ListingError;
use super::listing::{Instruction, Section};

/// For each instruction of a section, those that may follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Indices of the successors, by index of the instruction. Padding that nothing leads to may point behind the end.
    pub successors: Vec<Vec<usize>>,
}

impl Flow {
    /// Builds the graph.
    ///
    /// # Errors
    ///
    /// A label that the section lacks, an indirect jump whose targets are not listed, a jump of a kind that is not known here,
    /// code that runs on beyond the section's end.
    pub fn of(section: &Section) -> Result<Self, ListingError> {
        let returns = after_calls(section);
        let mut successors = Vec::with_capacity(section.instructions.len());
        for (index, instruction) in section.instructions.iter().enumerate() {
            let mut next = targets(section, index, &returns)?;
            if falls_through(instruction) {
                next.push(index + 1);
            }
            next.sort_unstable();
            next.dedup();
            successors.push(next);
        }
        let flow = Self { successors };
        // The padding behind the last instruction falls through too, but nothing leads to it.
        let end = section.instructions.len();
        let last = (0..end).find(|index| flow.successors[*index].contains(&end) && flow.reachable()[*index]);
        match last {
            Some(index) => Err(ListingError::End { place: place(section, &section.instructions[index]) }),
            None => Ok(flow),
        }
    }

    /// For each instruction, whether a path leads to it from the entry.
    fn reachable(&self) -> Vec<bool> {
        let mut reached = vec![false; self.successors.len()];
        let mut open = vec![0];
        while let Some(index) = open.pop() {
            if index < reached.len() && !std::mem::replace(&mut reached[index], true) {
                open.extend(&self.successors[index]);
            }
        }
        reached
    }
}

/// The instructions behind the calls, to which returns lead.
fn after_calls(section: &Section) -> Vec<usize> {
    let calls =
        section.instructions.iter().enumerate().filter(|(_, instruction)| instruction.base() == "CALL");
    calls.map(|(index, _)| index + 1).filter(|index| *index < section.instructions.len()).collect()
}

/// Where an instruction may jump to.
fn targets(section: &Section, index: usize, returns: &[usize]) -> Result<Vec<usize>, ListingError> {
    let instruction = &section.instructions[index];
    let place = || place(section, instruction);
    let find = |label: &str| match section.labels.get(label) {
        Some(target) if *target < section.instructions.len() => Ok(*target),
        _ => Err(ListingError::Label { place: place(), label: label.into() }),
    };
    let own = || instruction.label().ok_or_else(|| ListingError::Jump { place: place() }).and_then(find);
    Ok(match instruction.base() {
        // The label of a collective is where its threads go on after `ENDCOLLECTIVE`.
        "BRA" | "CALL" => vec![own()?],
        "WARPSYNC" if instruction.label().is_some() => vec![own()?],
        "BRX" | "BRXU" if !instruction.targets.is_empty() => {
            instruction.targets.iter().map(|label| find(label)).collect::<Result<_, _>>()?
        }
        // Which call a return belongs to is not followed: it may lead behind each.
        "RET" if !returns.is_empty() => returns.to_vec(),
        "BSYNC" => reconvergence(section, index, find)?,
        // Its label is where its threads meet; `BSYNC` leads there.
        "BSSY" => Vec::new(),
        "BRX" | "BRXU" | "RET" | "JMP" | "JMPX" | "JMX" | "JMXU" | "RTT" | "BRK" | "SYNC" | "CONT"
        | "PBK" => {
            return Err(ListingError::Jump { place: place() });
        }
        // A label in an instruction that is not known here may be a jump.
        _ if instruction.label().is_some() || !instruction.targets.is_empty() => {
            return Err(ListingError::Jump { place: place() });
        }
        _ => Vec::new(),
    })
}

/// Where threads go on from a `BSYNC`: the label of the `BSSY` that named the barrier. ptxas puts that label behind the
/// `BSYNC`; where it does not, each `BSSY` of the same barrier register may be meant.
fn reconvergence(
    section: &Section,
    index: usize,
    find: impl Fn(&str) -> Result<usize, ListingError>,
) -> Result<Vec<usize>, ListingError> {
    let barrier = section.instructions[index].operands().next();
    let entered = section
        .instructions
        .iter()
        .filter(|instruction| instruction.base() == "BSSY" && instruction.operands().next() == barrier);
    let labels: Vec<usize> = entered.filter_map(Instruction::label).map(find).collect::<Result<_, _>>()?;
    Ok(if labels.contains(&(index + 1)) { Vec::new() } else { labels })
}

/// Whether the next instruction may follow.
fn falls_through(instruction: &Instruction) -> bool {
    let unconditional = instruction.predicate().is_none_or(|predicate| predicate == "@PT");
    match instruction.base() {
        // `BRA P6, label`, `BRA.DIV UR4, label` and the like have a condition among their operands.
        "BRA" => !(unconditional && instruction.opcode() == "BRA" && instruction.operands().count() == 1),
        "BRX" | "BRXU" | "RET" | "EXIT" | "CALL" | "KILL" => !unconditional,
        _ => true,
    }
}

fn place(section: &Section, instruction: &Instruction) -> super::Place {
    super::Place::of(&section.name, instruction)
}

#[cfg(test)]
mod tests {
    use super::super::testing::section;
    use super::*;

    fn successors(lines: &str) -> Vec<Vec<usize>> {
        Flow::of(&section(lines)).unwrap().successors
    }

    #[test]
    fn branches_lead_to_their_label_and_conditional_ones_also_on() {
        let flow = successors(
            ".L_0:
            @P0 BRA `(.L_1)
            BRA P6, `(.L_1)
            BRA.DIV UR4, `(.L_1)
            BRA `(.L_0)
            .L_1:
            @!P1 EXIT
            EXIT",
        );
        assert_eq!(flow, [vec![1, 4], vec![2, 4], vec![3, 4], vec![0], vec![5], vec![]]);
    }

    #[test]
    fn calls_return_behind_every_call() {
        let flow = successors(
            "CALL.REL.NOINC `($function)
            CALL.REL.NOINC `($function)
            EXIT
            $function:
            RET.REL.NODEC R4 `(k)",
        );
        assert_eq!(flow, [vec![3], vec![3], vec![], vec![1, 2]]);
    }

    #[test]
    fn indirect_branches_lead_to_the_targets_that_nvdisasm_lists() {
        let flow = successors(
            "BRX R2 -0x10 (*\"BRANCH_TARGETS .L_0,.L_1\"*)
            .L_0:
            NOP
            .L_1:
            EXIT",
        );
        assert_eq!(flow, [vec![1, 2], vec![2], vec![]]);
    }

    #[test]
    fn threads_go_on_behind_the_reconvergence_of_their_barrier_register() {
        let behind = successors("BSSY B0, `(.L_0)\nNOP\nBSYNC B0\n.L_0:\nEXIT");
        assert_eq!(behind, [vec![1], vec![2], vec![3], vec![]]);
        let elsewhere = successors("BSSY B0, `(.L_0)\nBSYNC B0\nNOP\n.L_0:\nEXIT");
        assert_eq!(elsewhere, [vec![1], vec![2, 3], vec![3], vec![]]);
        let collective = successors("WARPSYNC.COLLECTIVE R4, `(.L_0)\nNOP\nENDCOLLECTIVE\n.L_0:\nEXIT");
        assert_eq!(collective, [vec![1, 3], vec![2], vec![3], vec![]]);
    }

    #[test]
    fn flow_that_is_not_known_is_an_error() {
        let refused = |lines: &str| Flow::of(&section(lines)).unwrap_err();
        assert!(matches!(refused("BRX R2 -0x10\nEXIT"), ListingError::Jump { .. }));
        assert!(matches!(refused("RET.REL.NODEC R4 `(k)"), ListingError::Jump { .. }));
        assert!(matches!(refused("HOP `(.L_0)\n.L_0:\nEXIT"), ListingError::Jump { .. }));
        assert!(matches!(refused("BRA `(.L_9)"), ListingError::Label { label, .. } if label == ".L_9"));
        assert!(matches!(refused("@P0 EXIT"), ListingError::End { .. }));
    }
}
