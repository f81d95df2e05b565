//! Remote memory accesses: requests of peers for this side's regions, and peers' answers to requests of this side.

use super::State;
use super::sending::offer;
use crate::abi::constants::{ADDR_NOTAVAIL, REMOTE_CQ_DATA, REMOTE_READ, REMOTE_WRITE, RMA};
use crate::core::atomics;
use crate::core::completion::Completed;
use crate::core::connection::{Connection, Grant, Purpose, Request};
use crate::core::error::Failure;
use crate::core::slots::{MAX_PAYLOAD_BYTES, MAX_REQUESTS};
use crate::core::wire::{AtomicRequest, Frame};
use longma_locks::IgnorePoison;
use slab::Slab;

const NO_REQUEST: &str = "an answer without a request";
const WRONG_ANSWER: &str = "an answer of the wrong kind";

/// Removes and returns the request to which an answer belongs. If the request is of another kind, it stays, and fails
/// when the connection ends.
///
/// # Errors
/// A violation of the protocol.
fn answered(
    requests: &mut Slab<Request>,
    id: u32,
    is_kind: fn(&Request) -> bool,
) -> Result<Request, &'static str> {
    let id = id as usize;
    let request = requests.get(id).ok_or(NO_REQUEST)?;
    if !is_kind(request) {
        return Err(WRONG_ANSWER);
    }
    Ok(requests.remove(id))
}

/// Counts a request of the peer as unanswered.
///
/// # Errors
/// If the peer exceeds the limit of unanswered requests.
fn owe(connection: &mut Connection) -> Result<(), &'static str> {
    connection.owed += 1;
    if connection.owed > MAX_REQUESTS { Err("more requests than it may have unanswered") } else { Ok(()) }
}

fn status_of(failure: Failure) -> u16 {
    failure.code as u16
}

impl State {
    /// Processes a frame of a remote memory access.
    ///
    /// # Errors
    /// A violation of the protocol.
    pub(super) fn process_remote(
        &mut self,
        key: usize,
        slot: usize,
        length: usize,
        frame: &Frame,
        payload: usize,
    ) -> Result<(), &'static str> {
        let Some(connection) = self.connections.get_mut(key) else { return Ok(()) };
        if frame.needs_credit() && !matches!(frame, Frame::Taken { .. }) {
            owe(connection)?;
        }
        let Some(link) = &connection.link else { return Ok(()) };
        let bytes = &link.slots.bytes(slot, length)[payload..];
        match *frame {
            Frame::Write { id, key: region, address, data } => {
                let outcome = self.shared.keys.find(region, address, bytes.len(), REMOTE_WRITE);
                let status = match outcome {
                    Ok(memory) => {
                        memory.write(bytes);
                        let (source, length) = (connection.source, bytes.len());
                        self.report_written(length, data, source);
                        0
                    }
                    Err(failure) => status_of(failure),
                };
                self.reply(key, Frame::Done { id, status }, Vec::new());
            }
            Frame::WriteOffer { id, key: region, address, data, window } => {
                match self.shared.keys.find(region, address, window.len(), REMOTE_WRITE) {
                    Ok(memory) => {
                        let purpose = Purpose::Write { id, key: region, data, length: window.len() };
                        self.pull(key, window, memory, purpose);
                    }
                    Err(failure) => {
                        self.reply(key, Frame::Done { id, status: status_of(failure) }, Vec::new())
                    }
                }
            }
            Frame::Read { id, key: region, address, length } => {
                self.serve_read(key, id, region, address, length)
            }
            Frame::Atomic { id, key: region, address, request } => {
                let operands = bytes.to_vec();
                self.serve_atomic(key, id, (region, address), request, &operands);
            }
            Frame::Taken { id } => {
                match answered(&mut connection.requests, id, |request| {
                    matches!(request, Request::Offer { .. })
                })? {
                    Request::Offer { intent, length, _registered: registered } => {
                        drop(registered);
                        self.setup.report_sent(&intent, length, None);
                    }
                    _ => return Err(WRONG_ANSWER),
                }
            }
            Frame::Done { id, status } => {
                match answered(&mut connection.requests, id, |request| {
                    matches!(request, Request::Write { .. })
                })? {
                    Request::Write { intent, length, _registered: registered } => {
                        drop(registered);
                        connection.asked -= 1;
                        self.setup.report_sent(&intent, length, Failure::of_status(status));
                    }
                    _ => return Err(WRONG_ANSWER),
                }
            }
            Frame::Reply { id, status } => {
                match answered(&mut connection.requests, id, |request| {
                    matches!(request, Request::Fetch { .. })
                })? {
                    Request::Fetch { intent, result } => {
                        connection.asked -= 1;
                        let failure = Failure::of_status(status);
                        if failure.is_none() && bytes.len() != result.len() {
                            self.setup.report_sent(&intent, 0, Some(Failure::PROTOCOL));
                            return Err("a result of the wrong length");
                        }
                        let length = if failure.is_none() { result.write(bytes) } else { 0 };
                        self.setup.report_sent(&intent, length, failure);
                    }
                    _ => return Err(WRONG_ANSWER),
                }
            }
            Frame::Grant { id, grant, window } => {
                let request = connection.requests.get_mut(id as usize).ok_or(NO_REQUEST)?;
                let Request::Fetch { intent, result } = *request else {
                    return Err(WRONG_ANSWER);
                };
                if window.len() != result.len() {
                    return Err("a result of the wrong length");
                }
                *request = Request::Pulling;
                self.pull(key, window, result, Purpose::Fetch { id, grant, intent, length: result.len() });
            }
            Frame::Granted { grant } => {
                connection.grants.try_remove(grant as usize).ok_or("the end of an unknown grant")?;
                connection.owed -= 1;
            }
            Frame::Credit | Frame::Message { .. } | Frame::Offer { .. } => {}
        }
        Ok(())
    }

    fn serve_read(&mut self, key: usize, id: u32, region: u64, address: u64, length: u64) {
        let refuse = |failure| Frame::Reply { id, status: status_of(failure) };
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let memory = match self.shared.keys.find(region, address, length, REMOTE_READ) {
            Ok(memory) => memory,
            Err(failure) => return self.reply(key, refuse(failure), Vec::new()),
        };
        self.report_accessed(REMOTE_READ, length);
        if length <= MAX_PAYLOAD_BYTES {
            let mut bytes = vec![0; length];
            memory.read(&mut bytes);
            return self.reply(key, Frame::Reply { id, status: 0 }, bytes);
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        match offer(&self.shared.nic, connection, &memory) {
            Ok((registered, window)) => {
                let grant = connection.grants.insert(Grant { _registered: registered, key: region }) as u32;
                self.reply(key, Frame::Grant { id, grant, window }, Vec::new());
            }
            Err(error) => self.reply(key, refuse(Failure::of_connect(&error)), Vec::new()),
        }
    }

    fn serve_atomic(
        &mut self,
        key: usize,
        id: u32,
        target: (u64, u64),
        request: AtomicRequest,
        operands: &[u8],
    ) {
        let operation = u32::from(request.operation);
        let compares = atomics::Operation::from_number(operation).is_some_and(atomics::Operation::compares);
        let length = operands.len() / if compares { 2 } else { 1 };
        let access = if request.fetches { REMOTE_READ | REMOTE_WRITE } else { REMOTE_WRITE };
        let outcome = self.shared.keys.find(target.0, target.1, length, access).and_then(|memory| {
            let _exclusive = self.shared.atomics.lock().ignore_poison();
            atomics::apply(operation, request.datatype.into(), &memory, operands)
        });
        let (status, result) = match outcome {
            Ok(old) => {
                self.report_accessed(access, length);
                (0, if request.fetches { old } else { Vec::new() })
            }
            Err(failure) => (status_of(failure), Vec::new()),
        };
        self.reply(key, Frame::Reply { id, status }, result);
    }

    /// Reports a write by a peer: to counters, and to the completion queue if it has data.
    pub(super) fn report_written(&self, length: usize, data: Option<u64>, source: u64) {
        let completed = Completed {
            context: 0,
            flags: RMA | REMOTE_WRITE | if data.is_some() { REMOTE_CQ_DATA } else { 0 },
            length,
            buffer: 0,
            data: data.unwrap_or(0),
            tag: 0,
            source,
            failure: None,
        };
        self.setup.report(completed, data.is_some());
    }

    /// Counts an access by a peer.
    fn report_accessed(&self, flags: u64, length: usize) {
        let completed = Completed {
            context: 0,
            flags,
            length,
            buffer: 0,
            data: 0,
            tag: 0,
            source: ADDR_NOTAVAIL,
            failure: None,
        };
        self.setup.report(completed, false);
    }

    /// Ends all transfers of a memory region, which is about to be closed. A connection with a request in progress
    /// ends.
    pub(crate) fn forget_region(&mut self, region: u64) {
        let uses_region = |connection: &Connection| {
            let is_written =
                |purpose: &Purpose| matches!(purpose, Purpose::Write { key, .. } if *key == region);
            connection.grants.iter().any(|(_, grant)| grant.key == region)
                || connection.pulls.iter().any(|(_, pull)| is_written(&pull.purpose))
        };
        let concerned: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, connection)| uses_region(connection))
            .map(|(key, _)| key)
            .collect();
        for key in concerned {
            self.end(key, Failure::NO_ACCESS);
        }
    }
}
