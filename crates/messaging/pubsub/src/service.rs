//! The publisher's thread. It accepts subscribers, answers queries, and detects consumed messages and dead subscribers.
//! Between these events it sleeps.

use crate::error::{Error, system};
use crate::layout::MAX_HELD;
use crate::message::MessageType;
use crate::options::Options;
use crate::ring;
use crate::shared::{ControlPage, TopicMemory};
use crate::socket;
use crate::wire::{Answer, HELLO_BYTES, Hello, Offer, Report, SubscriberReport};
use longma_locks::IgnorePoison;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::RecvFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a client may take to send its request.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of clients whose requests are awaited at once.
const MAX_PENDING: usize = 16;

/// The publisher's state of a subscriber.
pub(crate) struct Member {
    socket: OwnedFd,
    control: ControlPage,
    process: u32,
    /// Messages with lower numbers have been consumed. It never decreases, and never exceeds the number published.
    floor: AtomicU64,
    /// The value of the subscriber's `asleep` word when it was last woken.
    woken: AtomicU32,
    /// The number of bytes received from the subscriber.
    nudges: AtomicU64,
}

impl Member {
    /// The subscriber has consumed all messages with numbers below the result.
    pub(crate) fn consumed(&self, published: u64) -> u64 {
        let claimed = self.control.words().consumed.load(Ordering::Acquire).min(published);
        self.floor.fetch_max(claimed, Ordering::Relaxed).max(claimed)
    }

    /// Wakes the subscriber if it sleeps. [`ring::before_waking`] must have been called since the last message was
    /// published.
    pub(crate) fn wake(&self) {
        let woken = self.woken.load(Ordering::Relaxed);
        if let Some(sleep) = ring::sleeper(&self.control.words().asleep, woken) {
            self.woken.store(sleep, Ordering::Relaxed);
            socket::nudge(self.socket.as_fd());
        }
    }

    /// The slots that it holds.
    pub(crate) fn holds(&self, max_samples: u32) -> impl Iterator<Item = u32> + '_ {
        self.control.words().holds[..max_samples.min(MAX_HELD) as usize].iter().filter_map(ring::held)
    }

    fn report(&self, published: u64, max_samples: u32) -> SubscriberReport {
        SubscriberReport {
            process: self.process,
            lag: published.saturating_sub(self.consumed(published)),
            lost: self.control.words().lost.load(Ordering::Relaxed),
            held: self.holds(max_samples).count() as u32,
        }
    }
}

/// The state that the publisher shares with its thread.
pub(crate) struct Shared {
    pub(crate) memory: TopicMemory,
    pub(crate) message: MessageType,
    pub(crate) options: Options,
    /// The sum of the lengths of all messages.
    pub(crate) bytes: AtomicU64,
    /// Changes with `members`.
    pub(crate) version: AtomicU64,
    /// The number of distinct positions for which the publisher has waited.
    pub(crate) waits: AtomicU64,
    members: Mutex<Vec<Arc<Member>>>,
    /// Notified when a subscriber joins, leaves, or consumes the message for which the publisher waits.
    progress: Condvar,
    file: OwnedFd,
    stop: OwnedFd,
}

impl Shared {
    /// The subscribers.
    pub(crate) fn members(&self) -> MutexGuard<'_, Vec<Arc<Member>>> {
        self.members.lock().ignore_poison()
    }

    /// Waits for progress, at most this long.
    pub(crate) fn wait(&self, members: MutexGuard<'_, Vec<Arc<Member>>>, limit: Duration) {
        drop(self.progress.wait_timeout(members, limit).ignore_poison());
    }

    fn published(&self) -> u64 {
        self.memory.head().published.load(Ordering::Acquire)
    }

    fn report(&self) -> Report {
        let (published, options) = (self.published(), &self.options);
        let report = |member: &Arc<Member>| member.report(published, options.max_samples);
        Report {
            message: self.message.clone(),
            process: std::process::id(),
            depth: options.depth,
            history: options.history,
            overflow: options.overflow,
            published,
            bytes: self.bytes.load(Ordering::Relaxed),
            subscribers: self.members().iter().map(report).collect(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Member>>)) {
        let mut members = self.members();
        change(&mut members);
        self.version.fetch_add(1, Ordering::Release);
        self.progress.notify_all();
    }

    /// Adds a subscriber. Returns the reason if it is refused.
    fn add(&self, socket: OwnedFd, process: u32, history: u32) -> Result<(), Error> {
        let options = &self.options;
        if self.members().len() >= options.max_subscribers as usize {
            let reason = format!("the topic has {} subscribers, its maximum", options.max_subscribers);
            return socket::send(&socket, &Answer::Refusal(reason).encode(), &[]);
        }
        let (file, control) = match ControlPage::create() {
            Ok(created) => created,
            Err(error) => return socket::send(&socket, &Answer::Refusal(error.to_string()).encode(), &[]),
        };
        let published = self.published();
        let start = published - u64::from(history.min(options.history)).min(published);
        let offer = Offer {
            message: self.message.clone(),
            depth: options.depth,
            slots: self.memory.geometry.slots,
            max_elements: options.max_elements,
            max_samples: options.max_samples,
            overflow: options.overflow,
            start,
        };
        let answer = Answer::Offer(offer).encode();
        let (floor, woken, nudges) = (AtomicU64::new(start), AtomicU32::new(0), AtomicU64::new(0));
        let member = Arc::new(Member { socket, control, process, floor, woken, nudges });
        // Add the subscriber before the offer, so that it is woken for every message after its first check.
        self.change(|members| members.push(member.clone()));
        socket::send(&member.socket, &answer, &[self.file.as_fd(), file.as_fd()])
            .inspect_err(|_| self.remove(&member))
    }

    fn remove(&self, gone: &Arc<Member>) {
        self.change(|members| members.retain(|member| !Arc::ptr_eq(member, gone)));
        // The publisher keeps its copy of the socket until it publishes again. The shutdown notifies a live subscriber
        // immediately.
        let _ = rustix::net::shutdown(&gone.socket, rustix::net::Shutdown::Both);
    }

    /// Receives the bytes of a subscriber. Removes the subscriber if it has ended, or if it sends more bytes than were
    /// requested.
    fn listen_to(&self, member: &Arc<Member>) {
        match socket::take_nudges(member.socket.as_fd()) {
            Some(0) => {}
            Some(count) => {
                let count = count as u64;
                let sum = member.nudges.fetch_add(count, Ordering::Relaxed) + count;
                if sum > self.waits.load(Ordering::SeqCst) {
                    self.remove(member);
                } else {
                    drop(self.members());
                    self.progress.notify_all();
                }
            }
            None => self.remove(member),
        }
    }
}

/// A client that has not sent its request yet.
struct Pending {
    socket: OwnedFd,
    process: u32,
    deadline: Instant,
    request: Vec<u8>,
}

impl Pending {
    /// Reads more of the request. `None` if the client has gone, or its request is complete, which `shared` answers.
    fn advance(mut self, shared: &Shared) -> Option<Self> {
        let mut bytes = [0u8; HELLO_BYTES];
        let missing = HELLO_BYTES - self.request.len();
        match rustix::net::recv(&self.socket, &mut bytes[..missing], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return None,
            Ok((_, count)) => self.request.extend(&bytes[..count]),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
        if self.request.len() < HELLO_BYTES {
            return (Instant::now() < self.deadline).then_some(self);
        }
        // Ignore the error: the client has disconnected.
        let _ = match Hello::decode(&self.request) {
            Ok(Hello::Subscribe { history }) => shared.add(self.socket, self.process, history),
            Ok(Hello::Query) => socket::send(&self.socket, &Answer::Report(shared.report()).encode(), &[]),
            Err(error) => Err(error),
        };
        None
    }
}

/// The publisher's thread, which ends when this is dropped.
pub(crate) struct Service {
    pub(crate) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The process that started the thread.
    creator_pid: u32,
}

impl Service {
    /// Starts the thread, which listens at `listener`.
    pub(crate) fn start(
        listener: OwnedFd,
        (file, memory): (OwnedFd, TopicMemory),
        message: MessageType,
        options: Options,
    ) -> Result<Self, Error> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(system("creating an eventfd"))?;
        let shared = Arc::new(Shared {
            memory,
            message,
            options,
            bytes: AtomicU64::new(0),
            version: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            members: Mutex::default(),
            progress: Condvar::new(),
            file,
            stop,
        });
        let served = shared.clone();
        let thread =
            std::thread::Builder::new().name("topic".into()).spawn(move || serve(&served, &listener));
        let thread = thread.map_err(|source| Error::System { what: "starting a topic's thread", source })?;
        Ok(Self { shared, thread: Some(thread), creator_pid: std::process::id() })
    }

    /// False in a forked child, which does not have the thread.
    pub(crate) fn is_at_home(&self) -> bool {
        self.creator_pid == std::process::id()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.is_at_home() {
            // Adding 1 cannot overflow the counter.
            let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
            // The thread does not panic. A panic could not be handled here.
            let _ = thread.map(JoinHandle::join);
            // The subscribers detect the end now, even if a guard keeps the memory mapped.
            self.shared.members().clear();
        }
    }
}

fn serve(shared: &Shared, listener: &OwnedFd) {
    let mut pending: Vec<Pending> = Vec::new();
    loop {
        let members = shared.members().clone();
        let mut fds = vec![PollFd::new(&shared.stop, PollFlags::IN)];
        // New clients wait in the backlog while there are too many.
        let accepts = if pending.len() < MAX_PENDING { PollFlags::IN } else { PollFlags::empty() };
        fds.push(PollFd::new(listener, accepts));
        fds.extend(members.iter().map(|member| PollFd::new(&member.socket, PollFlags::IN)));
        fds.extend(pending.iter().map(|client| PollFd::new(&client.socket, PollFlags::IN)));
        let deadline = pending.iter().map(|client| client.deadline).min();
        if poll(&mut fds, socket::timespec(deadline).as_ref()).is_err() {
            continue;
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return;
        }
        for (member, _) in members.iter().zip(&ready[2..]).filter(|(_, ready)| **ready) {
            shared.listen_to(member);
        }
        // Check all pending clients, because their time limits may have expired.
        pending = pending.into_iter().filter_map(|client| client.advance(shared)).collect();
        if ready[1] {
            match socket::accept(listener) {
                Ok(Some((socket, process))) => {
                    let (deadline, request) = (Instant::now() + HANDSHAKE_TIMEOUT, Vec::new());
                    pending.push(Pending { socket, process, deadline, request });
                }
                Ok(None) => {}
                // No descriptors or no memory: the client waits in the backlog.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}
