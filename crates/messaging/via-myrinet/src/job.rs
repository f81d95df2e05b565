//! A message in progress on a NIC: the work request, its packet, and the steps of the firmware. BVIA performs the steps
//! of one job after another; MyVIA's state machines wait for engines in between.
//!
//! Source: Jiao Zhenqiang et al., which also describes BVIA.

use super::Settings;
use super::lanai::{Direction, Engine};
use super::settings::Kind;
use super::steps::{self, FirmwareStep};
use super::translation::{Piece, Tlb};
use longma_via::Status;
use longma_via::provider::{Header, Request};
use std::collections::VecDeque;

/// The sizes of a descriptor's control segment and of its address and data segments, bytes (VIA, format of a
/// descriptor).
const CONTROL_BYTES: u32 = 32;
const SEGMENT_BYTES: u32 = 16;

/// The size of the completion, bytes: status and length, the last words of the control segment.
const COMPLETION_BYTES: u32 = 16;

/// The size of the translations fetched after a TLB miss, bytes.
const TRANSLATION_BYTES: u32 = 32;

/// The size of route, type and header before a packet's data, and of the CRC after it, bytes.
pub const PACKET_BYTES: u32 = 4 + 32 + 4;

/// A posted descriptor as seen by the NIC.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// The packet of a send. `None` for a receive.
    pub packet: Option<Packet>,
    /// The memory, as DMA pieces.
    pub pieces: Vec<Piece>,
    /// The number of data segments.
    pub segments: u32,
    /// The page that contains the descriptor.
    pub page: u64,
}

/// The contents of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A message, or the data of an RDMA write.
    Message {
        /// The header.
        header: Header,
        /// The data.
        payload: Vec<u8>,
    },
    /// The message with this token has been received into memory.
    Acknowledgement(u32),
    /// A request for data from the receiver's memory.
    ReadRequest(Header),
    /// Data for the RDMA read with this token.
    ReadResponse {
        /// The token of the read.
        token: u32,
        /// The data.
        payload: Vec<u8>,
    },
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The receiving station and VI.
    pub to: (usize, usize),
    /// The sending station and VI.
    pub from: (usize, usize),
    /// The sender's token.
    pub token: u32,
    /// Whether the sender's descriptor completes only with the acknowledgement.
    pub wants_acknowledgement: bool,
    /// The contents.
    pub content: Content,
}

impl Packet {
    /// The size of the data, bytes.
    pub fn bytes(&self) -> u32 {
        match &self.content {
            Content::Message { payload, .. } | Content::ReadResponse { payload, .. } => payload.len() as u32,
            Content::Acknowledgement(_) | Content::ReadRequest(_) => 0,
        }
    }

    /// Whether the packet consumes a receive descriptor.
    pub fn uses_receive(&self) -> bool {
        match &self.content {
            Content::Message { header, .. } => header.request == Request::Send || header.immediate.is_some(),
            _ => false,
        }
    }
}

/// A step of a job.
#[derive(Clone, Debug)]
pub enum Op {
    /// Computes for this many cycles.
    Cycles(u32),
    /// MyVIA: locks an engine, or retries later.
    Lock(Engine),
    /// MyVIA: unlocks an engine.
    Unlock(Engine),
    /// Starts the host DMA engine and waits for it.
    HostDma(u32, Direction),
    /// Starts the send engine with the job's packet and waits for it.
    Send,
    /// MyVIA: takes a descriptor of the VI's receive ring, and inserts its steps.
    TakeReceive,
    /// BVIA: records a receive descriptor.
    TakeReceiveDoorbell,
    /// Reports the completion to the host.
    Complete(u32, Status),
    /// Delivers the job's packet to the host.
    Deliver,
    /// Assigns a free buffer to the receive engine, if there is one.
    Arm,
    /// Frees the packet's receive buffer.
    FreeReceiveBuffer,
    /// MyVIA: frees the send buffer.
    FreeSendBuffer,
}

/// A message in progress.
#[derive(Clone, Debug)]
pub struct Job {
    /// The number of the job, used by the locks.
    pub id: u64,
    /// The VI.
    pub vi: usize,
    /// The remaining steps.
    pub ops: VecDeque<Op>,
    /// The engine that the job waits for.
    pub waits_for: Option<Engine>,
    /// The packet being sent or received.
    pub packet: Option<Packet>,
}

/// Generates the steps of jobs.
pub struct Planner<'a> {
    settings: &'a Settings,
    tlb: &'a mut Tlb,
    /// Whether the job is a state machine that shares the engines with others.
    shares_engines: bool,
    ops: VecDeque<Op>,
}

impl<'a> Planner<'a> {
    /// Creates a planner for the firmware of `settings`.
    pub fn new(settings: &'a Settings, tlb: &'a mut Tlb) -> Self {
        Self { settings, tlb, shares_engines: settings.kind == Kind::Myvia, ops: VecDeque::new() }
    }

    /// Plans a job on the fast path, on which no other job uses the engines, so that it needs no locks.
    pub fn on_fast_path(self) -> Self {
        Self { shares_engines: false, ..self }
    }

    fn is_bvia(&self) -> bool {
        self.settings.kind == Kind::Bvia
    }

    fn step(&mut self, step: &FirmwareStep) -> &mut Self {
        let cycles = f64::from(step.cycles()) * self.settings.cost_factor;
        self.ops.push_back(Op::Cycles(cycles.round().max(1.0) as u32));
        self
    }

    fn host_dma(&mut self, bytes: u32, direction: Direction) {
        self.step(&steps::START_HOST_DMA);
        self.ops.push_back(Op::HostDma(bytes, direction));
        self.step(&steps::FINISH_HOST_DMA);
    }

    /// BVIA: translates a page with the TLB, or after a miss with the host's table, which is read by DMA.
    fn translate(&mut self, page: u64) {
        self.step(&steps::LOOK_UP);
        if !self.tlb.look_up(page) {
            self.step(&steps::MISS);
            self.host_dma(TRANSLATION_BYTES, Direction::FromHost);
            self.step(&steps::FILL);
        }
    }

    /// BVIA: fetches the descriptor from host memory.
    fn fetch(&mut self, work: &Work) {
        self.translate(work.page);
        self.host_dma(CONTROL_BYTES + SEGMENT_BYTES * work.segments, Direction::FromHost);
        self.step(&steps::PARSE_DESCRIPTOR);
        for _ in 0..work.segments {
            self.step(&steps::PARSE_SEGMENT);
        }
    }

    fn lock(&mut self, engine: Engine) {
        if self.shares_engines {
            self.ops.push_back(Op::Lock(engine));
        }
    }

    fn unlock(&mut self, engine: Engine) {
        if self.shares_engines {
            self.step(&steps::UNLOCK);
            self.ops.push_back(Op::Unlock(engine));
        }
    }

    fn data(&mut self, pieces: &[Piece], direction: Direction) {
        if pieces.is_empty() {
            return;
        }
        self.lock(Engine::Host);
        for piece in pieces {
            self.step(&steps::NEXT_PIECE);
            if self.is_bvia() {
                self.translate(piece.page);
            }
            self.host_dma(piece.bytes, direction);
        }
        self.unlock(Engine::Host);
    }

    fn transmit(&mut self) {
        self.step(&steps::BUILD_HEADER);
        self.lock(Engine::Send);
        self.step(&steps::START_SEND);
        self.ops.push_back(Op::Send);
        self.step(&steps::FINISH_SEND);
        self.unlock(Engine::Send);
    }

    fn outcome(&mut self, then: Op) {
        self.step(&steps::BUILD_COMPLETION);
        self.lock(Engine::Host);
        self.host_dma(COMPLETION_BYTES, Direction::ToHost);
        self.unlock(Engine::Host);
        self.ops.push_back(then);
    }

    fn finish(mut self) -> VecDeque<Op> {
        self.step(&steps::FINISH);
        if self.shares_engines {
            self.step(&steps::RETIRE);
        }
        self.ops
    }

    /// The steps of a send, an RDMA write or an RDMA read request.
    pub fn send(mut self, work: &Work) -> VecDeque<Op> {
        if self.is_bvia() {
            self.step(&steps::TAKE_DOORBELL);
            self.fetch(work);
        } else {
            self.step(&steps::TAKE_PHYSICAL);
            for _ in 1..work.pieces.len() {
                self.step(&steps::PHYSICAL_SEGMENT);
            }
            if self.shares_engines {
                self.step(&steps::TRY_LOCK).step(&steps::CREATE_MACHINE);
            }
        }
        let packet = work.packet.as_ref();
        let is_read = packet.is_some_and(|p| matches!(p.content, Content::ReadRequest(_)));
        if !is_read {
            self.data(&work.pieces, Direction::FromHost);
        }
        self.transmit();
        if !self.is_bvia() {
            self.ops.push_back(Op::FreeSendBuffer);
        }
        if let Some(packet) = packet
            && !packet.wants_acknowledgement
            && !is_read
        {
            self.outcome(Op::Complete(packet.token, Status::DONE));
        }
        self.finish()
    }

    /// The steps for a received packet with data for `pieces`. `work` is the receive descriptor, if BVIA has one for
    /// it.
    pub fn receive(mut self, packet: &Packet, pieces: &[Piece], work: Option<&Work>) -> VecDeque<Op> {
        self.step(&steps::ACCEPT_PACKET);
        self.ops.push_back(Op::Arm);
        self.step(&steps::PARSE_HEADER);
        if self.shares_engines {
            self.step(&steps::CREATE_MACHINE);
        }
        let is_rdma = match &packet.content {
            Content::Message { header, .. } => header.request != Request::Send,
            Content::ReadRequest(_) => true,
            Content::Acknowledgement(_) | Content::ReadResponse { .. } => false,
        };
        if is_rdma {
            self.step(&steps::CHECK_RDMA);
        }
        if packet.uses_receive() {
            match (self.is_bvia(), work) {
                (true, Some(work)) => {
                    self.step(&steps::FIND_RECEIVE);
                    self.fetch(work);
                }
                (true, None) => {}
                (false, _) => self.ops.push_back(Op::TakeReceive),
            }
        }
        self.data(pieces, Direction::ToHost);
        // MyVIA frees the buffer early, as it does for a send. The completion waits until the host engine has moved the
        // next packet's data. If the buffer were held until then, the wire would be idle for the duration of a DMA.
        let early = !self.is_bvia();
        if early {
            self.ops.push_back(Op::FreeReceiveBuffer);
        }
        match packet.content {
            Content::Acknowledgement(token) => self.outcome(Op::Complete(token, Status::DONE)),
            Content::Message { .. } if !packet.uses_receive() => self.ops.push_back(Op::Deliver),
            _ => self.outcome(Op::Deliver),
        }
        if !early {
            self.ops.push_back(Op::FreeReceiveBuffer);
        }
        self.finish()
    }

    /// MyVIA: the steps for taking the receive descriptor of a packet.
    pub fn take_receive(mut self, work: &Work) -> VecDeque<Op> {
        self.step(&steps::TAKE_PHYSICAL);
        for _ in 1..work.pieces.len() {
            self.step(&steps::PHYSICAL_SEGMENT);
        }
        self.ops
    }

    /// BVIA: the steps for the doorbell of a posted receive.
    pub fn take_receive_doorbell(mut self) -> VecDeque<Op> {
        self.step(&steps::TAKE_DOORBELL);
        self.ops.push_back(Op::TakeReceiveDoorbell);
        self.ops
    }

    /// The steps for a packet that the NIC sends on its own: an acknowledgement, or the answer to an RDMA read.
    pub fn reply(mut self, pieces: &[Piece]) -> VecDeque<Op> {
        self.data(pieces, Direction::FromHost);
        self.transmit();
        self.finish()
    }
}
