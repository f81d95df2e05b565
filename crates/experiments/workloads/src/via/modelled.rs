//! Runs both endpoints of a measurement in this process, on the modelled Myrinet in simulated time. The endpoints run
//! the same code as on a real network.

use super::exchange::{Clock, Endpoint, ExchangeError, MeasurementRequest, Role, StepResult};
use longma_topology::Machine;
use longma_via::{Address, Error, Nic, Reliability};
use longma_via_myrinet::Parameters;
use longma_via_myrinet::{Counts, Fabric, Settings};
use std::sync::atomic::{AtomicBool, Ordering};

/// Two connected ends on a modelled network.
pub struct Modelled {
    fabric: Fabric,
    ends: [Endpoint; 2],
}

/// Why a modelled measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The machine or the settings do not describe a network.
    #[error("{0}")]
    Refused(String),
    /// The measurement failed.
    #[error("{0}")]
    Exchange(#[from] ExchangeError),
    /// A stop was requested.
    #[error("interrupted")]
    Stopped,
    /// Neither end can make progress, which is a bug in the model.
    #[error("the model is deadlocked: both ends wait, and no event is pending")]
    Stuck,
}

impl From<Error> for ModelError {
    fn from(error: Error) -> Self {
        ModelError::Exchange(error.into())
    }
}

impl Modelled {
    /// Creates the network of `machine` and connects its first two hosts, with buffers for messages of up to `bytes`.
    ///
    /// # Errors
    /// If the machine or the settings do not describe a network, if a message is longer than the MTU, or if the hosts
    /// cannot connect.
    pub fn new(
        machine: &Machine,
        settings: Settings,
        bytes: u32,
        reliability: Reliability,
    ) -> Result<Self, ModelError> {
        let parameters = Parameters::of(machine).map_err(|error| ModelError::Refused(error.to_string()))?;
        if bytes > parameters.mtu {
            let mtu = parameters.mtu;
            let why = format!("a message of {bytes} bytes is longer than the modelled NIC's MTU of {mtu}");
            return Err(ModelError::Refused(why));
        }
        let fabric =
            Fabric::new(parameters, settings).map_err(|error| ModelError::Refused(error.to_string()))?;
        let end = |station| -> Result<(Nic, Endpoint), Error> {
            let nic = Nic::with_provider(Box::new(fabric.nic(station)?));
            let clock = Clock::Modelled(fabric.clone(), station);
            let end = Endpoint::new(&nic, bytes as usize, clock, |a| a.with_reliability(reliability))?;
            Ok((nic, end))
        };
        let ((_client_nic, client), (nic, server)) = (end(0)?, end(1)?);
        // For the first request.
        server.post_receive()?;
        let address = Address::local("longma");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| nic.connect_wait(&address, None)?.accept(&server.vi));
            let connected = loop {
                match client.vi.connect(&Address::local("client"), &Address::new("1", "longma"), None) {
                    Err(Error::NoMatch(_)) => std::thread::yield_now(),
                    other => break other,
                }
            };
            let accepted = waiting.join().unwrap_or(Err(Error::Timeout));
            connected.map(|_| ()).and(accepted)
        })?;
        Ok(Self { fabric, ends: [client, server] })
    }

    /// Makes one measurement. Returns its times in picoseconds.
    ///
    /// # Errors
    /// If a VIA call fails, if `stop` is set, or if the model is deadlocked.
    pub fn measure(&self, request: MeasurementRequest, stop: &AtomicBool) -> Result<Vec<u64>, ModelError> {
        let [client, server] = &self.ends;
        let mut client_role = Role::client_role(request, client)?;
        client.send_request(&request)?;
        let received_request = loop {
            if let Some(received_request) = server.receive_request()? {
                break received_request;
            }
            if !self.fabric.skip() {
                return Err(ModelError::Stuck);
            }
        };
        let mut serving = Role::serving(received_request, server)?;
        let (mut times, mut served) = (None, false);
        let mut polls = 0u32;
        while times.is_none() || !served {
            let mut progressed = false;
            if times.is_none() {
                match client_role.step(client)? {
                    StepResult::Idle => {}
                    StepResult::Moved => progressed = true,
                    StepResult::Finished(found) => (times, progressed) = (Some(found), true),
                }
            }
            if !served {
                match serving.step(server)? {
                    StepResult::Idle => {}
                    StepResult::Moved => progressed = true,
                    StepResult::Finished(_) => (served, progressed) = (true, true),
                }
            }
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(1024) && stop.load(Ordering::Relaxed) {
                return Err(ModelError::Stopped);
            }
            if !progressed && !self.fabric.skip() {
                return Err(ModelError::Stuck);
            }
        }
        Ok(times.unwrap_or_default())
    }

    /// The counts of the NIC of host number `station` since the start.
    pub fn counts(&self, station: usize) -> Counts {
        self.fabric.counts(station)
    }

    /// Simulated time in seconds.
    pub fn seconds(&self) -> f64 {
        self.fabric.time(0).seconds()
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::Measure;
    use super::*;
    use longma_via_myrinet::Kind;

    #[test]
    fn busy_threads_do_not_change_the_modelled_times() {
        let machine = Machine::open("piii-myrinet").unwrap();
        for kind in [Kind::Bvia, Kind::Myvia] {
            let measure = || {
                let level = Reliability::ReliableDelivery;
                let modelled = Modelled::new(&machine, Settings::of(kind), 64, level).unwrap();
                let request = MeasurementRequest {
                    measure: Measure::Ping,
                    bytes: 64,
                    messages: 5,
                    warm_up: 2,
                    window: 1,
                };
                (modelled.measure(request, &AtomicBool::new(false)).unwrap(), modelled.counts(1))
            };
            let alone = measure();
            std::thread::scope(|scope| {
                let busy: Vec<_> = (0..8).map(|_| scope.spawn(|| [measure(), measure()])).collect();
                for found in busy.into_iter().flat_map(|thread| thread.join().unwrap()) {
                    assert_eq!(found, alone, "{kind:?}");
                }
            });
        }
    }
}
