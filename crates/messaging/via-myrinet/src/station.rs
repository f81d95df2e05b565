//! One host with its NIC: the VIs' queues, the buffers, the engines, and what the firmware is at.
//! Not the wire: the world carries packets between stations.
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
use longma_via::provider::Gone;
use std::collections::VecDeque;

/// Which of a VI's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// Something a host learns of, once its clock is there.
#[derive(Clone, Debug)]
pub enum News {
    /// A packet's data is in host memory.
    Packet(Packet),
    /// The post of this token is complete.
    Completed(u32, Status),
    /// The connection is over.
    Gone(Gone),
}

/// A VI as host and NIC share it.
#[derive(Clone, Debug)]
pub struct ViQueues {
    /// Whether it is connected: the NIC looks at its queues.
    pub active: bool,
    /// Sends, as far as they are on the NIC, and behind them.
    pub sends: Rings<Work>,
    /// Receives.
    pub receives: Rings<Work>,
    /// BVIA: receives whose doorbell the NIC has not taken.
    pub rung: VecDeque<Work>,
    /// Posted sends whose packets the peer's host has not got.
    pub under_way: u32,
    /// What the host will see, and from when on.
    pub news: VecDeque<(Time, News)>,
}

impl ViQueues {
    fn new(settings: &Settings) -> Self {
        // BVIA's queues are lists in host memory: they end where the VI's work queue does.
        let capacity = if settings.kind == Kind::Bvia { usize::MAX } else { settings.small_ring };
        Self {
            active: true,
            sends: Rings::new(capacity),
            receives: Rings::new(capacity),
            rung: VecDeque::new(),
            under_way: 0,
            news: VecDeque::new(),
        }
    }

    /// One of its queues.
    pub fn rings(&mut self, side: Side) -> &mut Rings<Work> {
        match side {
            Side::Send => &mut self.sends,
            Side::Receive => &mut self.receives,
        }
    }
}

/// What a firmware does after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Computes so long, then goes on.
    After(Duration),
    /// Goes round a loop that takes so long and finds nothing until something happens.
    Idle(Duration),
}

/// What a firmware asks of the world.
#[derive(Clone, Debug)]
pub enum Order {
    /// The send engine takes this packet.
    Transmit(Packet),
    /// The receive engine has a buffer.
    Armed,
    /// The host engine has begun.
    HostDma,
    /// The host sees this from now on, but for the way through the bridge.
    Tell(usize, News),
    /// The host is interrupted to refill this ring.
    Refill(usize, Side),
    /// The firmware wants to be woken then.
    WakeAt(Time),
}

/// A host with its NIC.
#[derive(Clone, Debug)]
pub struct Station {
    /// The clock of the program on this host.
    pub local: Time,
    /// Its bus.
    pub bus: Bus,
    /// Its NIC.
    pub card: Card,
    /// Its memory.
    pub regions: Regions,
    /// Its VIs.
    pub vis: Vec<ViQueues>,
    /// BVIA's translations on the NIC.
    pub tlb: Tlb,
    /// Packets in receive buffers that no job has taken.
    pub arrivals: VecDeque<Packet>,
    /// Receive buffers that are neither filled nor armed.
    pub free_receive_buffers: u32,
    /// Whether the receive engine has a buffer.
    pub armed: bool,
    /// Send buffers that are free (MyVIA).
    pub free_send_buffers: u32,
    /// The job that goes step by step: all of BVIA's, MyVIA's small ones.
    pub linear: Option<Job>,
    /// MyVIA's state machines, oldest first.
    pub machines: VecDeque<Job>,
    /// The machine that is visited, and whether its visit was paid for.
    pub cursor: usize,
    /// See `cursor`.
    pub entered: bool,
    /// Whether this round did anything.
    pub progressed: bool,
    /// Cycles of this round so far.
    pub round_cycles: u32,
    /// Who has the engines (host, send), and who waits for them.
    pub locks: [VecDeque<u64>; 2],
    /// Replies that the NIC sends of itself, with the memory they come from.
    pub replies: VecDeque<(Packet, Vec<Piece>)>,
    /// The VI that is looked at first, so that all get their turn.
    pub next_vi: usize,
    /// Whether packets go before doorbells this time.
    pub packets_first: bool,
    /// Since when the firmware idles, and how long its loop takes.
    pub idle: Option<(Time, Duration)>,
    /// Something happened since the firmware's round began: what it has passed already must be looked at again.
    pub poked: bool,
    /// Whether the firmware will go on at a planned time.
    pub planned: bool,
    next_job: u64,
}

impl Station {
    /// A host whose NIC runs the firmware of `settings`.
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
            linear: None,
            machines: VecDeque::new(),
            cursor: 0,
            entered: false,
            progressed: false,
            round_cycles: 0,
            locks: Default::default(),
            replies: VecDeque::new(),
            next_vi: 0,
            packets_first: false,
            idle: Some((Time::ZERO, Duration::from_ps(1))),
            poked: false,
            planned: false,
            next_job: 0,
        }
    }

    /// A place for a VI's queues. No place is used twice: packets and jobs of a VI that has left may still be under way, and would
    /// reach the VI that came after it.
    pub fn add_vi(&mut self, settings: &Settings) -> usize {
        self.vis.push(ViQueues::new(settings));
        self.vis.len() - 1
    }

    /// VIs that the NIC looks at.
    pub fn active(&self) -> usize {
        self.vis.iter().filter(|vi| vi.active).count()
    }

    /// A job of this VI.
    pub fn job(&mut self, vi: usize, ops: VecDeque<Op>, packet: Option<Packet>) -> Job {
        self.next_job += 1;
        Job { id: self.next_job, vi, ops, waits: None, packet }
    }

    /// Writes down the steps of jobs of this NIC.
    pub fn planner<'a>(&'a mut self, settings: &'a Settings) -> Planner<'a> {
        Planner::new(settings, &mut self.tlb)
    }

    /// Does the next thing of a job that is no computing: an engine is started, or a change is made at once.
    pub fn perform(&mut self, now: Time, job: &mut Job, op: Op, orders: &mut Vec<Order>) {
        match op {
            Op::HostDma(bytes, direction) => {
                let Self { card, bus, .. } = self;
                card.begin_host(now, bytes, direction, bus);
                job.waits = Some(Engine::Host);
                orders.push(Order::HostDma);
            }
            Op::Send => {
                self.card.set_link(Engine::Send, true);
                job.waits = Some(Engine::Send);
                if let Some(packet) = job.packet.take() {
                    orders.push(Order::Transmit(packet));
                }
            }
            Op::Complete(token, status) => orders.push(Order::Tell(job.vi, News::Completed(token, status))),
            Op::Deliver => {
                if let Some(packet) = job.packet.take() {
                    orders.push(Order::Tell(job.vi, News::Packet(packet)));
                }
            }
            Op::Arm => self.arm(orders),
            Op::FreeReceiveBuffer => {
                self.free_receive_buffers += 1;
                self.arm(orders);
            }
            Op::FreeSendBuffer => self.free_send_buffers += 1,
            Op::NoteReceive => {
                let vi = &mut self.vis[job.vi];
                if let Some(work) = vi.rung.pop_front() {
                    vi.receives.write();
                    vi.receives.arrive(work);
                }
            }
            Op::Cycles(_) | Op::Lock(_) | Op::Unlock(_) | Op::TakeReceive => {
                unreachable!("the firmware's own")
            }
        }
    }

    fn arm(&mut self, orders: &mut Vec<Order>) {
        if !self.armed && self.free_receive_buffers > 0 {
            self.free_receive_buffers -= 1;
            self.armed = true;
            orders.push(Order::Armed);
        }
    }

    /// Goes on with the job that runs step by step: `None` when it is done.
    pub fn go_on(&mut self, now: Time, settings: &Settings, orders: &mut Vec<Order>) -> Option<Next> {
        let mut job = self.linear.take()?;
        loop {
            if let Some(engine) = job.waits {
                if self.card.is_busy(engine) {
                    // The firmware looks at the doorbells, and at the engine, until it is done.
                    let round = self.card.cycles(self.waiting_round(settings));
                    self.linear = Some(job);
                    return Some(Next::Idle(round));
                }
                job.waits = None;
            }
            match job.ops.pop_front() {
                None => return None,
                Some(Op::Cycles(cycles)) => {
                    self.linear = Some(job);
                    return Some(Next::After(self.card.compute(cycles)));
                }
                // Nobody else is there to lock an engine against.
                Some(Op::Lock(_) | Op::Unlock(_)) => {}
                Some(Op::TakeReceive) => {
                    if let Some(work) = self.vis[job.vi].receives.take() {
                        let steps = self.planner(settings).take_receive(&work);
                        steps.into_iter().rev().for_each(|op| job.ops.push_front(op));
                    }
                }
                Some(op) => self.perform(now, &mut job, op, orders),
            }
        }
    }

    fn waiting_round(&self, settings: &Settings) -> u32 {
        let polls = match settings.kind {
            Kind::Bvia => 2 * self.active() as u32 * steps::POLL_DOORBELL.cycles(),
            Kind::Myvia => 0,
        };
        scaled(polls + steps::SEE_HOST_DMA.cycles(), settings)
    }

    /// The pieces that a packet's data goes to, as its receive descriptor or its address says.
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

/// Cycles of steps that are no `Op`, with the factor of the settings.
pub fn scaled(cycles: u32, settings: &Settings) -> u32 {
    (f64::from(cycles) * settings.cost_factor).round().max(1.0) as u32
}
