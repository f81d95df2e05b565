//! The Myrinet switch and its cables: determines when a packet can use an output port.
//!
//! A cut-through switch does not buffer: a blocked packet waits on the wire (wormhole routing). A store-and-forward
//! switch receives each packet completely before sending it on, with unlimited buffers.
//!
//! Source: Boden et al., "Myrinet: A Gigabit-per-Second Local Area Network", IEEE Micro 1995.

use super::Parameters;
use longma_sim::{Duration, Time};

/// A switch with a port for each host.
#[derive(Clone, Debug)]
pub struct Switch {
    link_rate: u64,
    port_rate: u64,
    cut_through: bool,
    latency: Duration,
    free_at: Vec<Time>,
}

/// The times of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// When its last byte has left the sender.
    pub sent: Time,
    /// When its last byte has arrived.
    pub arrived: Time,
}

impl Switch {
    /// Creates the switch of a machine.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            link_rate: parameters.link_rate,
            port_rate: parameters.port_rate,
            cut_through: parameters.cut_through,
            latency: parameters.path_latency,
            free_at: vec![Time::ZERO; parameters.hosts as usize],
        }
    }

    /// Passes a packet of `bytes`, offered at `offered`, to the host at `port`, whose receive engine is ready at
    /// `ready`.
    pub fn pass(&mut self, offered: Time, ready: Time, port: usize, bytes: u32) -> Passage {
        let takes = |rate: u64| u64::from(bytes) * 1_000_000_000_000 / rate.max(1);
        let slowest = self.link_rate.min(self.port_rate);
        let came = if self.cut_through { 0 } else { takes(slowest) };
        let head = Time::from_ps(offered.ps() + self.latency.ps() + came);
        let begins = head.max(ready).max(self.free_at[port]);
        let arrived = Time::from_ps(begins.ps() + takes(slowest));
        self.free_at[port] = arrived;
        // A blocked packet fills the path; the sender is done when its last byte enters the path.
        let sent = if self.cut_through { arrived.ps() - self.latency.ps() } else { offered.ps() + came };
        Passage { sent: Time::from_ps(sent), arrived }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parameters::tests::piii;
    use super::*;

    #[test]
    fn a_packet_cuts_through_and_waits_for_a_receiver_that_is_not_ready() {
        let parameters = piii();
        let mut switch = Switch::new(&parameters);
        let free = switch.pass(Time::ZERO, Time::ZERO, 1, 160);
        assert_eq!(free.sent.ps(), 1_000_000);
        assert_eq!(free.arrived.ps(), 1_000_000 + parameters.path_latency.ps());
        let late = switch.pass(Time::from_ps(5_000_000), Time::from_ps(9_000_000), 1, 160);
        assert_eq!(late.arrived.ps(), 10_000_000);
    }

    #[test]
    fn two_packets_to_one_host_arrive_one_after_the_other() {
        let mut switch = Switch::new(&piii());
        let first = switch.pass(Time::ZERO, Time::ZERO, 0, 1600);
        let second = switch.pass(Time::ZERO, Time::ZERO, 0, 1600);
        assert_eq!(second.arrived.ps(), first.arrived.ps() + 10_000_000);
    }

    #[test]
    fn a_slow_port_slows_its_transfers() {
        let mut switch = Switch::new(&Parameters { port_rate: piii().link_rate / 4, ..piii() });
        let passage = switch.pass(Time::ZERO, Time::ZERO, 0, 1600);
        assert_eq!(passage.sent.ps(), 40_000_000);
    }

    #[test]
    fn a_store_and_forward_switch_forwards_whole_packets_and_then_frees_the_sender() {
        let parameters = Parameters { cut_through: false, ..piii() };
        let mut switch = Switch::new(&parameters);
        let passage = switch.pass(Time::ZERO, Time::from_ps(90_000_000), 0, 1600);
        assert_eq!(passage.sent.ps(), 10_000_000);
        assert_eq!(passage.arrived.ps(), 100_000_000);
        let free = switch.pass(Time::ZERO, Time::ZERO, 1, 1600);
        assert_eq!(free.arrived.ps(), 20_000_000 + parameters.path_latency.ps());
    }
}
