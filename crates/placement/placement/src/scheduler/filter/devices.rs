//! The host has a free device of each requested type on any node.

use super::{Demand, HostFilter, HostState, Shortage};
use crate::host::Device;
use crate::request::DeviceNeed;

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
            // Devices requested by model are also counted for their type.
            let covers = |other: &&DeviceNeed| {
                need.kind.is_none_or(|kind| other.kind == Some(kind))
                    && need.id.is_none_or(|id| other.id == Some(id))
            };
            let wanted = demand.devices.iter().filter(covers).count() as u64;
            let matching = host.shape.devices.iter().zip(&*host.devices).filter(|(d, _)| need.matches(d));
            let free = |(d, used): (&Device, &u16)| u64::from(d.slots.saturating_sub(u32::from(*used)));
            Shortage::unless(wanted, matching.map(free).sum())
        })
    }
}
