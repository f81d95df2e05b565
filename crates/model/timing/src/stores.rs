//! Stores that are not in the cache yet, indexed by address for store-to-load forwarding.
//!
//! Source: forwarding as in Hennessy and Patterson, section 3.6. Loads do not wait for stores to other addresses, like
//! the ideal store-set predictor of Chrysos and Emer (ISCA 1998). A load is forwarded from one store or not at all
//! (Fog, The microarchitecture of Intel, AMD and VIA CPUs, 2023: store forwarding).

const GRANULE_BYTES: u64 = 8;
/// Maximum number of granules of a store of 32 bytes.
const MAX_PARTS: u32 = 5;
/// Number of lists; a granule selects the list of its pieces.
const LISTS: usize = 256;

/// The part of a store in one granule.
#[derive(Clone, Copy, Debug)]
struct Piece {
    granule: u64,
    /// When its data can be forwarded.
    ready: u64,
    /// When it and all older stores are in the cache.
    drained: u64,
    /// Number of the next older piece in its list.
    older: u32,
    /// Mask of the bytes written.
    bytes: u8,
    /// Index of the piece in its store.
    nth: u8,
    /// Whether an atomic operation wrote it. It is in the cache before older stores to other bytes.
    atomic: bool,
}

impl Piece {
    /// When it is in the cache.
    fn in_cache(&self) -> u64 {
        if self.atomic { self.ready } else { self.drained }
    }
}

/// The origin of a store, for cores whose loads may pass stores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Address of the store instruction.
    pub pc: u64,
    /// First cycle in which its target address is known.
    pub known: u64,
}

/// The result of looking up a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No store in flight to its address.
    Nothing,
    /// All of its data is available from this cycle on.
    Data(u64),
    /// Only a part of the data is in a store in flight, or several stores have parts of it. The load waits until these
    /// stores are in the cache, at this cycle.
    Part(u64),
}

/// The most recent stores, at least as many as can be in flight.
#[derive(Debug)]
pub(crate) struct Stores {
    /// A ring buffer whose length is a power of two. Piece number n, modulo 2^32, is at index n modulo the length.
    pieces: Box<[Piece]>,
    /// Number of the next piece.
    next: u32,
    /// For each list, the number of its youngest piece.
    youngest: Box<[u32; LISTS]>,
    /// When the last store is in the cache.
    last_drained: u64,
    /// The origin of each piece, by the piece's index; empty unless enabled.
    origins: Box<[Origin]>,
    /// Origin of the next store.
    origin: Origin,
}

/// Mask of the bytes of `granule` covered by `bytes` from `address` on.
fn covered(granule: u64, address: u64, bytes: u64) -> u8 {
    let start = granule * GRANULE_BYTES;
    let from = address.saturating_sub(start).min(GRANULE_BYTES);
    let to = (address + bytes).saturating_sub(start).min(GRANULE_BYTES);
    ((1u16 << to) - (1u16 << from)) as u8
}

/// The granule that contains `bytes` from `address` on, and the mask of these bytes; `None` if they span several
/// granules.
#[inline]
fn inside_granule(address: u64, bytes: u32) -> Option<(u64, u8)> {
    let (offset, bytes) = (address % GRANULE_BYTES, u64::from(bytes.max(1)));
    let mask = ((1u64 << bytes.min(GRANULE_BYTES)) - 1) << offset;
    (offset + bytes <= GRANULE_BYTES).then_some((address / GRANULE_BYTES, mask as u8))
}

impl Stores {
    /// Creates an empty state for at most `capacity` stores in flight.
    pub fn new(capacity: u32) -> Self {
        let empty =
            Piece { granule: u64::MAX, ready: 0, drained: 0, older: 0, bytes: 0, nth: 0, atomic: false };
        let slots = capacity.saturating_mul(MAX_PARTS).next_power_of_two();
        // Unassigned numbers are older than the ring, so that lookups stop at them.
        Self {
            pieces: vec![empty; slots as usize].into(),
            next: slots + 1,
            youngest: Box::new([0; LISTS]),
            last_drained: 0,
            origins: Box::default(),
            origin: Origin::default(),
        }
    }

    /// Enables the recording of origins for [`passed`](Self::passed).
    pub fn keep_origins(&mut self) {
        self.origins = vec![Origin::default(); self.pieces.len()].into();
    }

    /// Sets the origin of the next store.
    pub fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    /// Adds the youngest store, of `bytes` to `address`, with data ready at `ready`. It is in the cache at `drained`,
    /// or later if the previous store is in the cache later.
    #[inline]
    pub fn push(&mut self, address: u64, bytes: u32, ready: u64, drained: u64) {
        self.last_drained = self.last_drained.max(drained);
        self.push_pieces(address, bytes, ready, false);
    }

    /// Adds the youngest atomic operation. It has updated the cache at `completed`, regardless of older stores to other
    /// bytes.
    pub fn push_atomic(&mut self, address: u64, bytes: u32, completed: u64) {
        self.last_drained = self.last_drained.max(completed);
        self.push_pieces(address, bytes, completed, true);
    }

    #[inline]
    fn push_pieces(&mut self, address: u64, bytes: u32, ready: u64, atomic: bool) {
        if let Some((granule, bytes)) = inside_granule(address, bytes) {
            self.push_piece(granule, bytes, ready, 0, atomic);
            return;
        }
        let bytes = u64::from(bytes.max(1)).min(u64::MAX - address);
        let first = address / GRANULE_BYTES;
        for granule in first..=(address + bytes.max(1) - 1) / GRANULE_BYTES {
            self.push_piece(
                granule,
                covered(granule, address, bytes),
                ready,
                (granule - first) as u8,
                atomic,
            );
        }
    }

    #[inline]
    fn push_piece(&mut self, granule: u64, bytes: u8, ready: u64, nth: u8, atomic: bool) {
        let list = &mut self.youngest[granule as usize % LISTS];
        let older = std::mem::replace(list, self.next);
        let slot = self.next as usize & (self.pieces.len() - 1);
        self.pieces[slot] = Piece { granule, ready, drained: self.last_drained, older, bytes, nth, atomic };
        if let Some(origin) = self.origins.get_mut(slot) {
            *origin = self.origin;
        }
        self.next = self.next.wrapping_add(1);
    }

    /// Looks up a load of `bytes` from `address` at cycle `at`.
    #[inline]
    pub fn find(&self, address: u64, bytes: u32, at: u64) -> Found {
        if at >= self.last_drained {
            return Found::Nothing;
        }
        if let Some((granule, byte_mask)) = inside_granule(address, bytes) {
            return match self.youngest_of(granule, byte_mask, at) {
                None => Found::Nothing,
                Some((_, piece)) if piece.bytes & byte_mask == byte_mask => Found::Data(piece.ready),
                Some(_) => Found::Part(self.in_cache_of(granule, byte_mask, at)),
            };
        }
        self.find_in_several(address, u64::from(bytes.max(1)).min(u64::MAX - address), at)
    }

    fn find_in_several(&self, address: u64, bytes: u64, at: u64) -> Found {
        let (mut data, mut part, mut store, mut is_single) = (0, 0, None, true);
        for granule in address / GRANULE_BYTES..=(address + bytes.max(1) - 1) / GRANULE_BYTES {
            let byte_mask = covered(granule, address, bytes);
            let Some((number, piece)) = self.youngest_of(granule, byte_mask, at) else {
                is_single = false;
                continue;
            };
            (data, part) = (piece.ready, part.max(self.in_cache_of(granule, byte_mask, at)));
            let its_store = number.wrapping_sub(piece.nth.into());
            is_single &= piece.bytes & byte_mask == byte_mask && *store.get_or_insert(its_store) == its_store;
        }
        match (is_single, part) {
            (true, _) => Found::Data(data),
            (false, 0) => Found::Nothing,
            (false, until) => Found::Part(until),
        }
    }

    /// The youngest piece that wrote any of the `byte_mask` bytes of `granule` and is not in the cache at `at`, with
    /// its number.
    #[inline]
    fn youngest_of(&self, granule: u64, byte_mask: u8, at: u64) -> Option<(u32, &Piece)> {
        let mut number = self.youngest[granule as usize % LISTS];
        while self.next.wrapping_sub(number) as usize <= self.pieces.len() {
            let piece = &self.pieces[number as usize & (self.pieces.len() - 1)];
            // Older pieces are in the cache as well.
            if piece.drained <= at {
                return None;
            }
            if piece.granule == granule && piece.bytes & byte_mask != 0 && piece.in_cache() > at {
                return Some((number, piece));
            }
            number = piece.older;
        }
        None
    }

    /// Returns the origin of a store that a load of `bytes` from `address` at cycle `at` passes: the store is in
    /// flight, wrote part of the data, and its address is not known until later. If there are several such stores,
    /// returns the one whose address becomes known first.
    pub fn passed(&self, address: u64, bytes: u32, at: u64) -> Option<Origin> {
        let bytes = u64::from(bytes.max(1)).min(u64::MAX - address);
        let granules = address / GRANULE_BYTES..=(address + bytes.max(1) - 1) / GRANULE_BYTES;
        granules
            .filter_map(|granule| self.passed_in(granule, covered(granule, address, bytes), at))
            .min_by_key(|origin| origin.known)
    }

    fn passed_in(&self, granule: u64, mut byte_mask: u8, at: u64) -> Option<Origin> {
        let mut first: Option<Origin> = None;
        while let Some((number, piece)) = self.youngest_of(granule, byte_mask, at) {
            let origin = self.origins.get(number as usize & (self.pieces.len() - 1))?;
            if origin.known > at && first.is_none_or(|first| origin.known < first.known) {
                first = Some(*origin);
            }
            byte_mask &= !piece.bytes;
        }
        first
    }

    /// When the stores to the `byte_mask` bytes of `granule` are in the cache; 0 if they are at `at`.
    fn in_cache_of(&self, granule: u64, mut byte_mask: u8, at: u64) -> u64 {
        let mut until = 0;
        while let Some((_, piece)) = self.youngest_of(granule, byte_mask, at) {
            until = until.max(piece.in_cache());
            // Pieces older than a store reach the cache before it, but an atomic operation overtakes stores to other
            // bytes.
            if !piece.atomic {
                break;
            }
            byte_mask &= !piece.bytes;
        }
        until
    }

    /// When all stores to the `bytes` from `address` on are in the cache; at least `at`.
    pub fn in_cache(&self, address: u64, bytes: u32, at: u64) -> u64 {
        let bytes = u64::from(bytes.max(1)).min(u64::MAX - address);
        let granules = address / GRANULE_BYTES..=(address + bytes.max(1) - 1) / GRANULE_BYTES;
        granules
            .map(|granule| self.in_cache_of(granule, covered(granule, address, bytes), at))
            .fold(at, u64::max)
    }

    /// When every store is in the cache.
    pub fn last_drained(&self) -> u64 {
        self.last_drained
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_load_inside_a_store_takes_its_data() {
        let mut stores = Stores::new(48);
        stores.push(0x1000, 8, 10, 50);
        assert_eq!(stores.find(0x1000, 8, 20), Found::Data(10));
        assert_eq!(stores.find(0x1004, 4, 20), Found::Data(10));
        assert_eq!(stores.find(0x1008, 8, 20), Found::Nothing);
        assert_eq!(stores.find(0x1000, 8, 50), Found::Nothing, "it is in the cache");
    }

    #[test]
    fn a_load_wider_than_the_store_waits_for_the_cache() {
        let mut stores = Stores::new(48);
        stores.push(0x1004, 4, 10, 50);
        assert_eq!(stores.find(0x1000, 8, 20), Found::Part(50));
        assert_eq!(stores.find(0x1000, 4, 20), Found::Nothing);
        assert_eq!(stores.find(0x1004, 8, 20), Found::Part(50));
    }

    #[test]
    fn a_vector_is_forwarded_completely() {
        let mut stores = Stores::new(48);
        stores.push(0x1000, 32, 10, 50);
        assert_eq!(stores.find(0x1000, 32, 20), Found::Data(10));
        assert_eq!(stores.find(0x1003, 16, 20), Found::Data(10));
        assert_eq!(stores.find(0x1010, 32, 20), Found::Part(50));
        stores.push(u64::MAX - 3, 8, 1, 60);
        assert_eq!(stores.find(u64::MAX - 1, 1, 20), Found::Data(1));
    }

    #[test]
    fn a_store_is_hidden_by_a_younger_one_only_where_that_wrote() {
        let mut stores = Stores::new(48);
        stores.push(0x1000, 4, 10, 50);
        stores.push(0x1004, 4, 12, 51);
        stores.push(0x1000 + 2048, 8, 13, 52);
        assert_eq!(stores.find(0x1000, 4, 20), Found::Data(10));
        assert_eq!(stores.find(0x1004, 4, 20), Found::Data(12));
        assert_eq!(stores.find(0x1000, 8, 20), Found::Part(51), "of two stores");
        assert_eq!(stores.find(0x1004, 8, 20), Found::Part(51));
    }

    #[test]
    fn an_atomic_operation_is_in_the_cache_before_older_stores_elsewhere() {
        let mut stores = Stores::new(48);
        stores.push(0x1000, 8, 10, 50);
        stores.push_atomic(0x2000, 8, 12);
        assert_eq!(stores.find(0x2000, 8, 11), Found::Data(12));
        assert_eq!(stores.find(0x2000, 8, 12), Found::Nothing);
        assert_eq!(stores.in_cache(0x2000, 8, 11), 12);
        assert_eq!(
            stores.find(0x1000, 8, 20),
            Found::Data(10),
            "what is older than the atomic operation is still found"
        );
    }

    /// Reference for [`Stores::find`]: searches all stores, byte by byte.
    fn plain(stores: &[(u64, u32, u64, u64)], address: u64, bytes: u32, at: u64) -> Found {
        let writer = |byte: u64| {
            stores.iter().rposition(|&(from, bytes, _, drained)| {
                drained > at && (from..from + u64::from(bytes)).contains(&byte)
            })
        };
        let writers: Vec<_> = (address..address + u64::from(bytes)).map(writer).collect();
        match writers[0] {
            Some(store) if writers.iter().all(|writer| *writer == Some(store)) => {
                Found::Data(stores[store].2)
            }
            _ => match writers.iter().flatten().map(|store| stores[*store].3).max() {
                None => Found::Nothing,
                Some(drained) => Found::Part(drained),
            },
        }
    }

    fn access() -> impl Strategy<Value = (u64, u32)> {
        let bytes = prop_oneof![Just(1u32), Just(2), Just(4), Just(8), Just(16), Just(32)];
        // Few granules, at several addresses that share a list.
        (0u64..3, 0u64..40, bytes).prop_map(|(place, offset, bytes)| (0x1000 + 2048 * place + offset, bytes))
    }

    proptest! {
        #[test]
        fn lookups_match_a_search_of_all_stores(
            steps in prop::collection::vec((access(), 0u64..20, access(), 0u64..40, any::<bool>()), 1..200),
            capacity in 1usize..60,
        ) {
            let (mut stores, mut all) = (Stores::new(capacity as u32), Vec::<(u64, u32, u64, u64)>::new());
            // For each store, when all stores up to it are in the cache.
            let mut left = Vec::new();
            let mut drained = 100;
            for ((address, bytes), later, (from, wanted), back, is_atomic) in steps {
                // A store takes the queue entry of the store `capacity` before it.
                let begins = if all.len() < capacity { 0 } else { left[all.len() - capacity] };
                let in_cache = |all: &[(u64, u32, u64, u64)], from: u64, wanted: u32| {
                    let wrote = |store: &&(u64, u32, u64, u64)| store.0 < from + u64::from(wanted) && from < store.0 + u64::from(store.1);
                    all.iter().filter(wrote).map(|store| store.3).max().unwrap_or(0)
                };
                if is_atomic {
                    let completion = in_cache(&all, address, bytes).max(begins) + later;
                    stores.push_atomic(address, bytes, completion);
                    all.push((address, bytes, completion, completion));
                    drained = drained.max(completion);
                } else {
                    drained += later;
                    stores.push(address, bytes, drained - later / 2, drained);
                    all.push((address, bytes, drained - later / 2, drained));
                }
                left.push(drained);
                let at = begins + back;
                prop_assert_eq!(stores.find(from, wanted, at), plain(&all, from, wanted, at));
                prop_assert_eq!(stores.in_cache(from, wanted, at), in_cache(&all, from, wanted).max(at));
            }
        }
    }
}
