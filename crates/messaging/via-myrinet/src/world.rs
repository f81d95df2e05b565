//! All hosts of the modelled network in one simulated time: events, the wire between NICs, and the costs of the hosts'
//! programs. Connections are set up by the hosts' operating systems, which takes no simulated time.
//!
//! Source: Jiao Zhenqiang et al.; the timing of the hardware is in `lanai`.

use super::Settings;
use super::job::{Content, PACKET_BYTES, Packet, Work};
use super::lanai::{Engine, Parameters, Switch};
use super::ring::{DESCRIPTOR_WORDS, SEGMENT_WORDS};
use super::settings::Kind;
use super::station::{Action, HostEvent, Next, Side, Station};
use super::steps::host;
use super::translation::Piece;
use super::{bvia, myvia};
use longma_sim::{Duration, EventQueue, Time};
use longma_topology::units::Frequency;
use longma_via::Status;
use longma_via::provider::EndReason;
use std::collections::VecDeque;

/// How long a closing VI waits for its sends.
const LINGER: Duration = Duration::from_ps(50_000_000_000);

#[derive(Clone, Debug)]
enum Event {
    /// The firmware continues.
    Resume(usize),
    /// An event for which the firmware may be polling.
    Poke(usize),
    /// The host engine is done, unless an access has delayed it.
    HostDma(usize),
    /// The send engine is done.
    Sent(usize),
    /// A packet is in a receive buffer.
    Arrived(usize, Packet),
    /// A descriptor (MyVIA) or doorbell (BVIA) has crossed the bus.
    Posted(usize, usize, Side, Work),
    /// The flag of a small ring has crossed the bus.
    Flag(usize, usize, Side, bool),
    /// The interrupt handler starts, or continues with the next descriptor.
    Refill(usize, usize, Side, bool),
}

/// The modelled network.
#[derive(Clone, Debug)]
pub struct World {
    parameters: Parameters,
    settings: Settings,
    now: Time,
    events: EventQueue<Event>,
    stations: Vec<Station>,
    switch: Switch,
    /// The packets that wait for each station, the oldest first: the time since which they wait, and their sender.
    offered: Vec<VecDeque<(Time, usize, Packet)>>,
    /// The number of events that hosts have received.
    host_events: u64,
    actions: Vec<Action>,
}

/// Statistics of a station.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// The time that the NIC's processor worked, seconds.
    pub processor_seconds: f64,
    /// Interrupts of the host.
    pub interrupts: u64,
    /// Bytes moved over the bus by DMA.
    pub bus_bytes: u64,
    /// Programmed I/O accesses over the bus.
    pub bus_accesses: u64,
    /// BVIA: TLB hits.
    pub tlb_hits: u64,
    /// BVIA: TLB misses.
    pub tlb_misses: u64,
    /// MyVIA: the highest number of descriptors in a big ring.
    pub most_in_big_ring: usize,
}

impl World {
    /// Creates the hosts of `parameters`, whose NICs run the firmware of `settings`.
    pub fn new(parameters: Parameters, settings: Settings) -> Self {
        let stations: Vec<_> = (0..parameters.hosts).map(|_| Station::new(&parameters, &settings)).collect();
        Self {
            now: Time::ZERO,
            events: EventQueue::new(),
            switch: Switch::new(&parameters),
            offered: vec![VecDeque::new(); stations.len()],
            stations,
            host_events: 0,
            actions: Vec::new(),
            parameters,
            settings,
        }
    }

    /// The hardware parameters.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// A host.
    pub fn station(&mut self, station: usize) -> &mut Station {
        &mut self.stations[station]
    }

    /// Allocates the queues of a VI that is being connected.
    pub fn add_vi(&mut self, station: usize) -> usize {
        self.stations[station].add_vi(&self.settings)
    }

    /// The clock of a host's program.
    pub fn time(&self, station: usize) -> Time {
        self.stations[station].local.max(self.now)
    }

    /// The statistics of a station.
    pub fn counts(&self, station: usize) -> Counts {
        let station = &self.stations[station];
        let (tlb_hits, tlb_misses) = station.tlb.counts();
        let max_entries = station.vis.iter().map(|vi| vi.sends.max_big().max(vi.receives.max_big())).max();
        Counts {
            processor_seconds: station.card.busy_cycles() as f64 / self.parameters.clock_hz as f64,
            interrupts: station.card.interrupts(),
            bus_bytes: station.bus.bytes(),
            bus_accesses: station.bus.accesses(),
            tlb_hits,
            tlb_misses,
            most_in_big_ring: max_entries.unwrap_or(0),
        }
    }

    // ---- the program's side -----------------------------------------------------------------------------------------

    /// The time that the host's processor takes for `cycles`.
    fn host_time(&self, cycles: u64) -> Duration {
        Duration::from_ps(Frequency::new(self.parameters.host_hz).ps_of_cycles(cycles))
    }

    /// Advances a host's program by `cycles`. Its clock is at least that of the world, which is advanced too.
    fn catch_up(&mut self, station: usize, cycles: u64) -> Time {
        let spent = self.host_time(cycles);
        let local = plus(self.stations[station].local.max(self.now), spent);
        self.stations[station].local = local;
        self.run_until(local);
        local
    }

    /// Programmed I/O by the host's processor: `words` accesses that take `each`. Advances the program's clock.
    fn access(&mut self, station: usize, words: u32, each: Duration) -> Time {
        let local = self.stations[station].local;
        let held = Duration::from_ps(each.ps() * u64::from(words));
        let through = self.stations[station].bus.access(local, held);
        self.stations[station].local = through;
        through
    }

    /// Posts a descriptor.
    pub fn post(&mut self, station: usize, slot: usize, side: Side, work: Work) {
        let segments = u64::from(work.segments);
        self.stations[station].vis[slot].sends_in_flight += u32::from(side == Side::Send);
        let build = host::BUILD_DESCRIPTOR + host::BUILD_SEGMENT * segments;
        match self.settings.kind {
            Kind::Bvia => {
                self.catch_up(station, build);
                self.stations[station].vis[slot].rings(side).write();
                let through = self.access(station, 2, self.parameters.pio_write);
                self.arrives(through, Event::Posted(station, slot, side, work));
            }
            Kind::Myvia => {
                self.catch_up(station, build + host::TRANSLATE * segments);
                self.post_physical(station, slot, side, work);
            }
        }
    }

    /// Puts a receive descriptor, posted before the VI was connected, into the queue that the NIC uses from now on.
    /// Takes no simulated time.
    pub fn place_receive(&mut self, station: usize, slot: usize, work: Work) {
        let rings = &mut self.stations[station].vis[slot].receives;
        if rings.has_big() || rings.free() == 0 {
            rings.put_big(work);
            rings.flag = true;
            return;
        }
        rings.write();
        rings.arrive(work);
        rings.known_free = rings.free();
    }

    fn post_physical(&mut self, station: usize, slot: usize, side: Side, work: Work) {
        if self.stations[station].vis[slot].rings(side).has_big() {
            return self.put_big(station, slot, side, work);
        }
        if self.stations[station].vis[slot].rings(side).known_free == 0 {
            let read = self.access(station, 1, self.parameters.pio_read);
            self.run_until(read);
            let rings = self.stations[station].vis[slot].rings(side);
            rings.known_free = rings.free();
            if rings.known_free == 0 {
                self.put_big(station, slot, side, work);
                let through = self.access(station, 1, self.parameters.pio_write);
                self.arrives(through, Event::Flag(station, slot, side, true));
                return;
            }
        }
        let rings = self.stations[station].vis[slot].rings(side);
        rings.known_free -= 1;
        rings.write();
        let through = self.access(station, words(&work), self.parameters.pio_write);
        self.arrives(through, Event::Posted(station, slot, side, work));
    }

    fn put_big(&mut self, station: usize, slot: usize, side: Side, work: Work) {
        let spent = self.host_time(host::PUT_BIG);
        let station = &mut self.stations[station];
        station.local = plus(station.local, spent);
        station.vis[slot].rings(side).put_big(work);
    }

    /// Schedules an event for when a write to the NIC has crossed the bridge.
    fn arrives(&mut self, through: Time, event: Event) {
        self.events.push(plus(through, self.parameters.bus_latency), event);
    }

    /// Polls a VI for an event. With `waits`, the program waits for one.
    pub fn poll(&mut self, station: usize, slot: usize, waits: bool) -> Option<HostEvent> {
        let mut local = self.catch_up(station, host::POLL);
        loop {
            if let Some((visible, _)) = self.stations[station].vis[slot].host_events.front() {
                if *visible <= local {
                    return self.collect(station, slot);
                }
                if waits {
                    local = *visible;
                    self.stations[station].local = local;
                    self.run_until(local);
                    continue;
                }
            }
            if !waits || !self.step() {
                return None;
            }
        }
    }

    fn collect(&mut self, station: usize, slot: usize) -> Option<HostEvent> {
        let spent = self.host_time(host::COLLECT).ps() + self.parameters.memory_latency.ps();
        let station = &mut self.stations[station];
        station.local = Time::from_ps(station.local.ps() + spent);
        station.vis[slot].host_events.pop_front().map(|event| event.1)
    }

    /// Advances the time until an event reaches some host, because all programs wait. Returns `false` if that will
    /// never happen.
    pub fn skip(&mut self) -> bool {
        let before = self.host_events;
        while self.host_events == before {
            if !self.step() {
                return false;
            }
        }
        self.now = plus(self.now, self.parameters.bus_latency);
        self.run_until(self.now);
        true
    }

    /// Queues a reply that the NIC sends on its own: an acknowledgement, or data for an RDMA read.
    pub fn reply(&mut self, station: usize, packet: Packet, pieces: Vec<Piece>) {
        self.stations[station].replies.push_back((packet, pieces));
        self.poke(station);
    }

    /// Advances the time until the peer has received all data that a closing VI has sent.
    pub fn drain(&mut self, station: usize, slot: usize) {
        // A peer that does not receive must not block this forever.
        let limit = plus(self.now, LINGER);
        while self.stations[station].vis[slot].sends_in_flight > 0
            && self.events.next_time().is_some_and(|at| at <= limit)
        {
            self.step();
        }
    }

    /// Notifies the peer of the end of a connection, after everything in transit, with the latency of a small packet.
    pub fn notify_end(
        &mut self,
        station: usize,
        slot: usize,
        status: Option<(u32, Status)>,
        reason: EndReason,
    ) {
        let path = self.parameters.path_latency.ps();
        let last = self.stations[station].vis[slot].host_events.back().map_or(Time::ZERO, |event| event.0);
        let visible = plus(self.now, Duration::from_ps(path)).max(last);
        let events = &mut self.stations[station].vis[slot].host_events;
        events.extend(status.map(|(token, status)| (visible, HostEvent::Completed(token, status))));
        events.push_back((visible, HostEvent::Disconnected(reason)));
        self.host_events += 1;
    }

    // ---- time -------------------------------------------------------------------------------------------------------

    /// Processes all events up to `until`.
    pub fn run_until(&mut self, until: Time) {
        while let Some((at, event)) = self.events.pop_until(until) {
            self.now = self.now.max(at);
            self.handle(event);
        }
        self.now = self.now.max(until);
    }

    /// Processes the next event. Returns `false` if there is none.
    fn step(&mut self) -> bool {
        let Some((at, event)) = self.events.pop() else { return false };
        self.now = self.now.max(at);
        self.handle(event);
        true
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Resume(station) => self.resume(station),
            Event::Poke(station) => self.poke(station),
            Event::HostDma(station) => {
                let ends = self.stations[station].bus.dma_end();
                if ends > self.now {
                    self.events.push(ends, Event::HostDma(station));
                } else {
                    self.stations[station].card.end_host();
                    self.poke(station);
                }
            }
            Event::Sent(station) => {
                self.stations[station].card.set_link(Engine::Send, false);
                self.poke(station);
            }
            Event::Arrived(station, packet) => {
                let to = &mut self.stations[station];
                to.card.set_link(Engine::Receive, false);
                to.arrivals.push_back(packet);
                self.poke(station);
            }
            Event::Posted(station, slot, side, work) => self.posted(station, slot, side, work),
            Event::Flag(station, slot, side, flag) => {
                self.stations[station].vis[slot].rings(side).flag = flag;
                self.poke(station);
            }
            Event::Refill(station, slot, side, begins) => self.refill(station, slot, side, begins),
        }
    }

    fn posted(&mut self, station: usize, slot: usize, side: Side, work: Work) {
        let vi = &mut self.stations[station].vis[slot];
        if side == Side::Receive && self.settings.kind == Kind::Bvia {
            vi.receive_doorbells.push_back(work);
        } else {
            vi.rings(side).arrive(work);
        }
        self.poke(station);
    }

    /// The interrupt handler: reads the free space of the ring, then moves descriptors until the ring is full or there
    /// are no more.
    fn refill(&mut self, station: usize, slot: usize, side: Side, begins: bool) {
        let (now, pio_write) = (self.now, self.parameters.pio_write);
        if begins {
            let read = self.stations[station].bus.access(now, self.parameters.pio_read);
            self.events.push(read, Event::Refill(station, slot, side, false));
            return;
        }
        let spent = self.host_time(host::REFILL);
        let Station { bus, vis, .. } = &mut self.stations[station];
        let rings = vis[slot].rings(side);
        rings.known_free = 0;
        if rings.free() == 0 {
            rings.refilling = false;
            return self.poke(station);
        }
        let Some(work) = rings.take_big() else {
            rings.refilling = false;
            let through = bus.access(now, pio_write);
            return self.arrives(through, Event::Flag(station, slot, side, false));
        };
        rings.write();
        let held = Duration::from_ps(pio_write.ps() * u64::from(words(&work)));
        let through = bus.access(plus(now, spent), held);
        self.arrives(through, Event::Posted(station, slot, side, work));
        self.events.push(through, Event::Refill(station, slot, side, false));
    }

    /// Notifies an idle firmware, which sees the change at the start of its next round.
    fn poke(&mut self, station: usize) {
        let Some((since, round)) = self.stations[station].idle.take() else {
            self.stations[station].must_check_again = true;
            return;
        };
        let round = round.ps().max(1);
        let waited = self.now.ps().saturating_sub(since.ps());
        let at = Time::from_ps(since.ps() + waited.next_multiple_of(round));
        self.plan(station, at);
    }

    fn plan(&mut self, station: usize, at: Time) {
        if !self.stations[station].is_scheduled {
            self.stations[station].is_scheduled = true;
            self.events.push(at, Event::Resume(station));
        }
    }

    fn resume(&mut self, number: usize) {
        let mut actions = std::mem::take(&mut self.actions);
        let station = &mut self.stations[number];
        station.is_scheduled = false;
        station.idle = None;
        let next = match self.settings.kind {
            Kind::Bvia => bvia::resume(station, self.now, &self.settings, &mut actions),
            Kind::Myvia => myvia::resume(station, self.now, &self.settings, &mut actions),
        };
        match next {
            Next::After(took) => self.plan(number, plus(self.now, took)),
            Next::Idle(round) => self.stations[number].idle = Some((self.now, round)),
        }
        for action in actions.drain(..) {
            self.apply(number, action);
        }
        self.actions = actions;
    }

    fn apply(&mut self, number: usize, action: Action) {
        match action {
            Action::Transmit(packet) => {
                let to = packet.to.0;
                self.offered[to].push_back((self.now, number, packet));
                self.pass(to);
            }
            Action::Armed => self.pass(number),
            Action::HostDma => {
                let ends = self.stations[number].bus.dma_end();
                self.events.push(ends, Event::HostDma(number));
            }
            Action::NotifyHost(slot, event) => {
                let visible = plus(self.now, self.parameters.bus_latency);
                if let HostEvent::Packet(packet) = &event
                    && !matches!(packet.content, Content::ReadResponse { .. })
                {
                    let (from, sender) = packet.from;
                    let sends_in_flight = &mut self.stations[from].vis[sender].sends_in_flight;
                    *sends_in_flight = sends_in_flight.saturating_sub(1);
                }
                let vi = &mut self.stations[number].vis[slot];
                if vi.active {
                    vi.host_events.push_back((visible, event));
                    self.host_events += 1;
                }
            }
            Action::Refill(slot, side) => {
                let at = plus(self.now, self.parameters.interrupt);
                self.events.push(at, Event::Refill(number, slot, side, true));
            }
            Action::WakeAt(at) => {
                self.events.push(at, Event::Poke(number));
            }
        }
    }

    /// Passes the next packet to a station if its receive engine has a buffer.
    fn pass(&mut self, to: usize) {
        if !self.stations[to].armed {
            return;
        }
        let Some((since, from, packet)) = self.offered[to].pop_front() else { return };
        self.stations[to].armed = false;
        self.stations[to].card.set_link(Engine::Receive, true);
        let bytes = (PACKET_BYTES + packet.bytes()).next_multiple_of(self.parameters.send_alignment.max(1));
        let passage = self.switch.pass(since, self.now, to, bytes);
        self.events.push(passage.sent.max(self.now), Event::Sent(from));
        self.events.push(passage.arrived, Event::Arrived(to, packet));
    }
}

/// The number of words that the host writes for a physical descriptor, including the ring's new tail.
fn words(work: &Work) -> u32 {
    let pieces = work.pieces.len() as u32;
    let is_message = work.packet.as_ref().is_none_or(|p| matches!(p.content, Content::Message { .. }));
    DESCRIPTOR_WORDS + SEGMENT_WORDS * pieces.saturating_sub(1) + u32::from(!is_message) + 1
}

fn plus(time: Time, duration: Duration) -> Time {
    Time::from_ps(time.ps().saturating_add(duration.ps()))
}
