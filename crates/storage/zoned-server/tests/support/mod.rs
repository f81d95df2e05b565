//! A server in a thread of the test, and a plain client.
#![allow(dead_code, reason = "each test program uses a part of it")]

use longma_zoned::device::{Geometry, MemoryDevice, ZonedDevice};
use longma_zoned::{Options, Store};
use longma_zoned_server::{Server, ServerError, Settings};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The time limit for a reply. It is long enough for a busy machine.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server.
pub struct Running {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), ServerError>>>,
}

impl Running {
    /// Serves an empty map in memory.
    pub fn new(settings: Settings) -> Self {
        Self::with_map(settings, empty_map())
    }

    /// Serves a map.
    pub fn with_map<D: ZonedDevice + 'static>(settings: Settings, map: Store<D>) -> Self {
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), settings).unwrap();
        let (address, stop) = (server.address(), Arc::new(AtomicBool::new(false)));
        let asked = Arc::clone(&stop);
        let thread = Some(std::thread::spawn(move || server.run(map, &asked)));
        Self { address, stop, thread }
    }

    pub fn client(&self) -> Client {
        Client::new(self.address)
    }

    /// Ends the server.
    pub fn end(mut self) -> Result<(), ServerError> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// An empty map in memory.
pub fn empty_map() -> Store<MemoryDevice> {
    Store::open_or_create(MemoryDevice::new(Geometry::with_capacity(256 << 20)).unwrap(), Options::default())
        .unwrap()
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Option<Vec<Reply>>),
}

impl Reply {
    pub fn ok() -> Self {
        Self::Simple("OK".into())
    }

    pub fn bulk(text: impl AsRef<[u8]>) -> Self {
        Self::Bulk(Some(text.as_ref().to_vec()))
    }

    pub fn bulks<T: AsRef<[u8]>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self::Array(Some(texts.into_iter().map(Self::bulk).collect()))
    }

    /// The message of an error.
    #[track_caller]
    pub fn error(self) -> String {
        match self {
            Self::Error(message) => message,
            other => panic!("not an error: {other:?}"),
        }
    }

    #[track_caller]
    pub fn array(self) -> Vec<Reply> {
        match self {
            Self::Array(Some(replies)) => replies,
            other => panic!("not an array: {other:?}"),
        }
    }

    #[track_caller]
    pub fn bytes(self) -> Vec<u8> {
        match self {
            Self::Bulk(Some(bytes)) => bytes,
            other => panic!("not bytes: {other:?}"),
        }
    }
}

/// Encodes a request.
pub fn encoded<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.as_ref().len()).bytes());
        bytes.extend(word.as_ref());
        bytes.extend(b"\r\n");
    }
    bytes
}

/// A client.
pub struct Client {
    pub socket: BufReader<TcpStream>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
        socket.set_write_timeout(Some(REPLY_TIMEOUT)).unwrap();
        socket.set_nodelay(true).unwrap();
        Self { socket: BufReader::new(socket) }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.get_mut().write_all(bytes).unwrap();
    }

    /// Sends a request of words separated by spaces, and returns the reply.
    pub fn ask(&mut self, words: &str) -> Reply {
        let words: Vec<&str> = words.split(' ').collect();
        self.ask_words(&words)
    }

    pub fn ask_words<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Reply {
        self.send(&encoded(words));
        self.reply()
    }

    /// The reply to a request; `None` if the server closes the connection.
    pub fn try_reply_to(&mut self, words: &str) -> Option<Reply> {
        let words: Vec<&str> = words.split(' ').collect();
        self.socket.get_mut().write_all(&encoded(&words)).ok()?;
        self.try_reply()
    }

    pub fn reply(&mut self) -> Reply {
        self.try_reply().expect("the connection has ended")
    }

    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        match self.socket.read_until(b'\n', &mut line) {
            Ok(count) if count > 0 => {}
            Ok(_) => return None,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no reply in time"),
            Err(_) => return None,
        }
        Some(String::from_utf8(line).unwrap().trim_end_matches("\r\n").to_string())
    }

    /// The next reply; `None` if the server has closed the connection.
    pub fn try_reply(&mut self) -> Option<Reply> {
        let line = self.line()?;
        let (kind, rest) = line.split_at(1);
        Some(match kind {
            "+" => Reply::Simple(rest.into()),
            "-" => Reply::Error(rest.into()),
            ":" => Reply::Integer(rest.parse().unwrap()),
            "$" if rest == "-1" => Reply::Bulk(None),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.socket.read_exact(&mut bytes).ok()?;
                assert_eq!(bytes.split_off(bytes.len() - 2), b"\r\n");
                Reply::Bulk(Some(bytes))
            }
            "*" if rest == "-1" => Reply::Array(None),
            "*" => Reply::Array(Some(
                (0..rest.parse().unwrap()).map(|_| self.try_reply()).collect::<Option<_>>()?,
            )),
            other => panic!("{other}{rest}"),
        })
    }
}
