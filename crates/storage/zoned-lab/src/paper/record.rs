//! The on-device encoding of the published trees' nodes, one block each. Decoding validates all fields. There are no
//! checksums.
//!
//! Source: the paper's layouts. The header (kind, level, count) is not in the paper.

use super::body::{Body, Change, Log, live_entries};
use super::fanout::{Fanout, HEAD_ENTRY_BYTES, HEADER_BYTES};
use super::head::{Head, Ptr};
use super::zb::State;
use longma_zoned::device::Block;
use std::sync::Arc;

const BODY: u32 = 0x5A42_0001;
const LOG: u32 = 0x5A42_0002;
const HEAD: u32 = 0x5A42_0003;

/// The value for "no log", and the mask of the address bits; the state is in the bits above.
const NONE: u64 = u64::MAX;
const ADDRESS: u64 = (1 << 56) - 1;

/// A node that can be encoded into and decoded from a block.
pub(super) trait Record: Sized {
    fn encode(&self, fanout: Fanout, block: &mut [u8]);
    fn decode(fanout: Fanout, block: &[u8]) -> Result<Self, String>;
    /// The node in unencoded form, for trees that only count.
    fn node(record: &Arc<Self>) -> Node;
    /// Converts back from the unencoded form.
    fn of(node: &Node) -> Result<Arc<Self>, String>;
}

/// A node in unencoded form.
#[derive(Clone)]
pub(super) enum Node {
    Body(Arc<Body>),
    Log(Arc<Log>),
    Head(Arc<Head>),
}

fn unexpected<R>(what: &str) -> Result<R, String> {
    Err(format!("expected {what}, but found other data"))
}

fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("eight bytes"))
}

fn put(block: &mut [u8], at: usize, value: u64) {
    block[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn begin(block: &mut [u8], kind: u32, count: usize) {
    block.fill(0);
    block[..4].copy_from_slice(&kind.to_le_bytes());
    block[4..8].copy_from_slice(&(count as u32).to_le_bytes());
}

fn count(block: &[u8], kind: u32, max: usize) -> Result<usize, String> {
    let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four bytes"));
    if word(0) != kind {
        return Err(format!("expected a node of kind {kind:#x}, but found {:#x}", word(0)));
    }
    match word(4) as usize {
        count if count <= max => Ok(count),
        count => Err(format!("{count} entries exceed the node's capacity of {max}")),
    }
}

/// The offsets of the keys, the payloads and the two bitmaps of a leaf, interior node or log.
fn offsets(fanout: Fanout) -> (usize, usize, usize, usize) {
    let keys = HEADER_BYTES;
    let payloads = keys + 8 * fanout.body;
    let present = payloads + 8 * fanout.body;
    (keys, payloads, present, present + fanout.body.div_ceil(8))
}

impl Record for Body {
    fn encode(&self, fanout: Fanout, block: &mut [u8]) {
        begin(block, BODY, self.entries.len());
        let (keys, payloads, ..) = offsets(fanout);
        for (index, &(key, payload)) in self.entries.iter().enumerate() {
            put(block, keys + 8 * index, key);
            put(block, payloads + 8 * index, payload);
        }
    }

    fn decode(fanout: Fanout, block: &[u8]) -> Result<Self, String> {
        let (keys, payloads, ..) = offsets(fanout);
        // The block may be a full log that replaced the node: all entries are present and none is deleted.
        let count = count(block, BODY, fanout.body).or_else(|_| count(block, LOG, fanout.body))?;
        let entry = |index| (u64_at(block, keys + 8 * index), u64_at(block, payloads + 8 * index));
        Ok(Body { entries: (0..count).map(entry).collect() })
    }

    fn node(record: &Arc<Self>) -> Node {
        Node::Body(record.clone())
    }

    fn of(node: &Node) -> Result<Arc<Self>, String> {
        match node {
            Node::Body(body) => Ok(body.clone()),
            Node::Log(log) => Ok(Arc::new(live_entries(log.changes.iter().flatten().copied()))),
            Node::Head(_) => unexpected("a leaf or an interior node"),
        }
    }
}

impl Record for Log {
    fn encode(&self, fanout: Fanout, block: &mut [u8]) {
        begin(block, LOG, self.changes.len());
        let (keys, payloads, present, deleted) = offsets(fanout);
        for (index, change) in self.changes.iter().enumerate() {
            let bit = 1u8 << (index % 8);
            match *change {
                None => continue,
                Some(Change::Set(key, payload)) => {
                    put(block, keys + 8 * index, key);
                    put(block, payloads + 8 * index, payload);
                }
                Some(Change::Deleted(key)) => {
                    put(block, keys + 8 * index, key);
                    block[deleted + index / 8] |= bit;
                }
            }
            block[present + index / 8] |= bit;
        }
    }

    fn decode(fanout: Fanout, block: &[u8]) -> Result<Self, String> {
        let (keys, payloads, present, deleted) = offsets(fanout);
        let count = count(block, LOG, fanout.body)?;
        let is = |map: usize, index: usize| block[map + index / 8] & (1 << (index % 8)) != 0;
        let change = |index| {
            let key = u64_at(block, keys + 8 * index);
            is(present, index).then(|| match is(deleted, index) {
                true => Change::Deleted(key),
                false => Change::Set(key, u64_at(block, payloads + 8 * index)),
            })
        };
        Ok(Log { changes: (0..count).map(change).collect() })
    }

    fn node(record: &Arc<Self>) -> Node {
        Node::Log(record.clone())
    }

    fn of(node: &Node) -> Result<Arc<Self>, String> {
        match node {
            Node::Log(log) => Ok(log.clone()),
            _ => unexpected("a log"),
        }
    }
}

impl Record for Head {
    fn encode(&self, _: Fanout, block: &mut [u8]) {
        begin(block, HEAD, self.entries.len());
        for (index, (key, ptr)) in self.entries.iter().enumerate() {
            let at = HEADER_BYTES + index * HEAD_ENTRY_BYTES;
            put(block, at, *key);
            put(block, at + 8, ptr.addr.0 | (ptr.state as u64) << 56);
            put(block, at + 16, ptr.log.map_or(NONE, |log| log.0));
        }
    }

    fn decode(fanout: Fanout, block: &[u8]) -> Result<Self, String> {
        let count = count(block, HEAD, fanout.head)?;
        let entry = |index| {
            let at = HEADER_BYTES + index * HEAD_ENTRY_BYTES;
            let (word, log) = (u64_at(block, at + 8), u64_at(block, at + 16));
            let state = State::ALL.get((word >> 56) as usize).copied();
            let state = state.ok_or_else(|| format!("a child has the invalid state {}", word >> 56))?;
            let ptr = Ptr { state, addr: Block(word & ADDRESS), log: (log != NONE).then_some(Block(log)) };
            Ok((u64_at(block, at), ptr))
        };
        (0..count).map(entry).collect::<Result<_, String>>().map(|entries| Head { entries })
    }

    fn node(record: &Arc<Self>) -> Node {
        Node::Head(record.clone())
    }

    fn of(node: &Node) -> Result<Arc<Self>, String> {
        match node {
            Node::Head(head) => Ok(head.clone()),
            _ => unexpected("a head"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FANOUT: Fanout = Fanout { body: 30, head: 20 };

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            any::<(u64, u64)>().prop_map(|(key, payload)| Change::Set(key, payload)),
            any::<u64>().prop_map(Change::Deleted)
        ]
    }

    fn back<R: Record>(record: &R) -> R {
        let mut block = [0xAA; 512];
        record.encode(FANOUT, &mut block);
        R::decode(FANOUT, &block).unwrap()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            entries in prop::collection::vec(any::<(u64, u64)>(), 0..=30),
            changes in prop::collection::vec(prop::option::of(change()), 0..=30),
            ptrs in prop::collection::vec((any::<u64>(), 0..4usize, 0..ADDRESS, prop::option::of(0..ADDRESS)), 0..=20),
        ) {
            let body = Body { entries };
            prop_assert_eq!(&back(&body), &body);
            let log = Log { changes };
            prop_assert_eq!(&back(&log), &log);
            let ptr = |state, addr, log: Option<u64>| Ptr { state: State::ALL[state], addr: Block(addr), log: log.map(Block) };
            let head = Head { entries: ptrs.into_iter().map(|(key, s, a, l)| (key, ptr(s, a, l))).collect() };
            prop_assert_eq!(&back(&head), &head);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(mut block in prop::collection::vec(any::<u8>(), 512), kind in 1..4u32, count in 0..40u32) {
            block[..4].copy_from_slice(&(0x5A42_0000 | kind).to_le_bytes());
            block[4..8].copy_from_slice(&count.to_le_bytes());
            let bodies = Body::decode(FANOUT, &block).is_ok() || Log::decode(FANOUT, &block).is_ok();
            prop_assert_eq!(bodies, kind < 3 && count <= 30);
            prop_assert!(Head::decode(FANOUT, &block).is_err() || (kind == 3 && count <= 20));
        }
    }
}
