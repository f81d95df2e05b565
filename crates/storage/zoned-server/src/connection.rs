//! Serves one client: reads its requests, executes them, and sends the replies. It reads requests while replies are
//! unsent, so a client may send a long pipeline before it reads a reply, up to the limit on replies.

use crate::limits::{FREE_BYTES, Limits, Share};
use crate::output::Output;
use crate::peers::Peer;
use crate::request::RequestReader;
use crate::session::{Next, STRANGER_BYTES, Session};
use crate::shared::Shared;
use crate::stream::{Ready, Stream};
use longma_zoned::ZonedDevice;
use rustls::ServerConfig;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes read at a time.
const READ_BYTES: usize = 16 << 10;

/// The time for which requests are executed before replies are sent, which also detects that a client has disconnected.
const SLICE: Duration = Duration::from_millis(100);

/// The reason for the end of a connection.
enum End {
    /// The client has closed the connection, or the connection failed.
    Gone,
    /// The client exceeded a limit.
    Limit,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// The time by which 64 KiB must be sent or received, and the bytes sent or received so far.
#[derive(Default)]
struct Pace {
    until: Option<Instant>,
    bytes: usize,
}

impl Pace {
    /// Records progress of `bytes`. The deadline applies only while data is `outstanding`.
    fn progress(&mut self, limits: &Limits, outstanding: bool, bytes: usize) {
        self.bytes += bytes;
        if !outstanding {
            *self = Self::default();
        } else if self.until.is_none() || self.bytes >= FREE_BYTES {
            *self = Self { until: Some(Instant::now() + limits.stall), bytes: 0 };
        }
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// A client's connection.
struct Connection<'s, D: ZonedDevice> {
    shared: &'s Shared<D>,
    peer: &'s Peer,
    stream: Stream,
    session: Session<'s, D>,
    reader: RequestReader,
    output: Output,
    /// The memory of the incomplete request and the session.
    share: Share,
    buffer: Box<[u8]>,
    /// The part of the buffer that has not been parsed.
    unread: std::ops::Range<usize>,
    /// Whether the stream may have more data to read without waiting.
    more: bool,
    login: Option<Instant>,
    receiving: Pace,
    sending: Pace,
    next: Next,
}

/// Serves a client until it ends the connection, exceeds a limit, or the server ends.
pub(crate) fn serve<D: ZonedDevice>(shared: &Shared<D>, peer: &Peer, tls: Option<&Arc<ServerConfig>>) {
    let Ok(stream) = Stream::new(Arc::clone(&peer.socket), tls) else { return };
    let mut connection = Connection::new(shared, peer, stream);
    let end = connection.run();
    if matches!(end, Err(End::Limit)) {
        shared.counts.disconnected.fetch_add(1, Ordering::Relaxed);
    }
    if !matches!(end, Err(End::Gone)) {
        connection.stream.close();
    }
}

impl<'s, D: ZonedDevice> Connection<'s, D> {
    fn new(shared: &'s Shared<D>, peer: &'s Peer, stream: Stream) -> Self {
        let session = Session::new(shared, peer.id);
        let is_stranger = !session.is_admitted() || stream.may_have_buffered();
        let longest = if session.is_admitted() { shared.limits.command_bytes } else { STRANGER_BYTES };
        Self {
            shared,
            peer,
            stream,
            session,
            reader: RequestReader::new(longest.min(shared.limits.command_bytes)),
            output: Output::new(&shared.budget, shared.limits.reply_bytes),
            share: Share::new(&shared.budget),
            buffer: vec![0; READ_BYTES].into(),
            unread: 0..0,
            more: false,
            login: is_stranger.then(|| Instant::now() + shared.limits.login),
            receiving: Pace::default(),
            sending: Pace::default(),
            next: Next::Continue,
        }
    }

    fn run(&mut self) -> Result<(), End> {
        loop {
            if self.next == Next::Close && self.output.unsent().is_empty() && !self.stream.has_unsent() {
                return Ok(());
            }
            let ready = self.wait()?;
            if ready.read && self.unread.is_empty() {
                self.receive()?;
            }
            if self.takes_requests() && !self.unread.is_empty() {
                self.execute()?;
            }
            self.send()?;
        }
    }

    /// Whether requests may be executed. They may not while too many replies are unsent.
    fn takes_requests(&self) -> bool {
        self.next == Next::Continue
            && self.output.unsent().len() < self.shared.limits.reply_bytes
            && !self.output.is_over_budget()
    }

    /// Waits until the connection is ready or a deadline has passed.
    fn wait(&mut self) -> Result<Ready, End> {
        let takes_requests = self.takes_requests();
        if takes_requests && (self.more || !self.unread.is_empty()) {
            return Ok(Ready { read: true, write: true });
        }
        let unsent = !self.output.unsent().is_empty() || self.stream.has_unsent();
        let interest = Ready { read: takes_requests, write: unsent };
        let deadlines = [self.login, self.receiving.until.filter(|_| takes_requests), self.sending.until];
        let ready = self.stream.wait(interest, deadlines.into_iter().flatten().min())?;
        if ready.read || ready.write {
            return Ok(ready);
        }
        let reason = if self.login.is_some_and(|login| Instant::now() >= login) {
            "ERR the time to authenticate is over"
        } else if self.sending.is_over() {
            // The client does not read, so an error reply would not reach it.
            return Err(End::Limit);
        } else if takes_requests && self.receiving.is_over() {
            "ERR the rest of the command did not arrive in time"
        } else {
            return Ok(ready);
        };
        Err(self.refuse(reason))
    }

    /// Sends the client as much of the reason as the connection accepts without waiting.
    fn refuse(&mut self, reason: &str) -> End {
        self.session.settle(&mut self.output);
        self.output.error(reason);
        let _ = self.send();
        End::Limit
    }

    /// Reads the available bytes.
    fn receive(&mut self) -> Result<(), End> {
        let arrived = self.stream.read(&mut self.buffer)?;
        self.admit();
        let Some(count) = arrived else {
            self.more = false;
            return Ok(());
        };
        if count == 0 {
            self.next = Next::Close;
            self.login = None;
            return Ok(());
        }
        self.more = count == self.buffer.len() || self.stream.may_have_buffered();
        self.unread = 0..count;
        Ok(())
    }

    /// Executes the requests in the buffer.
    fn execute(&mut self) -> Result<(), End> {
        let (arrived, began) = (self.unread.len(), Instant::now());
        while self.takes_requests() && began.elapsed() < SLICE {
            let mut input = &self.buffer[self.unread.clone()];
            let request = self.reader.next(&mut input);
            self.unread.start = self.unread.end - input.len();
            match request {
                Ok(Some(words)) => {
                    self.next = self.session.request(words, &mut self.output);
                    self.admit();
                }
                Ok(None) => break,
                Err(error) => {
                    return Err(self.refuse(&format!("ERR Protocol error: {error}")));
                }
            }
        }
        self.session.settle(&mut self.output);
        let held = self.reader.held_bytes() + self.session.bytes();
        if !self.share.resize(held) {
            return Err(self.refuse("ERR the buffers of all clients together are full: try again later"));
        }
        let outstanding = self.reader.is_within_request() || held > FREE_BYTES;
        self.receiving.progress(&self.shared.limits, outstanding, arrived - self.unread.len());
        Ok(())
    }

    /// Lifts the limits for unauthenticated clients once the client has authenticated, or if it need not.
    fn admit(&mut self) {
        if self.login.is_some() && self.session.is_admitted() && !self.stream.is_handshaking() {
            self.login = None;
            self.reader.set_longest(self.shared.limits.command_bytes);
            self.peer.is_admitted.store(true, Ordering::Relaxed);
        }
    }

    /// Sends as many bytes as the connection accepts without waiting.
    fn send(&mut self) -> Result<(), End> {
        let mut sent = 0;
        while !self.output.unsent().is_empty() {
            let count = self.stream.write(self.output.unsent())?;
            if count == 0 {
                break;
            }
            self.output.mark_sent(count);
            sent += count;
        }
        self.stream.flush()?;
        let outstanding = !self.output.unsent().is_empty() || self.stream.has_unsent();
        self.sending.progress(&self.shared.limits, outstanding, sent);
        Ok(())
    }
}
