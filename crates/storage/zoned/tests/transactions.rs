//! Transactions are serializable, and conflict only if the result of one of their reads has changed. The model is a
//! `BTreeMap`.

mod support;

use longma_zoned::device::MemoryDevice;
use longma_zoned::{Error, KeyRange, Store, Transaction, Typed};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use support::{Model, busy, memory, open};

type Map = Store<Arc<MemoryDevice>>;

fn map() -> Map {
    let device = Store::format(Arc::new(memory(64, 2, 16)), Some(512), 1).unwrap();
    open(device, busy(20_000, 20_000))
}

fn is_conflict<T>(result: &longma_zoned::Result<T>) -> bool {
    matches!(result, Err(Error::Conflict { .. }))
}

/// One of 24 keys, of different lengths.
fn key(number: u8) -> Vec<u8> {
    vec![number; 1 + usize::from(number % 3)]
}

fn value(number: u8) -> Vec<u8> {
    // Some values do not fit into a leaf.
    vec![number; if number.is_multiple_of(5) { 300 } else { usize::from(number % 4) }]
}

/// A range of keys.
type Range = (Bound<Vec<u8>>, Bound<Vec<u8>>);

#[derive(Clone, Debug)]
enum Read {
    Get(u8),
    Contains(u8),
    /// A range, and how many records are taken from its front and from its back.
    Scan(Range, usize, usize),
}

#[derive(Clone, Debug)]
enum TransactionOperation {
    Begin(usize),
    Read(usize, Read),
    /// A change of a key by a transaction, or directly. `None` deletes it.
    Change(Option<usize>, u8, Option<u8>),
    Commit(usize),
    Discard(usize),
    Checkpoint,
}

fn bounds() -> impl Strategy<Value = Range> {
    let bound = || {
        prop_oneof![
            Just(Bound::Unbounded),
            (0..24u8).prop_map(|number| Bound::Included(key(number))),
            (0..24u8).prop_map(|number| Bound::Excluded(key(number))),
        ]
    };
    (bound(), bound())
}

fn step() -> impl Strategy<Value = TransactionOperation> {
    let read = prop_oneof![
        (0..24u8).prop_map(Read::Get),
        (0..24u8).prop_map(Read::Contains),
        (bounds(), 0..6usize, 0..6usize).prop_map(|(range, front, back)| Read::Scan(range, front, back)),
        bounds().prop_map(|range| Read::Scan(range, 100, 0)),
    ];
    let change = (prop::option::of(0..3usize), 0..24u8, prop::option::of(any::<u8>()));
    prop_oneof![
        2 => (0..3usize).prop_map(TransactionOperation::Begin),
        4 => (0..3usize, read).prop_map(|(slot, read)| TransactionOperation::Read(slot, read)),
        6 => change.prop_map(|(slot, key, value)| TransactionOperation::Change(slot, key, value)),
        2 => (0..3usize).prop_map(TransactionOperation::Commit),
        1 => (0..3usize).prop_map(TransactionOperation::Discard),
        1 => Just(TransactionOperation::Checkpoint),
    ]
}

/// The rows that a read returns.
type Rows = Vec<(Vec<u8>, Vec<u8>)>;

fn read_of(transaction: &Transaction<Arc<MemoryDevice>>, read: &Read) -> Rows {
    match read {
        Read::Get(number) => {
            let value = transaction.get(&key(*number)).unwrap();
            value.map(|value| (key(*number), value)).into_iter().collect()
        }
        Read::Contains(number) => {
            let found = transaction.contains_key(&key(*number)).unwrap();
            found.then(|| (key(*number), Vec::new())).into_iter().collect()
        }
        Read::Scan(range, front, back) => {
            let mut rows = transaction.range(range.clone());
            let mut seen: Rows = rows.by_ref().take(*front).map(Result::unwrap).collect();
            seen.extend(rows.rev().take(*back).map(Result::unwrap));
            seen
        }
    }
}

fn is_empty((start, end): &Range) -> bool {
    match (start, end) {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Included(end) | Bound::Excluded(end)) => {
            start >= end
        }
    }
}

/// The same read of the model.
fn expected(model: &Model, read: &Read) -> Rows {
    match read {
        Read::Get(number) => {
            model.get(&key(*number)).map(|value| (key(*number), value.clone())).into_iter().collect()
        }
        Read::Contains(number) => {
            let found = model.contains_key(&key(*number));
            found.then(|| (key(*number), Vec::new())).into_iter().collect()
        }
        Read::Scan(range, ..) if is_empty(range) => Rows::new(),
        Read::Scan(range, front, back) => {
            let owned = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
            let mut rows = model.range(range.clone());
            let mut seen: Rows = rows.by_ref().take(*front).map(owned).collect();
            seen.extend(rows.rev().take(*back).map(owned));
            seen
        }
    }
}

/// Changed keys and their new values; `None` stands for a deletion.
type Writes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// An open transaction and the records that it should see.
struct Running {
    transaction: Transaction<Arc<MemoryDevice>>,
    /// The map when the transaction began.
    then: Model,
    writes: Writes,
    reads: Vec<(Read, Writes)>,
}

fn with(mut model: Model, writes: &Writes) -> Model {
    for (key, value) in writes {
        match value {
            Some(value) => _ = model.insert(key.clone(), value.clone()),
            None => _ = model.remove(key),
        }
    }
    model
}

impl Running {
    /// Whether repeating a read would give another result.
    fn would_differ(&self, now: &Model) -> bool {
        self.reads.iter().any(|(read, writes)| {
            expected(&with(self.then.clone(), writes), read) != expected(&with(now.clone(), writes), read)
        })
    }

    /// Whether a change affects a record that a read may have seen.
    fn may_differ(&self, now: &Model) -> bool {
        self.reads.iter().any(|(read, _)| {
            let whole = match read {
                Read::Scan(range, ..) => Read::Scan(range.clone(), 100, 0),
                other => other.clone(),
            };
            expected(&self.then, &whole) != expected(now, &whole)
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn transactions_have_the_effect_of_a_serial_order(steps in prop::collection::vec(step(), 1..80)) {
        let map = map();
        let mut model = Model::new();
        let mut running: [Option<Running>; 3] = [None, None, None];
        for step in steps {
            match step {
                TransactionOperation::Begin(slot) => {
                    running[slot] = Some(Running {
                        transaction: map.transaction(),
                        then: model.clone(),
                        writes: Writes::new(),
                        reads: Vec::new(),
                    });
                }
                TransactionOperation::Read(slot, read) => {
                    let Some(own) = &mut running[slot] else { continue };
                    let sees = with(own.then.clone(), &own.writes);
                    prop_assert_eq!(read_of(&own.transaction, &read), expected(&sees, &read));
                    own.reads.push((read, own.writes.clone()));
                }
                TransactionOperation::Change(slot, number, new) => {
                    let (key, new) = (key(number), new.map(value));
                    let own = slot.map(|slot| &mut running[slot]);
                    match (own, &new) {
                        (Some(None), _) => {}
                        (Some(Some(own)), new) => {
                            match new {
                                Some(value) => own.transaction.put(&key, value),
                                None => own.transaction.delete(&key),
                            }
                            own.writes.insert(key, new.clone());
                        }
                        (None, Some(value)) => {
                            map.put(&key, value).unwrap();
                            model.insert(key, value.clone());
                        }
                        (None, None) => {
                            map.delete(&key).unwrap();
                            model.remove(&key);
                        }
                    }
                }
                TransactionOperation::Commit(slot) => {
                    let Some(own) = running[slot].take() else { continue };
                    let (must, may) = (own.would_differ(&model), own.may_differ(&model));
                    match own.transaction.commit() {
                        Ok(_) => {
                            prop_assert!(!must, "a repeated read has another result");
                            model = with(model, &own.writes);
                        }
                        Err(Error::Conflict { .. }) => prop_assert!(may, "the read records are unchanged"),
                        Err(error) => prop_assert!(false, "{}", error),
                    }
                }
                TransactionOperation::Discard(slot) => running[slot] = None,
                TransactionOperation::Checkpoint => map.checkpoint().unwrap(),
            }
            let rows: Model = map.iter().map(|row| row.unwrap().to_pair()).collect();
            prop_assert_eq!(&rows, &model);
        }
    }
}

#[test]
fn an_update_is_not_lost_and_constraints_over_two_keys_hold() {
    let map = map();
    map.put(b"count", b"1").unwrap();
    let (mut first, mut second) = (map.transaction(), map.transaction());
    for transaction in [&mut first, &mut second] {
        assert_eq!(transaction.get(b"count").unwrap().as_deref(), Some(&b"1"[..]));
        transaction.put(b"count", b"2");
    }
    first.commit().unwrap();
    let error = second.commit().unwrap_err().to_string();
    assert!(error.contains("count") && error.contains("again"), "{error}");

    // Each of two transactions may take one doctor off duty, because the other one is on duty.
    map.put(b"ada", b"on").unwrap();
    map.put(b"bob", b"on").unwrap();
    let (mut first, mut second) = (map.transaction(), map.transaction());
    assert!(first.get(b"bob").unwrap().is_some() && second.get(b"ada").unwrap().is_some());
    first.delete(b"ada");
    second.delete(b"bob");
    first.commit().unwrap();
    assert!(is_conflict(&second.commit()));
    assert!(map.contains_key(b"bob").unwrap());
}

#[test]
fn a_new_key_in_an_iterated_range_is_a_conflict_and_one_behind_the_last_record_read_is_not() {
    let map = map();
    for number in [1u8, 3, 5] {
        map.put(&[number], b"").unwrap();
    }
    let begin = || {
        let mut transaction = map.transaction();
        assert_eq!(transaction.range([1u8]..[9u8]).take(2).count(), 2);
        transaction.put(b"result", b"2");
        transaction
    };
    let (in_gap, behind) = (begin(), begin());
    map.put(&[4], b"").unwrap();
    behind.commit().unwrap();
    map.put(&[2], b"").unwrap();
    assert!(is_conflict(&in_gap.commit()));
}

#[test]
fn changes_without_reads_and_presence_of_an_updated_key_never_conflict() {
    let map = map();
    map.put(b"a", b"1").unwrap();
    let mut blind = map.transaction();
    blind.put(b"a", b"3");
    let present = map.transaction();
    assert!(present.contains_key(b"a").unwrap() && !present.contains_key(b"b").unwrap());
    map.put(b"a", b"2").unwrap();
    assert_eq!(blind.commit().unwrap().updated, 1);
    present.commit().unwrap();
    assert_eq!(map.get(b"a").unwrap().as_deref(), Some(&b"3"[..]));
}

#[test]
fn a_transaction_whose_work_fails_or_that_is_dropped_changes_nothing() {
    let map = map();
    let failed: Result<(), Box<dyn std::error::Error>> = map.transact(|transaction| {
        transaction.put(b"a", b"1");
        Err("no".into())
    });
    assert_eq!(failed.unwrap_err().to_string(), "no");
    let mut dropped = map.transaction();
    dropped.put(b"a", b"1");
    drop(dropped);
    assert!(map.is_empty());
    let too_long = map.transact(|transaction| {
        transaction.put(b"good", b"");
        transaction.put(&[7; 500], b"");
        Ok::<_, Error>(())
    });
    assert!(matches!(too_long, Err(Error::KeyLength { .. })));
    assert!(map.is_empty());
}

#[test]
fn transactions_and_swaps_of_many_threads_lose_no_increment() {
    const THREADS: u64 = 4;
    const EACH: u64 = 200;
    let map = map();
    map.put(b"swapped", &0u64.to_be_bytes()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..EACH {
                    map.transact(|transaction| {
                        let mut counts = Typed::<_, String, u64>::new(transaction);
                        let count = counts.get(&"count".into())?.unwrap_or(0);
                        counts.put(&"count".into(), &(count + 1))
                    })
                    .unwrap();
                    let mut current = map.get(b"swapped").unwrap().unwrap();
                    loop {
                        let next = u64::from_be_bytes(current[..].try_into().unwrap()) + 1;
                        match map
                            .compare_and_swap(b"swapped", Some(&current), Some(&next.to_be_bytes()))
                            .unwrap()
                        {
                            Ok(()) => break,
                            Err(failed) => current = failed.current.unwrap(),
                        }
                    }
                }
            });
        }
    });
    let count = Typed::<_, String, u64>::new(&map);
    for name in ["count", "swapped"] {
        assert_eq!(count.get(&name.into()).unwrap(), Some(THREADS * EACH), "{name}");
    }
}

#[test]
fn a_swap_inserts_replaces_and_deletes_only_the_expected_value() {
    let map = map();
    assert_eq!(map.compare_and_swap(b"k", Some(b"1"), Some(b"2")).unwrap().unwrap_err().current, None);
    map.compare_and_swap(b"k", None, Some(b"1")).unwrap().unwrap();
    let failed = map.compare_and_swap(b"k", None, Some(b"3")).unwrap().unwrap_err();
    assert_eq!(failed.current.as_deref(), Some(&b"1"[..]));
    assert!(failed.to_string().contains('1'), "{failed}");
    map.compare_and_swap(b"k", Some(b"1"), Some(&[7; 2000])).unwrap().unwrap();
    map.compare_and_swap(b"k", Some(&[7; 2000]), None).unwrap().unwrap();
    map.compare_and_swap(b"k", None, None).unwrap().unwrap();
    assert!(map.is_empty());
}

#[test]
fn a_read_only_transaction_needs_no_writable_map() {
    let device = Arc::new(memory(64, 2, 16));
    let map = open(Store::format(Arc::clone(&device), Some(512), 1).unwrap(), busy(20_000, 20_000));
    map.put(b"a", b"1").unwrap();
    map.close().unwrap();
    let map = Store::open_read_only(device, busy(20_000, 20_000)).unwrap();
    let transaction = map.transaction();
    assert_eq!(transaction.iter().count(), 1);
    transaction.commit().unwrap();
    let mut transaction = map.transaction();
    transaction.put(b"a", b"2");
    assert!(matches!(transaction.commit(), Err(Error::ReadOnly { .. })));
}

#[test]
fn ranges_of_every_kind_have_the_keys_of_a_btree_map() {
    let map = map();
    let model: Model = (0..24).map(|number| (key(number), value(number))).collect();
    for (key, value) in &model {
        map.put(key, value).unwrap();
    }
    let (low, high) = (key(5), key(17));
    macro_rules! same {
        ($($range:expr),*) => {$(
            let expected: Vec<_> = model.range::<Vec<u8>, _>($range).map(|(key, _)| key.clone()).collect();
            let found = map.range($range).map(|row| row.unwrap().key().to_vec());
            assert_eq!(found.collect::<Vec<_>>(), expected, stringify!($range));
            let found = map.transaction().range($range).map(|row| row.unwrap().0).collect::<Vec<_>>();
            assert_eq!(found, expected, stringify!($range));
        )*};
    }
    same!(
        ..,
        low.clone()..high.clone(),
        low.clone()..=high.clone(),
        low.clone()..,
        ..high.clone(),
        ..=high.clone(),
        (Bound::Excluded(low.clone()), Bound::Excluded(high.clone()))
    );
    assert_eq!(map.range("a".."b").count() + map.range(&[5u8, 5, 5]..&[5u8, 5, 6]).count(), 1);
    assert_eq!(map.snapshot().range(KeyRange::ALL).count(), 24);
    assert_eq!(map.range(&high[..]..&low[..]).count(), 0);
}

#[test]
fn typed_views_of_a_map_a_snapshot_and_a_transaction_agree() {
    let map = map();
    let mut points = Typed::<_, (i32, String), u64>::new(&map);
    for number in [-3, 0, 7] {
        points.put(&(number, "x".into()), &(100 + number.unsigned_abs() as u64)).unwrap();
    }
    let snapshot = map.snapshot();
    let mut transaction = map.transaction();
    let mut changed = Typed::<_, (i32, String), u64>::new(&mut transaction);
    changed.delete(&(0, "x".into())).unwrap();
    changed.put(&(-5, "y".into()), &1).unwrap();
    let numbers = |rows: Vec<((i32, String), u64)>| rows.into_iter().map(|row| row.0.0).collect::<Vec<_>>();
    let from = (-4, String::new())..;
    assert_eq!(numbers(changed.range(from).map(Result::unwrap).collect()), [-3, 7]);
    assert_eq!(numbers(changed.iter().rev().map(Result::unwrap).collect()), [7, -3, -5]);
    transaction.commit().unwrap();
    let then = Typed::<_, (i32, String), u64>::new(&snapshot);
    assert_eq!(numbers(then.iter().map(Result::unwrap).collect()), [-3, 0, 7]);
    assert!(then.contains_key(&(0, "x".into())).unwrap() && !points.contains_key(&(0, "x".into())).unwrap());
    points.delete(&(7, "x".into())).unwrap();
    let error = Typed::<_, (i32, String), u32>::new(&map).get(&(-3, "x".into())).unwrap_err().to_string();
    assert!(error.contains("u32"), "{error}");
    map.put(b"short", b"").unwrap();
    assert!(points.iter().any(|row| matches!(row, Err(Error::Encoding { part: "key" | "value", .. }))));
}
