//! A single flipped bit anywhere in the file of a map: reads are correct or fail, a check detects it, reading does not
//! write, and a repair works and lists the losses.

use crate::support::{Model, Records, batch, busy, campaign, geometry, open};
use longma_zoned::device::{DeviceError, FileDevice, Geometry};
use longma_zoned::store::{LostRange, RepairReport};
use longma_zoned::{Options, Store, ZonedDevice};
use longma_zoned_lab::ycsb::Rng;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A map in a file, and its contents.
struct Stored {
    name: &'static str,
    bytes: Vec<u8>,
    model: Model,
    /// Keys with changes in the journal.
    recent: BTreeSet<Vec<u8>>,
}

#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    geometry: Geometry,
    node_bytes: u32,
    records: Records,
    /// The number of batches before and after the last checkpoint.
    batches: [u64; 2],
    /// Whether the device is closed properly. Otherwise the process is killed after another flush.
    is_closed: bool,
}

const OPTIONS: Options = busy(60_000, 20_000);

fn shapes() -> [Shape; 4] {
    let shape = |name, zone_blocks, node_bytes, records, batches, is_closed| Shape {
        name,
        geometry: geometry(zone_blocks, 1, 10),
        node_bytes,
        records,
        batches,
        is_closed,
    };
    [
        shape("small", 32, 512, Records::Fixed, [30, 6], true),
        shape("large values", 48, 1024, Records::Large, [40, 10], true),
        shape("killed", 48, 512, Records::Variable, [60, 20], false),
        shape("no journal", 32, 2048, Records::Variable, [30, 0], true),
    ]
}

/// A temporary directory, in memory if possible, because the test writes thousands of files.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

fn store(path: &Path, shape: Shape) -> Stored {
    let _ = fs::remove_file(path);
    let Shape { name, geometry, node_bytes, records, batches, is_closed } = shape;
    let device = Arc::new(FileDevice::create(path, geometry, false).unwrap());
    let map = open(Store::format(Arc::clone(&device), Some(node_bytes), 1).unwrap(), OPTIONS);
    let (mut rng, mut model, mut recent) = (Rng::new(7), Model::new(), BTreeSet::new());
    for round in 0..batches[0] + batches[1] {
        let changes = batch(&mut rng, records, 120, 12, 25, &mut model);
        map.apply(&changes).unwrap();
        if round + 1 == batches[0] {
            map.checkpoint().unwrap();
        }
    }
    let info = Store::info(&device).unwrap();
    assert!(info.generation > 1);
    recent.extend((0..120).map(|number| records.key(number)));
    map.sync().unwrap();
    drop(map);
    if is_closed {
        drop(device);
    } else {
        // Restore the file as it was before the device was dropped.
        let bytes = fs::read(path).unwrap();
        drop(device);
        fs::write(path, bytes).unwrap();
    }
    let bytes = fs::read(path).unwrap();
    Stored { name, bytes, model, recent }
}

fn to_read(path: &Path) -> longma_zoned::Result<FileDevice> {
    Ok(FileDevice::open_read_only(path)?)
}

/// The result of reading a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadResult {
    Right,
    Refused,
    Unreadable,
}

/// Checks that everything read is correct or an error.
fn look(map: longma_zoned::Result<Store<FileDevice>>, model: &Model) -> Result<ReadResult, String> {
    let Ok(map) = map else { return Ok(ReadResult::Refused) };
    let mut seen = ReadResult::Right;
    for (key, value) in model {
        match map.get(key) {
            Ok(found) if found.as_ref() == Some(value) => {}
            Ok(found) => return Err(format!("get of {key:?}: {found:?}")),
            Err(_) => seen = ReadResult::Unreadable,
        }
    }
    let (mut rows, mut ended) = (Model::new(), true);
    for row in map.iter() {
        match row {
            Ok(row) => _ = rows.insert(row.key().to_vec(), row.value().to_vec()),
            Err(_) => ended = false,
        }
    }
    match ended {
        true if rows == *model => {}
        true => return Err(format!("a scan ended with {} of {} records", rows.len(), model.len())),
        false if rows.iter().all(|(key, value)| model.get(key) == Some(value)) => {
            seen = ReadResult::Unreadable
        }
        false => return Err("a scan invented something".into()),
    }
    Ok(seen)
}

struct Campaign {
    path: PathBuf,
    seen: [u64; 3],
    repaired: u64,
    losses: u64,
}

impl Campaign {
    fn unchanged(&self, bytes: &[u8], what: &str) -> Result<(), String> {
        let content = fs::read(&self.path).unwrap();
        match content.iter().zip(bytes).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => Err(format!("{what} wrote at byte {at}")),
        }
    }

    fn face(&mut self, stored: &Stored, bytes: &[u8]) -> Result<(), String> {
        let seen = look(
            to_read(&self.path).and_then(|device| Store::open_read_only(device, OPTIONS)),
            &stored.model,
        )?;
        self.seen[seen as usize] += 1;
        self.unchanged(bytes, "opening for reading")?;
        let checked = to_read(&self.path).and_then(Store::check);
        let is_sound = checked.as_ref().is_ok_and(|report| report.problems.is_empty());
        self.unchanged(bytes, "a check")?;
        if is_sound && seen != ReadResult::Right {
            return Err(format!("a check finds no problem, but reading returns {seen:?}"));
        }
        if is_sound {
            return Ok(());
        }
        let opened =
            FileDevice::open(&self.path).map_err(Into::into).and_then(|device| Store::open(device, OPTIONS));
        let refused = opened.is_err();
        look(opened, &stored.model)?;
        if refused {
            self.unchanged(bytes, "an opening that was refused")?;
        }
        fs::write(&self.path, bytes).unwrap();
        self.repair(stored)
    }

    fn repair(&mut self, stored: &Stored) -> Result<(), String> {
        let (device, head) = FileDevice::open_to_repair(&self.path)
            .map_err(|error| format!("the repair's opening: {error}"))?;
        let report = Store::repair(device, OPTIONS).map_err(|error| format!("the repair: {error}"))?;
        let checked =
            to_read(&self.path).and_then(Store::check).map_err(|error| format!("after a repair: {error}"))?;
        if !checked.problems.is_empty() {
            return Err(format!("after a repair: {:?}", checked.problems));
        }
        let map = Store::open_read_only(to_read(&self.path).unwrap(), OPTIONS)
            .map_err(|error| format!("after a repair: {error}"))?;
        let rows: Model = map.iter().map(|row| row.unwrap().to_pair()).collect();
        let keys: BTreeSet<_> = rows.keys().chain(stored.model.keys()).collect();
        let wrong: Vec<_> = keys.into_iter().filter(|key| rows.get(*key) != stored.model.get(*key)).collect();
        let is_old = report.superblock_lost || report.superblock_old;
        let is_named = |key: &Vec<u8>| {
            is_old
                || is_lost(&report, key)
                || (!report.lost_batches.is_empty() && stored.recent.contains(key))
        };
        self.repaired += 1;
        self.losses += u64::from(!wrong.is_empty());
        match wrong.iter().find(|key| !is_named(key)) {
            None => Ok(()),
            Some(key) => Err(format!("a repair lost {key:?} without reporting it: {report:?}, {head:?}")),
        }
    }
}

fn is_lost(report: &RepairReport, key: &[u8]) -> bool {
    let inside = |lost: &LostRange| key >= &lost.from[..] && lost.to.as_ref().is_none_or(|to| key < &to[..]);
    report.lost.iter().chain(&report.lost_changes).any(inside)
        || report.lost_values.iter().any(|lost| lost == key)
}

/// LONGMA_ZONED_FLIPS=1 flips one bit in each byte of the nonblank sectors, and one bit in each blank sector. Larger
/// numbers sample every n-th position. LONGMA_ZONED_SEED selects the bits and the start position.
#[test]
fn one_flipped_bit_is_an_error_or_makes_no_difference() {
    let (step, seed) = (campaign("LONGMA_ZONED_FLIPS", 4001) as usize, campaign("LONGMA_ZONED_SEED", 1));
    let folder = folder();
    let path = folder.path().join("map");
    let mut wrong = Vec::new();
    for shape in shapes() {
        let stored = store(&path, shape);
        let mut campaign = Campaign { path: path.clone(), seen: [0; 3], repaired: 0, losses: 0 };
        let mut bytes = stored.bytes.clone();
        fs::write(&path, &bytes).unwrap();
        assert_eq!(campaign.face(&stored, &bytes), Ok(()), "{}: undamaged", stored.name);
        let mut rng = Rng::new(seed);
        let is_blank = |at: usize| stored.bytes[at / 512 * 512..][..512].iter().all(|&byte| byte == 0);
        let places = (0..bytes.len()).filter(|&at| !is_blank(at) || (at % 512 == 0 && at % 65536 < 512));
        for at in places.skip(seed as usize % step).step_by(step) {
            let bit = rng.below(8);
            bytes[at] ^= 1 << bit;
            fs::write(&path, &bytes).unwrap();
            if let Err(what) = campaign.face(&stored, &bytes) {
                println!("{}: byte {at} bit {bit}: {what}", stored.name);
                wrong.push(what);
            }
            bytes[at] ^= 1 << bit;
        }
        let Campaign { seen: [right, refused, unreadable], repaired, losses, .. } = campaign;
        println!(
            "{}: {right} made no difference, {refused} were refused, {unreadable} could not be read everywhere; {repaired} repairs, {losses} with losses",
            stored.name
        );
    }
    assert!(wrong.is_empty(), "{} flipped bits", wrong.len());
}

/// The offsets and sizes of the structures in a file with less than 100 zones.
const CHECKPOINTS: [usize; 2] = [4096, 3 * 4096];
const LOG: usize = 5 * 4096;
const RECORDS: usize = 512;
const COPY_BYTES: usize = 4096;

#[test]
fn a_table_damaged_in_all_copies_is_refused_and_a_repair_reports_its_guesses() {
    let folder = folder();
    let path = folder.path().join("map");
    for shape in shapes() {
        let stored = store(&path, shape);
        let checkpoints = CHECKPOINTS.map(|at| vec![at, at + 4096]).concat();
        let records: Vec<usize> = (LOG..).step_by(2 * COPY_BYTES).take(RECORDS).collect();
        let is_record = |at: &usize| stored.bytes[*at..at + 8] != [0; 8];
        let records: Vec<usize> = records.into_iter().filter(is_record).collect();
        let middle = records[records.len() / 2];
        let all =
            |records: &[usize]| records.iter().flat_map(|&at| [at, at + COPY_BYTES]).collect::<Vec<_>>();
        for (what, places) in [
            ("the checkpoints", checkpoints.clone()),
            ("a record", all(&[middle])),
            ("all of it", [checkpoints.clone(), all(&records)].concat()),
        ] {
            let what = format!("{}: {what}", stored.name);
            let mut bytes = stored.bytes.clone();
            places.iter().for_each(|&at| bytes[at + 3] ^= 0x10);
            fs::write(&path, &bytes).unwrap();
            for error in [FileDevice::open(&path).err(), FileDevice::open_read_only(&path).err()] {
                let error = error.unwrap_or_else(|| panic!("{what} is not noticed")).to_string();
                assert!(error.contains("longma zoned repair"), "{what}: {error}");
            }
            assert!(fs::read(&path).unwrap() == bytes, "{what}: a refused opening wrote");
            let (device, states) = FileDevice::open_to_repair(&path).unwrap();
            assert!(states.table_lost, "{what}");
            let report = Store::repair(device, OPTIONS).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(Store::check(to_read(&path).unwrap()).unwrap().problems, [], "{what}");
            let map = Store::open(FileDevice::open(&path).unwrap(), OPTIONS).unwrap();
            let rows: Model = map.iter().map(|row| row.unwrap().to_pair()).collect();
            // The contents of the zones are intact and show where they end.
            assert!(rows == stored.model, "{what}: {report:?}, {states:?}");
        }
    }
}

#[test]
fn a_header_damaged_in_all_copies_is_refused_with_an_explanation() {
    let folder = folder();
    let path = folder.path().join("map");
    let stored = store(&path, shapes()[0]);
    let mut bytes = stored.bytes;
    let last_page = bytes.len() - 4096;
    [0, 2048, last_page, last_page + 2048].into_iter().for_each(|copy| bytes[copy + 30] ^= 1);
    fs::write(&path, &bytes).unwrap();
    for error in [FileDevice::open(&path).err(), FileDevice::open_to_repair(&path).err()] {
        assert!(error.unwrap().to_string().contains("in all copies"));
    }
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn a_device_open_for_reading_rejects_writes_and_can_be_shared() {
    let folder = folder();
    let path = folder.path().join("map");
    let stored = store(&path, shapes()[2]);
    let (first, second) = (to_read(&path).unwrap(), to_read(&path).unwrap());
    assert!(FileDevice::open(&path).err().unwrap().to_string().contains("in use"));
    let zone = first.geometry().sequential().next().unwrap();
    let block = vec![1; first.geometry().block_bytes as usize];
    let refused = [
        first.write(first.geometry().start(zone), &block),
        first.write(longma_zoned::device::Block(0), &block),
        first.append(zone, &block).map(|_| ()),
        first.reset(zone),
        first.finish(zone),
        first.open(zone),
        first.close(zone),
        first.flush(),
        Store::repair(first, OPTIONS).map(|_| ()).map_err(|error| match error {
            longma_zoned::Error::Device(error) => error,
            error => panic!("{error}"),
        }),
    ];
    for result in refused {
        assert!(matches!(result, Err(DeviceError::ReadOnly { .. })), "{result:?}");
    }
    assert_eq!(look(Store::open_read_only(second, OPTIONS), &stored.model), Ok(ReadResult::Right));
    assert!(fs::read(&path).unwrap() == stored.bytes);
}
