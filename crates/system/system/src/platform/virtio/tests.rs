//! Tests devices as a driver uses them: through configuration space, the window and queues in memory. Some of the
//! drivers are hostile.

mod network;
mod saved;
mod share;

use std::io::Write as _;

use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::platform::map;
use crate::platform::pci::{Message, PciHost};

const MEMORY: usize = 64 << 20;
const SECTORS: u64 = 64;
/// Configuration space of slot 1.
const SLOT: u64 = 1 << 11;
const WINDOW: u64 = map::PCI_MEMORY + 0x8000;
const DESCRIPTORS: u64 = 0x1000;
const AVAILABLE: u64 = 0x2000;
const USED: u64 = 0x3000;
const HEADER: u64 = 0x4000;
const DATA: u64 = 0x5000;
const STATUS: u64 = 0x8000;
/// Bytes of memory that tests use.
const TEST_BYTES: usize = 0x1_0000;

const NEXT: u16 = 1;
const WRITABLE: u16 = 2;

struct Bench {
    host: PciHost,
    memory: GuestMemoryMmap,
    available: u16,
}

impl Bench {
    /// A disk in which each byte is the low byte of its sector's number.
    fn new() -> Self {
        let mut image = tempfile::NamedTempFile::new().expect("the host has a temporary folder");
        for sector in 0..SECTORS {
            image.write_all(&[sector as u8; 512]).expect("the file is writable");
        }
        Self::with(Transport::disk(Disk::open(image.path(), &DiskOptions::default()).expect("it is a disk")))
    }

    fn with(device: Transport) -> Self {
        let mut host = PciHost::default();
        assert!(host.attach(device));
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).expect("the host has memory");
        Self { host, memory, available: 0 }
    }

    fn config(&mut self, register: u64, bytes: usize, value: u64) -> Effects {
        let mut effects = Effects::default();
        self.host.write_config(SLOT + register, bytes, value, &mut effects);
        effects
    }

    fn write(&mut self, offset: u32, bytes: usize, value: u64) -> Effects {
        let mut effects = Effects::default();
        self.host.write(WINDOW + u64::from(offset), bytes, value, &self.memory, &mut effects);
        effects
    }

    /// Initializes the device, as a driver does before it sends requests.
    fn start(mut self) -> Self {
        self.config(0x10, 4, WINDOW);
        self.config(4, 2, 6);
        self.config(0x42, 2, 0x8000);
        for (offset, bytes, value) in [(0x08, 4, 1), (0x0c, 4, 1), (0x14, 1, 11)] {
            self.write(offset, bytes, value);
        }
        self.write(window::MESSAGES, 8, map::MESSAGES);
        self.write(window::MESSAGES + 8, 8, 40);
        let queue =
            [(0x18, 2, 16), (0x1a, 2, 0), (0x20, 8, DESCRIPTORS), (0x28, 8, AVAILABLE), (0x30, 8, USED)];
        for (offset, bytes, value) in queue.into_iter().chain([(0x1c, 2, 1), (0x14, 1, 15)]) {
            self.write(offset, bytes, value);
        }
        self
    }

    fn put(&self, address: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(address)).expect("it is in memory");
    }

    fn get(&self, address: u64, bytes: usize) -> Vec<u8> {
        let mut content = vec![0; bytes];
        self.memory.read_slice(&mut content, GuestAddress(address)).expect("it is in memory");
        content
    }

    fn descriptor(&self, index: u64, address: u64, bytes: u32, flags: u16, next: u16) {
        let address = address.to_le_bytes();
        let fields = [&address[..], &bytes.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
        self.put(DESCRIPTORS + 16 * index, &fields.concat());
    }

    fn notify(&mut self, head: u16) -> Effects {
        self.put(AVAILABLE + 4 + 2 * u64::from(self.available % 16), &head.to_le_bytes());
        self.available += 1;
        self.put(AVAILABLE + 2, &self.available.to_le_bytes());
        self.write(window::NOTIFY, 2, 0)
    }

    /// Sends a request in the usual three descriptors. Returns its status.
    fn request(&mut self, kind: u32, sector: u64, bytes: u32) -> u8 {
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.put(HEADER, &header);
        self.put(STATUS, &[0xee]);
        self.descriptor(0, HEADER, 16, NEXT, 1);
        self.descriptor(1, DATA, bytes, NEXT | if kind == 1 { 0 } else { WRITABLE }, 2);
        self.descriptor(2, STATUS, 1, WRITABLE, 0);
        let effects = self.notify(0);
        assert_eq!(effects.messages, [Message { address: map::MESSAGES, content: 40 }]);
        assert!(effects.cycles > 0);
        self.get(STATUS, 1)[0]
    }
}

#[test]
fn a_driver_reads_and_writes_sectors() {
    let mut bench = Bench::new().start();
    assert_eq!(bench.host.read(WINDOW + u64::from(window::DEVICE), 8), SECTORS);
    assert_eq!(bench.request(0, 5, 1024), 0);
    assert_eq!(bench.get(DATA, 1024), [[5; 512], [6; 512]].concat());
    // The used ring contains the head and the number of bytes written, including the status.
    assert_eq!(bench.get(USED + 2, 10), [1, 0, 0, 0, 0, 0, 1, 4, 0, 0]);
    bench.put(DATA, &[0xaa; 512]);
    assert_eq!(bench.request(1, 6, 512), 0);
    assert_eq!(bench.request(4, 0, 0), 0);
    assert_eq!(bench.request(0, 5, 1024), 0);
    assert_eq!(bench.get(DATA, 1024), [[5; 512], [0xaa; 512]].concat());
}

#[test]
fn a_request_outside_of_the_disk_or_of_an_unknown_kind_fails() {
    let mut bench = Bench::new().start();
    for (kind, sector, bytes) in [(0, SECTORS, 512), (0, SECTORS - 1, 1024), (0, u64::MAX, 512), (0, 1, 511)]
    {
        assert_eq!(bench.request(kind, sector, bytes), 1, "{kind} {sector} {bytes}");
    }
    assert_eq!(bench.request(1, u64::MAX / 512, 512), 1);
    assert_eq!(bench.request(77, 0, 512), 2);
}

#[test]
fn a_malformed_chain_is_used_without_an_effect() {
    let mut bench = Bench::new().start();
    // A loop, buffers outside memory, and no room for the status.
    bench.descriptor(0, HEADER, 16, NEXT, 0);
    bench.descriptor(1, u64::MAX - 3, 16, NEXT, 2);
    bench.descriptor(2, 0x1000_0000, u32::MAX, WRITABLE, 0);
    bench.descriptor(3, HEADER, 16, 0, 0);
    for head in [0, 1, 2, 3] {
        let effects = bench.notify(head);
        assert_eq!(effects.messages.len(), 1, "{head}");
    }
    assert_eq!(bench.get(DATA, 64), [0; 64]);
    assert_eq!(bench.request(0, 5, 512), 0, "the device still works");
}

#[test]
fn a_head_beyond_the_table_stops_the_device_until_it_is_reset() {
    for head in [16, 0xffff] {
        let mut bench = Bench::new().start();
        assert!(bench.notify(head).messages.is_empty());
        assert_eq!(bench.host.read(WINDOW + 0x14, 1), 15 | 64);
        bench.descriptor(0, DATA, 512, WRITABLE, 0);
        assert!(bench.notify(0).messages.is_empty());
        bench.write(0x14, 1, 0);
        assert_eq!(bench.host.read(WINDOW + 0x14, 1), 0);
    }
}

#[test]
fn a_device_that_is_not_master_of_the_bus_leaves_memory_alone() {
    let mut bench = Bench::new().start();
    bench.config(4, 2, 2);
    let before = bench.get(0, TEST_BYTES);
    bench.descriptor(0, DATA, 512, WRITABLE, 0);
    let described = bench.get(0, TEST_BYTES);
    assert!(bench.notify(0).messages.is_empty());
    assert_eq!(bench.get(USED, 16), before[USED as usize..][..16]);
    assert_eq!(bench.get(DATA, 512), described[DATA as usize..][..512]);
}

#[test]
fn a_window_that_moves_answers_at_its_new_place_only() {
    let mut bench = Bench::new().start();
    bench.config(0x10, 4, WINDOW + 0x10_0000);
    assert_eq!(bench.host.read(WINDOW + u64::from(window::DEVICE), 4), 0xffff_ffff);
    let moved = WINDOW + 0x10_0000 + u64::from(window::DEVICE);
    assert_eq!(bench.host.read(moved, 8), SECTORS);
    bench.config(4, 2, 0);
    assert_eq!(bench.host.read(moved, 4), 0xffff_ffff);
    // Writing all ones to the BAR and reading it back yields its size.
    bench.config(0x10, 4, u64::MAX);
    assert_eq!(bench.host.read_config(SLOT + 0x10, 4), 0xffff_8000);
    assert_eq!(bench.host.read_config(2 << 11, 4), 0xffff_ffff, "slot 2 is empty");
}

#[test]
fn features_without_version_1_are_refused_and_a_reset_forgets_the_queue() {
    let mut bench = Bench::new().start();
    bench.write(0x14, 1, 0);
    assert_eq!(bench.host.read(WINDOW + 0x1c, 2), 0);
    bench.write(0x14, 1, 11);
    assert_eq!(bench.host.read(WINDOW + 0x14, 1), 3);
    assert!(bench.notify(0).messages.is_empty());
}

#[test]
fn many_descriptors_are_reported_in_few_ranges() {
    const COUNT: u64 = 4096;
    const TABLE: u64 = 0x10_0000;
    let mut bench = Bench::new().start();
    for index in 0..COUNT {
        let address = (0x20_0000 + 2 * index).to_le_bytes();
        let flags = if index == COUNT - 1 { WRITABLE } else { WRITABLE | NEXT };
        let next = index as u16 + 1;
        let fields = [&address[..], &1u32.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
        bench.put(TABLE + 16 * index, &fields.concat());
    }
    // An indirect descriptor table in memory.
    bench.descriptor(0, TABLE, 16 * COUNT as u32, 4, 0);
    let effects = bench.notify(0);
    assert!(effects.written.len() <= 256, "{}", effects.written.len());
    let reports = |at: u64| effects.written.iter().any(|(start, end)| (*start..*end).contains(&at));
    assert!((0..COUNT).all(|index| reports(0x20_0000 + 2 * index)) && reports(USED));
    assert!(effects.cycles >= 16 * COUNT);
}

/// An address in the memory that tests use, near its end, or anywhere.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..TEST_BYTES as u64, 1 => (64 << 20) - 64..(64u64 << 20) + 64, 1 => any::<u64>()]
}

fn descriptor() -> impl Strategy<Value = (u64, u32, u16, u16)> {
    let bytes = prop_oneof![4 => 0..2048u32, 1 => any::<u32>()];
    (address(), bytes, 0..8u16, prop_oneof![8 => 0..16u16, 1 => any::<u16>()])
}

proptest! {
    #[test]
    fn any_ring_changes_only_the_memory_that_the_device_reports(
        descriptors in prop::collection::vec(descriptor(), 16),
        ring in prop::collection::vec(prop_oneof![4 => 0..16u16, 1 => any::<u16>()], 16),
        index in prop_oneof![4 => 0..17u16, 1 => any::<u16>()],
        kinds in prop::collection::vec((0..12u32, 0..SECTORS + 2), 16),
        places in prop::option::of((address(), address(), address())),
    ) {
        let mut bench = Bench::new().start();
        for (number, (kind, sector)) in kinds.iter().enumerate() {
            let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
            bench.put(HEADER + 16 * number as u64, &header);
        }
        for (number, (address, bytes, flags, next)) in descriptors.into_iter().enumerate() {
            bench.descriptor(number as u64, address, bytes, flags, next);
        }
        for (number, head) in ring.into_iter().enumerate() {
            bench.put(AVAILABLE + 4 + 2 * number as u64, &head.to_le_bytes());
        }
        bench.put(AVAILABLE + 2, &index.to_le_bytes());
        if let Some((descriptors, available, used)) = places {
            bench.write(0x20, 8, descriptors);
            bench.write(0x28, 8, available);
            bench.write(0x30, 8, used);
        }
        let before = bench.get(0, TEST_BYTES);
        let effects = bench.write(window::NOTIFY, 2, 0);
        let after = bench.get(0, TEST_BYTES);
        let is_reported = |at: u64| effects.written.iter().any(|(start, end)| (*start..*end).contains(&at));
        for at in (0..TEST_BYTES).filter(|at| before[*at] != after[*at]) {
            prop_assert!(is_reported(at as u64), "{at:#x}");
        }
    }

    #[test]
    fn any_access_to_configuration_space_and_window_is_harmless(
        accesses in prop::collection::vec(
            (any::<bool>(), 0..0x8000u64, prop::sample::select(&[1usize, 2, 4, 8][..]), any::<u64>()),
            200,
        ),
    ) {
        let mut bench = Bench::new().start();
        for (is_config, offset, bytes, value) in accesses {
            let offset = offset & !(bytes as u64 - 1);
            if is_config {
                bench.config(offset % 0x110, bytes, value);
                bench.host.read_config(SLOT + offset % 0x110, bytes);
                // In most cases, the window stays where the accesses are.
                bench.config(0x10, 4, WINDOW);
                bench.config(4, 2, if value % 8 == 0 { value } else { 6 });
            } else {
                bench.write(offset as u32, bytes, value);
                bench.host.read(WINDOW + offset, bytes);
            }
        }
    }
}
