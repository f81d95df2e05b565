//! Functional warming: updates predictors, caches and TLBs with a trace, without timing the instructions.
//!
//! Source: Wunderlich, Wenisch, Falsafi and Hoe, "SMARTS: accelerating microarchitecture simulation via rigorous
//! statistical sampling" (ISCA 2003), section 4.3.

use longma_memory::MemoryPort;
use longma_sim::Cycle;
use longma_trace::{Blocks, Trace};

use crate::{announce, front_end::BackEnd, operations::Kind};

/// Updates the predictors of a core and, through `port`, the caches and TLBs. For `port`, the instructions execute at
/// one a cycle from cycle `start` on.
pub(crate) fn warm(
    back_end: &mut impl BackEnd,
    trace: &Trace,
    start: u64,
    blocks: &impl Blocks,
    port: &mut impl MemoryPort,
) {
    // The program is moved out so that one of its blocks and the front end can be borrowed at the same time.
    let mut program = std::mem::take(back_end.program());
    let mut announcer = announce::announcer(trace, port.wants_announcements());
    let mut cycle = start;
    for record in trace.records() {
        announcer.before(&record, port);
        let block = &program.enter(&record, blocks, back_end.parameters()).block;
        let executed = usize::from(record.executed).min(block.operations.len());
        let front = back_end.front();
        front.learn_branch(block.start);
        let end = block.start.wrapping_add(4 * executed as u64);
        let mut address = block.start;
        while address < end {
            if front.enters_line(address) {
                port.fetch(address, Cycle(cycle));
            }
            address = front.line_of(address).wrapping_add(front.line_bytes());
        }
        for (access, &address) in block.accesses.iter().zip(record.addresses) {
            let address = access.unit.begin(address);
            let at = Cycle(cycle + u64::from(access.instruction));
            let pc = block.start.wrapping_add(4 * u64::from(access.instruction));
            match access.kind {
                Kind::Load => {
                    port.load(address, access.bytes.into(), pc, at);
                }
                Kind::Prefetch => port.prefetch(address, pc, at),
                _ => {
                    port.store(address, access.bytes.into(), pc, at);
                }
            }
        }
        cycle += executed as u64;
        // The branch is resolved before the first timed instruction.
        front.end(record.block, block, executed, 0);
    }
    *back_end.program() = program;
}
