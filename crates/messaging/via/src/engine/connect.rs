//! Connecting VIs: as a client of a server, by accepting a client, or peer to peer.
//!
//! Source: VIA, VI connection and disconnection; VIPL, VipConnectAccept and VipConnectPeerRequest.

use super::endpoint::{Attempt, Endpoint};
use super::waiting::deadline_after;
use crate::address::Address;
use crate::attributes::{Reliability, ViAttributes};
use crate::error::Error;
use crate::provider::{Incoming, OutgoingRequest};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval at which a VI waiting for its peer checks whether its attempt is still current.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The pause before the request to a peer that is not ready is repeated.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// The peer's address may be used by a process that waits for another VI and rejects this one. Requests are repeated
/// for this long.
const REJECTION_TOLERANCE: Duration = Duration::from_secs(1);

impl Endpoint {
    pub(crate) fn connect(
        &self,
        local: &Address,
        remote: &Address,
        timeout: Option<Duration>,
    ) -> Result<ViAttributes, Error> {
        let attempt = self.enter_pending()?;
        let outcome = self.request(&attempt, local, remote, deadline_after(timeout));
        if outcome.is_err() {
            self.leave_pending(&attempt);
        }
        outcome
    }

    fn request(
        &self,
        attempt: &Attempt,
        local: &Address,
        remote: &Address,
        deadline: Option<Instant>,
    ) -> Result<ViAttributes, Error> {
        let attributes = &attempt.attributes;
        let ask = OutgoingRequest { vi: self.number, local, remote, attributes, tag: attributes.tag.0 };
        let established = self.nic.provider.request(&ask, deadline)?;
        compatible(attributes, &established.remote_attributes)?;
        self.enter_connected(attempt, established.link, &established.remote_attributes);
        Ok(established.remote_attributes)
    }

    pub(crate) fn accept(&self, incoming: Box<dyn Incoming>) -> Result<(), Error> {
        match self.begin_accept(incoming.remote_attributes()) {
            Ok(attempt) => self.finish_accept(&attempt, incoming),
            Err(error) => {
                incoming.reject();
                Err(error)
            }
        }
    }

    /// Checks that this VI can be connected to a VI with the attributes `remote`. If so, it is connect pending, and
    /// `finish_accept` must follow.
    pub(crate) fn begin_accept(&self, remote: &ViAttributes) -> Result<Attempt, Error> {
        let attempt = self.enter_pending()?;
        match compatible(&attempt.attributes, remote) {
            Ok(()) => Ok(attempt),
            Err(error) => {
                self.leave_pending(&attempt);
                Err(error)
            }
        }
    }

    /// Accepts the request. The VI is connected or idle again afterwards.
    pub(crate) fn finish_accept(&self, attempt: &Attempt, incoming: Box<dyn Incoming>) -> Result<(), Error> {
        let remote = *incoming.remote_attributes();
        match incoming.accept(self.number, &attempt.attributes, attempt.attributes.tag.0) {
            Ok(link) => {
                self.enter_connected(attempt, link, &remote);
                Ok(())
            }
            Err(error) => {
                self.leave_pending(attempt);
                Err(error)
            }
        }
    }

    /// Makes the VI connect pending. `PeerRequest::finish` completes the connection.
    pub(crate) fn request_peer(
        self: &Arc<Self>,
        local: &Address,
        remote: &Address,
    ) -> Result<PeerRequest, Error> {
        let host = self.nic.provider.host(&remote.host)?;
        let remote = Address { host, discriminator: remote.discriminator.clone() };
        let waits = self.waits_for(local, &remote)?;
        let attempt = self.enter_pending()?;
        Ok(PeerRequest { endpoint: self.clone(), attempt, local: local.clone(), remote, waits })
    }

    /// Decides which side waits: the one with the smaller address. Both sides reach the same decision without
    /// communication. Discriminators are compared first. If they are equal, the hosts are compared, which requires that
    /// each side knows the name that the other uses for its host.
    fn waits_for(&self, local: &Address, remote: &Address) -> Result<bool, Error> {
        if local.discriminator != remote.discriminator {
            return Ok(local.discriminator < remote.discriminator);
        }
        let own = self.nic.provider.named_host(&local.host)?;
        if own == remote.host {
            let why = format!("{remote} is this VI's own address; a peer must have another one");
            return Err(Error::InvalidParameter(why));
        }
        Ok(own < remote.host)
    }
}

/// A VI in a peer-to-peer connection attempt. Dropping the attempt makes the VI idle again.
pub struct PeerRequest {
    endpoint: Arc<Endpoint>,
    attempt: Attempt,
    local: Address,
    remote: Address,
    waits: bool,
}

impl PeerRequest {
    /// Waits for the peer up to `timeout` (`None`: indefinitely) and returns the attributes of its VI.
    ///
    /// # Errors
    /// [`Error::Timeout`]; [`Error::Rejected`]; [`Error::InvalidReliability`] if the peer has another reliability
    /// level; [`Error::InvalidState`] if the VI was disconnected.
    pub fn finish(self, timeout: Option<Duration>) -> Result<ViAttributes, Error> {
        let deadline = deadline_after(timeout);
        if self.waits { self.await_peer(deadline) } else { self.request_from_peer(deadline) }
    }

    /// Waits for the request of the peer. All other requests are rejected.
    fn await_peer(&self, deadline: Option<Instant>) -> Result<ViAttributes, Error> {
        let PeerRequest { endpoint, attempt, local, .. } = self;
        loop {
            let soon = Instant::now() + CHECK_INTERVAL;
            let until = deadline.map_or(soon, |deadline| deadline.min(soon));
            match endpoint.nic.provider.wait(local, Some(until)) {
                Ok(incoming) if self.is_peer(&*incoming) => {
                    let theirs = *incoming.remote_attributes();
                    if let Err(error) = compatible(&attempt.attributes, &theirs) {
                        incoming.reject();
                        return Err(error);
                    }
                    match incoming.accept(endpoint.number, &attempt.attributes, attempt.attributes.tag.0) {
                        Ok(link) => {
                            endpoint.enter_connected(attempt, link, &theirs);
                            return Ok(theirs);
                        }
                        // The peer gave up its request. It may send another one.
                        Err(Error::NotReachable(_) | Error::NoMatch(_) | Error::Timeout) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(stranger) => stranger.reject(),
                Err(Error::Timeout) if deadline.is_none_or(|deadline| Instant::now() < deadline) => {}
                Err(error) => return Err(error),
            }
            self.still_pending()?;
        }
    }

    fn is_peer(&self, incoming: &dyn Incoming) -> bool {
        let asking = incoming.remote();
        let host = self.endpoint.nic.provider.host(&asking.host);
        asking.discriminator == self.remote.discriminator && host.is_ok_and(|host| host == self.remote.host)
    }

    /// Sends requests until the peer is waiting for this VI.
    fn request_from_peer(&self, deadline: Option<Instant>) -> Result<ViAttributes, Error> {
        let mut refused_since = None;
        loop {
            match self.endpoint.request(&self.attempt, &self.local, &self.remote, deadline) {
                Err(Error::NoMatch(_)) => {}
                Err(error @ Error::Rejected) => {
                    let since = *refused_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > REJECTION_TOLERANCE {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
            // A rejection within the tolerated time is not final: the process waiting there may be about to leave.
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::Timeout);
            }
            self.still_pending()?;
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Fails if the VI was disconnected during the attempt.
    fn still_pending(&self) -> Result<(), Error> {
        if self.endpoint.is_pending(&self.attempt) {
            return Ok(());
        }
        Err(Error::InvalidState("the VI was disconnected while it was being connected".into()))
    }
}

impl Drop for PeerRequest {
    fn drop(&mut self) {
        self.endpoint.leave_pending(&self.attempt);
    }
}

fn compatible(ours: &ViAttributes, theirs: &ViAttributes) -> Result<(), Error> {
    if ours.reliability != theirs.reliability {
        let (ours, theirs): (Reliability, Reliability) = (ours.reliability, theirs.reliability);
        return Err(Error::InvalidReliability(format!("this side has {ours:?}, the peer {theirs:?}")));
    }
    Ok(())
}
