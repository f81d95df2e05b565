//! Wakes futures: one thread of the process waits for the sockets of all subscribers that are awaited.
//!
//! Source: epoll(7).

use crate::error::{Error, system};
use longma_locks::IgnorePoison;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

struct Reactor {
    epoll: OwnedFd,
    wakers: Mutex<BTreeMap<u64, Waker>>,
    next: AtomicU64,
}

/// A socket that is watched for a future.
pub(crate) struct Registration {
    reactor: Arc<Reactor>,
    number: u64,
}

impl Registration {
    /// Watches a socket from the next [`arm`](Self::arm) on.
    pub(crate) fn new(socket: BorrowedFd<'_>) -> Result<Self, Error> {
        let reactor = reactor()?;
        let number = reactor.next.fetch_add(1, Ordering::Relaxed);
        epoll::add(&reactor.epoll, socket, EventData::new_u64(number), EventFlags::ONESHOT)
            .map_err(system("watching a topic's socket"))?;
        Ok(Self { reactor, number })
    }

    /// Wakes the future once, when the socket is readable or its connection has ended.
    pub(crate) fn arm(&self, socket: BorrowedFd<'_>, waker: &Waker) -> Result<(), Error> {
        self.reactor.wakers.lock().ignore_poison().insert(self.number, waker.clone());
        let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        epoll::modify(&self.reactor.epoll, socket, EventData::new_u64(self.number), events)
            .map_err(system("watching a topic's socket"))
    }

    /// Ends the watch. `socket` must still be open.
    pub(crate) fn end(self, socket: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.reactor.epoll, socket);
        self.reactor.wakers.lock().ignore_poison().remove(&self.number);
    }
}

/// The reactor of this process. The first call starts its thread, which sleeps until a socket is readable.
fn reactor() -> Result<Arc<Reactor>, Error> {
    static REACTOR: Mutex<Option<(u32, Arc<Reactor>)>> = Mutex::new(None);
    let mut place = REACTOR.lock().ignore_poison();
    // A forked child does not inherit the thread and needs its own.
    match &*place {
        Some((creator_pid, reactor)) if *creator_pid == std::process::id() => return Ok(reactor.clone()),
        _ => {}
    }
    let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(system("creating an epoll instance"))?;
    let reactor = Arc::new(Reactor { epoll, wakers: Mutex::default(), next: AtomicU64::new(0) });
    let running = reactor.clone();
    let thread = std::thread::Builder::new().name("topic-futures".into()).spawn(move || run(&running));
    thread.map_err(|source| Error::System { what: "starting the thread that wakes futures", source })?;
    *place = Some((std::process::id(), reactor.clone()));
    Ok(reactor)
}

fn run(reactor: &Reactor) {
    let mut events = Vec::with_capacity(64);
    loop {
        events.clear();
        // Interruption by a signal is the only possible error.
        let _ = epoll::wait(&reactor.epoll, rustix::buffer::spare_capacity(&mut events), None);
        for event in &events {
            // A copy, because the structure is packed.
            let data = event.data;
            let waker = reactor.wakers.lock().ignore_poison().remove(&data.u64());
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}
