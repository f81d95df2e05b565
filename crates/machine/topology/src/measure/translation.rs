//! Measures the cost of a page walk by comparing the same chain of loads on small and on huge pages. The sizes of the
//! TLBs come from the description.
//!
//! Source: the difference method of lmbench's lat_mem_rd and of Drepper, What Every Programmer Should Know About
//! Memory, 2007, 3.3.2.

use super::Walk;
use crate::parts::{Core, TlbKind};
use longma_host_probe::{Effort, MeasureError, chase, memory::Area, pin};

/// Size of the area relative to the TLB's reach: 15 of 16 loads miss in the TLB.
const REACHES: u64 = 16;

/// Bytes that the last data TLB maps with pages of `page` bytes; `None` if the core describes no such TLB.
fn reach(core: &Core, page: u64) -> Option<u64> {
    let data = core.tlbs.iter().filter(|t| t.kind != TlbKind::Instruction);
    let last = data.max_by_key(|t| t.level)?;
    Some(u64::from(last.entries) * u64::from(last.pages_per_entry) * page)
}

/// The cost of a walk on `cpu`; `None` if it cannot be determined: no TLB described, no huge pages, or too little
/// memory.
pub(super) fn walk(
    core: &Core,
    cpu: Option<u32>,
    max_bytes: usize,
    effort: &Effort,
) -> Result<Option<Walk>, MeasureError> {
    let page = rustix::param::page_size() as u64;
    let Some(reach) = reach(core, page) else { return Ok(None) };
    let bytes = (reach * REACHES) as usize;
    if bytes > max_bytes {
        return Ok(None);
    }
    let chased = |area: &mut Area| pin::on(cpu, || chase::latency_ps(area.words(bytes), effort));
    let mut huge = Area::new(bytes)?;
    if !huge.huge() {
        return Ok(None);
    }
    let huge_ps = chased(&mut huge);
    drop(huge);
    let small_ps = chased(&mut Area::small(bytes)?);
    let more = small_ps.saturating_sub(huge_ps);
    Ok(Some(Walk { bytes: bytes as u64, small_ps, huge_ps, walk_ps: more * REACHES / (REACHES - 1) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Machine;

    #[test]
    fn the_reach_is_that_of_the_last_tlb_that_translates_data() {
        let core = |machine: &str, name: &str| Machine::open(machine).unwrap().cores[name].clone();
        assert_eq!(reach(&core("loongson-3a5000", "la464"), 16 << 10), Some(2048 * 2 * (16 << 10)));
        assert_eq!(reach(&core("hygon-8node", "zen"), 4 << 10), Some(1536 * (4 << 10)));
        assert_eq!(reach(&Core { tlbs: Vec::new(), ..core("hygon-8node", "zen") }, 4 << 10), None);
    }
}
