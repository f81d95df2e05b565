//! The public interface of the modelled network: opening NICs, connecting VIs, and the clock.
//!
//! Source: VIA, VI connection and disconnection.

use super::Settings;
use super::lanai::Parameters;
use super::link::MyrinetLink;
use super::requests::{Answer, PendingRequest, Shared};
use super::world::{Counts, World};
use longma_sim::Duration;
use longma_via::provider::{
    Established, Incoming, Link, Memory, OutgoingRequest, Pages, Provider, RegionInfo,
};
use longma_via::{Address, Error, MemoryHandle, NicAttributes, Reliability, ViAttributes};
use std::sync::Arc;
use std::time::Instant;

/// A modelled network: a switch and hosts with one NIC each. Clones refer to the same network.
#[derive(Clone)]
pub struct Fabric {
    shared: Arc<Shared>,
}

impl Fabric {
    /// Creates the network of a machine. All NICs run the firmware of `settings`.
    ///
    /// # Errors
    /// If the settings do not fit the NIC.
    pub fn new(parameters: Parameters, settings: Settings) -> Result<Self, Error> {
        if settings.kind == super::Kind::Myvia {
            let ring = settings.small_ring;
            if ring == 0 || settings.low_water >= ring {
                let low = settings.low_water;
                let why =
                    format!("the low-water mark {low} must be less than the size {ring} of the small ring");
                return Err(Error::InvalidParameter(why));
            }
        }
        parameters.check_memory(settings.table_bytes(32)).map_err(Error::InvalidParameter)?;
        Ok(Self { shared: Arc::new(Shared::new(World::new(parameters, settings))) })
    }

    /// The NIC of host number `station`, for [`longma_via::Nic::with_provider`].
    ///
    /// # Errors
    /// If there is no such host.
    pub fn nic(&self, station: usize) -> Result<Myrinet, Error> {
        let world = self.shared.world();
        let parameters = world.parameters();
        if station >= parameters.hosts as usize {
            return Err(Error::InvalidParameter(format!("the machine has {} hosts", parameters.hosts)));
        }
        let attributes = NicAttributes {
            name: format!("myrinet{station}"),
            local_address: station.to_string().into_bytes(),
            max_transfer_bytes: parameters.mtu,
            native_mtu_bytes: parameters.mtu,
            max_segments_per_descriptor: 252,
            ..NicAttributes::default()
        };
        drop(world);
        Ok(Myrinet { shared: self.shared.clone(), station, attributes })
    }

    /// The clock of the program on a host.
    pub fn time(&self, station: usize) -> Duration {
        Duration::from_ps(self.shared.world().time(station).ps())
    }

    /// Advances the time until an event reaches some host. For a program that drives several hosts, all of which are
    /// idle. Returns `false` if nothing is in progress.
    pub fn skip(&self) -> bool {
        self.shared.world().skip()
    }

    /// The statistics of a host's NIC.
    pub fn counts(&self, station: usize) -> Counts {
        self.shared.world().counts(station)
    }
}

/// A NIC of the modelled network.
pub struct Myrinet {
    shared: Arc<Shared>,
    station: usize,
    attributes: NicAttributes,
}

impl Provider for Myrinet {
    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn known_hosts(&self) -> Vec<Vec<u8>> {
        let hosts = self.shared.world().parameters().hosts as usize;
        let others = (0..hosts).filter(|host| *host != self.station);
        std::iter::once(self.station).chain(others).map(|host| host.to_string().into_bytes()).collect()
    }

    fn listen(&self, local: &Address) -> Result<(), Error> {
        let key = (self.station, local.discriminator.clone());
        self.shared.requests().waiting.entry(key).or_default();
        self.shared.changed.notify_all();
        Ok(())
    }

    fn stop_listening(&self, local: &Address) {
        let key = (self.station, local.discriminator.clone());
        let mut requests = self.shared.requests();
        for pending in requests.waiting.remove(&key).unwrap_or_default() {
            requests.answers.insert(pending.number, Some(Answer::Rejected));
        }
        self.shared.changed.notify_all();
    }

    fn wait(&self, local: &Address, deadline: Option<Instant>) -> Result<Box<dyn Incoming>, Error> {
        let key = (self.station, local.discriminator.clone());
        let mut requests = self.shared.requests();
        requests.waiting.entry(key.clone()).or_default();
        loop {
            let Some(waiting) = requests.waiting.get_mut(&key) else {
                return Err(Error::InvalidState(format!("the NIC no longer listens at {local}")));
            };
            if let Some(pending) = waiting.pop_front() {
                let shared = self.shared.clone();
                return Ok(Box::new(IncomingRequest {
                    shared,
                    station: self.station,
                    pending: Some(pending),
                }));
            }
            self.shared.changed.notify_all();
            let (again, in_time) = self.shared.pause(requests, deadline);
            requests = again;
            if !in_time {
                return Err(Error::Timeout);
            }
        }
    }

    fn request(
        &self,
        outgoing: &OutgoingRequest<'_>,
        deadline: Option<Instant>,
    ) -> Result<Established, Error> {
        let mut requests = self.shared.requests();
        let host = std::str::from_utf8(&outgoing.remote.host).ok().and_then(|host| host.parse().ok());
        let found = requests.waiting.keys().find(|(station, discriminator)| {
            *discriminator == outgoing.remote.discriminator && host.is_none_or(|host: usize| host == *station)
        });
        let Some(key) = found.cloned() else {
            return Err(Error::NoMatch(outgoing.remote.to_string()));
        };
        let slot = self.shared.world().add_vi(self.station);
        let number = requests.next;
        requests.next += 1;
        requests.answers.insert(number, None);
        let (station, attributes) = (self.station, *outgoing.attributes);
        let from = Address::new(station.to_string(), &outgoing.local.discriminator);
        let pending = PendingRequest { number, from, station, slot, attributes };
        requests.waiting.entry(key.clone()).or_default().push_back(pending);
        self.shared.changed.notify_all();
        loop {
            match requests.answers.get_mut(&number).and_then(Option::take) {
                Some(Answer::Rejected) => {
                    requests.answers.remove(&number);
                    self.shared.world().station(self.station).vis[slot].active = false;
                    return Err(Error::Rejected);
                }
                Some(Answer::Accepted { slot: peer, attributes }) => {
                    requests.answers.remove(&number);
                    let (own, peer) = ((self.station, slot), (key.0, peer));
                    let link =
                        MyrinetLink::new(self.shared.clone(), own, peer, outgoing.attributes.reliability);
                    return Ok(Established { link: Box::new(link), remote_attributes: attributes });
                }
                None => {}
            }
            let (again, in_time) = self.shared.pause(requests, deadline);
            requests = again;
            if !in_time {
                // From here on an accept fails, so that neither side believes in a connection that the other side does
                // not have.
                requests.answers.remove(&number);
                let queue = requests.waiting.get_mut(&key);
                queue.into_iter().for_each(|queue| queue.retain(|pending| pending.number != number));
                self.shared.world().station(self.station).vis[slot].active = false;
                return Err(Error::Timeout);
            }
        }
    }

    fn allocate(&self, length: usize) -> Result<Option<Arc<dyn Memory>>, Error> {
        Ok(Some(Arc::new(Pages::new(length)?)))
    }

    fn register_region(&self, region: &RegionInfo) {
        let mut world = self.shared.world();
        let regions = &mut world.station(self.station).regions;
        regions.insert(region.handle.0, region.address, region.length, region.memory.is_some());
    }

    fn deregister_region(&self, handle: MemoryHandle) {
        self.shared.world().station(self.station).regions.remove(handle.0);
    }
}

struct IncomingRequest {
    shared: Arc<Shared>,
    station: usize,
    pending: Option<PendingRequest>,
}

impl IncomingRequest {
    /// Delivers the answer. Returns whether the peer still waits for it.
    fn answer(&mut self, answer: Answer) -> bool {
        let Some(pending) = self.pending.take() else { return false };
        let mut requests = self.shared.requests();
        let Some(place) = requests.answers.get_mut(&pending.number) else { return false };
        *place = Some(answer);
        self.shared.changed.notify_all();
        true
    }
}

impl Incoming for IncomingRequest {
    fn remote(&self) -> &Address {
        static NO_ADDRESS: Address = Address { host: Vec::new(), discriminator: Vec::new() };
        self.pending.as_ref().map_or(&NO_ADDRESS, |pending| &pending.from)
    }

    fn remote_attributes(&self) -> &ViAttributes {
        static NONE: ViAttributes = ViAttributes {
            reliability: Reliability::Unreliable,
            max_transfer_bytes: 0,
            tag: longma_via::ProtectionTag::from_number(0),
            rdma_write: false,
            rdma_read: false,
        };
        self.pending.as_ref().map_or(&NONE, |pending| &pending.attributes)
    }

    fn accept(
        mut self: Box<Self>,
        _vi: u32,
        attributes: &ViAttributes,
        _tag: u32,
    ) -> Result<Box<dyn Link>, Error> {
        let Some(peer) = self.pending.as_ref().map(|pending| (pending.station, pending.slot)) else {
            return Err(Error::NoMatch("the request has already been answered".into()));
        };
        let slot = self.shared.world().add_vi(self.station);
        if !self.answer(Answer::Accepted { slot, attributes: *attributes }) {
            self.shared.world().station(self.station).vis[slot].active = false;
            return Err(Error::NotReachable("the peer no longer waits for the answer".into()));
        }
        let own = (self.station, slot);
        Ok(Box::new(MyrinetLink::new(self.shared.clone(), own, peer, attributes.reliability)))
    }

    fn reject(mut self: Box<Self>) {
        self.answer(Answer::Rejected);
    }
}

impl Drop for IncomingRequest {
    fn drop(&mut self) {
        self.answer(Answer::Rejected);
    }
}
