//! The interconnect of a host: crossbars, rings, buses and links between cores, caches, memory controllers and ports.
//!
//! Source: parameters from machine files; structure after the Loongson 3A5000 manual (crossbars X1 and X2).

mod build;
mod channel;
mod graph;
mod route;

pub use channel::Channel;

use crate::build_error::BuildError;
use graph::Endpoints;
use longma_sim::{Duration, Statistics, StatisticsError, Time};
use longma_topology::Machine;
use route::Routes;

/// Bucket width of a channel's calendar: the time of some tens of lines. See `Calendar`.
pub(crate) const BUCKET: Duration = Duration::from_ps(1 << 16);

/// Maximum difference between the times of requests: cores of one host may be simulated this far out of step without
/// distorting the order of service. About 8 us.
pub const MAX_SKEW: Duration = Duration::from_ps(127 << 16);

/// An endpoint of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Endpoint {
    /// A core, by its index in the host's layout.
    Core(usize),
    /// A cache, by its index in the host's layout.
    Cache(usize),
    /// A memory controller, numbered node by node.
    Controller(usize),
    /// A port of a chip, counting each copy; [`Interconnect::port`] finds its index.
    Port {
        /// Index of the chip in the host.
        chip: usize,
        /// Index of the port in the chip.
        index: usize,
    },
}

/// The interconnect of one host.
///
/// Transfers are cut-through: each channel starts as soon as the head of the transfer reaches it, and the slowest
/// channel determines the rate. A transfer of 0 bytes occupies no channel: it takes only the latency of its route.
#[derive(Clone, Debug)]
pub struct Interconnect {
    endpoints: Endpoints,
    channels: Vec<Channel>,
    routes: Routes,
}

impl Interconnect {
    /// Builds the interconnect of host number `host` of `machine`.
    ///
    /// # Errors
    /// If there is no such host, if it has no memory, or if a component is unreachable.
    pub fn new(machine: &Machine, host: usize) -> Result<Self, BuildError> {
        build::interconnect(machine, host)
    }

    /// Sends `bytes` at `at` and returns the time at which the last byte arrives.
    ///
    /// # Panics
    /// If the host has no such endpoints.
    #[inline]
    pub fn cross(&mut self, from: Endpoint, to: Endpoint, bytes: u32, at: Time) -> Time {
        let (from, to) = (self.endpoints.index(from), self.endpoints.index(to));
        let (hops, latency_ps) = self.routes.find(from, to);
        let at = at.ps();
        if bytes == 0 {
            return Time::from_ps(at + latency_ps);
        }
        // The latency is added once at the end, so every channel of the route sees the head at the same time.
        let (mut head, mut tail) = (at, at);
        for hop in hops {
            let channel = &mut self.channels[hop.channel as usize];
            let served = channel.serve(Time::from_ps(head), bytes);
            head += served.waited.ps();
            tail = tail.max(served.end.ps());
        }
        Time::from_ps(tail + latency_ps)
    }

    /// Time that [`Interconnect::cross`] takes without contention, picoseconds.
    ///
    /// # Panics
    /// If the host has no such endpoints.
    pub fn idle_ps(&mut self, from: Endpoint, to: Endpoint, bytes: u32) -> u64 {
        let (from, to) = (self.endpoints.index(from), self.endpoints.index(to));
        let (hops, latency_ps) = self.routes.find(from, to);
        let service = |hop: &route::Hop| self.channels[hop.channel as usize].service_ps(bytes);
        let slowest = hops.iter().map(service).max().unwrap_or(0);
        latency_ps + slowest
    }

    /// The names of the channels on a route, in order, for reports and drawings.
    ///
    /// # Panics
    /// If the host has no such endpoints.
    pub fn route(&mut self, from: Endpoint, to: Endpoint) -> Vec<&str> {
        let (from, to) = (self.endpoints.index(from), self.endpoints.index(to));
        let (hops, _) = self.routes.find(from, to);
        hops.iter().map(|hop| self.channels[hop.channel as usize].name()).collect()
    }

    /// Finds the port called `chipN.NAME`, such as `chip0.mac1`, the form that devices and buses in machine files use.
    pub fn port(&self, name: &str) -> Option<Endpoint> {
        self.endpoints.port(name)
    }

    /// All channels, in a fixed order, for their traffic and utilization.
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }

    /// Like [`channels`](Self::channels), with mutable access for traffic recorders.
    pub(crate) fn channels_mut(&mut self) -> &mut [Channel] {
        &mut self.channels
    }

    /// Resets the statistics but not the transfers in progress.
    pub fn clear_statistics(&mut self) {
        self.channels.iter_mut().for_each(Channel::clear_statistics);
    }

    /// Adds the statistics of every channel under `name`.
    ///
    /// # Errors
    /// If a name is malformed or already in use.
    pub fn report(
        &self,
        statistics: &mut Statistics,
        name: &str,
        elapsed: Duration,
    ) -> Result<(), StatisticsError> {
        self.channels.iter().try_for_each(|c| c.report(statistics, name, elapsed))
    }
}
