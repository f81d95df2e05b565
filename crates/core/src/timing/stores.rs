//! Stores that have not reached the cache yet, found by address: what a later load takes its data from.
//! Not the order of stores (see `queues.rs`). A store whose place in the table another one took is found no more.
//! Source: store-to-load forwarding as in Hennessy and Patterson, section 3.6; that loads wait for no store with another address
//! is the ideal store-set predictor of Chrysos and Emer (ISCA 1998).

/// Places in the table, by eight-byte granule.
const PLACES: usize = 256;
const GRANULE_BYTES: u64 = 8;

/// A store to one granule.
#[derive(Clone, Copy, Debug)]
struct Stored {
    granule: u64,
    /// When its data can be forwarded.
    ready: u64,
    /// When it is in the cache.
    drained: u64,
    /// The bytes it wrote, a bit each.
    bytes: u8,
}

/// What a load finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// No store under way to its address.
    Nothing,
    /// All of its data, from this cycle on.
    Data(u64),
    /// Part of its data: it waits until the store is in the cache.
    Part(u64),
}

/// Stores under way.
#[derive(Debug)]
pub(super) struct Stores {
    places: Box<[Stored; PLACES]>,
    /// When the last of them is in the cache.
    last_drained: u64,
}

/// The bytes of `granule` that `bytes` bytes from `address` on cover.
fn covered(granule: u64, address: u64, bytes: u64) -> u8 {
    let start = granule * GRANULE_BYTES;
    let from = address.saturating_sub(start).min(GRANULE_BYTES);
    let to = (address + bytes).saturating_sub(start).min(GRANULE_BYTES);
    ((1u16 << to) - (1u16 << from)) as u8
}

/// The granule that `bytes` bytes from `address` on are in, and which of its bytes they are; `None` if they are in several.
#[inline]
fn inside_granule(address: u64, bytes: u32) -> Option<(u64, u8)> {
    let (offset, bytes) = (address % GRANULE_BYTES, u64::from(bytes.max(1)));
    let mask = ((1u64 << bytes.min(GRANULE_BYTES)) - 1) << offset;
    (offset + bytes <= GRANULE_BYTES).then_some((address / GRANULE_BYTES, mask as u8))
}

impl Stores {
    /// None.
    pub fn new() -> Self {
        let empty = Stored { granule: u64::MAX, ready: 0, drained: 0, bytes: 0 };
        Self { places: Box::new([empty; PLACES]), last_drained: 0 }
    }

    /// A store of `bytes` to `address` whose data is ready at `ready` and in the cache at `drained`.
    #[inline]
    pub fn push(&mut self, address: u64, bytes: u32, ready: u64, drained: u64) {
        self.last_drained = self.last_drained.max(drained);
        if let Some((granule, mask)) = inside_granule(address, bytes) {
            self.places[granule as usize % PLACES] = Stored { granule, ready, drained, bytes: mask };
            return;
        }
        let bytes = u64::from(bytes.max(1)).min(u64::MAX - address);
        for granule in address / GRANULE_BYTES..=(address + bytes.max(1) - 1) / GRANULE_BYTES {
            let mask = covered(granule, address, bytes);
            self.places[granule as usize % PLACES] = Stored { granule, ready, drained, bytes: mask };
        }
    }

    /// What a load of `bytes` from `address` finds at cycle `at`.
    #[inline]
    pub fn find(&self, address: u64, bytes: u32, at: u64) -> Found {
        if at >= self.last_drained {
            return Found::Nothing;
        }
        if let Some((granule, wanted)) = inside_granule(address, bytes) {
            let stored = &self.places[granule as usize % PLACES];
            let found = stored.bytes & wanted;
            return match stored.granule != granule || stored.drained <= at || found == 0 {
                true => Found::Nothing,
                false if found == wanted => Found::Data(stored.ready),
                false => Found::Part(stored.drained),
            };
        }
        let bytes = u64::from(bytes.max(1)).min(u64::MAX - address);
        let (mut data, mut part, mut all) = (0, 0, true);
        for granule in address / GRANULE_BYTES..=(address + bytes.max(1) - 1) / GRANULE_BYTES {
            let wanted = covered(granule, address, bytes);
            let stored = &self.places[granule as usize % PLACES];
            if stored.granule != granule || stored.drained <= at || stored.bytes & wanted == 0 {
                all = false;
                continue;
            }
            data = data.max(stored.ready);
            part = part.max(stored.drained);
            all &= stored.bytes & wanted == wanted;
        }
        match (all, part) {
            (true, _) => Found::Data(data),
            (false, 0) => Found::Nothing,
            (false, until) => Found::Part(until),
        }
    }

    /// When every store is in the cache.
    pub fn last_drained(&self) -> u64 {
        self.last_drained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_inside_a_store_takes_its_data() {
        let mut stores = Stores::new();
        stores.push(0x1000, 8, 10, 50);
        assert_eq!(stores.find(0x1000, 8, 20), Found::Data(10));
        assert_eq!(stores.find(0x1004, 4, 20), Found::Data(10));
        assert_eq!(stores.find(0x1008, 8, 20), Found::Nothing);
        assert_eq!(stores.find(0x1000, 8, 50), Found::Nothing, "it is in the cache");
    }

    #[test]
    fn a_load_wider_than_the_store_waits_for_the_cache() {
        let mut stores = Stores::new();
        stores.push(0x1004, 4, 10, 50);
        assert_eq!(stores.find(0x1000, 8, 20), Found::Part(50));
        assert_eq!(stores.find(0x1000, 4, 20), Found::Nothing);
        assert_eq!(stores.find(0x1004, 8, 20), Found::Part(50));
    }

    #[test]
    fn a_vector_is_forwarded_whole() {
        let mut stores = Stores::new();
        stores.push(0x1000, 32, 10, 50);
        assert_eq!(stores.find(0x1000, 32, 20), Found::Data(10));
        assert_eq!(stores.find(0x1003, 16, 20), Found::Data(10));
        assert_eq!(stores.find(0x1010, 32, 20), Found::Part(50));
        stores.push(u64::MAX - 3, 8, 1, 60);
        assert_eq!(stores.find(u64::MAX - 1, 1, 20), Found::Data(1));
    }
}
