//! IOCSR space: chip configuration, inter-processor interrupts and the extended interrupt controller. Source: Loongson
//! 3A5000 user manual, volume 1, chapters 4 (chip configuration), 10, 11.

use super::Platform;
use super::extended::ExtendedInterrupts;
use super::lane::Lane;

const VERSION: u64 = 0;
const FEATURES: u64 = 0x8;
const VENDOR: u64 = 0x10;
const NAME: u64 = 0x20;
const FUNCTIONS: u64 = 0x420;
const IPI_CONTROL: u64 = 0x1000;
const IPI_SET_CLEAR: u64 = 0x1008;
const MAILBOXES: u64 = 0x1020;
const IPI_SEND: u64 = 0x1040;
const MAIL_SEND: u64 = 0x1048;
const ANY_SEND: u64 = 0x1158;

/// The chip has message interrupts, extended interrupts and IPI in IOCSR space.
const FEATURE_BITS: u64 = 1 << 2 | 1 << 3 | 1 << 4;
/// Extended interrupts are enabled; software cannot disable them.
const EXTENDED_ENABLED: u64 = 1 << 48;

impl Platform {
    /// Reads `bytes` (1, 2, 4 or 8) bytes of a core's IOCSR space; 0 if no register is at the address.
    pub fn read_iocsr(&mut self, core: usize, address: u64, bytes: usize) -> u64 {
        let lane = Lane::new(address, bytes);
        if ExtendedInterrupts::contains(lane.register) {
            return self.extended.read(core, address, bytes);
        }
        lane.extract(match lane.register {
            VERSION => 0x11,
            FEATURES => FEATURE_BITS,
            VENDOR => u64::from_le_bytes(*b"Loongson"),
            NAME => u64::from_le_bytes(*b"3A5000\0\0"),
            FUNCTIONS => EXTENDED_ENABLED,
            IPI_CONTROL => self.ipi[core].control(),
            MAILBOXES..0x1040 => *self.ipi[core].mailbox(((lane.register - MAILBOXES) / 8) as usize),
            _ => 0,
        })
    }

    /// Writes `bytes` (1, 2, 4 or 8) bytes of a core's IOCSR space. Messages to cores that do not exist are lost.
    pub fn write_iocsr(&mut self, core: usize, address: u64, bytes: usize, value: u64) {
        let lane = Lane::new(address, bytes);
        let placed = lane.place(value);
        match lane.register {
            IPI_CONTROL => {
                let control = lane.replace(self.ipi[core].control(), value);
                self.ipi[core].set_control(control);
            }
            IPI_SET_CLEAR => {
                self.ipi[core].send(placed as u32);
                self.ipi[core].clear((placed >> 32) as u32);
            }
            MAILBOXES..0x1040 => {
                let mailbox = self.ipi[core].mailbox(((lane.register - MAILBOXES) / 8) as usize);
                *mailbox = lane.replace(*mailbox, value);
            }
            IPI_SEND | MAIL_SEND | ANY_SEND => self.send(lane.register, placed),
            register if ExtendedInterrupts::contains(register) => {
                self.extended.write(core, address, bytes, value);
            }
            _ => {}
        }
    }

    /// Sends a message to the core in bits 25 to 16 of `message`.
    fn send(&mut self, kind: u64, message: u64) {
        let core = (message >> 16 & 0x3ff) as usize;
        if core >= self.ipi.len() {
            return;
        }
        match kind {
            IPI_SEND => self.ipi[core].send(1 << (message & 31)),
            MAIL_SEND => self.send_word(core, MAILBOXES + (message & 0x1c), message),
            _ => self.send_word(core, message & 0xfffc, message),
        }
    }

    /// Writes the high word of `message` to a core's IOCSR space, except for the bytes that bits 30 to 27 mask. A write
    /// by a message cannot send another message.
    fn send_word(&mut self, core: usize, address: u64, message: u64) {
        let register = Lane::new(address, 8).register;
        if [IPI_SEND, MAIL_SEND, ANY_SEND].contains(&register) {
            return;
        }
        let data = (message >> 32) as u32;
        for byte in (0..4).filter(|byte| message >> (27 + byte) & 1 == 0) {
            self.write_iocsr(core, address + byte, 1, u64::from(data >> (8 * byte)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exception::line;

    #[test]
    fn a_core_interrupts_itself_and_clears_it() {
        let mut platform = Platform::new(2, 0);
        platform.write_iocsr(0, IPI_CONTROL + 4, 4, 0xffff_ffff);
        platform.write_iocsr(0, IPI_SEND, 4, 1 << 31 | 5);
        assert_eq!(platform.lines(0), 1 << line::IPI);
        assert_eq!(platform.read_iocsr(0, IPI_CONTROL, 4), 1 << 5);
        platform.write_iocsr(0, IPI_SET_CLEAR + 4, 4, 1 << 5);
        assert_eq!(platform.lines(0), 0);
        platform.write_iocsr(0, IPI_SEND, 4, 1 << 16 | 5);
        assert_eq!(platform.lines(0), 0, "the message is for core 1");
        assert_eq!(platform.read_iocsr(1, IPI_CONTROL, 4), 1 << 5);
        platform.write_iocsr(0, IPI_SEND, 4, 0x3ff << 16 | 5);
    }

    #[test]
    fn mail_reaches_half_a_mailbox_except_for_masked_bytes() {
        let mut platform = Platform::new(2, 0);
        platform.write_iocsr(0, MAIL_SEND, 8, 0x1122_3344 << 32 | 1 << 31 | 1 << 27 | 3 << 2);
        assert_eq!(platform.read_iocsr(0, MAILBOXES + 8, 8), 0x1122_3300 << 32);
    }

    #[test]
    fn a_message_that_would_send_itself_ends() {
        let mut platform = Platform::new(2, 0);
        platform.write_iocsr(0, ANY_SEND, 8, (ANY_SEND << 32) | ANY_SEND);
        platform.write_iocsr(0, ANY_SEND, 8, (0x1600 << 32) | 0x1600);
        assert_eq!(platform.read_iocsr(0, 0x1600, 4), 0x1600);
    }

    #[test]
    fn mail_and_any_message_reach_another_core() {
        let mut platform = Platform::new(2, 0);
        platform.write_iocsr(0, MAIL_SEND, 8, 0x1122_3344 << 32 | 1 << 31 | 1 << 16 | 4);
        platform.write_iocsr(0, ANY_SEND, 8, 1 << 63 | 1 << 31 | 1 << 16 | (IPI_CONTROL + 4));
        assert_eq!(platform.read_iocsr(1, MAILBOXES, 8), 0x1122_3344 << 32);
        assert_eq!(platform.read_iocsr(1, IPI_CONTROL, 8), 1 << 63);
        assert_eq!(platform.read_iocsr(0, MAILBOXES, 8), 0);
        assert_eq!(platform.read_iocsr(0, IPI_CONTROL, 8), 0);
    }
}
