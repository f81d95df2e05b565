//! The extended I/O interrupt controller: 256 vectors, each routed to a core and to one of its hardware interrupt
//! lines. Each node of four cores has a controller. Devices are connected to the controller of node 0, which forwards
//! vectors to the other nodes. Source: Loongson 3A5000 user manual, volume 1, section 11.2 (extended I/O interrupts).

use serde::{Deserialize, Serialize};

use super::lane::Lane;

/// Doublewords of a register that has one bit for each vector.
const WORDS: usize = 4;
/// Cores in a node.
const NODE_CORES: usize = 4;

/// Offsets of the controller's registers in IOCSR space.
const NODE_TYPE: u64 = 0x14a0;
const LINES: u64 = 0x14c0;
const ENABLE: u64 = 0x1600;
const BOUNCE: u64 = 0x1680;
const STATUS: u64 = 0x1700;
const CORE_STATUS: u64 = 0x1800;
const ROUTE: u64 = 0x1c00;
const END: u64 = 0x1d00;

/// The registers of one node.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    /// 16 halfwords. The upper half of a route selects one of them, in which each bit is a node.
    node_type: [u64; WORDS],
    /// One byte for each 32 vectors, with one bit for each hardware line.
    lines: u64,
    enable: [u64; WORDS],
    bounce: [u64; WORDS],
    /// One byte for each vector. The lower half has a bit for each core; the upper half is an index into `node_type`.
    route: [[u64; 8]; WORDS],
}

impl Node {
    fn route(&self, vector: usize) -> u8 {
        (self.route[vector / 64][vector % 64 / 8] >> (vector % 8 * 8)) as u8
    }

    /// The node that a vector is forwarded to; node 0 if the route selects none.
    fn next(&self, vector: usize) -> usize {
        let index = usize::from(self.route(vector) >> 4);
        let nodes = (self.node_type[index / 4] >> (index % 4 * 16)) as u16;
        nodes.checked_ilog2().map_or(0, |_| nodes.trailing_zeros() as usize)
    }

    /// The hardware line of a vector; HWI0 if none of the lower four bits of the byte is set.
    fn line(&self, vector: usize) -> u32 {
        let line = (self.lines >> (vector / 32 * 8) & 0xf).trailing_zeros();
        if line < 4 { line } else { 0 }
    }
}

/// The controllers of all nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExtendedInterrupts {
    nodes: Vec<Node>,
    /// The levels of the inputs.
    inputs: [u64; WORDS],
    /// Messages that are held until their vector is enabled.
    messages: [u64; WORDS],
    /// For each core, the vectors that are pending.
    pending: Vec<[u64; WORDS]>,
}

impl ExtendedInterrupts {
    /// Creates the controllers in their reset state, with all vectors disabled.
    pub fn new(cores: usize) -> Self {
        Self {
            nodes: vec![Node::default(); cores.div_ceil(NODE_CORES)],
            inputs: [0; WORDS],
            messages: [0; WORDS],
            pending: vec![[0; WORDS]; cores],
        }
    }

    /// Whether these are the controllers of a machine with `cores` cores.
    pub fn is_of(&self, cores: usize) -> bool {
        self.pending.len() == cores && self.nodes.len() == cores.div_ceil(NODE_CORES)
    }

    /// Whether an IOCSR address belongs to the controller.
    pub fn contains(address: u64) -> bool {
        (NODE_TYPE..END).contains(&address)
    }

    /// Sets the levels of all inputs. The rise of an enabled input makes its vector pending; the fall of an input
    /// clears it.
    pub fn set_inputs(&mut self, inputs: [u64; WORDS]) {
        if inputs == self.inputs {
            return;
        }
        for (word, new) in inputs.into_iter().enumerate() {
            let old = std::mem::replace(&mut self.inputs[word], new);
            self.raise(word, new & !old);
            self.withdraw(word, old & !new);
        }
    }

    /// Receives a message for a vector below 256. The vector becomes pending once it is enabled.
    pub fn receive(&mut self, vector: usize) {
        let (word, bit) = (vector / 64, 1 << (vector % 64));
        if self.nodes[0].enable[word] & bit != 0 {
            self.raise(word, bit);
        } else {
            self.messages[word] |= bit;
        }
    }

    /// Makes the enabled vectors of a word pending at their cores.
    fn raise(&mut self, word: usize, vectors: u64) {
        let mut rest = vectors & self.nodes[0].enable[word];
        while rest != 0 {
            let bit = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let core = self.core_of(word * 64 + bit);
            self.pending[core][word] |= 1 << bit;
        }
    }

    fn withdraw(&mut self, word: usize, vectors: u64) {
        self.pending.iter_mut().for_each(|pending| pending[word] &= !vectors);
    }

    /// The core that a vector is routed to; core 0 if the route selects none, or one that does not exist.
    fn core_of(&self, vector: usize) -> usize {
        let number = self.nodes[0].next(vector);
        let Some(node) = self.nodes.get(number) else { return 0 };
        let core = (node.route(vector) & 0xf).trailing_zeros() as usize;
        let core = number * NODE_CORES + if core < NODE_CORES { core } else { 0 };
        if core < self.pending.len() { core } else { 0 }
    }

    /// The asserted hardware lines of a core; bit n is HWIn.
    pub fn asserted(&self, core: usize) -> u64 {
        let node = &self.nodes[core / NODE_CORES];
        let groups =
            (0..8).filter(|group| self.pending[core][group / 2] >> (group % 2 * 32) & 0xffff_ffff != 0);
        groups.fold(0, |asserted, group| asserted | 1 << node.line(group * 32))
    }

    /// Reads a register on behalf of a core.
    pub fn read(&self, core: usize, address: u64, bytes: usize) -> u64 {
        let lane = Lane::new(address, bytes);
        let node = &self.nodes[core / NODE_CORES];
        let word = |start: u64| ((lane.register - start) / 8) as usize;
        lane.extract(match lane.register {
            NODE_TYPE..LINES => node.node_type[word(NODE_TYPE)],
            LINES => node.lines,
            ENABLE..0x1620 => node.enable[word(ENABLE)],
            BOUNCE..0x16a0 => node.bounce[word(BOUNCE)],
            STATUS..0x1720 => self.inputs[word(STATUS)],
            CORE_STATUS..0x1820 => self.pending[core][word(CORE_STATUS)],
            ROUTE..END => node.route[word(ROUTE) / 8][word(ROUTE) % 8],
            _ => 0,
        })
    }

    /// Writes a register on behalf of a core. Writing 1 to a bit of the core's status acknowledges the vector.
    pub fn write(&mut self, core: usize, address: u64, bytes: usize, value: u64) {
        let lane = Lane::new(address, bytes);
        let number = core / NODE_CORES;
        let node = &mut self.nodes[number];
        let word = |start: u64| ((lane.register - start) / 8) as usize;
        let register = match lane.register {
            NODE_TYPE..LINES => &mut node.node_type[word(NODE_TYPE)],
            LINES => &mut node.lines,
            ENABLE..0x1620 => return self.set_enable(number, word(ENABLE), lane, value),
            BOUNCE..0x16a0 => &mut node.bounce[word(BOUNCE)],
            CORE_STATUS..0x1820 => {
                self.pending[core][word(CORE_STATUS)] &= !lane.place(value);
                return;
            }
            ROUTE..END => &mut node.route[word(ROUTE) / 8][word(ROUTE) % 8],
            _ => return,
        };
        *register = lane.replace(*register, value);
    }

    /// Writes a word of the enable register. An enabled vector whose input is asserted or whose message is held becomes
    /// pending; a disabled vector stops being pending. Only the register of node 0 has this effect.
    fn set_enable(&mut self, node: usize, word: usize, lane: Lane, value: u64) {
        let old = self.nodes[node].enable[word];
        let new = lane.replace(old, value);
        self.nodes[node].enable[word] = new;
        if node == 0 {
            self.raise(word, new & !old & (self.inputs[word] | self.messages[word]));
            self.messages[word] &= !new;
            self.withdraw(word, old & !new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed() -> ExtendedInterrupts {
        let mut controller = ExtendedInterrupts::new(1);
        controller.write(0, LINES, 8, 0x0202_0202_0202_0204);
        controller.write(0, ENABLE, 4, 0xffff_ffff);
        controller
    }

    #[test]
    fn a_rising_input_asserts_the_line_of_its_group_until_it_is_acknowledged() {
        let mut controller = routed();
        controller.set_inputs([1 << 7, 0, 0, 0]);
        assert_eq!(controller.asserted(0), 1 << 2);
        assert_eq!(controller.read(0, CORE_STATUS, 8), 1 << 7);
        controller.write(0, CORE_STATUS, 8, 1 << 7);
        assert_eq!(controller.asserted(0), 0);
        controller.set_inputs([1 << 7, 0, 0, 0]);
        assert_eq!(controller.asserted(0), 0, "an input that stays asserted does not rise");
    }

    #[test]
    fn an_input_that_is_not_enabled_becomes_pending_when_it_is() {
        let mut controller = routed();
        controller.set_inputs([1 << 40, 0, 0, 0]);
        assert_eq!(controller.asserted(0), 0);
        controller.write(0, ENABLE + 4, 4, 1 << 8);
        assert_eq!(controller.asserted(0), 1 << 1);
        controller.set_inputs([0; 4]);
        assert_eq!(controller.asserted(0), 0);
    }

    /// Routes vector 7 to `core` as Linux does: the register of each node selects the core, and that of node 0 also the
    /// node.
    fn route(controller: &mut ExtendedInterrupts, core: usize) {
        for node in [0, 1] {
            let entry = |index: u64| 1u64 << index;
            let types = (0..4).fold(0, |types, index| types | entry(index) << (16 * index));
            controller.write(4 * node, NODE_TYPE, 8, types);
            controller.write(4 * node, LINES, 8, 0x0202_0202_0202_0204);
            let next = if node == 0 { core / 4 } else { node };
            controller.write(4 * node, ROUTE + 7, 1, 1 << (core % 4) | (next as u64) << 4);
        }
        controller.write(0, ENABLE, 4, 0xffff_ffff);
    }

    #[test]
    fn a_vector_reaches_the_core_that_it_is_routed_to_in_any_node() {
        for target in [0, 1, 3, 5, 6] {
            let mut controller = ExtendedInterrupts::new(7);
            route(&mut controller, target);
            controller.set_inputs([1 << 7, 0, 0, 0]);
            for core in 0..7 {
                assert_eq!(controller.asserted(core), u64::from(core == target) << 2, "{core} for {target}");
            }
            controller.write(target, CORE_STATUS, 8, 1 << 7);
            assert_eq!(controller.asserted(target), 0);
        }
    }

    #[test]
    fn a_route_to_a_core_that_does_not_exist_reaches_core_0() {
        let mut controller = ExtendedInterrupts::new(6);
        for route in [0, 0xf0, 0x18, 0xff] {
            controller.write(0, NODE_TYPE, 8, 0x8000_8000_0002_0001);
            controller.write(0, ROUTE + 7, 1, route);
            controller.write(4, ROUTE + 7, 1, route);
            controller.write(0, ENABLE, 8, u64::MAX);
            controller.set_inputs([1 << 7, 0, 0, 0]);
            assert_eq!(controller.asserted(0), 1, "{route:#x}");
            controller.set_inputs([0; 4]);
        }
    }

    #[test]
    fn a_message_is_pending_once_and_waits_until_its_vector_is_enabled() {
        let mut controller = ExtendedInterrupts::new(1);
        controller.receive(70);
        assert_eq!(controller.asserted(0), 0);
        controller.write(0, ENABLE + 8, 8, u64::MAX);
        assert_eq!(controller.read(0, CORE_STATUS + 8, 8), 1 << 6);
        controller.write(0, CORE_STATUS + 8, 8, 1 << 6);
        assert_eq!(controller.asserted(0), 0);
        controller.receive(70);
        assert_eq!(controller.asserted(0), 1);
    }
}
