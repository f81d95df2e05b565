//! The interrupt controller of the bridge chip: 64 inputs, each of which asserts a vector of the extended interrupt
//! controller. Source: Loongson 7A1000 user manual, chapter 5 (interrupt controller).

use serde::{Deserialize, Serialize};

use super::lane::Lane;

const MASK: u64 = 0x20;
const MESSAGE_ENABLE: u64 = 0x40;
const EDGE: u64 = 0x60;
const CLEAR: u64 = 0x80;
const ROUTE: u64 = 0x100;
const VECTOR: u64 = 0x200;
const REQUESTS: u64 = 0x380;
const STATUS: u64 = 0x3a0;
const POLARITY: u64 = 0x3e0;

/// The number of inputs that the identification register states.
const INPUTS: u64 = 32;

/// The registers and inputs of the controller.
#[derive(Debug)]
pub struct PchPic {
    mask: u64,
    message_enable: u64,
    edge: u64,
    polarity: u64,
    levels: u64,
    requests: u64,
    route: [u8; 64],
    vector: [u8; 64],
}

/// The state of a controller in a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedPchPic {
    /// Mask, message enable, edge, polarity, levels, requests.
    registers: [u64; 6],
    route: Vec<u8>,
    vector: Vec<u8>,
}

impl PchPic {
    /// Creates the controller in its reset state, with all inputs masked.
    pub fn new() -> Self {
        Self {
            mask: u64::MAX,
            message_enable: 0,
            edge: 0,
            polarity: 0,
            levels: 0,
            requests: 0,
            route: [1; 64],
            vector: [0; 64],
        }
    }

    /// The state in a checkpoint.
    pub fn saved(&self) -> SavedPchPic {
        let Self { mask, message_enable, edge, polarity, levels, requests, route, vector } = self;
        SavedPchPic {
            registers: [*mask, *message_enable, *edge, *polarity, *levels, *requests],
            route: route.to_vec(),
            vector: vector.to_vec(),
        }
    }

    /// The controller with a saved state; `None` if it has no such state.
    pub fn restored(saved: SavedPchPic) -> Option<Self> {
        let [mask, message_enable, edge, polarity, levels, requests] = saved.registers;
        let (route, vector) = (saved.route.try_into().ok()?, saved.vector.try_into().ok()?);
        Some(Self { mask, message_enable, edge, polarity, levels, requests, route, vector })
    }

    /// Sets the level of an input below 64.
    pub fn set_level(&mut self, input: u32, level: bool) {
        let bit = 1 << (input & 63);
        let rising = level && self.levels & bit == 0;
        self.levels = if level { self.levels | bit } else { self.levels & !bit };
        if self.edge & bit == 0 {
            self.requests = self.requests & !bit | self.levels & bit;
        } else if rising {
            self.requests |= bit;
        }
    }

    /// The asserted vectors of the extended interrupt controller, one bit each.
    pub fn asserted(&self) -> [u64; 4] {
        let mut vectors = [0; 4];
        let mut sent = self.requests & !self.mask;
        while sent != 0 {
            let vector = self.vector[sent.trailing_zeros() as usize];
            vectors[usize::from(vector / 64)] |= 1 << (vector % 64);
            sent &= sent - 1;
        }
        vectors
    }

    /// Reads a register.
    pub fn read(&self, offset: u64, bytes: usize) -> u64 {
        let lane = Lane::new(offset, bytes);
        lane.extract(match lane.register {
            // Identification, version and the number of inputs minus one.
            0 => 0x0700_0000 | 1 << 32 | (INPUTS - 1) << 48,
            MASK => self.mask,
            MESSAGE_ENABLE => self.message_enable,
            EDGE => self.edge,
            ROUTE..0x140 => doubleword(&self.route, lane.register - ROUTE),
            VECTOR..0x240 => doubleword(&self.vector, lane.register - VECTOR),
            REQUESTS => self.requests,
            STATUS => self.requests & !self.mask,
            POLARITY => self.polarity,
            _ => 0,
        })
    }

    /// Writes a register.
    pub fn write(&mut self, offset: u64, bytes: usize, value: u64) {
        let lane = Lane::new(offset, bytes);
        let register = match lane.register {
            MASK => &mut self.mask,
            MESSAGE_ENABLE => &mut self.message_enable,
            EDGE => &mut self.edge,
            POLARITY => &mut self.polarity,
            CLEAR => {
                self.requests &= !(lane.place(value) & self.edge);
                return;
            }
            ROUTE..0x140 => return replace(&mut self.route, lane, ROUTE, value),
            VECTOR..0x240 => return replace(&mut self.vector, lane, VECTOR, value),
            _ => return,
        };
        *register = lane.replace(*register, value);
    }
}

impl Default for PchPic {
    fn default() -> Self {
        Self::new()
    }
}

/// Eight entries of a byte table. `offset` is a multiple of 8 below 64.
fn doubleword(table: &[u8; 64], offset: u64) -> u64 {
    let start = offset as usize & 56;
    u64::from_le_bytes(std::array::from_fn(|index| table[start + index]))
}

fn replace(table: &mut [u8; 64], lane: Lane, start: u64, value: u64) {
    let offset = lane.register - start;
    let new = lane.replace(doubleword(table, offset), value).to_le_bytes();
    table[offset as usize & 56..][..8].copy_from_slice(&new);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_input_is_asserted_while_it_is_high_and_not_masked() {
        let mut pic = PchPic::new();
        pic.write(VECTOR + 2, 1, 70);
        pic.set_level(2, true);
        assert_eq!(pic.asserted(), [0; 4]);
        pic.write(MASK, 4, !4);
        assert_eq!(pic.asserted(), [0, 1 << 6, 0, 0]);
        assert_eq!(pic.read(STATUS, 4), 4);
        pic.set_level(2, false);
        assert_eq!(pic.asserted(), [0; 4]);
    }

    #[test]
    fn an_edge_input_is_asserted_until_it_is_cleared() {
        let mut pic = PchPic::new();
        pic.write(MASK, 8, 0);
        pic.write(EDGE, 8, 1 << 40);
        pic.set_level(40, true);
        pic.set_level(40, false);
        assert_eq!(pic.asserted(), [1, 0, 0, 0]);
        pic.write(CLEAR + 4, 4, 1 << 8);
        assert_eq!(pic.asserted(), [0; 4]);
    }
}
