//! The host has a free slot of each requested kind of device on any node.

use super::{Demand, HostFilter, HostState, Shortage};

pub(crate) struct Devices;

impl HostFilter for Devices {
    fn name(&self) -> &'static str {
        "devices"
    }
    fn what(&self) -> &'static str {
        "free devices of the requested kind"
    }
    fn shortage(&self, host: &HostState, demand: &Demand) -> Option<Shortage> {
        demand.devices.iter().find_map(|need| {
            let wanted = demand.devices.iter().filter(|d| d.kind == need.kind).count() as u64;
            let of_kind = host.shape.devices.iter().zip(&*host.devices).filter(|(d, _)| d.kind == need.kind);
            Shortage::unless(wanted, of_kind.map(|(d, used)| u64::from(d.slots - u32::from(*used))).sum())
        })
    }
}
