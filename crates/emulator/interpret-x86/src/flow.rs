//! Jumps, calls and returns.

use super::{Flow, Machine, Memory, Operation, Step};
use crate::registers::STACK_POINTER;

impl<M: Memory> Machine<'_, M> {
    pub(super) fn jump(&mut self, step: &Step) -> Option<Flow> {
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
                let target = self.source(step)?;
                self.push(step.next())?;
                Flow::Indirect(target)
            }
            Operation::JumpIndirect => Flow::Indirect(self.source(step)?),
            _ => {
                let target = self.pop()?;
                let top = self.state.r(STACK_POINTER).wrapping_add(step.immediate);
                self.state.set_r(STACK_POINTER, top);
                Flow::Indirect(target)
            }
        })
    }
}
