//! Connections: messages in both directions, with credits.

use crate::assembly::{Assembly, Incoming, Kind};
use crate::error::Error;
use crate::flow::{CONTROL_SLOTS, Flow, Frame};
use crate::options::Options;
use crate::slots::{Slots, Tag};
use crate::transport::Transport;
use crate::wire::{FrameKind, HEADER_BYTES, HELLO_BYTES, Header, Hello};
use futures_channel::oneshot;
use longma_via::{Address, Completion, ConnectionRequest, EndReason, Vi, ViAttributes};
use std::collections::{BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Statistics of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages, requests and responses sent.
    pub messages_sent: u64,
    /// Messages, requests and responses received.
    pub messages_received: u64,
    /// Bytes of messages and streams sent.
    pub bytes_sent: u64,
    /// Bytes of messages and streams received.
    pub bytes_received: u64,
    /// Number of sends that had to wait because the peer had not received earlier frames.
    pub credit_waits: u64,
}

/// A data frame in its slot.
pub(crate) struct ReceivedFrame {
    slot: usize,
    pub(crate) header: Header,
    /// The length of its payload, bytes.
    pub(crate) length: usize,
}

/// Minimum capacity of the messages that a call keeps for [`Connection::receive`], bytes.
const MIN_KEPT: usize = 64 << 10;

/// Memory occupied by a stored message, bytes.
fn kept_size(message: &Incoming) -> usize {
    size_of::<Incoming>() + message.bytes.len()
}

/// How a call waits for an event.
#[derive(Clone, Copy)]
pub(crate) enum Wait {
    /// It blocks the thread until a deadline.
    Until(Option<Instant>),
    /// It is a future, which an executor polls.
    Await,
}

impl Wait {
    fn remaining(deadline: Option<Instant>) -> Option<Duration> {
        deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }
}

/// Runs a call that blocks its thread and therefore is never pending.
pub(crate) fn blocking<F: Future>(call: F) -> F::Output {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => unreachable!("a call with Wait::Until is never pending"),
    }
}

/// A future that is pending once, so that the executor polls other futures, such as a timer.
pub(crate) async fn let_others_run() {
    let mut has_run = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_run, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// A connection to a peer. Messages arrive once, whole and in order.
///
/// A send waits until the peer has received enough earlier frames. If both sides send without receiving, both wait, as with
/// sockets.
///
/// Dropping a connection ends it at once: data that the NIC has not yet sent is lost. [`Connection::close`] waits until it
/// is sent. If a panic drops the connection, the peer sees that it ended, but not that it was closed. In a forked child
/// (fork(2)), dropping it does nothing, and no other method may be called.
pub struct Connection {
    // Dropped before the memory, which its descriptors refer to.
    vi: Vi,
    slots: Slots,
    // Dropped after the VI and the memory, which use it.
    tag: Tag,
    options: Options,
    flow: Flow,
    assembly: Assembly,
    /// Data frames that the program has not received.
    inbox: VecDeque<ReceivedFrame>,
    next_request: u64,
    /// Started requests without a response.
    started: BTreeSet<u64>,
    /// Messages that arrived while a call waited for its response.
    kept: VecDeque<Incoming>,
    /// The memory that they occupy, bytes.
    kept_bytes: usize,
    /// Frames received since the call began, its time limit was last checked, or its future last yielded.
    taken: u32,
    /// Whether a message has been sent in part.
    is_sending: bool,
    /// Whether this side has announced that it sends no more.
    has_ended: bool,
    /// Whether the connection is used as a stream, whose end must be announced explicitly.
    pub(crate) is_stream: bool,
    /// Whether the peer has violated the protocol. Frames after the violation are not received.
    is_refused: bool,
    statistics: Statistics,
}

impl Transport {
    /// Connects to a listener. The address of a listener of this host is [`Address::local`]; over UDP its host is
    /// `address:port`.
    ///
    /// # Errors
    /// [`Error::InvalidOption`]; [`Error::TimedOut`]; if no process listens at the address.
    pub fn connect(&self, address: &Address, options: Options) -> Result<Connection, Error> {
        let mut connection = Connection::new(self, options)?;
        connection.vi.connect(&Address::local("channel"), address, options.timeout)?;
        connection.greet()?;
        Ok(connection)
    }

    /// [`Transport::connect`] as a future, with the time limit of `options`. A thread connects; if the future is dropped,
    /// the thread ends the connection that it establishes.
    ///
    /// # Errors
    /// Those of [`Transport::connect`]; if the thread cannot be started.
    pub async fn connect_async(&self, address: &Address, options: Options) -> Result<Connection, Error> {
        let (transport, address) = (self.clone(), address.clone());
        let (sender, connected) = oneshot::channel();
        // Without a receiver, the connection is dropped here.
        let connect = move || drop(sender.send(transport.connect(&address, options)));
        let thread = std::thread::Builder::new().name("channel-connect".into()).spawn(connect);
        thread.map_err(|error| {
            Error::Via(longma_via::Error::system("starting a thread that connects", error))
        })?;
        connected.await.unwrap_or(Err(Error::InvalidCall("the thread that connects has ended")))
    }
}

impl Connection {
    /// Connects by shared memory to the listener with this name, with default options. For other options, see
    /// [`Transport::connect`].
    ///
    /// # Errors
    /// Those of [`Transport::shared_memory`] and [`Transport::connect`].
    pub fn connect(name: impl AsRef<[u8]>) -> Result<Self, Error> {
        Transport::shared_memory()?.connect(&Address::local(name), Options::default())
    }

    /// [`Connection::connect`] as a future.
    ///
    /// # Errors
    /// Those of [`Connection::connect`] and [`Transport::connect_async`].
    pub async fn connect_async(name: impl AsRef<[u8]>) -> Result<Self, Error> {
        let address = Address::local(name);
        Transport::shared_memory()?.connect_async(&address, Options::default()).await
    }

    pub(crate) fn answer(
        transport: &Transport,
        request: ConnectionRequest,
        options: Options,
    ) -> Result<Self, Error> {
        let mut connection = Self::new(transport, options)?;
        request.accept(&connection.vi)?;
        connection.greet()?;
        Ok(connection)
    }

    fn new(transport: &Transport, options: Options) -> Result<Self, Error> {
        options.check()?;
        let tag = Tag::new(transport.nic())?;
        let attributes = ViAttributes { rdma_write: false, rdma_read: false, ..ViAttributes::new(tag.get()) };
        let vi = transport.nic().create_vi(attributes, None, None)?;
        let slots = Slots::new(&tag, &options)?;
        slots.post_all(&vi)?;
        Ok(Self {
            vi,
            slots,
            tag,
            options,
            flow: Flow::new(options.receive_slots),
            assembly: Assembly::new(options.max_message),
            inbox: VecDeque::new(),
            next_request: 1,
            started: BTreeSet::new(),
            kept: VecDeque::new(),
            kept_bytes: 0,
            taken: 0,
            is_sending: false,
            has_ended: false,
            is_stream: false,
            is_refused: false,
            statistics: Statistics::default(),
        })
    }

    fn greet(&mut self) -> Result<(), Error> {
        let hello = Hello { slot_bytes: self.options.slot_bytes, slots: self.options.receive_slots };
        self.send_control(FrameKind::Hello, &hello.encode())
    }

    /// Changes the time limit of blocking calls. `None` waits indefinitely.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.options.timeout = timeout;
    }

    /// Statistics of the connection.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// The process, user and group of the peer. `None` over a network.
    pub fn peer_credentials(&self) -> Option<longma_via::Credentials> {
        self.vi.peer_credentials()
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Ended`], [`Error::Protocol`], [`Error::TooLong`], [`Error::Abandoned`].
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        let wait = self.until();
        blocking(self.send_parts(FrameKind::Message, 0, message, wait))
    }

    /// Receives the next message, request or response. `None` if the peer has closed the connection. Responses to calls
    /// that were given up, and further responses to the same request, are skipped.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Ended`] if the connection ended without being closed; [`Error::Protocol`],
    /// [`Error::TooLong`].
    pub fn receive(&mut self) -> Result<Option<Incoming>, Error> {
        let wait = self.until();
        blocking(self.receive_next(wait))
    }

    /// Sends a request and returns its number, which the response will have. Several requests can be outstanding. If the
    /// send is given up, no response will be received.
    ///
    /// # Errors
    /// Those of [`Connection::send`].
    pub fn start_request(&mut self, request: &[u8]) -> Result<u64, Error> {
        let wait = self.until();
        blocking(self.start_waiting(request, wait))
    }

    /// Sends a request and waits for the response. Messages, and responses to started requests, that arrive in the
    /// meantime are stored for [`Connection::receive`], up to `max_message` bytes or 64 KiB, whichever is larger.
    ///
    /// # Errors
    /// Those of [`Connection::send`] and [`Connection::receive`]; [`Error::Protocol`] if a request arrives, which could
    /// not be answered during the call, or if the arriving messages exceed that capacity; [`Error::Ended`] if the peer closes the connection.
    pub fn call(&mut self, request: &[u8]) -> Result<Vec<u8>, Error> {
        let wait = self.until();
        blocking(self.call_waiting(request, wait))
    }

    /// Answers a request.
    ///
    /// # Errors
    /// [`Error::InvalidCall`] if `to` is not a request; those of [`Connection::send`].
    pub fn respond(&mut self, to: &Incoming, response: &[u8]) -> Result<(), Error> {
        let wait = self.until();
        blocking(self.respond_waiting(to, response, wait))
    }

    /// [`Connection::send`] as a future. If it is dropped after a part of the message has been sent, nothing more can be
    /// sent.
    ///
    /// # Errors
    /// Those of [`Connection::send`].
    pub async fn send_async(&mut self, message: &[u8]) -> Result<(), Error> {
        self.send_parts(FrameKind::Message, 0, message, Wait::Await).await
    }

    /// [`Connection::receive`] as a future. Dropping the future loses no data.
    ///
    /// # Errors
    /// Those of [`Connection::receive`].
    pub async fn receive_async(&mut self) -> Result<Option<Incoming>, Error> {
        self.receive_next(Wait::Await).await
    }

    /// [`Connection::start_request`] as a future.
    ///
    /// # Errors
    /// Those of [`Connection::start_request`].
    pub async fn start_request_async(&mut self, request: &[u8]) -> Result<u64, Error> {
        self.start_waiting(request, Wait::Await).await
    }

    /// [`Connection::call`] as a future. If it is dropped, its response is skipped.
    ///
    /// # Errors
    /// Those of [`Connection::call`].
    pub async fn call_async(&mut self, request: &[u8]) -> Result<Vec<u8>, Error> {
        self.call_waiting(request, Wait::Await).await
    }

    /// [`Connection::respond`] as a future.
    ///
    /// # Errors
    /// Those of [`Connection::respond`].
    pub async fn respond_async(&mut self, to: &Incoming, response: &[u8]) -> Result<(), Error> {
        self.respond_waiting(to, response, Wait::Await).await
    }

    /// Closes the connection after the NIC has sent all data.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Ended`] if the peer ended the connection first.
    pub fn close(mut self) -> Result<(), Error> {
        let wait = self.until();
        blocking(self.close_waiting(wait))
    }

    /// [`Connection::close`] as a future. If it is dropped, so is the connection.
    ///
    /// # Errors
    /// [`Error::Ended`] if the peer ended the connection first.
    pub async fn close_async(mut self) -> Result<(), Error> {
        self.close_waiting(Wait::Await).await
    }

    pub(crate) fn until(&mut self) -> Wait {
        self.taken = 0;
        // A time limit beyond the range of the clock means no limit.
        Wait::Until(self.options.timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    fn take_id(&mut self) -> u64 {
        let id = self.next_request;
        self.next_request = id.wrapping_add(1).max(1);
        id
    }

    async fn close_waiting(&mut self, wait: Wait) -> Result<(), Error> {
        self.finish()?;
        while self.slots.is_sending() {
            self.collect_send(wait).await?;
        }
        Ok(())
    }

    async fn start_waiting(&mut self, request: &[u8], wait: Wait) -> Result<u64, Error> {
        let id = self.take_id();
        self.send_parts(FrameKind::Request, id, request, wait).await?;
        self.started.insert(id);
        Ok(id)
    }

    async fn call_waiting(&mut self, request: &[u8], wait: Wait) -> Result<Vec<u8>, Error> {
        let id = self.take_id();
        self.send_parts(FrameKind::Request, id, request, wait).await?;
        loop {
            match self.receive_parts(Some(id), wait).await? {
                Some(Incoming { kind: Kind::Response, id: of, bytes }) if of == id => return Ok(bytes),
                Some(Incoming { kind: Kind::Request, .. }) => {
                    return Err(self.violation("a request while a call waited for its response"));
                }
                Some(other) => self.keep(other)?,
                None => return Err(Error::Ended(EndReason::Disconnected)),
            }
        }
    }

    fn keep(&mut self, message: Incoming) -> Result<(), Error> {
        self.kept_bytes += kept_size(&message);
        if self.kept_bytes > MIN_KEPT.max(self.options.max_message as usize) {
            return Err(self.violation("too much while a call waited for its response"));
        }
        self.kept.push_back(message);
        Ok(())
    }

    async fn respond_waiting(&mut self, to: &Incoming, response: &[u8], wait: Wait) -> Result<(), Error> {
        if to.kind != Kind::Request {
            return Err(Error::InvalidCall("only a request can be answered"));
        }
        self.send_parts(FrameKind::Response, to.id, response, wait).await
    }
}

// --- Sending ---------------------------------------------------------------------------------------------------------

impl Connection {
    async fn send_parts(
        &mut self,
        kind: FrameKind,
        id: u64,
        message: &[u8],
        wait: Wait,
    ) -> Result<(), Error> {
        let Ok(total) = u32::try_from(message.len()) else {
            return Err(Error::TooLong { bytes: message.len() as u64, limit: u32::MAX.into() });
        };
        self.ready_to_send(wait).await?;
        let mut header = Header { kind, credits: 0, total, id };
        let (mut part, mut rest) = message.split_at(self.part_bytes().min(message.len()));
        loop {
            self.send_part(header, part)?;
            self.is_sending = !rest.is_empty();
            if rest.is_empty() {
                break;
            }
            self.slot_and_credit(wait).await?;
            header.total = 0;
            (part, rest) = rest.split_at(self.part_bytes().min(rest.len()));
        }
        self.statistics.messages_sent += 1;
        Ok(())
    }

    /// Sends as many of the bytes as fit into one frame; returns their number.
    pub(crate) async fn send_bytes(&mut self, bytes: &[u8], wait: Wait) -> Result<usize, Error> {
        if bytes.is_empty() {
            return Ok(0);
        }
        self.ready_to_send(wait).await?;
        let part = &bytes[..self.part_bytes().min(bytes.len())];
        self.send_part(Header { kind: FrameKind::Bytes, credits: 0, total: 0, id: 0 }, part)?;
        Ok(part.len())
    }

    /// Announces that this side sends no more.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.has_ended, true) {
            return Ok(());
        }
        self.send_control(FrameKind::End, &[])
    }

    /// The bytes of a message that fit into a frame: the smaller of both sides' slots.
    fn part_bytes(&self) -> usize {
        let peer = self.flow.peer().map_or(usize::MAX, |hello| hello.slot_bytes as usize - HEADER_BYTES);
        self.options.part_bytes().min(peer)
    }

    async fn ready_to_send(&mut self, wait: Wait) -> Result<(), Error> {
        if let Some(reason) = self.vi.end_reason() {
            return Err(Error::Ended(reason));
        }
        if self.is_sending {
            return Err(Error::Abandoned);
        }
        if self.has_ended {
            return Err(Error::InvalidCall("this side has announced that it sends no more"));
        }
        self.slot_and_credit(wait).await
    }

    /// Waits for a slot and a credit, without using them.
    async fn slot_and_credit(&mut self, wait: Wait) -> Result<(), Error> {
        self.collect_sends()?;
        while !self.slots.has_free() {
            self.collect_send(wait).await?;
        }
        if !self.flow.may_send() && self.flow.peer().is_some() {
            self.statistics.credit_waits += 1;
        }
        while !self.flow.may_send() {
            self.take_completion(wait).await?;
        }
        Ok(())
    }

    /// Sends a data frame. A slot and a credit must be available.
    fn send_part(&mut self, header: Header, part: &[u8]) -> Result<(), Error> {
        self.flow.use_credit();
        self.statistics.bytes_sent += part.len() as u64;
        let header = Header { credits: self.flow.take_freed(), ..header };
        Ok(self.slots.send(&self.vi, &header, part)?)
    }

    /// Sends a control frame. There is always a slot for it.
    fn send_control(&mut self, kind: FrameKind, payload: &[u8]) -> Result<(), Error> {
        debug_assert!(payload.len() <= HELLO_BYTES);
        self.collect_sends()?;
        let credits = if kind == FrameKind::Hello { 0 } else { self.flow.take_freed() };
        Ok(self.slots.send_control(&self.vi, &Header { kind, credits, total: 0, id: 0 }, payload)?)
    }

    fn collect_sends(&mut self) -> Result<(), Error> {
        while let Some(completion) = self.vi.send_done() {
            self.check(&completion)?;
            self.slots.release(completion.context);
        }
        Ok(())
    }

    async fn collect_send(&mut self, wait: Wait) -> Result<(), Error> {
        let completion = match wait {
            Wait::Until(deadline) => self.vi.send_wait(Wait::remaining(deadline))?,
            Wait::Await => self.vi.send_completion().await?,
        };
        self.check(&completion)?;
        self.slots.release(completion.context);
        Ok(())
    }

    fn check(&self, completion: &Completion) -> Result<(), Error> {
        if completion.is_success() {
            return Ok(());
        }
        Err(Error::Ended(self.vi.end_reason().unwrap_or(EndReason::MessageRefused)))
    }
}

// --- Receiving -------------------------------------------------------------------------------------------------------

impl Connection {
    async fn receive_next(&mut self, wait: Wait) -> Result<Option<Incoming>, Error> {
        if let Some(message) = self.kept.pop_front() {
            self.kept_bytes -= kept_size(&message);
            return Ok(Some(message));
        }
        self.receive_parts(None, wait).await
    }

    /// The next message that is not a response to a call other than `call`.
    async fn receive_parts(&mut self, call: Option<u64>, wait: Wait) -> Result<Option<Incoming>, Error> {
        loop {
            let Some(frame) = self.next_frame(wait).await? else {
                if self.assembly.is_partial() {
                    return Err(self.violation("the end in the middle of a message"));
                }
                return Ok(None);
            };
            let pushed = self
                .assembly
                .push(&frame.header, frame.length, |bytes| self.slots.read(frame.slot, 0, bytes));
            self.received(&frame);
            match pushed {
                Ok(Some(message)) => {
                    self.statistics.messages_received += 1;
                    self.release(frame);
                    let is_for_nobody = message.kind == Kind::Response
                        && Some(message.id) != call
                        && !self.started.remove(&message.id);
                    if !is_for_nobody {
                        return Ok(Some(message));
                    }
                }
                Ok(None) => self.release(frame),
                Err(error) => {
                    self.refuse();
                    return Err(error);
                }
            }
        }
    }

    /// The next data frame, which stays in its slot until it is released. `None` after the peer's end.
    pub(crate) async fn next_frame(&mut self, wait: Wait) -> Result<Option<ReceivedFrame>, Error> {
        loop {
            if self.is_refused {
                return Err(Error::Ended(self.vi.end_reason().unwrap_or(EndReason::Disconnected)));
            }
            if let Some(frame) = self.inbox.pop_front() {
                return Ok(Some(frame));
            }
            if self.flow.peer_has_ended() {
                return Ok(None);
            }
            self.take_completion(wait).await?;
        }
    }

    /// Copies bytes of a data frame's payload.
    pub(crate) fn read(&self, frame: &ReceivedFrame, offset: usize, into: &mut [u8]) {
        self.slots.read(frame.slot, offset, into);
    }

    /// Counts a data frame that the program has received completely.
    pub(crate) fn received(&mut self, frame: &ReceivedFrame) {
        self.statistics.bytes_received += frame.length as u64;
    }

    /// Makes a frame's slot available to the peer again.
    pub(crate) fn release(&mut self, frame: ReceivedFrame) {
        // An error means that the connection has ended, which the next call reports.
        let _ = self.slots.post(&self.vi, frame.slot);
        self.flow.free();
        if self.flow.must_return() {
            let _ = self.send_control(FrameKind::Credit, &[]);
        }
    }

    /// Checks the deadline, or yields to the executor, after as many frames as there are slots. An available completion
    /// is returned even after the deadline and without yielding, so a peer could otherwise prolong a call with frames
    /// that arrive as fast as they are received. Frames that arrived before the call, at most one for each slot, are
    /// received without a check.
    async fn take_turn(&mut self, wait: Wait) -> Result<(), Error> {
        if self.taken < self.options.receive_slots + CONTROL_SLOTS {
            self.taken += 1;
            return Ok(());
        }
        self.taken = 1;
        match wait {
            Wait::Until(Some(deadline)) if Instant::now() >= deadline => return Err(Error::TimedOut),
            Wait::Until(_) => {}
            Wait::Await => let_others_run().await,
        }
        Ok(())
    }

    /// Waits for a frame and processes its header.
    async fn take_completion(&mut self, wait: Wait) -> Result<(), Error> {
        self.take_turn(wait).await?;
        let completion = match wait {
            Wait::Until(deadline) => self.vi.receive_wait(Wait::remaining(deadline))?,
            Wait::Await => self.vi.receive_completion().await?,
        };
        self.check(&completion)?;
        let (slot, length) = (completion.context as usize, completion.length as usize);
        let Some(length) = length.checked_sub(HEADER_BYTES) else {
            return Err(self.violation("a frame without a header"));
        };
        let mut payload = [0; HELLO_BYTES];
        let known = length.min(HELLO_BYTES);
        self.slots.read(slot, 0, &mut payload[..known]);
        // A control frame with a longer payload is refused for its length.
        let payload = if length > HELLO_BYTES { &[0; HELLO_BYTES + 1][..] } else { &payload[..known] };
        let header = Header::decode(&self.slots.read_header(slot));
        match header.and_then(|header| Ok((header, self.flow.received(&header, payload)?))) {
            Ok((header, Frame::Data)) => self.inbox.push_back(ReceivedFrame { slot, header, length }),
            Ok((_, Frame::Control)) => self.slots.post(&self.vi, slot)?,
            Err(what) => return Err(self.violation(what)),
        }
        Ok(())
    }

    /// Ends the connection because the peer violated the protocol.
    pub(crate) fn violation(&mut self, what: &'static str) -> Error {
        self.refuse();
        Error::Protocol(what)
    }

    /// Ends the connection. Frames after the violation, which may have arrived already, are not received: they would look
    /// like the continuation of the earlier data.
    fn refuse(&mut self) {
        self.is_refused = true;
        self.inbox.clear();
        let _ = self.vi.disconnect();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // In a forked child, the frame would announce the end of the parent's connection.
        if self.is_stream || std::thread::panicking() || self.tag.is_forked_child() {
            return;
        }
        // An error means that the connection has ended. Dropping the VI disconnects it.
        let _ = self.finish();
    }
}
