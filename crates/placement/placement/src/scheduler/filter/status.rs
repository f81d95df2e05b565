//! The host is up. Hosts that are draining or whose agent is silent accept no virtual machines.

use super::{Demand, HostFilter, HostState, Shortage};
use crate::inventory::HostStatus;

pub(crate) struct Status;

impl HostFilter for Status {
    fn name(&self) -> &'static str {
        "status"
    }
    fn what(&self) -> &'static str {
        "hosts that are up"
    }
    fn shortage(&self, host: &HostState, _: &Demand) -> Option<Shortage> {
        Shortage::unless(1, (host.status == HostStatus::Up).into())
    }
}
