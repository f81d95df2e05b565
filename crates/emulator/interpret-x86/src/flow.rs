//! Jumps, calls and returns.

use super::{DecodedInstruction, Flow, Machine, Memory, Operation};
use crate::registers::STACK_POINTER;

/// The number of bits of a canonical address.
const CANONICAL_BITS: u32 = 48;

/// Whether the unused bits of an address equal its sign. Otherwise, a jump to it is a general-protection fault.
pub fn is_canonical(address: u64) -> bool {
    let unused = 64 - CANONICAL_BITS;
    (address << unused) as i64 >> unused == address as i64
}

impl<M: Memory> Machine<'_, M> {
    pub(super) fn jump(&mut self, step: &DecodedInstruction) -> Option<Flow> {
        Some(match step.operation {
            Operation::JumpIf => {
                Flow::To(if self.holds(step.condition) { step.immediate } else { step.next() })
            }
            Operation::Jump => Flow::To(step.immediate),
            Operation::Call => {
                self.push(step.next())?;
                Flow::To(step.immediate)
            }
            Operation::CallIndirect => {
                let target = self.source(step).filter(|target| is_canonical(*target))?;
                self.push(step.next())?;
                Flow::Indirect(target)
            }
            Operation::JumpIndirect => {
                Flow::Indirect(self.source(step).filter(|target| is_canonical(*target))?)
            }
            _ => {
                let before = self.state.r(STACK_POINTER);
                let target = self.pop()?;
                if !is_canonical(target) {
                    self.state.set_r(STACK_POINTER, before);
                    return None;
                }
                let top = self.state.r(STACK_POINTER).wrapping_add(step.immediate);
                self.state.set_r(STACK_POINTER, top);
                Flow::Indirect(target)
            }
        })
    }
}
