//! A host with its NIC: the VI queues, the buffers, the engines, and the state of the firmware.
//!
//! Source: Jiao Zhenqiang et al.

use super::Settings;
use super::job::{Job, Op, Packet, Planner, Work};
use super::lanai::{Bus, Card, Engine, Parameters};
use super::ring::Rings;
use super::settings::Kind;
use super::steps;
use super::translation::{Piece, Regions, Tlb};
use longma_sim::{Duration, Time};
use longma_via::Status;
use longma_via::provider::EndReason;
use std::collections::VecDeque;

/// A work queue of a VI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// An event for a host, visible from a given time on.
#[derive(Clone, Debug)]
pub enum HostEvent {
    /// The data of a packet is in host memory.
    Packet(Packet),
    /// The post with this token is complete.
    Completed(u32, Status),
    /// The connection has ended.
    Disconnected(EndReason),
}

/// The queues of a VI, shared by host and NIC.
#[derive(Clone, Debug)]
pub struct ViQueues {
    /// Whether the VI is connected, so that the NIC polls its queues.
    pub active: bool,
    /// The send rings.
    pub sends: Rings<Work>,
    /// The receive rings.
    pub receives: Rings<Work>,
    /// BVIA: posted receives whose doorbells the NIC has not handled.
    pub receive_doorbells: VecDeque<Work>,
    /// Posted sends whose packets have not reached the peer's host.
    pub sends_in_flight: u32,
    /// Events for the host, each with the time from which it is visible.
    pub host_events: VecDeque<(Time, HostEvent)>,
}

impl ViQueues {
    fn new(settings: &Settings) -> Self {
        // BVIA's queues are lists in host memory, limited only by the VI's work queue.
        let capacity = if settings.kind == Kind::Bvia { usize::MAX } else { settings.small_ring };
        Self {
            active: true,
            sends: Rings::new(capacity),
            receives: Rings::new(capacity),
            receive_doorbells: VecDeque::new(),
            sends_in_flight: 0,
            host_events: VecDeque::new(),
        }
    }

    /// The rings of a work queue.
    pub fn rings(&mut self, side: Side) -> &mut Rings<Work> {
        match side {
            Side::Send => &mut self.sends,
            Side::Receive => &mut self.receives,
        }
    }
}

/// The state of the firmware after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The firmware computes for this long and then continues.
    After(Duration),
    /// The duration of an iteration of the firmware's idle loop.
    Idle(Duration),
}

/// A request of the firmware to the simulation.
#[derive(Clone, Debug)]
pub enum Action {
    /// Start the send engine with this packet.
    Transmit(Packet),
    /// Start to receive: the receive engine has a buffer.
    Armed,
    /// Schedule the end of the host DMA that has started.
    HostDma,
    /// Notify a VI of the host of an event, which is visible after the latency of the bus.
    NotifyHost(usize, HostEvent),
    /// Interrupt the host to refill this ring.
    Refill(usize, Side),
    /// Wake the firmware at this time.
    WakeAt(Time),
}

/// A host with its NIC.
#[derive(Clone, Debug)]
pub struct Station {
    /// The clock of the program on this host.
    pub local: Time,
    /// The bus.
    pub bus: Bus,
    /// The NIC.
    pub card: Card,
    /// The registered memory.
    pub regions: Regions,
    /// The VIs.
    pub vis: Vec<ViQueues>,
    /// BVIA's translations on the NIC.
    pub tlb: Tlb,
    /// Packets in receive buffers that no job has taken.
    pub arrivals: VecDeque<Packet>,
    /// Receive buffers that are neither in use nor armed.
    pub free_receive_buffers: u32,
    /// Whether the receive engine has a buffer.
    pub armed: bool,
    /// Free send buffers (MyVIA).
    pub free_send_buffers: u32,
    /// The job that runs sequentially. In BVIA, every job does; in MyVIA, only those on the fast path.
    pub sequential: Option<Job>,
    /// MyVIA's state machines, the oldest first.
    pub state_machines: VecDeque<Job>,
    /// The index of the state machine that the firmware visits.
    pub cursor: usize,
    /// Whether the cost of the current visit has been charged.
    pub visit_charged: bool,
    /// Whether this round did any work.
    pub progressed: bool,
    /// The cycles of this round so far.
    pub round_cycles: u32,
    /// For each of two engines (host, send), the jobs that have requested its lock. The first one holds it.
    pub locks: [VecDeque<u64>; 2],
    /// Replies that the NIC sends without the host, each with its source memory.
    pub replies: VecDeque<(Packet, Vec<Piece>)>,
    /// The VI to be checked first, for fairness.
    pub next_vi: usize,
    /// Whether packets are checked before doorbells in this round.
    pub packets_first: bool,
    /// When the firmware became idle, and the duration of an iteration of its idle loop.
    pub idle: Option<(Time, Duration)>,
    /// Whether an event has occurred since the firmware's round began, so that it must check again.
    pub must_check_again: bool,
    /// Whether the firmware is scheduled to continue.
    pub is_scheduled: bool,
    next_job: u64,
}

impl Station {
    /// Creates a host whose NIC runs the firmware of `settings`.
    pub fn new(parameters: &Parameters, settings: &Settings) -> Self {
        let contiguous = if settings.kind == Kind::Myvia { parameters.mtu } else { parameters.page_bytes };
        Self {
            local: Time::ZERO,
            bus: Bus::new(parameters),
            card: Card::new(parameters),
            regions: Regions::new(parameters.page_bytes, contiguous),
            vis: Vec::new(),
            tlb: Tlb::new(settings.tlb_entries),
            arrivals: VecDeque::new(),
            free_receive_buffers: parameters.receive_buffers.max(1) - 1,
            armed: true,
            free_send_buffers: parameters.send_buffers.max(1),
            sequential: None,
            state_machines: VecDeque::new(),
            cursor: 0,
            visit_charged: false,
            progressed: false,
            round_cycles: 0,
            locks: Default::default(),
            replies: VecDeque::new(),
            next_vi: 0,
            packets_first: false,
            idle: Some((Time::ZERO, Duration::from_ps(1))),
            must_check_again: false,
            is_scheduled: false,
            next_job: 0,
        }
    }

    /// Allocates the queues of a VI. Their index is never reused: packets and jobs of a closed VI may still be in
    /// progress and would reach its successor.
    pub fn add_vi(&mut self, settings: &Settings) -> usize {
        self.vis.push(ViQueues::new(settings));
        self.vis.len() - 1
    }

    /// The number of VIs that the NIC polls.
    pub fn active(&self) -> usize {
        self.vis.iter().filter(|vi| vi.active).count()
    }

    /// Creates a job of a VI.
    pub fn job(&mut self, vi: usize, ops: VecDeque<Op>, packet: Option<Packet>) -> Job {
        self.next_job += 1;
        Job { id: self.next_job, vi, ops, waits_for: None, packet }
    }

    /// Creates a planner for jobs of this NIC.
    pub fn planner<'a>(&'a mut self, settings: &'a Settings) -> Planner<'a> {
        Planner::new(settings, &mut self.tlb)
    }

    /// Performs a step other than computing: starts an engine or changes the state immediately.
    pub fn perform(&mut self, now: Time, job: &mut Job, op: Op, actions: &mut Vec<Action>) {
        match op {
            Op::HostDma(bytes, direction) => {
                let Self { card, bus, .. } = self;
                card.begin_host(now, bytes, direction, bus);
                job.waits_for = Some(Engine::Host);
                actions.push(Action::HostDma);
            }
            Op::Send => {
                self.card.set_link(Engine::Send, true);
                job.waits_for = Some(Engine::Send);
                if let Some(packet) = job.packet.take() {
                    actions.push(Action::Transmit(packet));
                }
            }
            Op::Complete(token, status) => {
                actions.push(Action::NotifyHost(job.vi, HostEvent::Completed(token, status)))
            }
            Op::Deliver => {
                if let Some(packet) = job.packet.take() {
                    actions.push(Action::NotifyHost(job.vi, HostEvent::Packet(packet)));
                }
            }
            Op::Arm => self.arm(actions),
            Op::FreeReceiveBuffer => {
                self.free_receive_buffers += 1;
                self.arm(actions);
            }
            Op::FreeSendBuffer => self.free_send_buffers += 1,
            Op::TakeReceiveDoorbell => {
                let vi = &mut self.vis[job.vi];
                if let Some(work) = vi.receive_doorbells.pop_front() {
                    vi.receives.write();
                    vi.receives.arrive(work);
                }
            }
            Op::Cycles(_) | Op::Lock(_) | Op::Unlock(_) | Op::TakeReceive => {
                unreachable!("the firmware handles this step itself")
            }
        }
    }

    fn arm(&mut self, actions: &mut Vec<Action>) {
        if !self.armed && self.free_receive_buffers > 0 {
            self.free_receive_buffers -= 1;
            self.armed = true;
            actions.push(Action::Armed);
        }
    }

    /// Continues the sequential job. Returns `None` when it is done.
    pub fn continue_sequential(
        &mut self,
        now: Time,
        settings: &Settings,
        actions: &mut Vec<Action>,
    ) -> Option<Next> {
        let mut job = self.sequential.take()?;
        loop {
            if let Some(engine) = job.waits_for {
                if self.card.is_busy(engine) {
                    // The firmware polls the doorbells and the engine until the engine is done.
                    let round = self.card.cycles(self.waiting_round(settings));
                    self.sequential = Some(job);
                    return Some(Next::Idle(round));
                }
                job.waits_for = None;
            }
            match job.ops.pop_front() {
                None => return None,
                Some(Op::Cycles(cycles)) => {
                    self.sequential = Some(job);
                    return Some(Next::After(self.card.compute(cycles)));
                }
                // There is no other job to lock an engine against.
                Some(Op::Lock(_) | Op::Unlock(_)) => {}
                Some(Op::TakeReceive) => {
                    if let Some(work) = self.vis[job.vi].receives.take() {
                        let steps = self.planner(settings).take_receive(&work);
                        steps.into_iter().rev().for_each(|op| job.ops.push_front(op));
                    }
                }
                Some(op) => self.perform(now, &mut job, op, actions),
            }
        }
    }

    fn waiting_round(&self, settings: &Settings) -> u32 {
        let polls = match settings.kind {
            Kind::Bvia => 2 * self.active() as u32 * steps::POLL_DOORBELL.cycles(),
            Kind::Myvia => 0,
        };
        scaled(polls + steps::FINISH_HOST_DMA.cycles(), settings)
    }

    /// The destination of a packet's data, given by its receive descriptor or its address.
    pub fn pieces_for(&self, packet: &Packet, receive: Option<&Work>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        match (&packet.content, receive) {
            (super::job::Content::Message { header, payload }, _) => {
                if let longma_via::provider::Request::RdmaWrite(remote) = header.request {
                    self.regions.pieces(remote.handle.0, remote.address, payload.len() as u32, &mut pieces);
                    return pieces;
                }
                let mut left = payload.len() as u32;
                for piece in receive.map(|work| &work.pieces[..]).unwrap_or_default() {
                    let bytes = piece.bytes.min(left);
                    if bytes > 0 {
                        pieces.push(Piece { bytes, page: piece.page });
                    }
                    left -= bytes;
                }
                if left > 0 {
                    pieces.push(Piece { bytes: left, page: 0 });
                }
            }
            (super::job::Content::ReadResponse { payload, .. }, _) => {
                self.regions.pieces(0, 0, payload.len() as u32, &mut pieces);
            }
            _ => {}
        }
        pieces
    }
}

/// Scales cycles that are not part of an `Op` by the factor of the settings.
pub fn scaled(cycles: u32, settings: &Settings) -> u32 {
    (f64::from(cycles) * settings.cost_factor).round().max(1.0) as u32
}
