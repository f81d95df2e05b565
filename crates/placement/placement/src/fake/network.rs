//! Modelled hypervisors that domains migrate between, in the steps of libvirt: the target prepares, the source sends, the
//! target finishes, the source confirms. Each step is a call that can fail.

use super::{FakeHypervisor, State};
use crate::hypervisor::{
    Destination, DomainState, Hypervisor, HypervisorError, Outgoing, PAUSED_BY_MIGRATION, PAUSED_BY_USER,
};
use longma_locks::IgnorePoison;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A network of hypervisors, by their addresses. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct FakeNetwork(Arc<Mutex<Network>>);

#[derive(Debug, Default)]
struct Network {
    hypervisors: BTreeMap<String, FakeHypervisor>,
    is_watched: bool,
    doubles: Vec<String>,
    is_cut: bool,
}

impl FakeNetwork {
    /// Creates a network that records domains running on two hypervisors at once.
    pub fn watched() -> Self {
        let network = Self::default();
        network.0.lock().ignore_poison().is_watched = true;
        network
    }

    /// Adds a hypervisor under this address.
    pub fn connect(&self, address: &str, hypervisor: FakeHypervisor) -> FakeHypervisor {
        let connected = FakeHypervisor { network: Some((self.clone(), address.into())), ..hypervisor };
        self.0.lock().ignore_poison().hypervisors.insert(address.into(), connected.clone());
        connected
    }

    /// Cuts all connections, or restores them.
    pub fn set_cut(&self, is_cut: bool) {
        self.0.lock().ignore_poison().is_cut = is_cut;
    }

    /// Domains observed running on two hypervisors at once. Only a watched network notes them.
    pub fn doubles(&self) -> Vec<String> {
        self.0.lock().ignore_poison().doubles.clone()
    }

    /// Records domains that run on two hypervisors.
    pub(super) fn watch(&self) {
        let mut network = self.0.lock().ignore_poison();
        if !network.is_watched {
            return;
        }
        let mut seen = BTreeMap::<String, usize>::new();
        for hypervisor in network.hypervisors.values() {
            let domains = hypervisor.domains();
            let running = domains.iter().filter(|(_, actual)| actual.running && actual.paused.is_none());
            running.for_each(|(name, _)| *seen.entry(name.clone()).or_default() += 1);
        }
        network.doubles.extend(seen.into_iter().filter(|(_, count)| *count > 1).map(|(name, _)| name));
    }
}

/// Removes the domain `name`, or all, if its arrival is not complete.
pub(super) fn drop_incomplete(state: &mut State, name: Option<&str>) {
    let State { domains, outgoing, .. } = state;
    domains.retain(|found, (actual, _)| {
        let is_incomplete =
            actual.paused.as_deref() == Some(PAUSED_BY_MIGRATION) && !outgoing.contains_key(found);
        !is_incomplete || name.is_some_and(|name| name != found)
    });
}

impl FakeHypervisor {
    /// The hypervisor with this address.
    pub(super) fn peer(&self, address: &str) -> Result<FakeHypervisor, HypervisorError> {
        let refused =
            |why: &str| HypervisorError::Refused { what: format!("reach {address}"), why: why.into() };
        let (network, _) = self.network.as_ref().ok_or_else(|| refused("this host is on no network"))?;
        let network = network.0.lock().ignore_poison();
        match network.hypervisors.get(address) {
            Some(peer) if !network.is_cut => Ok(peer.clone()),
            _ => Err(refused("no connection")),
        }
    }

    /// Migrates a domain. After a failure of the target or of the connection, the domain runs on this host again, as
    /// with libvirt, even if the target has completed the migration.
    pub(super) fn send(&mut self, name: &str, to: &Destination) -> Result<(), HypervisorError> {
        let mut peer = self.peer(&to.address)?;
        let what = format!("migrate {name}");
        let failed =
            |why: HypervisorError| HypervisorError::Refused { what: what.clone(), why: why.to_string() };
        let sent = self.inspect(name)?.unwrap_or_default();
        if let Err(error) = peer.arrive(name, to, &sent) {
            drop_incomplete(&mut peer.state(), Some(name));
            return Err(failed(error));
        }
        let suspended = self.change_running("suspend", name, |actual, _| {
            actual.paused = Some(PAUSED_BY_MIGRATION.into());
            Ok(())
        });
        if self.state().domains.get(name).is_some_and(|(actual, _)| actual.paused.is_some()) {
            self.state().outgoing.insert(name.into(), Outgoing::Suspended);
        }
        if suspended.is_err() {
            drop_incomplete(&mut peer.state(), Some(name));
            return suspended;
        }
        let finished = self.peer(&to.address).and_then(|_| {
            peer.change_running("finish", name, |actual, _| {
                actual.paused = Some(PAUSED_BY_USER.into());
                Ok(())
            })
        });
        if let Err(error) = finished {
            drop_incomplete(&mut peer.state(), Some(name));
            self.resume(name)?;
            return Err(failed(error));
        }
        let confirmed = self.stop(name);
        if self.state().domains.get(name).is_some_and(|(actual, _)| !actual.running) {
            self.state().outgoing.insert(name.into(), Outgoing::Left);
        }
        confirmed
    }

    /// Adds a paused domain whose memory is about to arrive.
    fn arrive(&mut self, name: &str, to: &Destination, sent: &DomainState) -> Result<(), HypervisorError> {
        self.change("receive", name, |domains| {
            if domains.get(name).is_some_and(|found| found.0.running) {
                return Err("a domain of this name runs".into());
            }
            let placement = &to.domain.placement;
            let arriving = DomainState {
                pins: to.domain.pins.clone(),
                bound: placement.bound.clone(),
                paused: Some(PAUSED_BY_MIGRATION.into()),
                ..sent.clone()
            };
            let shares = placement.cells.iter().map(|cell| cell.memory.clone()).collect();
            domains.insert(name.into(), (arriving, shares));
            Ok(())
        })?;
        self.change_running("allocate memory of", name, |_, _| Ok(()))
    }
}
