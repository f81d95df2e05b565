//! Maps in files whose process was killed: the file has all writes of the process, without a last flush. Some tests
//! then destroy blocks of the file's metadata.

use longma_zoned::device::{FileDevice, Geometry};
use longma_zoned::{Durability, Options, Store, Typed};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The unit in which the tests lose parts of a file, bytes.
const LOST_BYTES: usize = 4096;

fn geometry() -> Geometry {
    Geometry {
        block_bytes: 512,
        zone_blocks: 256,
        zone_capacity_blocks: 240,
        conventional_zones: 2,
        sequential_zones: 10,
        max_open_zones: 0,
        max_active_zones: 0,
    }
}

/// The offset of the zones in the file: after the metadata, a multiple of 1 MiB.
fn zones_start(file: &File) -> u64 {
    let zones = geometry().blocks() * u64::from(geometry().block_bytes);
    (file.metadata().unwrap().len() - zones) >> 20 << 20
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Makes a map, puts `count` keys one by one, and returns the file as if the process were killed then.
fn killed_after(folder: &Path, options: Options, count: u32) -> PathBuf {
    let (path, image) = (folder.join("device"), folder.join("image"));
    let device = FileDevice::create(&path, geometry(), false).unwrap();
    let map = Store::open(Store::format(device, Some(512), 1).unwrap(), options).unwrap();
    (0..count).for_each(|number| assert!(map.put(&key(number), b"value").unwrap()));
    std::fs::copy(&path, &image).unwrap();
    image
}

/// The number of keys of `0..count` that are in the map, or the error of opening it.
fn keys_in(image: &Path, count: u32) -> Result<u32, String> {
    let device = FileDevice::open_read_only(image).map_err(|error| error.to_string())?;
    let map = Store::open_read_only(device, Options::default()).map_err(|error| error.to_string())?;
    Ok((0..count).filter(|&number| map.get(&key(number)).unwrap().is_some()).count() as u32)
}

/// The offsets of the metadata blocks that contain anything.
fn metadata(file: &File) -> Vec<u64> {
    let (length, zones) = (file.metadata().unwrap().len(), zones_start(file));
    let zones_end = zones + geometry().blocks() * u64::from(geometry().block_bytes);
    let is_used = |&at: &u64| {
        let mut block = [0; LOST_BYTES];
        file.read_exact_at(&mut block, at).unwrap();
        block.iter().any(|&byte| byte != 0)
    };
    let step = LOST_BYTES;
    (0..zones).step_by(step).chain((zones_end..length).step_by(step)).filter(is_used).collect()
}

#[test]
fn any_lost_block_of_metadata_loses_no_acknowledged_batch() {
    let folder = tempfile::tempdir().unwrap();
    let image = killed_after(folder.path(), Options::default(), 100);
    assert_eq!(keys_in(&image, 100), Ok(100));
    let file = OpenOptions::new().read(true).write(true).open(&image).unwrap();
    let blocks = metadata(&file);
    assert!(blocks.len() > 100, "a record for each flush: {blocks:?}");
    for at in blocks {
        let mut block = [0; LOST_BYTES];
        file.read_exact_at(&mut block, at).unwrap();
        file.write_all_at(&[0; LOST_BYTES], at).unwrap();
        assert_eq!(keys_in(&image, 100), Ok(100), "without the block at byte {at}");
        file.write_all_at(&block, at).unwrap();
    }
}

#[test]
fn the_loss_of_the_newest_records_loses_no_acknowledged_batch() {
    let folder = tempfile::tempdir().unwrap();
    let image = killed_after(folder.path(), Options::default(), 100);
    let file = OpenOptions::new().read(true).write(true).open(&image).unwrap();
    let zones = zones_start(&file);
    let log: Vec<u64> = metadata(&file).into_iter().filter(|&at| at < zones).collect();
    let mut lost = BTreeSet::new();
    for &at in log.iter().rev().take(16) {
        file.write_all_at(&[0; LOST_BYTES], at).unwrap();
        lost.insert(at);
        match keys_in(&image, 100) {
            Ok(found) => assert_eq!(found, 100, "without {lost:?}"),
            Err(error) => assert!(error.contains("repair"), "{error}"),
        }
    }
    assert_eq!(keys_in(&image, 100), Ok(100), "all copies of the last records are lost");
}

#[test]
fn a_killed_process_loses_no_relaxed_batch() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { durability: Durability::Relaxed, ..Options::default() };
    for count in [1, 100, 3000] {
        let folder = folder.path().join(count.to_string());
        std::fs::create_dir(&folder).unwrap();
        let image = killed_after(&folder, options, count);
        assert_eq!(keys_in(&image, count), Ok(count));
        let map = Store::open(FileDevice::open(&image).unwrap(), options).unwrap();
        assert_eq!(map.len(), u64::from(count));
        map.close().unwrap();
        assert!(Store::check(FileDevice::open(&image).unwrap()).unwrap().problems.is_empty());
    }
}

/// Runs the test `test` again in a mount namespace with a small file system in memory, and returns that file system in
/// the second run. The test is skipped if no file system can be mounted.
fn small_file_system(test: &str) -> Option<PathBuf> {
    const FOLDER: &str = "LONGMA_ZONED_SMALL_FILE_SYSTEM";
    const MOUNT_FAILED: i32 = 77;
    if let Some(folder) = std::env::var_os(FOLDER) {
        return Some(folder.into());
    }
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=48m none \"$1\" || exit 77; exec timeout 300 \"$2\" --exact \"$3\"";
    let ran = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(FOLDER, folder.path())
        .status();
    match ran.ok().and_then(|status| status.code()) {
        Some(0) => {}
        Some(MOUNT_FAILED | 1) | None => eprintln!("skipped: no file system can be mounted here"),
        Some(code) => panic!("the run on a small file system failed with status {code}"),
    }
    None
}

/// Writes zeros to a file until the file system is full.
fn fill(path: &Path) {
    use std::io::Write;
    let mut file = File::create(path).unwrap();
    while file.write_all(&[0; 1 << 16]).is_ok() {}
    while file.write(&[0; 512]).is_ok_and(|bytes| bytes > 0) {}
}

#[test]
fn a_full_file_system_does_not_lock_the_writer_out() {
    let Some(folder) = small_file_system("a_full_file_system_does_not_lock_the_writer_out") else { return };
    let geometry = Geometry { block_bytes: 4096, sequential_zones: 24, ..geometry() };
    let path = folder.join("device");
    let device = FileDevice::create_allocated(&path, geometry, false).unwrap();
    let options = Options::with_cache(4 << 20);
    let map = Store::open(Store::format(device, None, 1).unwrap(), options).unwrap();
    let value = |number: u32| [number as u8; 200];
    let put = |map: &Store<FileDevice>, number: u32| map.put(&number.to_be_bytes(), &value(number));
    (0..1000).for_each(|number| assert!(put(&map, number).unwrap()));
    fill(&folder.join("other"));
    let stored = (1000..1_000_000).find(|&number| put(&map, number).is_err()).unwrap();
    drop(map);
    let map = Store::open(FileDevice::open(&path).unwrap(), options).unwrap();
    assert!(
        (0..stored).all(|number| map.get(&number.to_be_bytes()).unwrap().as_deref() == Some(&value(number)))
    );
    (0..stored).for_each(|number| assert!(map.delete(&number.to_be_bytes()).unwrap()));
    (0..stored / 2).for_each(|number| assert!(put(&map, number).unwrap()));
    map.close().unwrap();
}

#[test]
fn a_forked_child_cannot_write_to_the_map_of_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    let device = FileDevice::create(&path, geometry(), false).unwrap();
    let map = Store::open(Store::format(device, Some(512), 1).unwrap(), Options::default()).unwrap();
    map.put(b"parent", b"1").unwrap();
    // SAFETY: the child calls no function that needs another thread, and ends without running destructors of others.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_refused = map.put(b"child", b"1").is_err();
        drop(map);
        // SAFETY: ends the child immediately.
        unsafe { libc::_exit(if is_refused { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `child` is the process started above, and `status` is valid.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's put was acknowledged");
    assert!(FileDevice::open(&path).is_err(), "the child has unlocked the file");
    map.put(b"after", b"1").unwrap();
    map.close().unwrap();
    let map = Store::open(FileDevice::open(&path).unwrap(), Options::default()).unwrap();
    assert_eq!(map.len(), 2);
}

#[test]
fn close_reports_that_other_handles_keep_the_map_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    let device = FileDevice::create(&path, geometry(), false).unwrap();
    let map = Store::open(Store::format(device, Some(512), 1).unwrap(), Options::default()).unwrap();
    map.put(b"key", b"value").unwrap();
    let (other, snapshot) = (map.clone(), map.snapshot());
    let error = map.close().unwrap_err().to_string();
    assert!(error.contains("2 other handles"), "{error}");
    assert!(FileDevice::open(&path).is_err());
    drop(snapshot);
    other.close().unwrap();
    assert!(FileDevice::open(&path).is_ok());
}

/// Moves amounts between accounts in transactions until it is killed, and prints the number of each committed one. It
/// ends by itself after a million.
fn move_amounts(path: &Path, options: Options) {
    use std::io::Write;
    let map = Store::open(FileDevice::open(path).unwrap(), options).unwrap();
    let (mut output, mut seed) = (std::io::stdout(), 1u64);
    for _ in 0..1_000_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let count = map.transact(|transaction| {
            let mut amounts = Typed::<_, u32, u64>::new(transaction);
            let (from, to) = ((seed >> 33) as u32 % 50, 50 + (seed >> 48) as u32 % 50);
            let (left, there) = (amounts.get(&from)?.unwrap_or(100), amounts.get(&to)?.unwrap_or(100));
            let moved = left / 3;
            amounts.put(&from, &(left - moved))?;
            amounts.put(&to, &(there + moved))?;
            let count = amounts.get(&1000)?.unwrap_or(0) + 1;
            amounts.put(&1000, &count)?;
            Ok::<_, longma_zoned::Error>(count)
        });
        writeln!(output, "{}", count.unwrap()).unwrap();
    }
}

#[test]
fn a_killed_process_leaves_whole_transactions_and_all_that_were_committed() {
    const PATH: &str = "LONGMA_ZONED_KILLED";
    let options = |relaxed: bool| {
        let durability = if relaxed { Durability::Relaxed } else { Durability::EachBatch };
        Options { durability, ..Options::with_cache(1 << 20) }
    };
    if let Some(path) = std::env::var_os(PATH) {
        let path = PathBuf::from(path);
        return move_amounts(&path, options(path.ends_with("relaxed")));
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["relaxed", "synced"] {
        let path = folder.path().join(name);
        let device =
            FileDevice::create(&path, Geometry { sequential_zones: 24, ..geometry() }, false).unwrap();
        drop(Store::format(device, Some(512), 1).unwrap());
        let mut committed = 0;
        for more in [1, 7, 50, 300] {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "a_killed_process_leaves_whole_transactions_and_all_that_were_committed"])
                .arg("--nocapture")
                .env(PATH, &path)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
            let numbers = lines.filter_map(|line| line.parse::<u64>().ok());
            let reached = numbers.take_while(|&number| number < committed + more).count() as u64;
            assert_eq!(reached, more - 1, "the process ended");
            committed += more;
            child.kill().unwrap();
            child.wait().unwrap();
            let map = Store::open(FileDevice::open(&path).unwrap(), options(false)).unwrap();
            let amounts = Typed::<_, u32, u64>::new(&map);
            let found = amounts.get(&1000).unwrap().unwrap();
            assert!(found >= committed, "{name}: {found} of {committed} transactions");
            committed = found;
            let sum: u64 = (0..100).map(|account| amounts.get(&account).unwrap().unwrap_or(100)).sum();
            assert_eq!(sum, 100 * 100, "{name}: a transaction was applied in part");
            map.close().unwrap();
            assert!(Store::check(FileDevice::open(&path).unwrap()).unwrap().problems.is_empty());
        }
    }
}
