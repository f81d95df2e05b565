//! Caps the number of connections and evicts idle ones when full.
//!
//! Source: RFC 9112, 9.3 and 9.5: a server may close a connection on which no request is in progress.

use hyper::body::{Body, Frame, SizeHint};
use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Interval at which a new connection looks for an idle one to evict while all are busy.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// How long to wait for an evicted connection to close, however busy the machine is.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(1);

/// The part of a connection's state that other connections access.
#[derive(Debug, Default)]
struct SharedPart {
    closed: Notify,
    /// The peer has not yet received all of an answer.
    is_sending: AtomicBool,
}

#[derive(Debug, Default)]
struct Idle {
    next: u64,
    /// Connections that wait for a request, longest idle first.
    waiting: BTreeMap<u64, (IpAddr, Arc<SharedPart>)>,
}

/// The connection limit. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimit {
    free: Arc<Semaphore>,
    idle: Arc<Mutex<Idle>>,
}

/// The permit of one connection. A new connection is idle.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limit: ConnectionLimit,
    peer: IpAddr,
    /// Key in the list of idle connections, while it is idle.
    number: Mutex<Option<u64>>,
    shared: Arc<SharedPart>,
    _permit: OwnedSemaphorePermit,
}

impl ConnectionLimit {
    pub fn new(limit: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(limit)), idle: Arc::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        // The list is consistent after every statement.
        self.idle.lock().ignore_poison()
    }

    /// Waits for a permit for a new connection. If none is free, evicts an idle connection.
    pub async fn take(&self, peer: IpAddr) -> ConnectionPermit {
        let free = loop {
            if let Ok(free) = self.free.clone().try_acquire_owned() {
                break free;
            }
            let wait = if self.evict_idle() { EVICTION_TIMEOUT } else { RETRY_INTERVAL };
            // The semaphore is never closed.
            if let Ok(Ok(free)) = tokio::time::timeout(wait, self.free.clone().acquire_owned()).await {
                break free;
            }
        };
        let permit = ConnectionPermit {
            limit: self.clone(),
            peer,
            number: Mutex::new(None),
            shared: Arc::default(),
            _permit: free,
        };
        permit.set_idle();
        permit
    }

    /// Evicts the longest idle connection of the address that has the most idle ones. Returns whether there was one.
    pub fn evict_idle(&self) -> bool {
        let mut idle = self.idle();
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        let is_evictable =
            |(_, shared): &(IpAddr, Arc<SharedPart>)| !shared.is_sending.load(Ordering::Relaxed);
        let resting = idle.waiting.values().filter(|one| is_evictable(one));
        resting.for_each(|(peer, _)| *counts.entry(*peer).or_default() += 1);
        let Some((busiest, _)) = counts.into_iter().max_by_key(|count| count.1) else { return false };
        let oldest =
            idle.waiting.iter().find(|(_, one)| one.0 == busiest && is_evictable(one)).map(|found| *found.0);
        let closed = oldest.and_then(|number| idle.waiting.remove(&number));
        closed.inspect(|(_, shared)| shared.closed.notify_one()).is_some()
    }
}

impl ConnectionPermit {
    fn number(&self) -> MutexGuard<'_, Option<u64>> {
        self.number.lock().ignore_poison()
    }

    /// Marks the connection as busy with a request. Returns false if it has already been evicted.
    pub fn begin_request(&self) -> bool {
        let number = self.number().take();
        match number {
            Some(number) => self.limit.idle().waiting.remove(&number).is_some(),
            // Another request of the same connection is in progress.
            None => true,
        }
    }

    /// Marks the connection as idle.
    pub fn set_idle(&self) {
        let number = {
            let mut idle = self.limit.idle();
            idle.next += 1;
            let number = idle.next;
            idle.waiting.insert(number, (self.peer, self.shared.clone()));
            number
        };
        *self.number() = Some(number);
    }

    /// Records whether the peer still has to accept part of an answer. A connection is not evicted in that state.
    pub fn set_sending(&self, is_sending: bool) {
        self.shared.is_sending.store(is_sending, Ordering::Relaxed);
    }

    /// Resolves when the connection is evicted. No request is in progress then.
    pub async fn closed(&self) {
        self.shared.closed.notified().await;
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let number = self.number().take();
        if let Some(number) = number {
            self.limit.idle().waiting.remove(&number);
        }
    }
}

/// An answer's body. Its connection becomes idle when the body is sent.
pub(crate) struct Answer<B> {
    body: B,
    permit: Arc<ConnectionPermit>,
}

impl<B> Answer<B> {
    pub fn new(body: B, permit: Arc<ConnectionPermit>) -> Self {
        Self { body, permit }
    }
}

impl<B> Drop for Answer<B> {
    fn drop(&mut self) {
        self.permit.set_idle();
    }
}

impl<B: Body + Unpin> Body for Answer<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    async fn is_closed(permit: &ConnectionPermit) -> bool {
        tokio::time::timeout(Duration::from_millis(10), permit.closed()).await.is_ok()
    }

    #[tokio::test]
    async fn the_longest_idle_connection_of_the_busiest_peer_is_evicted() {
        let limit = ConnectionLimit::new(5);
        let honest = limit.take(peer(1)).await;
        let busy = limit.take(peer(2)).await;
        assert!(busy.begin_request());
        let slow = limit.take(peer(2)).await;
        slow.set_sending(true);
        let (first, second) = (limit.take(peer(2)).await, limit.take(peer(2)).await);
        let new = tokio::spawn({
            let limit = limit.clone();
            async move { limit.take(peer(3)).await }
        });
        tokio::time::timeout(Duration::from_secs(10), first.closed()).await.unwrap();
        assert!(!first.begin_request(), "a request that comes now is not begun");
        assert!(!is_closed(&second).await && !is_closed(&honest).await && !is_closed(&busy).await);
        drop(first);
        let new = new.await.unwrap();
        assert!(new.begin_request() && honest.begin_request() && second.begin_request());
        // No connection is idle: a new one waits until one becomes idle and is evicted.
        let later = tokio::spawn(async move { limit.take(peer(4)).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!later.is_finished());
        assert!(!is_closed(&slow).await, "its answer is not sent yet");
        second.set_idle();
        tokio::time::timeout(Duration::from_secs(10), second.closed()).await.unwrap();
        drop(second);
        later.await.unwrap();
    }
}
