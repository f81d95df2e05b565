//! A TCP transfer for measurements, between a server and a client. Either side sends; the client learns the rate. Nothing in
//! this crate prints.
//!
//! Protocol: the client sends a [`Request`] in [`REQUEST_BYTES`] bytes. The sender then sends until its time is over and
//! closes its direction. If the client sent, the server answers with the number of bytes and of nanoseconds.

mod zero_copy;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};
pub use zero_copy::Completions;
use zero_copy::ZeroCopySender;

/// Default port of the server.
pub const PORT: u16 = 5202;
/// Maximum duration of a transfer.
pub const MAX_DURATION: Duration = Duration::from_secs(3600);
/// Bytes of a request: a mark, the version, the sender, whether it sends without copies, and milliseconds.
const REQUEST_BYTES: usize = 12;
const MARK: [u8; 4] = *b"LMTR";
const VERSION: u8 = 1;
/// Bytes of one call.
const BLOCK: usize = 256 << 10;
/// How long a peer may stay silent. A congested sender may need some seconds to detect the end of its time.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// Number of clients that the server serves at once.
const MAX_CLIENTS: usize = 128;

/// The side that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// A transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The side that sends.
    pub sender: Sender,
    /// Whether it sends with `MSG_ZEROCOPY` instead of copying.
    pub zero_copy: bool,
    /// How long it sends, up to [`MAX_DURATION`].
    pub duration: Duration,
}

/// The result of a transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Bytes received.
    pub bytes: u64,
    /// Time from the first to the last byte at the receiver.
    pub elapsed: Duration,
    /// The outcome of the sends without copies, if this side sent without copies.
    pub completions: Option<Completions>,
}

/// Why a transfer failed.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The error of the operating system.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The kernel or the socket does not support `MSG_ZEROCOPY`.
    #[error("this kernel cannot send with MSG_ZEROCOPY: {0}")]
    NoZeroCopy(io::Error),
    /// The peer sent something other than a transfer of this version.
    #[error("the peer is not a transfer of this version")]
    Peer,
}

impl Report {
    /// Rate in 10^9 bits per second; 0 if nothing arrived.
    pub fn gbps(&self) -> f64 {
        let seconds = self.elapsed.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 * 8e-9 / seconds } else { 0.0 }
    }
}

impl Request {
    fn encode(&self) -> [u8; REQUEST_BYTES] {
        let millis = self.duration.min(MAX_DURATION).as_millis() as u32;
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&MARK);
        bytes[4] = VERSION;
        bytes[5] = u8::from(self.sender == Sender::Server);
        bytes[6] = u8::from(self.zero_copy);
        bytes[8..].copy_from_slice(&millis.to_be_bytes());
        bytes
    }

    fn decode(bytes: [u8; REQUEST_BYTES]) -> Option<Self> {
        let duration = Duration::from_millis(u32::from_be_bytes(bytes[8..].try_into().ok()?).into());
        let is_valid = bytes[..4] == MARK && bytes[4] == VERSION && bytes[5] <= 1 && bytes[6] <= 1;
        (is_valid && duration <= MAX_DURATION).then_some(Self {
            sender: if bytes[5] == 1 { Sender::Server } else { Sender::Client },
            zero_copy: bytes[6] == 1,
            duration,
        })
    }
}

/// Makes a transfer with the server.
///
/// # Errors
/// If the server cannot be reached or ends early, or the kernel cannot send without copies.
pub fn run(server: impl ToSocketAddrs, request: &Request) -> Result<Report, TransferError> {
    let mut stream = TcpStream::connect(server)?;
    limit_silence(&stream)?;
    stream.write_all(&request.encode())?;
    match request.sender {
        Sender::Server => receive(&mut stream),
        Sender::Client => {
            let completions = send(&mut stream, request)?;
            let mut answer = [0; 16];
            stream.read_exact(&mut answer)?;
            let [bytes, nanoseconds] =
                [0, 8].map(|at| u64::from_be_bytes(std::array::from_fn(|byte| answer[at + byte])));
            Ok(Report { bytes, elapsed: Duration::from_nanos(nanoseconds), completions })
        }
    }
}

/// Serves clients until the listener fails, each on a separate thread.
///
/// # Errors
/// If connections cannot be accepted.
pub fn serve(listener: &TcpListener) -> io::Result<()> {
    let slots = std::sync::Arc::new(());
    loop {
        let (stream, _) = listener.accept()?;
        let slot = slots.clone();
        if std::sync::Arc::strong_count(&slots) > MAX_CLIENTS + 1 {
            continue;
        }
        std::thread::spawn(move || {
            let _slot = slot;
            // The client learns of a failure by the end of its connection.
            let _ = serve_one(stream);
        });
    }
}

fn serve_one(mut stream: TcpStream) -> Result<(), TransferError> {
    limit_silence(&stream)?;
    let mut bytes = [0; REQUEST_BYTES];
    stream.read_exact(&mut bytes)?;
    let request = Request::decode(bytes).ok_or(TransferError::Peer)?;
    match request.sender {
        Sender::Server => send(&mut stream, &request).map(drop),
        Sender::Client => {
            let report = receive(&mut stream)?;
            let nanoseconds = u64::try_from(report.elapsed.as_nanos()).unwrap_or(u64::MAX);
            let answer = [report.bytes.to_be_bytes(), nanoseconds.to_be_bytes()].concat();
            Ok(stream.write_all(&answer)?)
        }
    }
}

fn limit_silence(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(SILENCE_LIMIT))?;
    stream.set_write_timeout(Some(SILENCE_LIMIT))
}

/// Receives until the sender closes its direction.
fn receive(stream: &mut TcpStream) -> Result<Report, TransferError> {
    let mut block = vec![0; BLOCK];
    let mut bytes = stream.read(&mut block)? as u64;
    if bytes == 0 {
        return Err(TransferError::Peer);
    }
    let begin = Instant::now();
    // A sender that never ends is cut off.
    while begin.elapsed() < MAX_DURATION + SILENCE_LIMIT {
        match stream.read(&mut block)? {
            0 => return Ok(Report { bytes, elapsed: begin.elapsed(), completions: None }),
            more => bytes += more as u64,
        }
    }
    Err(TransferError::Peer)
}

/// Sends until the time is over and closes the direction.
fn send(stream: &mut TcpStream, request: &Request) -> Result<Option<Completions>, TransferError> {
    let block = vec![0x5a; BLOCK];
    let begin = Instant::now();
    let mut completions = None;
    if request.zero_copy {
        let mut sender = ZeroCopySender::new(stream, SILENCE_LIMIT).map_err(TransferError::NoZeroCopy)?;
        while begin.elapsed() < request.duration {
            sender.send(&block)?;
        }
        completions = Some(sender.finish()?);
    } else {
        while begin.elapsed() < request.duration {
            stream.write_all(&block)?;
        }
    }
    stream.shutdown(Shutdown::Write)?;
    Ok(completions)
}

/// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;
