//! Listeners, which accept connections.

use crate::connection::{Connection, let_others_run};
use crate::error::Error;
use crate::options::Options;
use crate::transport::Transport;
use futures_channel::mpsc::{Receiver, Sender, channel};
use longma_via::{Address, ConnectionRequest};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Accepts connections at a name. Dropping it stops listening; accepted connections remain.
pub struct Listener {
    listener: longma_via::Listener,
    transport: Transport,
    options: Options,
}

impl Transport {
    /// Listens at a name on this NIC.
    ///
    /// # Errors
    /// [`Error::InvalidOption`]; if another process uses the name, or it is longer than the NIC permits.
    pub fn listen(&self, name: impl AsRef<[u8]>, options: Options) -> Result<Listener, Error> {
        options.check()?;
        let listener = self.nic().listen(&Address::local(name))?;
        Ok(Listener { listener, transport: self.clone(), options })
    }
}

impl Listener {
    /// Listens at this name for processes of this host, with default options. For other options, see
    /// [`Transport::listen`].
    ///
    /// # Errors
    /// Those of [`Transport::shared_memory`] and [`Transport::listen`].
    pub fn bind(name: impl AsRef<[u8]>) -> Result<Self, Error> {
        Transport::shared_memory()?.listen(name, Options::default())
    }

    /// Waits for the next connection. Skips clients that have given up.
    ///
    /// # Errors
    /// If the listener is closed, or the system has no memory for the connection.
    pub fn accept(&self) -> Result<Connection, Error> {
        self.accept_within(None)
    }

    /// Waits up to `timeout` for the next connection.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; those of [`Listener::accept`].
    pub fn accept_within(&self, timeout: Option<Duration>) -> Result<Connection, Error> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let remaining = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let request = self.listener.wait(remaining)?;
            if let Some(connection) = answer(&self.transport, request, self.options)? {
                return Ok(connection);
            }
            // A series of clients that give up does not prolong the wait.
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::TimedOut);
            }
        }
    }

    /// Stops listening. Calls of [`Listener::accept`] in other threads end with an error.
    pub fn close(&self) {
        self.listener.close();
    }

    /// Accepts connections in futures. A thread waits for requests.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn into_async(self) -> Result<AsyncListener, Error> {
        let listener = Arc::new(self);
        let (mut sender, requests) = channel(MAX_WAITING);
        let waiting = listener.clone();
        let thread = std::thread::Builder::new()
            .name("channel-listener".into())
            .spawn(move || waiting.pass_on(&mut sender))
            .map_err(|error| Error::Via(longma_via::Error::system("starting a listener's thread", error)))?;
        Ok(AsyncListener { listener, requests, thread: Some(thread), creator_pid: std::process::id() })
    }

    fn pass_on(&self, sender: &mut Sender<ConnectionRequest>) {
        // The error reports that the listener is closed.
        while let Ok(request) = self.listener.wait(None) {
            // If the queue is full, the request is dropped, which rejects it.
            let _ = sender.try_send(request);
        }
    }
}

/// The number of clients that can wait for [`AsyncListener::accept`], in addition to one.
const MAX_WAITING: usize = 128;

/// Answers a client. Returns `None` if the client has gone, or is incompatible and has received an error.
fn answer(
    transport: &Transport,
    request: ConnectionRequest,
    options: Options,
) -> Result<Option<Connection>, Error> {
    match Connection::answer(transport, request, options) {
        Ok(connection) => Ok(Some(connection)),
        Err(error @ Error::Via(longma_via::Error::Resource(_) | longma_via::Error::System { .. })) => {
            Err(error)
        }
        Err(_) => Ok(None),
    }
}

/// A listener whose connections are accepted in futures. Dropping it stops listening.
pub struct AsyncListener {
    listener: Arc<Listener>,
    requests: Receiver<ConnectionRequest>,
    thread: Option<JoinHandle<()>>,
    /// The process that started the thread.
    creator_pid: u32,
}

impl AsyncListener {
    /// The next connection. Dropping the future loses no connection.
    ///
    /// # Errors
    /// Those of [`Listener::accept`].
    pub async fn accept(&mut self) -> Result<Connection, Error> {
        loop {
            let Ok(request) = self.requests.recv().await else {
                return Err(Error::InvalidCall("the listener is closed"));
            };
            if let Some(connection) = answer(&self.listener.transport, request, self.listener.options)? {
                return Ok(connection);
            }
            let_others_run().await;
        }
    }
}

impl Drop for AsyncListener {
    fn drop(&mut self) {
        self.listener.close();
        // A forked child does not have the thread, and would wait for it forever.
        if let Some(thread) = self.thread.take()
            && std::process::id() == self.creator_pid
        {
            // The thread does not panic. A panic could not be handled here.
            let _ = thread.join();
        }
    }
}
