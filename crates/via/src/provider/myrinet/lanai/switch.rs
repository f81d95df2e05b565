//! The Myrinet switch and its cables: which packet may use which output port when.
//! Not buffering: a packet that finds its way blocked waits on the wire, as worms do.
//! Source: Boden et al., "Myrinet: A Gigabit-per-Second Local Area Network", IEEE Micro 1995.

use super::Parameters;
use longma_sim::{Duration, Time};

/// One switch with a port for each host.
#[derive(Clone, Debug)]
pub struct Switch {
    rate: u64,
    latency: Duration,
    free_at: Vec<Time>,
}

/// When a packet is where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// Its last byte has left the sender.
    pub sent: Time,
    /// Its last byte has come.
    pub arrived: Time,
}

impl Switch {
    /// The switch of a machine.
    pub fn new(parameters: &Parameters) -> Self {
        Self {
            rate: parameters.link_rate,
            latency: parameters.path_latency,
            free_at: vec![Time::ZERO; parameters.hosts as usize],
        }
    }

    /// A packet of `bytes` that is offered at `offered` to the host at `port`, whose receive engine takes bytes from `ready` on.
    pub fn pass(&mut self, offered: Time, ready: Time, port: usize, bytes: u32) -> Passage {
        let head = Time::from_ps(offered.ps() + self.latency.ps());
        let begins = head.max(ready).max(self.free_at[port]);
        let took = u64::from(bytes) * 1_000_000_000_000 / self.rate.max(1);
        let arrived = Time::from_ps(begins.ps() + took);
        self.free_at[port] = arrived;
        // What is blocked fills the path; the sender is done when the path has drained behind the last byte.
        Passage { sent: Time::from_ps(arrived.ps() - self.latency.ps()), arrived }
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
    fn two_packets_to_one_host_follow_each_other() {
        let mut switch = Switch::new(&piii());
        let first = switch.pass(Time::ZERO, Time::ZERO, 0, 1600);
        let second = switch.pass(Time::ZERO, Time::ZERO, 0, 1600);
        assert_eq!(second.arrived.ps(), first.arrived.ps() + 10_000_000);
    }
}
