//! Registers of a queue. Those of queue 0 are among the MAC's registers, those of other queues in separate blocks.

use super::registers::{MacRegister, QueueRegister};
use super::state::{DmaState, MacState, Queue};
use crate::Bus;

/// The queue register that corresponds to a MAC register of queue 0.
pub(super) fn queue_register(register: MacRegister) -> Option<QueueRegister> {
    Some(match register {
        MacRegister::RxBase => QueueRegister::RxBase,
        MacRegister::RxCount => QueueRegister::RxCount,
        MacRegister::RxHead => QueueRegister::RxHead,
        MacRegister::RxPoll => QueueRegister::RxPoll,
        MacRegister::TxBase => QueueRegister::TxBase,
        MacRegister::TxCount => QueueRegister::TxCount,
        MacRegister::TxHead => QueueRegister::TxHead,
        MacRegister::TxPoll => QueueRegister::TxPoll,
        MacRegister::Interrupt => QueueRegister::Interrupt,
        MacRegister::Enable => QueueRegister::Enable,
        MacRegister::RxDelay => QueueRegister::RxDelay,
        MacRegister::RxFrames => QueueRegister::RxFrames,
        MacRegister::Interval => QueueRegister::Interval,
        MacRegister::Control
        | MacRegister::Address
        | MacRegister::MaxFrame
        | MacRegister::Dca
        | MacRegister::Status
        | MacRegister::Queues => return None,
    })
}

impl Queue {
    /// The value of a register.
    pub fn value(&self, register: QueueRegister) -> u64 {
        match register {
            QueueRegister::RxBase => self.rx.base,
            QueueRegister::RxCount => self.rx.count.into(),
            QueueRegister::RxHead => self.rx.head.into(),
            QueueRegister::TxBase => self.tx.base,
            QueueRegister::TxCount => self.tx.count.into(),
            QueueRegister::TxHead => self.tx.head.into(),
            QueueRegister::RxPoll | QueueRegister::TxPoll => 0,
            QueueRegister::Interrupt => self.moderation.causes,
            QueueRegister::Enable => self.moderation.enable,
            QueueRegister::RxDelay => self.moderation.rx_delay_ns,
            QueueRegister::RxFrames => self.moderation.rx_frames,
            QueueRegister::Interval => self.moderation.interval_ns,
        }
    }
}

impl MacState {
    /// Processes a write to a queue's register; ignored if there is no such queue.
    pub(super) fn write_queue_register(
        &mut self,
        queue: usize,
        register: QueueRegister,
        value: u64,
        bus: &mut dyn Bus,
    ) {
        let Some(of) = self.queues.get_mut(queue) else { return };
        match register {
            QueueRegister::RxBase | QueueRegister::RxCount => {
                // Filled descriptors of the old ring are not returned any more.
                of.merge = None;
                match register {
                    QueueRegister::RxBase => of.rx.set_location(value, of.rx.count.into()),
                    _ => of.rx.set_location(of.rx.base, value),
                }
            }
            QueueRegister::TxBase => of.tx.set_location(value, of.tx.count.into()),
            QueueRegister::TxCount => of.tx.set_location(of.tx.base, value),
            QueueRegister::RxPoll => resume(&mut self.rx_step),
            QueueRegister::TxPoll => {
                of.tx_idle = false;
                resume(&mut self.tx_step);
            }
            QueueRegister::Interrupt => of.moderation.causes = value,
            QueueRegister::Enable => of.moderation.enable = value,
            QueueRegister::RxDelay => of.moderation.rx_delay_ns = value,
            QueueRegister::RxFrames => of.moderation.rx_frames = value,
            QueueRegister::Interval => of.moderation.interval_ns = value,
            QueueRegister::RxHead | QueueRegister::TxHead => {}
        }
        self.set_line(queue, bus);
    }
}

/// Resumes a suspended ring.
fn resume(step: &mut DmaState) {
    if *step == DmaState::Suspended {
        *step = DmaState::Ready;
    }
}
