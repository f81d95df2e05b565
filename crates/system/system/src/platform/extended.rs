//! The extended I/O interrupt controller: 256 vectors, each routed to one of the core's hardware interrupt lines. Source:
//! Loongson 3A5000 user manual, volume 1, section 11.2 (extended I/O interrupts).

use super::lane::Lane;

/// Doublewords of a register with a bit for each vector.
const WORDS: usize = 4;

/// Registers of the controller, by their offset in IOCSR space.
const NODE_TYPE: u64 = 0x14a0;
const LINES: u64 = 0x14c0;
const ENABLE: u64 = 0x1600;
const BOUNCE: u64 = 0x1680;
const STATUS: u64 = 0x1700;
const CORE_STATUS: u64 = 0x1800;
const ROUTE: u64 = 0x1c00;
const END: u64 = 0x1d00;

/// The controller's state.
#[derive(Debug)]
pub struct ExtendedInterrupts {
    node_type: [u64; WORDS],
    /// One byte for each 32 vectors: a bit for the hardware line.
    lines: u64,
    enable: [u64; WORDS],
    bounce: [u64; WORDS],
    /// The levels of the inputs.
    inputs: [u64; WORDS],
    /// Vectors that the core has not acknowledged.
    pending: [u64; WORDS],
    route: [u64; 32],
}

impl ExtendedInterrupts {
    /// After reset: all disabled.
    pub fn new() -> Self {
        Self {
            node_type: [0; WORDS],
            lines: 0,
            enable: [0; WORDS],
            bounce: [0; WORDS],
            inputs: [0; WORDS],
            pending: [0; WORDS],
            route: [0; 32],
        }
    }

    /// Whether an IOCSR address belongs to the controller.
    pub fn contains(address: u64) -> bool {
        (NODE_TYPE..END).contains(&address)
    }

    /// Sets the levels of all inputs. A rising input that is enabled becomes pending; a falling one withdraws.
    pub fn set_inputs(&mut self, inputs: [u64; WORDS]) {
        for (word, new) in inputs.into_iter().enumerate() {
            let rising = new & !self.inputs[word];
            self.pending[word] |= rising & self.enable[word];
            self.pending[word] &= !(self.inputs[word] & !new);
            self.inputs[word] = new;
        }
    }

    /// The asserted hardware lines: bit n for HWIn.
    pub fn asserted(&self) -> u64 {
        let mut asserted = 0;
        for group in 0..8 {
            if self.pending[group / 2] >> (group % 2 * 32) & 0xffff_ffff != 0 {
                // A byte without one of the lower four bits selects HWI0.
                let line = (self.lines >> (group * 8) & 0xf).trailing_zeros();
                asserted |= 1 << if line < 4 { line } else { 0 };
            }
        }
        asserted
    }

    /// Reads a register.
    pub fn read(&self, address: u64, bytes: usize) -> u64 {
        let lane = Lane::new(address, bytes);
        let word = |start: u64| ((lane.register - start) / 8) as usize;
        lane.extract(match lane.register {
            NODE_TYPE..0x14c0 => self.node_type[word(NODE_TYPE)],
            LINES => self.lines,
            ENABLE..0x1620 => self.enable[word(ENABLE)],
            BOUNCE..0x16a0 => self.bounce[word(BOUNCE)],
            STATUS..0x1720 => self.inputs[word(STATUS)],
            CORE_STATUS..0x1820 => self.pending[word(CORE_STATUS)],
            ROUTE..END => self.route[word(ROUTE)],
            _ => 0,
        })
    }

    /// Writes a register. A 1 in the core's status acknowledges its vector.
    pub fn write(&mut self, address: u64, bytes: usize, value: u64) {
        let lane = Lane::new(address, bytes);
        let word = |start: u64| ((lane.register - start) / 8) as usize;
        let register = match lane.register {
            NODE_TYPE..0x14c0 => &mut self.node_type[word(NODE_TYPE)],
            LINES => &mut self.lines,
            ENABLE..0x1620 => return self.set_enable(word(ENABLE), lane, value),
            BOUNCE..0x16a0 => &mut self.bounce[word(BOUNCE)],
            CORE_STATUS..0x1820 => {
                self.pending[word(CORE_STATUS)] &= !lane.place(value);
                return;
            }
            ROUTE..END => &mut self.route[word(ROUTE)],
            _ => return,
        };
        *register = lane.replace(*register, value);
    }

    /// An enabled vector whose input is asserted becomes pending; a disabled one withdraws.
    fn set_enable(&mut self, word: usize, lane: Lane, value: u64) {
        let new = lane.replace(self.enable[word], value);
        self.pending[word] |= new & !self.enable[word] & self.inputs[word];
        self.pending[word] &= new;
        self.enable[word] = new;
    }
}

impl Default for ExtendedInterrupts {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed() -> ExtendedInterrupts {
        let mut controller = ExtendedInterrupts::new();
        controller.write(LINES, 8, 0x0202_0202_0202_0204);
        controller.write(ENABLE, 4, 0xffff_ffff);
        controller
    }

    #[test]
    fn a_rising_input_asserts_the_line_of_its_group_until_it_is_acknowledged() {
        let mut controller = routed();
        controller.set_inputs([1 << 7, 0, 0, 0]);
        assert_eq!(controller.asserted(), 1 << 2);
        assert_eq!(controller.read(CORE_STATUS, 8), 1 << 7);
        controller.write(CORE_STATUS, 8, 1 << 7);
        assert_eq!(controller.asserted(), 0);
        controller.set_inputs([1 << 7, 0, 0, 0]);
        assert_eq!(controller.asserted(), 0, "an input that stays asserted does not rise");
    }

    #[test]
    fn an_input_that_is_not_enabled_becomes_pending_when_it_is() {
        let mut controller = routed();
        controller.set_inputs([1 << 40, 0, 0, 0]);
        assert_eq!(controller.asserted(), 0);
        controller.write(ENABLE + 4, 4, 1 << 8);
        assert_eq!(controller.asserted(), 1 << 1);
        controller.set_inputs([0; 4]);
        assert_eq!(controller.asserted(), 0);
    }
}
