//! A message on its way through a NIC: what was posted, the packet it becomes, and the steps that the firmware takes for it.
//! Not who takes the steps when: BVIA goes through them one after another, MyVIA's machines wait for engines in between.
//! Source: Jiao Zhenqiang et al.; BVIA as described there.

use super::Settings;
use super::lanai::{Direction, Engine};
use super::settings::Kind;
use super::steps::{self, Step};
use super::translation::{Piece, Tlb};
use longma_via::Status;
use longma_via::provider::{Header, Request};
use std::collections::VecDeque;

/// Bytes of a descriptor's control segment, address segment and data segment (VIA, format of a descriptor).
const CONTROL_BYTES: u32 = 32;
const SEGMENT_BYTES: u32 = 16;

/// Bytes that say a descriptor's outcome: status and length, as the last words of the control segment.
const COMPLETION_BYTES: u32 = 16;

/// Bytes of translations that one miss fetches.
const TRANSLATION_BYTES: u32 = 32;

/// Route, type and our header before a packet's data, and the CRC behind it.
pub const PACKET_BYTES: u32 = 4 + 32 + 4;

/// A posted descriptor as the NIC sees it.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// What a send becomes; a receive has none.
    pub packet: Option<Packet>,
    /// Its memory, in pieces.
    pub pieces: Vec<Piece>,
    /// Its data segments.
    pub segments: u32,
    /// The page that the descriptor itself lies on.
    pub page: u64,
}

/// What a packet is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A message, or data of an RDMA write.
    Message {
        /// Its head.
        header: Header,
        /// Its bytes.
        payload: Vec<u8>,
    },
    /// The message of this token is in the peer's memory.
    Acknowledgement(u32),
    /// The peer asks for bytes of memory here.
    ReadRequest(Header),
    /// Bytes for the RDMA read of this token.
    ReadResponse {
        /// Whose.
        token: u32,
        /// The bytes.
        payload: Vec<u8>,
    },
}

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The receiving station and its VI.
    pub to: (usize, usize),
    /// The sending station and its VI.
    pub from: (usize, usize),
    /// The sender's name for it.
    pub token: u32,
    /// Whether the sender completes it only when it is acknowledged.
    pub wants_acknowledgement: bool,
    /// What it is.
    pub content: Content,
}

impl Packet {
    /// Bytes of data.
    pub fn bytes(&self) -> u32 {
        match &self.content {
            Content::Message { payload, .. } | Content::ReadResponse { payload, .. } => payload.len() as u32,
            Content::Acknowledgement(_) | Content::ReadRequest(_) => 0,
        }
    }

    /// Whether it uses up a receive descriptor.
    pub fn uses_receive(&self) -> bool {
        match &self.content {
            Content::Message { header, .. } => header.request == Request::Send || header.immediate.is_some(),
            _ => false,
        }
    }
}

/// What the firmware does next for a job.
#[derive(Clone, Debug)]
pub enum Op {
    /// Computes so many cycles.
    Cycles(u32),
    /// MyVIA: takes an engine for itself, or tries again later.
    Lock(Engine),
    /// MyVIA: gives it back.
    Unlock(Engine),
    /// Starts the host engine, then waits for it.
    HostDma(u32, Direction),
    /// Starts the send engine with the job's packet, then waits for it.
    Send,
    /// MyVIA: needs a descriptor of the VI's receive ring, whose steps follow.
    TakeReceive,
    /// BVIA: knows of a receive descriptor.
    NoteReceive,
    /// The host sees that the job's message is complete.
    Complete(u32, Status),
    /// The host sees the job's packet.
    Deliver,
    /// Lets the receive engine have the other buffer, if there is one.
    Arm,
    /// Gives the packet's receive buffer back.
    FreeReceiveBuffer,
    /// MyVIA: gives the send buffer back.
    FreeSendBuffer,
}

/// A message in the works.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its number, which locks go by.
    pub id: u64,
    /// The VI.
    pub vi: usize,
    /// What is left to do.
    pub ops: VecDeque<Op>,
    /// The engine it waits for.
    pub waits: Option<Engine>,
    /// The packet that is sent or was received.
    pub packet: Option<Packet>,
}

/// Writes down the steps of jobs.
pub struct Planner<'a> {
    settings: &'a Settings,
    tlb: &'a mut Tlb,
    /// Whether the job is a state machine that shares engines with others.
    shares: bool,
    ops: VecDeque<Op>,
}

impl<'a> Planner<'a> {
    /// A planner for the firmware of `settings`.
    pub fn new(settings: &'a Settings, tlb: &'a mut Tlb) -> Self {
        Self { settings, tlb, shares: settings.kind == Kind::Myvia, ops: VecDeque::new() }
    }

    /// For a job that has the NIC for itself.
    pub fn alone(self) -> Self {
        Self { shares: false, ..self }
    }

    fn is_linear(&self) -> bool {
        self.settings.kind == Kind::Bvia
    }

    fn step(&mut self, step: &Step) -> &mut Self {
        let cycles = f64::from(step.cycles()) * self.settings.cost_factor;
        self.ops.push_back(Op::Cycles(cycles.round().max(1.0) as u32));
        self
    }

    fn host_dma(&mut self, bytes: u32, direction: Direction) {
        self.step(&steps::START_HOST_DMA);
        self.ops.push_back(Op::HostDma(bytes, direction));
        self.step(&steps::SEE_HOST_DMA);
    }

    /// BVIA: the address of a page, from the TLB or by DMA from the host's table.
    fn translate(&mut self, page: u64) {
        self.step(&steps::LOOK_UP);
        if !self.tlb.look_up(page) {
            self.step(&steps::MISS);
            self.host_dma(TRANSLATION_BYTES, Direction::FromHost);
            self.step(&steps::FILL);
        }
    }

    /// BVIA: the descriptor, from host memory.
    fn fetch(&mut self, work: &Work) {
        self.translate(work.page);
        self.host_dma(CONTROL_BYTES + SEGMENT_BYTES * work.segments, Direction::FromHost);
        self.step(&steps::PARSE_DESCRIPTOR);
        for _ in 0..work.segments {
            self.step(&steps::PARSE_SEGMENT);
        }
    }

    fn lock(&mut self, engine: Engine) {
        if self.shares {
            self.ops.push_back(Op::Lock(engine));
        }
    }

    fn unlock(&mut self, engine: Engine) {
        if self.shares {
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
            if self.is_linear() {
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
        self.step(&steps::SEE_SEND);
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
        if self.shares {
            self.step(&steps::RETIRE);
        }
        self.ops
    }

    /// A send, an RDMA write or the request of an RDMA read.
    pub fn send(mut self, work: &Work) -> VecDeque<Op> {
        if self.is_linear() {
            self.step(&steps::TAKE_DOORBELL);
            self.fetch(work);
        } else {
            self.step(&steps::TAKE_PHYSICAL);
            for _ in 1..work.pieces.len() {
                self.step(&steps::PHYSICAL_SEGMENT);
            }
            if self.shares {
                self.step(&steps::TRY_LOCK).step(&steps::CREATE_MACHINE);
            }
        }
        let packet = work.packet.as_ref();
        let is_read = packet.is_some_and(|p| matches!(p.content, Content::ReadRequest(_)));
        if !is_read {
            self.data(&work.pieces, Direction::FromHost);
        }
        self.transmit();
        if !self.is_linear() {
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

    /// A packet that came, whose data goes to `pieces`; `work` is the receive descriptor, if BVIA has one for it.
    pub fn receive(mut self, packet: &Packet, pieces: &[Piece], work: Option<&Work>) -> VecDeque<Op> {
        self.step(&steps::SEE_PACKET);
        self.ops.push_back(Op::Arm);
        self.step(&steps::PARSE_HEADER);
        if self.shares {
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
            match (self.is_linear(), work) {
                (true, Some(work)) => {
                    self.step(&steps::FIND_RECEIVE);
                    self.fetch(work);
                }
                (true, None) => {}
                (false, _) => self.ops.push_back(Op::TakeReceive),
            }
        }
        self.data(pieces, Direction::ToHost);
        // A machine gives back what it does not need any more, as a send does: held until the outcome, which waits for the host engine
        // behind the next packet's data, the buffer would keep the wire idle for as long as a DMA takes.
        let early = !self.is_linear();
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

    /// MyVIA: the receive descriptor of a packet, when it is there.
    pub fn take_receive(mut self, work: &Work) -> VecDeque<Op> {
        self.step(&steps::TAKE_PHYSICAL);
        for _ in 1..work.pieces.len() {
            self.step(&steps::PHYSICAL_SEGMENT);
        }
        self.ops
    }

    /// BVIA: a rung receive doorbell.
    pub fn note_receive(mut self) -> VecDeque<Op> {
        self.step(&steps::TAKE_DOORBELL);
        self.ops.push_back(Op::NoteReceive);
        self.ops
    }

    /// An acknowledgement, or the answer to an RDMA read, that the NIC sends of itself.
    pub fn reply(mut self, pieces: &[Piece]) -> VecDeque<Op> {
        self.data(pieces, Direction::FromHost);
        self.transmit();
        self.finish()
    }
}
