//! The client and server endpoints of a measurement, as state machines on the VIA interface that never block. On a real
//! network, each endpoint is a separate process; on the modelled network, both are in this process.
//!
//! Source: the metrics are those of `ib_send_lat` and `ib_send_bw`: half a round trip, and back-to-back messages.

use longma_via::{Completion, Descriptor, Error, MemoryAttributes, MemoryRegion, Nic, Vi, ViAttributes};
use longma_via_myrinet::Fabric;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Number of receives that the endpoint receiving a stream keeps posted.
const DEPTH: u32 = 512;

/// Number of received messages per credit message.
const CREDIT: u32 = DEPTH / 4;

/// Number of uncollected sends at which an endpoint that is busy receiving collects them, so that the work queue does
/// not fill up. An endpoint that polls usually collects them while it waits.
const MAX_UNCOLLECTED: u64 = 64;

/// Size of a request in bytes.
pub const REQUEST_BYTES: usize = 256;

/// Kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Measure {
    /// Round trips of one message each.
    Ping,
    /// Back-to-back messages in one direction.
    Bandwidth,
    /// No measurement: the end of the connection.
    End,
}

/// The client's request for a measurement. Sent before each measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasurementRequest {
    /// Kind of measurement.
    pub measure: Measure,
    /// Size of a message in bytes.
    pub bytes: u32,
    /// Number of measured messages.
    pub messages: u32,
    /// Number of unmeasured messages before the measured ones.
    pub warm_up: u32,
    /// Maximum number of posted but incomplete sends.
    pub window: u32,
}

impl MeasurementRequest {
    /// Total number of messages in each direction.
    fn total(&self) -> u64 {
        u64::from(self.messages) + u64::from(self.warm_up)
    }

    /// Number of messages that the client receives: the ready message, followed by answers or credits.
    fn answers(&self) -> u64 {
        match self.measure {
            Measure::Bandwidth => 2 + self.total().saturating_sub(1) / u64::from(CREDIT),
            _ => 1 + self.total(),
        }
    }
}

/// The clock of a measurement.
#[derive(Clone)]
pub enum Clock {
    /// The host's clock. The measurement starts at the given time.
    Real(Instant),
    /// The clock of a modelled host.
    Modelled(Fabric, usize),
}

impl Clock {
    /// Time since the start in picoseconds.
    pub fn now(&self) -> u64 {
        match self {
            Clock::Real(begin) => begin.elapsed().as_nanos() as u64 * 1000,
            Clock::Modelled(fabric, station) => fabric.time(*station).ps(),
        }
    }
}

/// A VI with its memory.
pub struct Endpoint {
    /// The VI.
    pub vi: Vi,
    /// The first half is the send buffer, the second half the receive buffer.
    memory: MemoryRegion,
    half: usize,
    /// Its clock.
    pub clock: Clock,
    /// Whether to sleep instead of polling when idle.
    pub sleeps: bool,
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum StepResult {
    /// No work was pending.
    Idle,
    /// Progress was made.
    Moved,
    /// The measurement is complete: its times in picoseconds.
    Finished(Vec<u64>),
}

/// Why a measurement ended early.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// A VIA call failed.
    #[error("{0}")]
    Via(#[from] Error),
    /// A descriptor completed with an error.
    #[error("a message of {bytes} bytes failed: {status:?}")]
    Failed {
        /// Size of the message.
        bytes: u32,
        /// Status of the descriptor.
        status: longma_via::Status,
    },
    /// The peer sent an invalid request.
    #[error("the peer is not a `longma via` of this version")]
    VersionMismatch,
}

impl Endpoint {
    /// Creates a VI of `nic` with buffers for messages of up to `bytes`.
    ///
    /// # Errors
    /// If the NIC has no memory or no VI left.
    pub fn new(
        nic: &Nic,
        bytes: usize,
        clock: Clock,
        attributes: impl Fn(ViAttributes) -> ViAttributes,
    ) -> Result<Self, Error> {
        let tag = nic.create_protection_tag()?;
        let half = bytes.max(REQUEST_BYTES);
        // Each half starts at a page and, on the modelled NIC, at a unit that one DMA transfer covers.
        let half = half.next_multiple_of((nic.attributes().native_mtu_bytes as usize).clamp(4096, 1 << 20));
        let memory = nic.allocate(2 * half, MemoryAttributes::local(tag))?;
        let vi = nic.create_vi(attributes(ViAttributes::new(tag)), None, None)?;
        Ok(Self { vi, memory, half, clock, sleeps: false })
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// If the VI does not accept it.
    pub fn post_receive(&self) -> Result<(), Error> {
        self.vi.post_receive(&Descriptor::receive(&[self.memory.segment(self.half, self.half)]))
    }

    fn post_send(&self, bytes: u32, immediate: Option<u32>) -> Result<(), Error> {
        let segments = [self.memory.segment(0, bytes as usize)];
        let descriptor = Descriptor::send(&segments);
        let descriptor = immediate.map_or(descriptor, |immediate| descriptor.with_immediate(immediate));
        self.vi.post_send(&descriptor)
    }

    fn received(&self) -> Result<Option<Completion>, ExchangeError> {
        let found = match self.sleeps {
            true => match self.vi.receive_wait(Some(Duration::from_millis(100))) {
                Ok(completion) => Some(completion),
                Err(Error::Timeout) => None,
                Err(error) => return Err(error.into()),
            },
            false => self.vi.receive_done(),
        };
        found.map(|completion| self.checked(completion)).transpose()
    }

    fn sent(&self) -> Result<Option<Completion>, ExchangeError> {
        self.vi.send_done().map(|completion| self.checked(completion)).transpose()
    }

    fn checked(&self, completion: Completion) -> Result<Completion, ExchangeError> {
        if completion.is_success() {
            return Ok(completion);
        }
        let Completion { length: bytes, status, .. } = completion;
        Err(match self.vi.end_reason() {
            Some(reason) => Error::ConnectionEnded(reason).into(),
            None => ExchangeError::Failed { bytes, status },
        })
    }

    /// Sends `request` to the peer.
    ///
    /// # Errors
    /// If the VI does not accept the send.
    pub fn send_request(&self, request: &MeasurementRequest) -> Result<(), ExchangeError> {
        let mut text = serde_json::to_vec(request).unwrap_or_default();
        text.resize(REQUEST_BYTES, b' ');
        self.memory.write(0, &text);
        Ok(self.post_send(REQUEST_BYTES as u32, None)?)
    }

    /// Returns the peer's next request, if it has arrived.
    ///
    /// # Errors
    /// If the receive failed, or if the message is not a request of this version.
    pub fn receive_request(&self) -> Result<Option<MeasurementRequest>, ExchangeError> {
        let Some(completion) = self.received()? else { return Ok(None) };
        let mut text = [0; REQUEST_BYTES];
        self.memory.read(self.half, &mut text);
        let text = &text[..(completion.length as usize).min(REQUEST_BYTES)];
        serde_json::from_slice(text).map(Some).map_err(|_| ExchangeError::VersionMismatch)
    }
}

/// Counts the receives that remain to be posted, so that exactly as many are posted as messages arrive.
#[derive(Default)]
struct Receives {
    left: u64,
}

impl Receives {
    /// Posts `depth` receives of `total`.
    fn post(end: &Endpoint, depth: u64, total: u64) -> Result<Self, Error> {
        let now = depth.min(total);
        for _ in 0..now {
            end.post_receive()?;
        }
        Ok(Self { left: total - now })
    }

    /// Posts another receive if one is needed.
    fn post_next(&mut self, end: &Endpoint) -> Result<(), Error> {
        if self.left > 0 {
            self.left -= 1;
            end.post_receive()?;
        }
        Ok(())
    }
}

/// The role of an endpoint in a measurement.
pub enum Role {
    /// Sends pings.
    Pinger(Pinger),
    /// Answers pings.
    Echoer(Echoer),
    /// Sends a stream.
    StreamSender(StreamSender),
    /// Receives a stream.
    StreamReceiver(StreamReceiver),
}

impl Role {
    /// Creates the client's role and posts its receives.
    ///
    /// # Errors
    /// If the VI does not accept a receive.
    pub fn client_role(request: MeasurementRequest, end: &Endpoint) -> Result<Self, ExchangeError> {
        let receives =
            Receives::post(end, if request.measure == Measure::Ping { 1 } else { 8 }, request.answers())?;
        Ok(match request.measure {
            Measure::Bandwidth => {
                Role::StreamSender(StreamSender { request, receives, ..StreamSender::default() })
            }
            _ => Role::Pinger(Pinger { request, receives, ..Pinger::default() }),
        })
    }

    /// Creates the server's role, posts its receives, and tells the client to start.
    ///
    /// # Errors
    /// If the VI does not accept a descriptor.
    pub fn serving(request: MeasurementRequest, end: &Endpoint) -> Result<Self, ExchangeError> {
        let depth = if request.measure == Measure::Ping { 2 } else { u64::from(DEPTH) };
        let receives = Receives::post(end, depth, request.total())?;
        // For the next request.
        end.post_receive()?;
        end.post_send(0, None)?;
        Ok(match request.measure {
            Measure::Bandwidth => {
                Role::StreamReceiver(StreamReceiver { request, receives, ..StreamReceiver::default() })
            }
            _ => Role::Echoer(Echoer { request, receives, ..Echoer::default() }),
        })
    }

    /// Makes as much progress as possible without blocking.
    ///
    /// # Errors
    /// If the VI does not accept a descriptor, or if one completed with an error.
    pub fn step(&mut self, end: &Endpoint) -> Result<StepResult, ExchangeError> {
        match self {
            Role::Pinger(side) => side.step(end),
            Role::Echoer(side) => side.step(end),
            Role::StreamSender(side) => side.step(end),
            Role::StreamReceiver(side) => side.step(end),
        }
    }
}

impl Default for MeasurementRequest {
    fn default() -> Self {
        Self { measure: Measure::End, bytes: 0, messages: 0, warm_up: 0, window: 1 }
    }
}

/// Sends a message and waits for one back.
#[derive(Default)]
pub struct Pinger {
    request: MeasurementRequest,
    receives: Receives,
    started: bool,
    in_flight: Option<u64>,
    count: u64,
    /// Number of collected sends, including the request.
    sent: u64,
    times: Vec<u64>,
}

impl Pinger {
    fn step(&mut self, end: &Endpoint) -> Result<StepResult, ExchangeError> {
        let received_completion =
            if self.in_flight.is_some() || !self.started { end.received()? } else { None };
        if received_completion.is_some() {
            if let Some(begin) = self.in_flight.take() {
                if self.count > u64::from(self.request.warm_up) {
                    self.times.push((end.clock.now() - begin) / 2);
                }
                if self.count == self.request.total() {
                    while end.sent()?.is_some() {}
                    return Ok(StepResult::Finished(std::mem::take(&mut self.times)));
                }
            }
            // Either the server is ready, or its answer has arrived: send the next ping.
            self.started = true;
            self.receives.post_next(end)?;
        } else if !self.started || self.in_flight.is_some() {
            let collected = end.sent()?.is_some();
            self.sent += u64::from(collected);
            return Ok(if collected { StepResult::Moved } else { StepResult::Idle });
        }
        while self.count.saturating_sub(self.sent) >= MAX_UNCOLLECTED && end.sent()?.is_some() {
            self.sent += 1;
        }
        self.in_flight = Some(end.clock.now());
        self.count += 1;
        end.post_send(self.request.bytes, None)?;
        Ok(StepResult::Moved)
    }
}

/// Answers each message with one of the same size.
#[derive(Default)]
pub struct Echoer {
    request: MeasurementRequest,
    receives: Receives,
    count: u64,
    sent: u64,
}

impl Echoer {
    fn step(&mut self, end: &Endpoint) -> Result<StepResult, ExchangeError> {
        if self.count < self.request.total() && end.received()?.is_some() {
            self.count += 1;
            end.post_send(self.request.bytes, None)?;
            self.receives.post_next(end)?;
            while self.count.saturating_sub(self.sent) >= MAX_UNCOLLECTED && end.sent()?.is_some() {
                self.sent += 1;
            }
            return Ok(StepResult::Moved);
        }
        if end.sent()?.is_none() {
            return Ok(StepResult::Idle);
        }
        self.sent += 1;
        // The total includes the ready message.
        let over = self.sent == self.request.total() + 1;
        Ok(if over { StepResult::Finished(Vec::new()) } else { StepResult::Moved })
    }
}

/// Sends back-to-back messages within the credits of the peer.
#[derive(Default)]
pub struct StreamSender {
    request: MeasurementRequest,
    receives: Receives,
    posted: u64,
    sent: u64,
    allowed: u64,
    begin: u64,
}

impl StreamSender {
    fn step(&mut self, end: &Endpoint) -> Result<StepResult, ExchangeError> {
        let mut progressed = false;
        // The first completion is the request itself.
        while end.sent()?.is_some() {
            self.sent += 1;
            progressed = true;
            if self.sent == u64::from(self.request.warm_up) + 1 {
                // The warm-up messages are on their way, so the measured ones follow without a gap.
                self.begin = end.clock.now();
            }
        }
        let waits = self.posted == self.request.total() || self.posted >= self.allowed;
        if waits || self.posted.is_multiple_of(16) {
            while let Some(received_completion) =
                end.vi.receive_done().map(|completion| end.checked(completion)).transpose()?
            {
                progressed = true;
                self.receives.post_next(end)?;
                self.allowed += u64::from(received_completion.immediate.unwrap_or(DEPTH));
                if received_completion.immediate == Some(0) {
                    return Ok(StepResult::Finished(vec![end.clock.now() - self.begin]));
                }
            }
        }
        let total = self.request.total();
        let in_flight = (self.posted + 1).saturating_sub(self.sent);
        if self.posted < total.min(self.allowed) && in_flight < u64::from(self.request.window.max(1)) + 1 {
            if self.posted == 0 && self.request.warm_up == 0 {
                self.begin = end.clock.now();
            }
            end.post_send(self.request.bytes, None)?;
            self.posted += 1;
            progressed = true;
        }
        Ok(if progressed { StepResult::Moved } else { StepResult::Idle })
    }
}

/// Receives messages, sends credits, and finally acknowledges the last message.
#[derive(Default)]
pub struct StreamReceiver {
    request: MeasurementRequest,
    receives: Receives,
    count: u64,
    credits: u32,
    posted: u64,
    sent: u64,
}

impl StreamReceiver {
    fn step(&mut self, end: &Endpoint) -> Result<StepResult, ExchangeError> {
        let total = self.request.total();
        let mut progressed = false;
        while self.count < total && end.received()?.is_some() {
            progressed = true;
            self.count += 1;
            self.receives.post_next(end)?;
            self.credits += 1;
            if self.count == total {
                // No further credits are needed.
                end.post_send(0, Some(0))?;
                self.posted += 1;
            } else if self.credits == CREDIT {
                end.post_send(0, Some(self.credits))?;
                self.posted += 1;
                self.credits = 0;
            }
            while self.posted.saturating_sub(self.sent) >= MAX_UNCOLLECTED && end.sent()?.is_some() {
                self.sent += 1;
            }
        }
        while end.sent()?.is_some() {
            self.sent += 1;
            progressed = true;
        }
        if self.count == total && self.sent == self.posted + 1 {
            return Ok(StepResult::Finished(Vec::new()));
        }
        Ok(if progressed { StepResult::Moved } else { StepResult::Idle })
    }
}
