//! Stores that have not reached the cache yet, found by address: what a later load takes its data from.
//! Not the order of stores (see `queues.rs`).
//! Source: store-to-load forwarding as in Hennessy and Patterson, section 3.6; that loads wait for no store with another address
//! is the ideal store-set predictor of Chrysos and Emer (ISCA 1998). A load is forwarded from one store or from none (Fog, The
//! microarchitecture of Intel, AMD and VIA CPUs, 2023: store forwarding).

const GRANULE_BYTES: u64 = 8;
/// Granules that a store of 32 bytes touches at most.
const MOST_PIECES: u32 = 5;
/// Lists of pieces, by granule.
const LISTS: usize = 256;

/// What a store wrote of one granule.
#[derive(Clone, Copy, Debug)]
struct Piece {
    granule: u64,
    /// When its data can be forwarded.
    ready: u64,
    /// When it and all older ones are in the cache.
    drained: u64,
    /// The next older piece in its list.
    older: u32,
    /// The bytes it wrote, a bit each.
    bytes: u8,
    /// How many pieces of its store are before it.
    nth: u8,
    /// An atomic operation wrote it: in the cache, before older stores to other bytes.
    atomic: bool,
}

impl Piece {
    /// When it is in the cache.
    fn in_cache(&self) -> u64 {
        if self.atomic { self.ready } else { self.drained }
    }
}

/// Where a store comes from, for cores whose loads may pass it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Its own address.
    pub pc: u64,
    /// The cycle from which on a load sees where it stores to.
    pub known: u64,
}

/// What a load finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No store under way to its address.
    Nothing,
    /// All of its data, from this cycle on.
    Data(u64),
    /// Part of its data, or data of several stores: it waits until they are in the cache.
    Part(u64),
}

/// Stores under way: the last ones, as many as there can be.
#[derive(Debug)]
pub(crate) struct Stores {
    /// A ring; the piece numbered n, modulo 2^32, is at n modulo its length, a power of two.
    pieces: Box<[Piece]>,
    /// The number of the next piece.
    next: u32,
    /// The number of the youngest piece of each list.
    youngest: Box<[u32; LISTS]>,
    /// When the last of them is in the cache.
    last_drained: u64,
    /// Where each piece comes from, at the piece's index; empty unless asked for.
    origins: Box<[Origin]>,
    /// The origin of the next piece.
    origin: Origin,
}

/// The bytes of `granule` that `bytes` from `address` on cover.
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
    /// None, of `most` that can be under way at once.
    pub fn new(most: u32) -> Self {
        let empty =
            Piece { granule: u64::MAX, ready: 0, drained: 0, older: 0, bytes: 0, nth: 0, atomic: false };
        let room = most.saturating_mul(MOST_PIECES).next_power_of_two();
        // Numbers that no piece has yet are too old to be followed.
        Self {
            pieces: vec![empty; room as usize].into(),
            next: room + 1,
            youngest: Box::new([0; LISTS]),
            last_drained: 0,
            origins: Box::default(),
            origin: Origin::default(),
        }
    }

    /// Keeps where stores come from, for [`passed`](Self::passed).
    pub fn keep_origins(&mut self) {
        self.origins = vec![Origin::default(); self.pieces.len()].into();
    }

    /// The next store comes from there.
    pub fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    /// A store of `bytes` to `address`, younger than all others, whose data is ready at `ready`. It is in the cache at `drained`, or
    /// when the last one is.
    #[inline]
    pub fn push(&mut self, address: u64, bytes: u32, ready: u64, drained: u64) {
        self.last_drained = self.last_drained.max(drained);
        self.push_pieces(address, bytes, ready, false);
    }

    /// An atomic operation, younger than all others, that has changed the cache at `done`, whatever older stores to other bytes do.
    pub fn push_atomic(&mut self, address: u64, bytes: u32, done: u64) {
        self.last_drained = self.last_drained.max(done);
        self.push_pieces(address, bytes, done, true);
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
        let place = self.next as usize & (self.pieces.len() - 1);
        self.pieces[place] = Piece { granule, ready, drained: self.last_drained, older, bytes, nth, atomic };
        if let Some(origin) = self.origins.get_mut(place) {
            *origin = self.origin;
        }
        self.next = self.next.wrapping_add(1);
    }

    /// What a load of `bytes` from `address` finds at cycle `at`.
    #[inline]
    pub fn find(&self, address: u64, bytes: u32, at: u64) -> Found {
        if at >= self.last_drained {
            return Found::Nothing;
        }
        if let Some((granule, wanted)) = inside_granule(address, bytes) {
            return match self.youngest_of(granule, wanted, at) {
                None => Found::Nothing,
                Some((_, piece)) if piece.bytes & wanted == wanted => Found::Data(piece.ready),
                Some(_) => Found::Part(self.in_cache_of(granule, wanted, at)),
            };
        }
        self.find_in_several(address, u64::from(bytes.max(1)).min(u64::MAX - address), at)
    }

    fn find_in_several(&self, address: u64, bytes: u64, at: u64) -> Found {
        let (mut data, mut part, mut store, mut whole) = (0, 0, None, true);
        for granule in address / GRANULE_BYTES..=(address + bytes.max(1) - 1) / GRANULE_BYTES {
            let wanted = covered(granule, address, bytes);
            let Some((number, piece)) = self.youngest_of(granule, wanted, at) else {
                whole = false;
                continue;
            };
            (data, part) = (piece.ready, part.max(self.in_cache_of(granule, wanted, at)));
            let its_store = number.wrapping_sub(piece.nth.into());
            whole &= piece.bytes & wanted == wanted && *store.get_or_insert(its_store) == its_store;
        }
        match (whole, part) {
            (true, _) => Found::Data(data),
            (false, 0) => Found::Nothing,
            (false, until) => Found::Part(until),
        }
    }

    /// The youngest piece that wrote some of the `wanted` bytes of `granule` and is not in the cache at `at`, with its number.
    #[inline]
    fn youngest_of(&self, granule: u64, wanted: u8, at: u64) -> Option<(u32, &Piece)> {
        let mut number = self.youngest[granule as usize % LISTS];
        while self.next.wrapping_sub(number) as usize <= self.pieces.len() {
            let piece = &self.pieces[number as usize & (self.pieces.len() - 1)];
            // What is older is in the cache as well.
            if piece.drained <= at {
                return None;
            }
            if piece.granule == granule && piece.bytes & wanted != 0 && piece.in_cache() > at {
                return Some((number, piece));
            }
            number = piece.older;
        }
        None
    }

    /// The first store to become known of those that a load of `bytes` from `address` on passes at cycle `at` and takes data from: stores
    /// under way, each the youngest to write one of its bytes.
    pub fn passed(&self, address: u64, bytes: u32, at: u64) -> Option<Origin> {
        let bytes = u64::from(bytes.max(1)).min(u64::MAX - address);
        let granules = address / GRANULE_BYTES..=(address + bytes.max(1) - 1) / GRANULE_BYTES;
        granules
            .filter_map(|it| self.passed_in(it, covered(it, address, bytes), at))
            .min_by_key(|it| it.known)
    }

    fn passed_in(&self, granule: u64, mut wanted: u8, at: u64) -> Option<Origin> {
        let mut first: Option<Origin> = None;
        while let Some((number, piece)) = self.youngest_of(granule, wanted, at) {
            let origin = self.origins.get(number as usize & (self.pieces.len() - 1))?;
            if origin.known > at && first.is_none_or(|first| origin.known < first.known) {
                first = Some(*origin);
            }
            wanted &= !piece.bytes;
        }
        first
    }

    /// When those that wrote the `wanted` bytes of `granule` are in the cache; 0 if they are at `at`.
    fn in_cache_of(&self, granule: u64, mut wanted: u8, at: u64) -> u64 {
        let mut until = 0;
        while let Some((_, piece)) = self.youngest_of(granule, wanted, at) {
            until = until.max(piece.in_cache());
            // What is older than a store is in the cache before it; an atomic operation overtakes stores to other bytes.
            if !piece.atomic {
                break;
            }
            wanted &= !piece.bytes;
        }
        until
    }

    /// When the stores that wrote some of `bytes` from `address` on are in the cache: `at`, if they are by then.
    pub fn in_cache(&self, address: u64, bytes: u32, at: u64) -> u64 {
        let bytes = u64::from(bytes.max(1)).min(u64::MAX - address);
        let granules = address / GRANULE_BYTES..=(address + bytes.max(1) - 1) / GRANULE_BYTES;
        granules.map(|it| self.in_cache_of(it, covered(it, address, bytes), at)).fold(at, u64::max)
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
    fn a_vector_is_forwarded_whole() {
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

    /// As [`Stores::find`] says it, byte by byte over every store there has been.
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
        // Few granules, in several places that share a list.
        (0u64..3, 0u64..40, bytes).prop_map(|(place, offset, bytes)| (0x1000 + 2048 * place + offset, bytes))
    }

    proptest! {
        #[test]
        fn a_load_finds_what_a_search_of_all_stores_finds(
            steps in prop::collection::vec((access(), 0u64..20, access(), 0u64..40, any::<bool>()), 1..200),
            most in 1usize..60,
        ) {
            let (mut stores, mut all) = (Stores::new(most as u32), Vec::<(u64, u32, u64, u64)>::new());
            // When all are in the cache, behind each store.
            let mut left = Vec::new();
            let mut drained = 100;
            for ((address, bytes), later, (from, wanted), back, is_atomic) in steps {
                // A store has an entry of the queue, which the store `most` before it has left.
                let begins = if all.len() < most { 0 } else { left[all.len() - most] };
                let in_cache = |all: &[(u64, u32, u64, u64)], from: u64, wanted: u32| {
                    let wrote = |it: &&(u64, u32, u64, u64)| it.0 < from + u64::from(wanted) && from < it.0 + u64::from(it.1);
                    all.iter().filter(wrote).map(|it| it.3).max().unwrap_or(0)
                };
                if is_atomic {
                    let done = in_cache(&all, address, bytes).max(begins) + later;
                    stores.push_atomic(address, bytes, done);
                    all.push((address, bytes, done, done));
                    drained = drained.max(done);
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
