//! The code of a unit in the order of traversal, and its division into blocks.

use iced_x86::Instruction;
use rustc_hash::FxHashMap;

use super::{Block, ReachableCode, ends};

/// The traversed code.
#[derive(Default)]
pub(super) struct Visited {
    /// Instructions, and whether each is a leader.
    pub code: Vec<(Instruction, bool)>,
    /// The index of the instruction at an address; `None` if there is none.
    pub places: FxHashMap<u64, Option<usize>>,
}

impl Visited {
    fn place(&self, pc: u64) -> Option<usize> {
        self.places.get(&pc).copied().flatten()
    }

    pub fn is_leader(&self, pc: u64) -> bool {
        self.place(pc).is_some_and(|place| self.code[place].1)
    }

    /// Makes an address a leader. Returns false if there is no instruction.
    pub fn make_leader(&mut self, pc: u64) -> bool {
        let index = self.place(pc);
        index.iter().for_each(|index| self.code[*index].1 = true);
        index.is_some()
    }
}

impl ReachableCode {
    /// Creates the blocks of all leaders.
    pub(super) fn create_blocks(&mut self, visited: &Visited) {
        let leaders = visited.code.iter().filter(|(_, leads)| *leads);
        self.leaders = leaders.map(|(instruction, _)| instruction.ip()).collect();
        self.leaders.sort_unstable();
        self.code.reserve(visited.code.len());
        self.blocks.reserve(self.leaders.len());
        let mut following = self.leaders.iter().copied().skip(1).peekable();
        for &leader in &self.leaders {
            let (first, mut pc) = (self.code.len(), leader);
            let mut index = visited.place(pc);
            let mut ahead = following.clone();
            following.next();
            let next = loop {
                let Some(at) = index else { break Some(pc) };
                let instruction = visited.code[at].0;
                self.code.push(instruction);
                if instruction.is_invalid() || ends(&instruction) {
                    break None;
                }
                pc = instruction.next_ip();
                while ahead.next_if(|leader| *leader < pc).is_some() {}
                if ahead.peek() == Some(&pc) {
                    break Some(pc);
                }
                // Usually the next instruction was traversed next.
                let is_next = visited.code.get(at + 1).is_some_and(|(next, _)| next.ip() == pc);
                index = if is_next { Some(at + 1) } else { visited.place(pc) };
            };
            self.blocks.push(Block { first, end: self.code.len(), next });
        }
    }
}
