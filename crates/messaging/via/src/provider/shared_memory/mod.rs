//! The shared-memory provider. It connects processes of one host that need not trust each other.
//!
//! Source: memfd_create(2), futex(2), membarrier(2), pidfd_getfd(2), unix(7).
//!
//! `layout.rs` describes the shared memory, and `link.rs` its use. The book's chapter explains why it is safe.

mod acceptor;
mod barrier;
mod borrowing;
pub(in crate::provider) mod control_message;
mod deferred_close;
mod peer_connection;
// These tests are compiled into the crate, because their attackers use its private wire formats.
#[cfg(test)]
#[path = "../../../tests/hostile/shared_memory/mod.rs"]
mod hostile;
mod incoming;
mod layout;
mod link;
mod mapping;
mod monitor;
mod outgoing;
mod peer;
mod peer_region;
mod process;
mod quota;
mod rendezvous;
mod ring;
#[cfg(test)]
mod ring_tests;
mod server_names;
mod settings;
mod unread_exports;

use longma_locks::IgnorePoison;
pub use settings::{Allow, Directory, Limits, Refused, Settings, SingleCopy};

use crate::address::Address;
use crate::attributes::NicAttributes;
use crate::error::Error;
use crate::protection::MemoryHandle;
use crate::provider::{Established, Incoming, Memory, OutgoingRequest, Poller, Provider, RegionInfo};
use acceptor::Listener;
use layout::EXPORTS;
use mapping::SharedPages;
use monitor::{Monitor, MonitorHandle};
use peer::Peer;
use quota::Quotas;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

/// The provider.
pub struct SharedMemory {
    attributes: NicAttributes,
    settings: Arc<Settings>,
    quota: Arc<Quotas>,
    itself: Weak<SharedMemory>,
    poller: Mutex<Option<Weak<dyn Poller>>>,
    monitor: Mutex<Option<MonitorHandle>>,
    listeners: Mutex<BTreeMap<Vec<u8>, Arc<Listener>>>,
    /// Registered regions to be exported or lent to peers, by handle.
    regions: Mutex<BTreeMap<u32, RegionInfo>>,
}

impl SharedMemory {
    /// Opens the provider with default settings: any process of this host may connect.
    pub fn open() -> Result<Arc<SharedMemory>, Error> {
        SharedMemory::open_with(Settings::default())
    }

    /// Opens the provider. The first connection starts a thread, which sleeps unless a peer exits or sends a control
    /// message.
    pub fn open_with(settings: Settings) -> Result<Arc<SharedMemory>, Error> {
        // Register the process early, so that barriers of peers cover it from its first message on.
        barrier::is_available();
        let attributes = NicAttributes {
            name: "shm".into(),
            local_address: b"local".to_vec(),
            ..NicAttributes::default()
        };
        Ok(Arc::new_cyclic(|itself| SharedMemory {
            attributes,
            quota: Quotas::new(settings.limits),
            settings: Arc::new(settings),
            itself: itself.clone(),
            poller: Mutex::default(),
            monitor: Mutex::default(),
            listeners: Mutex::default(),
            regions: Mutex::default(),
        }))
    }

    /// Returns the refusals since the last call, by this NIC or by its peers; at most the last 64. To call this, keep a
    /// clone of the `Arc` from which the [`Nic`](crate::Nic) was created.
    pub fn take_refusals(&self) -> Vec<Refused> {
        self.quota.take_refusals()
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    fn quota(&self) -> &Arc<Quotas> {
        &self.quota
    }

    fn itself(&self) -> Result<Arc<SharedMemory>, Error> {
        self.itself.upgrade().ok_or_else(|| Error::InvalidState("the NIC is closing".into()))
    }

    fn monitor(&self) -> MutexGuard<'_, Option<MonitorHandle>> {
        self.monitor.lock().ignore_poison()
    }

    fn regions(&self) -> MutexGuard<'_, BTreeMap<u32, RegionInfo>> {
        self.regions.lock().ignore_poison()
    }

    fn watch(&self, peer: &Arc<Peer>) -> Result<(), Error> {
        let mut monitor = self.monitor();
        if monitor.is_none() {
            let poller = self.poller.lock().ignore_poison().clone();
            let poller = poller.ok_or_else(|| Error::InvalidState("the provider is not attached".into()))?;
            *monitor = Some(Monitor::start(poller)?);
        }
        match monitor.as_ref() {
            Some(monitor) => monitor.add(peer),
            None => Ok(()),
        }
    }

    fn unwatch(&self, peer: &Arc<Peer>) {
        if let Some(monitor) = self.monitor().as_ref() {
            monitor.remove(peer);
        }
    }

    fn each_peer(&self, act: impl FnMut(&Peer)) {
        if let Some(monitor) = self.monitor().as_ref() {
            monitor.each(act);
        }
    }

    fn listener(&self, discriminator: &[u8]) -> Result<Arc<Listener>, Error> {
        let mut listeners = self.listeners.lock().ignore_poison();
        if let Some(listener) = listeners.get(discriminator) {
            return Ok(listener.clone());
        }
        let listener = Arc::new(Listener::bind(discriminator, &self.settings, &self.quota)?);
        listeners.insert(discriminator.to_vec(), listener.clone());
        Ok(listener)
    }
}

fn of_this_host(address: &Address) -> Result<(), Error> {
    if address.host.is_empty() || address.host == b"local" {
        return Ok(());
    }
    Err(Error::NotReachable(format!(
        "{address} is on another host; shared memory connects processes of this host"
    )))
}

impl Provider for Arc<SharedMemory> {
    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn attach(&self, poller: Weak<dyn Poller>) {
        *self.poller.lock().ignore_poison() = Some(poller);
    }

    fn listen(&self, local: &Address) -> Result<(), Error> {
        of_this_host(local)?;
        self.listener(&local.discriminator).map(drop)
    }

    fn stop_listening(&self, local: &Address) {
        let mut listeners = self.listeners.lock().ignore_poison();
        let listener = listeners.remove(&local.discriminator);
        drop(listeners);
        if let Some(listener) = listener {
            listener.close();
        }
    }

    fn wait(&self, local: &Address, deadline: Option<Instant>) -> Result<Box<dyn Incoming>, Error> {
        of_this_host(local)?;
        let listener = self.listener(&local.discriminator)?;
        rendezvous::wait(&self.itself()?, &listener, local, deadline)
    }

    fn request(&self, ask: &OutgoingRequest<'_>, deadline: Option<Instant>) -> Result<Established, Error> {
        of_this_host(ask.remote)?;
        rendezvous::request(&self.itself()?, ask, deadline)
    }

    fn allocate(&self, length: usize) -> Result<Option<Arc<dyn Memory>>, Error> {
        Ok(Some(Arc::new(SharedPages::new(length)?)))
    }

    fn register_region(&self, region: &RegionInfo) {
        // Without a file, peers access the region by messages, which is slower but equivalent.
        let _ = self.update_region(region);
    }

    fn update_region(&self, region: &RegionInfo) -> Result<(), Error> {
        let Some(pages) =
            region.memory.as_ref().and_then(|memory| memory.as_any().downcast_ref::<SharedPages>())
        else {
            return Ok(());
        };
        // Revoke exports made under the old attributes. Peers connected through VIs of another tag keep their mappings.
        let before = self.regions().get(&region.handle.0).map(|before| before.tag);
        self.deregister_region(region.handle);
        let peers_write = (region.rdma_write || region.rdma_read).then_some(region.rdma_write);
        if let Err(error) = pages.share(peers_write, before.is_some_and(|tag| tag != region.tag)) {
            return if before.is_some() { Err(error) } else { Ok(()) };
        }
        // A region that is not exported may be lent, if a slot is free. A region that is neither exported nor lent
        // needs no file.
        let lends = self.settings.single_copy != SingleCopy::Never && self.regions().len() < EXPORTS;
        if peers_write.is_none() && !lends {
            pages.close_file();
            return Ok(());
        }
        self.regions().insert(region.handle.0, region.clone());
        self.each_peer(|peer| peer.offer(region));
        Ok(())
    }

    fn deregister_region(&self, handle: MemoryHandle) {
        if self.regions().remove(&handle.0).is_some() {
            self.each_peer(|peer| peer.revoke(handle.0));
        }
    }
}
