//! The ways between cores, caches, memory controllers and ports of a host: crossbars, rings, buses, links between nodes.
//! Not what is at their ends. Not which way coherence messages go: whoever sends them asks for each.
//! Source: parameters from machine files; structure after the Loongson 3A5000 manual (crossbars X1 and X2).

mod build;
mod channel;
mod graph;
mod route;

pub use channel::Channel;

use crate::build_error::BuildError;
use graph::Places;
use longma_sim::{Duration, Statistics, StatisticsError, Time};
use longma_topology::Machine;
use route::Routes;

/// How wide the buckets of channels are: some tens of lines. See `Calendar`.
pub(crate) const BUCKET: Duration = Duration::from_ps(1 << 16);

/// How far apart the times of requests may be without being served later than they came: cores of one host may be simulated
/// this much out of step. About 8 us.
pub const OUT_OF_STEP: Duration = Duration::from_ps(127 << 16);

/// An end of a way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// A core, by its number in the host's layout.
    Core(usize),
    /// A cache, by its number in the host's layout.
    Cache(usize),
    /// A memory controller, numbered through the nodes in order.
    Controller(usize),
    /// A port of a chip, copies counted out: the number that [`Interconnect::port`] finds.
    Port {
        /// The chip's number in the host.
        chip: usize,
        /// The port's number in the chip.
        index: usize,
    },
}

/// The interconnect of one host.
///
/// A transfer goes through the channels of its route head first: each channel takes the bytes as soon as their head is there,
/// and the slowest one sets the pace. The bytes that count are those of data; requests and acknowledgements have channels of their own
/// that are never full, so they are asked for with 0 bytes and cost the latency alone.
#[derive(Clone, Debug)]
pub struct Interconnect {
    places: Places,
    channels: Vec<Channel>,
    routes: Routes,
}

impl Interconnect {
    /// The interconnect of host number `host` of `machine`.
    ///
    /// # Errors
    /// If there is no such host, if it has no memory, or if some of its parts cannot be reached.
    pub fn new(machine: &Machine, host: usize) -> Result<Self, BuildError> {
        build::interconnect(machine, host)
    }

    /// Sends `bytes` at `at`; the time the last of them arrives.
    ///
    /// # Panics
    /// If the host has no such places.
    #[inline]
    pub fn cross(&mut self, from: Place, to: Place, bytes: u32, at: Time) -> Time {
        let (from, to) = (self.places.index(from), self.places.index(to));
        let (hops, latency_ps) = self.routes.find(from, to);
        let at = at.ps();
        if bytes == 0 {
            return Time::from_ps(at + latency_ps);
        }
        // The latency is added at the end: channels of one route see the head a little early, all of them alike.
        let (mut head, mut tail) = (at, at);
        for hop in hops {
            let channel = &mut self.channels[hop.channel as usize];
            let served = channel.serve(Time::from_ps(head), bytes);
            head += served.waited.ps();
            tail = tail.max(served.end.ps());
        }
        Time::from_ps(tail + latency_ps)
    }

    /// How long [`Interconnect::cross`] takes when nobody else is there, picoseconds.
    ///
    /// # Panics
    /// If the host has no such places.
    pub fn idle_ps(&mut self, from: Place, to: Place, bytes: u32) -> u64 {
        let (from, to) = (self.places.index(from), self.places.index(to));
        let (hops, latency_ps) = self.routes.find(from, to);
        let service = |hop: &route::Hop| self.channels[hop.channel as usize].service_ps(bytes);
        let slowest = hops.iter().map(service).max().unwrap_or(0);
        latency_ps + slowest
    }

    /// The channels a transfer passes, by name, in order: for reports and pictures.
    ///
    /// # Panics
    /// If the host has no such places.
    pub fn way(&mut self, from: Place, to: Place) -> Vec<&str> {
        let (from, to) = (self.places.index(from), self.places.index(to));
        let (hops, _) = self.routes.find(from, to);
        hops.iter().map(|hop| self.channels[hop.channel as usize].name()).collect()
    }

    /// The port called `chipN.NAME`, such as `chip0.mac1`, as devices and buses of machine files name it; `None` if there is none.
    pub fn port(&self, name: &str) -> Option<Place> {
        self.places.port(name)
    }

    /// Every channel, in a fixed order: what went through it and how busy it was.
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }

    /// As [`channels`](Self::channels), for whoever watches what moves over them.
    pub(crate) fn channels_mut(&mut self) -> &mut [Channel] {
        &mut self.channels
    }

    /// Forgets the statistics, not the transfers in progress.
    pub fn clear_statistics(&mut self) {
        self.channels.iter_mut().for_each(Channel::clear_statistics);
    }

    /// Adds the statistics of every channel below `name`.
    ///
    /// # Errors
    /// If a name is malformed or taken.
    pub fn report(
        &self,
        statistics: &mut Statistics,
        name: &str,
        elapsed: Duration,
    ) -> Result<(), StatisticsError> {
        self.channels.iter().try_for_each(|c| c.report(statistics, name, elapsed))
    }
}
