//! NICs over datagrams: reliable connections over any medium, shared by the UDP and AF_XDP providers.
//!
//! Source: `longma-reliable`; VIA, reliability levels. Unreliable VIs also use a reliable connection, which the
//! specification permits.

// These tests are compiled into the crate, because their hostile peers use its private messages.
#[cfg(test)]
#[path = "../../../tests/hostile/datagram.rs"]
mod hostile;
mod link;
pub(crate) mod medium;
pub(super) mod message;
mod node;
mod service_thread;

use crate::address::Address;
use crate::attributes::NicAttributes;
use crate::error::Error;
use crate::provider::{Established, Incoming, OutgoingRequest, Poller, Provider};
use longma_reliable::Config;
use medium::Medium;
use message::MAX_DISCRIMINATOR;
use node::Node;
pub(crate) use service_thread::set_max_sleep;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The maximum transfer size, bytes.
const MAX_TRANSFER_BYTES: u32 = 16 << 20;

/// The maximum number of descriptors in a work queue.
const MAX_DESCRIPTORS: u32 = 1024;

/// How long closing a NIC waits for its thread.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a datagram NIC waits for its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimits {
    /// The time without packets from a peer after which it is considered dead. Default 3 s.
    pub give_up_after: Duration,
    /// The time after which a connection ends if its packets do not arrive although the peer answers, because the
    /// path's MTU has shrunk. Default 5 s.
    pub blocked_after: Duration,
    /// How long a VI that is disconnected, and a NIC that is closed, deliver pending data. Default 2 s.
    pub linger: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        let Config { give_up_after, blocked_after, .. } = Config::default();
        Self { give_up_after, blocked_after, linger: Duration::from_secs(2) }
    }
}

/// A NIC over a medium.
pub(crate) struct DatagramNic {
    node: Arc<Node>,
    thread: JoinHandle<()>,
    attributes: NicAttributes,
}

impl DatagramNic {
    /// Creates a NIC called `name` at `host`, over `medium`.
    pub(crate) fn new(
        medium: Box<dyn Medium>,
        limits: TimeLimits,
        name: String,
        host: Vec<u8>,
        mtu: u32,
    ) -> Result<Self, Error> {
        let node = Node::new(medium, limits)?;
        let thread = service_thread::start(&node)?;
        let attributes = NicAttributes {
            name,
            local_address: host,
            max_discriminator_bytes: MAX_DISCRIMINATOR,
            max_descriptors_per_queue: MAX_DESCRIPTORS,
            max_transfer_bytes: MAX_TRANSFER_BYTES,
            native_mtu_bytes: mtu,
            ..NicAttributes::default()
        };
        Ok(Self { node, thread, attributes })
    }

    /// Delivers pending data and ends the thread. Does nothing the second time.
    fn close(&self) {
        if self.node.is_forked_child() || self.node.is_closed.load(Ordering::Acquire) {
            return;
        }
        self.node.close();
        // Wait for the thread, because it holds the medium and so its address. Do not wait indefinitely: the thread may
        // be the current one, or be in a callback of the program that waits for the current thread.
        let begin = Instant::now();
        while !self.thread.is_finished()
            && self.thread.thread().id() != std::thread::current().id()
            && begin.elapsed() < CLOSE_TIMEOUT
        {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Implemented by providers that consist of a `DatagramNic`.
pub(crate) trait OverDatagrams: Send + Sync {
    fn nic(&self) -> &DatagramNic;
}

impl<T: OverDatagrams> Provider for T {
    fn attributes(&self) -> &NicAttributes {
        &self.nic().attributes
    }

    fn attach(&self, poller: Weak<dyn Poller>) {
        let _ = self.nic().node.poller.set(poller);
    }

    fn close(&self) {
        self.nic().close();
    }

    fn host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        if host.is_empty() {
            return Ok(self.attributes().local_address.clone());
        }
        self.nic().node.host(host)
    }

    fn named_host(&self, host: &[u8]) -> Result<Vec<u8>, Error> {
        let own = if host.is_empty() { &self.attributes().local_address } else { host };
        self.nic().node.named_host(own)
    }

    fn listen(&self, local: &Address) -> Result<(), Error> {
        self.nic().node.listen(local);
        Ok(())
    }

    fn stop_listening(&self, local: &Address) {
        self.nic().node.stop_listening(local);
    }

    fn wait(&self, local: &Address, deadline: Option<Instant>) -> Result<Box<dyn Incoming>, Error> {
        self.nic().node.wait(local, deadline)
    }

    fn request(&self, ask: &OutgoingRequest<'_>, deadline: Option<Instant>) -> Result<Established, Error> {
        self.nic().node.request(ask.vi, ask.local, ask.remote, ask.attributes, deadline)
    }
}

impl Drop for DatagramNic {
    fn drop(&mut self) {
        self.close();
    }
}
