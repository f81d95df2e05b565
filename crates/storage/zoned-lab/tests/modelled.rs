//! Compares the modelled drive with measurements of the Western Digital ZN540, to which it was not fitted. Each
//! tolerance is the deviation found.
//!
//! Source: fio results in the artifact of Doekemeijer et al., "Exploring I/O Management Performance in ZNS with
//! ConfZNS++", SYSTOR 2024.

use longma_zoned::device::{
    Block, Condition, DeviceError, Geometry, MemoryDevice, Read, ZoneNumber, ZonedDevice,
};
use longma_zoned_lab::{ModelledDevice, Parameters};

const KIB: usize = 1024;

/// A few zones of the ZN540: 2 GiB apart, 1077 MiB each.
fn drive(parameters: Parameters) -> ModelledDevice<MemoryDevice> {
    let geometry = Geometry {
        block_bytes: 4096,
        zone_blocks: 524_288,
        zone_capacity_blocks: 275_712,
        conventional_zones: 0,
        sequential_zones: 4,
        max_open_zones: 14,
        max_active_zones: 14,
    };
    ModelledDevice::new(MemoryDevice::new(geometry).unwrap(), parameters)
}

/// The simulated duration of `work`, microseconds.
fn us(drive: &ModelledDevice<MemoryDevice>, work: impl FnOnce()) -> f64 {
    let before = drive.now().ps();
    work();
    (drive.now().ps() - before) as f64 / 1e6
}

/// The same in whole microseconds.
fn whole_us(drive: &ModelledDevice<MemoryDevice>, work: impl FnOnce()) -> u64 {
    us(drive, work).round() as u64
}

fn fill(drive: &ModelledDevice<MemoryDevice>, zone: u32, bytes: usize) {
    let data = vec![7; 256 * KIB];
    for _ in 0..bytes / data.len() {
        drive.append(ZoneNumber(zone), &data).unwrap();
    }
}

/// Asserts that `ours` is within `percent` of `published`.
fn near(name: &str, ours: f64, published: f64, percent: f64) {
    let off = (ours / published - 1.0) * 100.0;
    println!("{name}: {ours:.1}, published {published:.1}, {off:+.0} %");
    assert!(off.abs() <= percent, "{name}: {ours} against {published}: {off} %");
}

#[test]
fn single_operations_take_about_as_long_as_measured() {
    let drive = drive(Parameters::ZN540);
    near("write of 4 KiB, us", us(&drive, || fill_one(&drive, 4)), 14.7, 15.0);
    near("append of 8 KiB, us", us(&drive, || fill_one(&drive, 8)), 17.3, 20.0);
    near("write of 64 KiB, us", us(&drive, || fill_one(&drive, 64)), 47.0, 15.0);
    fill(&drive, 1, 64 << 20);
    // Wait until everything is programmed: 2 ms.
    (0..400).for_each(|_| drive.flush().unwrap());
    near("read of 4 KiB, us", us(&drive, || read(&drive, 4)), 73.0, 20.0);
    near("read of 8 KiB, us", us(&drive, || read(&drive, 8)), 84.0, 20.0);
}

fn fill_one(drive: &ModelledDevice<MemoryDevice>, kib: usize) {
    drive.append(ZoneNumber(0), &vec![1; kib * KIB]).unwrap();
}

fn read(drive: &ModelledDevice<MemoryDevice>, kib: usize) {
    drive.read(Block(524_288 + 4001), &mut vec![0; kib * KIB]).unwrap();
}

#[test]
fn many_reads_at_once_are_limited_by_the_drive_and_not_by_one_die() {
    let drive = drive(Parameters::ZN540);
    fill(&drive, 0, 128 << 20);
    let mut buffers = vec![vec![0; 8 * KIB]; 128];
    let (rounds, mut at) = (50, 1u64);
    let took = us(&drive, || {
        for _ in 0..rounds {
            let mut place = || {
                at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                Block((at >> 33) % 16_000 * 2)
            };
            let mut reads: Vec<_> =
                buffers.iter_mut().map(|buffer| Read { block: place(), buffer }).collect();
            drive.read_many(&mut reads).unwrap();
        }
    });
    // The test submits batches of 128 instead of keeping 128 reads in flight, so it waits for the last read of each
    // batch.
    near(
        "reads of 8 KiB, 128 at once, thousands a second",
        128_000.0 * f64::from(rounds) / took,
        292.0,
        40.0,
    );
}

#[test]
fn a_stream_of_writes_is_limited_by_the_flash() {
    let drive = drive(Parameters::ZN540);
    let took = us(&drive, || fill(&drive, 0, 512 << 20));
    near("stream of writes of 256 KiB, MB/s", f64::from(512 << 20) / took, 1230.0, 15.0);
    let full = drive.zone(ZoneNumber(0)).unwrap().write_pointer;
    assert_eq!(full, 131_072);
    near("reset, ms", us(&drive, || drive.reset(ZoneNumber(0)).unwrap()) / 1e3, 17.0, 75.0);
    fill_one(&drive, 4);
    near(
        "finish of a nearly empty zone, ms",
        us(&drive, || drive.finish(ZoneNumber(0)).unwrap()) / 1e3,
        900.0,
        70.0,
    );
}

#[test]
fn a_worn_zone_is_slower_and_ends_as_read_only() {
    let parameters = Parameters { rated_resets: 10, last_reset: 20, ..Parameters::ZN540 };
    let drive = drive(parameters);
    let read_in = |zone: u32| {
        fill(&drive, zone, 4 << 20);
        us(&drive, || drive.read(Block(u64::from(zone) * 524_288), &mut vec![0; 4 * KIB]).unwrap())
    };
    let fresh = read_in(1);
    for _ in 0..19 {
        fill_one(&drive, 4);
        drive.reset(ZoneNumber(0)).unwrap();
    }
    assert!(read_in(0) > fresh + 50.0);
    assert!(matches!(drive.reset(ZoneNumber(0)), Err(DeviceError::Unusable { .. })));
    assert_eq!(drive.zone(ZoneNumber(0)).unwrap().condition, Condition::ReadOnly);
    let latencies = drive.latencies();
    assert_eq!((latencies.reset.count(), latencies.read.count()), (20, 2));
}

#[test]
fn the_same_operations_take_the_same_time() {
    let run = || {
        let drive = drive(Parameters::ZN540);
        fill(&drive, 2, 8 << 20);
        drive.finish(ZoneNumber(2)).unwrap();
        drive.flush().unwrap();
        drive.now()
    };
    assert_eq!(run(), run());
}

#[test]
fn a_device_of_stated_latencies_takes_them_for_every_command() {
    use longma_sim::Duration;
    // The link takes less than a nanosecond.
    let us_of = |us: u64| Duration::from_ps(us * 1_000_000);
    let drive = drive(Parameters::answering(us_of(10), us_of(20), us_of(30)));
    fill(&drive, 1, 1 << 20);
    // The reads include data just written, which a drive with a write buffer would read from the buffer.
    for kib in [4, 8, 64] {
        assert_eq!(whole_us(&drive, || fill_one(&drive, kib)), 20, "write of {kib} KiB");
        let block = Block(drive.zone(ZoneNumber(0)).unwrap().write_pointer - kib as u64 / 4);
        let read = whole_us(&drive, || drive.read(block, &mut vec![0; kib * KIB]).unwrap());
        assert_eq!(read, 10, "read of {kib} KiB");
    }
    let mut buffers = vec![vec![0; 4 * KIB]; 3];
    let reads = buffers.iter_mut().zip([0, 1, 2]).map(|(buffer, block)| Read { block: Block(block), buffer });
    let mut reads: Vec<_> = reads.collect();
    assert_eq!(whole_us(&drive, || drive.read_many(&mut reads).unwrap()), 10, "reads at once");
    assert_eq!(whole_us(&drive, || drive.reset(ZoneNumber(1)).unwrap()), 30, "reset");
}
