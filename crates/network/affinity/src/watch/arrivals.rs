//! Whether flows arrive by the queues that the RSS table of their NIC names. Other rules may override the table:
//! n-tuple filters and aRFS; and in a virtual machine, a driver may report a table that the device does not use. The
//! interrupts of the queues then contradict the table.
//!
//! Source: measured with virtio_net of Linux 6.1, which sends its table to the device only with `ethtool -X`; until
//! then, the tap device (drivers/net/tun.c, tun_automq_select_queue) delivers a flow on the queue on which the guest
//! last sent it.

use super::{Observation, Queue};
use crate::setting::Interface;
use longma_linux_network::rss_table::RssTable;
use std::collections::HashMap;

/// The rate, in bytes per second, at which a flow must cause interrupts.
const MIN_BYTES: f64 = 1e6;
/// The largest number of received bytes per interrupt of a queue that is not polled.
const BYTES_PER_INTERRUPT: f64 = 1e6;
/// If a CPU spends at least this fraction of its time in softirqs, the kernel may poll its queues with interrupts
/// disabled.
const POLLED: f64 = 0.5;

/// The tables that the interrupts have refuted. They are not consulted until they change.
#[derive(Default)]
pub struct RefutedTables(HashMap<Interface, RssTable>);

impl RefutedTables {
    /// Removes queues from flows that cannot have arrived by them. If this is so for most flows of a NIC, its table is
    /// considered refuted, and reported.
    pub fn apply(
        &mut self,
        tables: &HashMap<&Interface, RssTable>,
        observation: &mut Observation,
        missing: &mut Vec<String>,
    ) {
        self.0.retain(|interface, table| tables.get(interface) == Some(&*table));
        // By interface: the number of flows with a verdict, and of those that did not arrive by their queue.
        let mut votes: HashMap<Interface, (usize, usize)> = HashMap::new();
        for index in 0..observation.flows.len() {
            let Some(has_arrived) = has_arrived(observation, index) else { continue };
            for (interface, number) in &mut observation.flows[index].arrives {
                let (all, absent) = votes.entry(interface.clone()).or_default();
                (*all, *absent) = (*all + 1, *absent + usize::from(!has_arrived));
                *number = number.filter(|_| has_arrived);
            }
        }
        for (interface, (all, absent)) in votes {
            if let Some(table) = tables.get(&interface).filter(|_| 2 * absent > all) {
                self.0.insert(interface, table.clone());
            }
        }
        for (interface, number) in observation.flows.iter_mut().flat_map(|flow| &mut flow.arrives) {
            *number = number.filter(|_| !self.0.contains_key(interface));
        }
        for interface in self.0.keys() {
            missing.push(format!(
                "flows do not arrive by the queues that the RSS table of {interface} names: their queues are unknown, and \
                 each counts for all queues with interrupts"
            ));
        }
    }
}

/// Whether a flow can have arrived on one of its queues; `None` if that is unknown, for example because no other queue
/// has interrupts either.
fn has_arrived(observation: &Observation, index: usize) -> Option<bool> {
    let flow = &observation.flows[index];
    let received = flow.received.filter(|received| *received >= MIN_BYTES)?;
    let fires = |queue: &Queue| queue.interrupts.is_some_and(|rate| rate * BYTES_PER_INTERRUPT >= received);
    let (mut can_arrive, mut can_arrive_elsewhere) = (false, false);
    for (interface, number) in &flow.arrives {
        let number = (*number)?;
        let of_nic = || observation.queues.iter().filter(|queue| queue.interface == *interface);
        let queue = of_nic().find(|queue| queue.number == Some(number))?;
        let softirq = queue.cpu.and_then(|cpu| observation.cpus.get(&cpu)).map_or(0.0, |cpu| cpu.softirq);
        can_arrive |= softirq >= POLLED || fires(queue);
        can_arrive_elsewhere |= of_nic().any(fires);
    }
    (can_arrive || can_arrive_elsewhere).then_some(can_arrive)
}
