//! Endpoints: the state, the threads that accept and establish connections, and progress.

use super::address::{Kind, Name};
use super::connection::Connection;
use super::error::Failure;
use super::link::Link;
use super::log::{info, warning};
use super::operation::Operation;
use super::state::{Notice, Setup, Shared, State, Wanted};
use longma_locks::IgnorePoison;
use longma_via::provider::shared_memory::Allow;
use longma_via::{CompletionQueue, ConnectionRequest, Error, Listener, Nic};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Notifications that the queue of an endpoint's VIs can hold.
const QUEUE_ENTRIES: usize = 1 << 16;
/// The time that closing allows for sending waiting operations.
const CLOSE_TIME: Duration = Duration::from_secs(1);
/// Notifications processed by one call.
const BATCH: usize = 64;

/// A connection that a thread has established.
enum Arrival {
    /// A peer has connected. Its name is `None` if it cannot be trusted.
    Accepted(Option<Name>, Link),
    /// The attempt to connect to a peer, for the connection with this key, has ended.
    Connected(usize, Result<Link, Failure>),
}

/// The state that an endpoint and its threads share.
struct Common {
    nic: Nic,
    name: Name,
    kind: Kind,
    queue: CompletionQueue,
    arrivals: Mutex<Vec<Arrival>>,
    has_arrivals: AtomicBool,
}

impl Common {
    fn new(setup: &Setup, nic: Nic) -> Result<Self, Error> {
        let kind = if setup.vector.is_some() { Kind::Unconnected } else { Kind::Connected };
        let queue = nic.create_completion_queue(QUEUE_ENTRIES)?;
        let (arrivals, has_arrivals) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { name: setup.name, kind, queue, arrivals, has_arrivals, nic })
    }

    fn push(&self, arrival: Arrival) {
        self.arrivals.lock().ignore_poison().push(arrival);
        self.has_arrivals.store(true, Ordering::Release);
    }

    /// Accepts a connection request.
    fn accept(&self, request: ConnectionRequest) -> Result<(), Error> {
        let claimed = Name::from_via_address(self.kind, request.remote());
        let is_own_user =
            request.credentials().is_some_and(|peer| Allow::own_user().permits(peer.uid, u32::MAX));
        let link = Link::open(&self.nic, &self.queue)?;
        request.accept(&link.vi)?;
        self.push(Arrival::Accepted(claimed.filter(|_| is_own_user), link));
        Ok(())
    }
}

/// An endpoint that is enabled.
pub(crate) struct Endpoint {
    common: Arc<Common>,
    state: Mutex<State>,
    listener: Option<Arc<Listener>>,
    acceptor: Mutex<Option<JoinHandle<()>>>,
    /// The process that created it.
    creator_pid: u32,
}

impl Endpoint {
    /// Creates an endpoint. An endpoint of type RDM listens at its name.
    ///
    /// # Errors
    /// If the name is in use, or the system refuses a resource.
    pub(crate) fn open(setup: Setup, shared: &Arc<Shared>) -> Result<Arc<Self>, Error> {
        let nic = shared.nic.clone();
        if setup.vector.is_none() {
            return Self::new(setup, shared, nic);
        }
        if !shared.names.lock().ignore_poison().insert(setup.name) {
            return Err(Error::InvalidState("another endpoint of the domain has the name".into()));
        }
        let name = setup.name;
        let outcome = Self::listen(setup, shared, nic);
        if outcome.is_err() {
            shared.names.lock().ignore_poison().remove(&name);
        }
        outcome
    }

    fn new(setup: Setup, shared: &Arc<Shared>, nic: Nic) -> Result<Arc<Self>, Error> {
        let common = Arc::new(Common::new(&setup, nic)?);
        let state = Mutex::new(State::new(setup, shared.clone()));
        Ok(Arc::new(Self {
            common,
            state,
            listener: None,
            acceptor: Mutex::new(None),
            creator_pid: std::process::id(),
        }))
    }

    fn listen(setup: Setup, shared: &Arc<Shared>, nic: Nic) -> Result<Arc<Self>, Error> {
        let common = Arc::new(Common::new(&setup, nic)?);
        let listener = Arc::new(common.nic.listen(&setup.name.via_address(Kind::Unconnected))?);
        let accept = {
            let (common, listener) = (common.clone(), listener.clone());
            move || {
                loop {
                    match listener.wait(None) {
                        Ok(request) => {
                            if let Err(error) = common.accept(request) {
                                info!("a connection was not accepted: {error}");
                            }
                        }
                        Err(Error::InvalidState(_)) => return,
                        Err(error) => {
                            warning!("{} cannot accept connections: {error}", common.name);
                            std::thread::sleep(Duration::from_millis(100));
                        }
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("longma-accept".into()).spawn(accept);
        let thread = thread.map_err(|error| Error::system("starting a thread that accepts", error))?;
        let state = Mutex::new(State::new(setup, shared.clone()));
        Ok(Arc::new(Self {
            common,
            state,
            listener: Some(listener),
            acceptor: Mutex::new(Some(thread)),
            creator_pid: std::process::id(),
        }))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().ignore_poison()
    }

    /// Starts an operation with a peer.
    ///
    /// # Errors
    /// `EAGAIN` if too many operations wait; `EINVAL` for an unknown peer; `ENOTCONN`.
    #[inline]
    pub(crate) fn submit(&self, peer: u64, operation: Operation) -> Result<(), i32> {
        let mut state = self.state();
        let (key, wanted) = state.connection_to(peer)?;
        if let Some(wanted) = wanted {
            self.connect(&mut state, wanted);
        }
        match state.submit(key, operation) {
            // The queue may have room now.
            Err(libc::EAGAIN) => {
                self.advance(&mut state);
                Err(libc::EAGAIN)
            }
            outcome => outcome,
        }
    }

    /// Connects an endpoint of type MSG. Operations wait for the connection.
    ///
    /// # Errors
    /// `EISCONN`.
    pub(crate) fn connect_to(&self, peer: Name) -> Result<(), i32> {
        let mut state = self.state();
        let connection = state.set_only(Connection::new(None, None))?;
        self.connect(&mut state, Wanted { connection, peer, may_start: false });
        Ok(())
    }

    /// Accepts the connection of an endpoint of type MSG.
    ///
    /// # Errors
    /// `EISCONN`; `ECONNABORTED` if the peer no longer waits.
    pub(crate) fn accept(&self, request: ConnectionRequest) -> Result<(), i32> {
        let connect = || {
            let link = Link::open(&self.common.nic, &self.common.queue)?;
            request.accept(&link.vi)?;
            Ok(link)
        };
        let mut state = self.state();
        if state.only.is_some() {
            return Err(libc::EISCONN);
        }
        let link = connect().map_err(|error: Error| {
            info!("{} did not accept a connection: {error}", self.common.name);
            libc::ECONNABORTED
        })?;
        let key = state.set_only(Connection::new(None, Some(link)))?;
        state.notify(Notice::Connected);
        state.receive_unannounced(key);
        Ok(())
    }

    /// Ends the connection of an endpoint of type MSG.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub(crate) fn shut_down(&self) -> Result<(), i32> {
        let begin = Instant::now();
        loop {
            let mut state = self.state();
            self.advance(&mut state);
            let key = state.only.ok_or(libc::ENOTCONN)?;
            if state.is_idle() || begin.elapsed() > CLOSE_TIME {
                state.end(key, Failure::DISCONNECTED);
                return Ok(());
            }
            drop(state);
            std::thread::yield_now();
        }
    }

    /// Connects, in a thread.
    fn connect(&self, state: &mut State, wanted: Wanted) {
        let (common, key) = (self.common.clone(), wanted.connection);
        let connect = move || {
            let outcome = Link::open(&common.nic, &common.queue).and_then(|link| {
                link.connect(common.kind, common.name, wanted.peer, wanted.may_start)?;
                Ok(link)
            });
            if let Err(error) = &outcome {
                info!("{} cannot connect to {}: {error}", common.name, wanted.peer);
            }
            common.push(Arrival::Connected(key, outcome.map_err(|error| Failure::of_connect(&error))));
        };
        if let Err(error) = std::thread::Builder::new().name("longma-connect".into()).spawn(connect) {
            let error = Error::system("starting a thread that connects", error);
            state.connected(key, Err(Failure::of_connect(&error)));
        }
    }

    /// Makes progress and reports completions.
    #[inline]
    pub(crate) fn progress(&self) {
        self.advance(&mut self.state());
    }

    #[inline]
    fn advance(&self, state: &mut State) {
        if self.common.has_arrivals.load(Ordering::Acquire) {
            self.adopt_arrivals(state);
        }
        for _ in 0..BATCH {
            let Some((vi, _)) = self.common.queue.done() else { break };
            self.process(state, vi);
        }
        if state.is_busy() {
            state.continue_busy();
        }
    }

    fn process(&self, state: &mut State, vi: u32) {
        if state.key_of_vi(vi).is_none() {
            // The first frame may arrive before the connection is adopted.
            self.adopt_arrivals(state);
        }
        if let Some(key) = state.key_of_vi(vi) {
            state.refresh();
            state.receive_frame(key);
        }
    }

    fn adopt_arrivals(&self, state: &mut State) {
        self.common.has_arrivals.store(false, Ordering::Release);
        let arrivals = std::mem::take(&mut *self.common.arrivals.lock().ignore_poison());
        for arrival in arrivals {
            match arrival {
                Arrival::Accepted(peer, link) => drop(state.adopt(peer, link)),
                Arrival::Connected(key, outcome) => state.connected(key, outcome),
            }
        }
    }

    /// Waits for a notification, at most for `limit`, and processes it.
    pub(crate) fn wait(&self, limit: Duration) {
        if let Ok((vi, _)) = self.common.queue.wait(Some(limit)) {
            let mut state = self.state();
            self.process(&mut state, vi);
        }
    }

    /// Stops listening, and ends all connections once all waiting operations are sent, or after a second. In a forked
    /// child, dropping does nothing, because the endpoint belongs to the parent.
    pub(crate) fn close(self: &Arc<Self>) {
        if std::process::id() != self.creator_pid {
            // The child does not have the parent's threads, one of which may have been changing the state when the
            // process forked. So the child leaks its copy, except for the objects that the program can close next.
            if let Ok(mut state) = self.state.try_lock() {
                state.setup.vector = None;
                state.setup.notify = None;
            }
            return std::mem::forget(self.clone());
        }
        if let Some(listener) = &self.listener {
            listener.close();
        }
        if let Some(thread) = self.acceptor.lock().ignore_poison().take() {
            let _ = thread.join();
        }
        let begin = Instant::now();
        loop {
            let mut state = self.state();
            self.advance(&mut state);
            if state.is_idle() || begin.elapsed() > CLOSE_TIME {
                state.connections.clear();
                state.shared.names.lock().ignore_poison().remove(&self.common.name);
                return;
            }
            drop(state);
            std::thread::yield_now();
        }
    }
}
