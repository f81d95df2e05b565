//! Devices required to be local are attached to the first virtual node's physical node.

use super::{Candidate, CellDemand, NodeFilter, Shortage};

pub(crate) struct LocalDevices;

impl NodeFilter for LocalDevices {
    fn name(&self) -> &'static str {
        "local-devices"
    }
    fn what(&self, _: &Candidate<'_>) -> &'static str {
        "free devices of the requested kind on the node"
    }
    fn shortage(&self, c: &Candidate<'_>) -> Option<Shortage> {
        let local = c.demand.devices.iter().filter(|d| d.local && c.cell.first);
        local.clone().find_map(|need| {
            let wanted = local.clone().filter(|d| (d.kind, d.id) == (need.kind, need.id)).count() as u64;
            let shape = &c.host.shape;
            let here = shape.devices.iter().zip(&shape.device_nodes).zip(&*c.host.devices);
            let here = here.filter(|((d, node), _)| need.matches(d) && **node == Some(c.at as u8));
            Shortage::unless(
                wanted,
                here.map(|((d, _), used)| u64::from(d.slots.saturating_sub(u32::from(*used)))).sum(),
            )
        })
    }
    fn copies_beside(&self, _: &Candidate<'_>, _: &CellDemand, _: u32) -> u64 {
        // Only the first virtual node needs local devices.
        u64::MAX
    }
}
