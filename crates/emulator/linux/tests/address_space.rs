//! The address space through system calls: 16 KiB pages, errors, huge sizes, code protection. Source: mmap(2),
//! mremap(2), mprotect(2).

mod guest;

use guest::{Guest, error};
use longma_guest::host::locks::Mutex;
use longma_loongarch::{Access, FaultCause};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MMAP: u64 = 222;
const MUNMAP: u64 = 215;
const MPROTECT: u64 = 226;
const MREMAP: u64 = 216;
const PRIVATE_ANONYMOUS: u64 = 0x22;
const FIXED: u64 = 0x10;
const NO_REPLACE: u64 = 0x10_0000;
const NO_FILE: u64 = u64::MAX;
const READ_WRITE: u64 = 3;
const PAGE: u64 = 16384;

#[test]
fn absurd_sizes_are_refused() {
    let mut guest = Guest::new();
    for length in [u64::MAX, 1 << 63, 1 << 48, guest.process.memory().limit()] {
        let mapped = guest.call(MMAP, &[0, length, READ_WRITE, PRIVATE_ANONYMOUS, NO_FILE, 0]);
        assert_eq!(mapped, error(libc::ENOMEM), "{length:#x}");
        assert!(guest.call(MUNMAP, &[0x10000, length]) < 0);
        assert!(guest.call(MPROTECT, &[0x10000, length, 1]) < 0);
    }
    assert_eq!(guest.call(MMAP, &[0, 0, READ_WRITE, PRIVATE_ANONYMOUS, NO_FILE, 0]), error(libc::EINVAL));
}

#[test]
fn a_huge_reservation_costs_nothing_and_can_be_used_piece_by_piece() {
    let mut guest = Guest::new();
    let address = guest.call(MMAP, &[0, 1 << 40, 0, PRIVATE_ANONYMOUS | 0x4000, NO_FILE, 0]) as u64;
    assert_eq!(guest.call(MPROTECT, &[address + (1 << 39), PAGE, READ_WRITE]), 0);
    guest.process.memory().store(address + (1 << 39), 7u64).unwrap();
    let fault = guest.process.memory().load::<u64>(address).unwrap_err();
    assert_eq!((fault.address, fault.cause), (address, FaultCause::Forbidden));
    assert_eq!(guest.call(MUNMAP, &[address, 1 << 40]), 0);
    let fault = guest.process.memory().load::<u64>(address + (1 << 39)).unwrap_err();
    assert_eq!(fault.cause, FaultCause::Unmapped);
}

#[test]
fn a_hint_is_used_if_it_is_free() {
    let mut guest = Guest::new();
    let hint = 0xc0_0000_0000;
    assert_eq!(guest.call(MMAP, &[hint, 1 << 26, 0, PRIVATE_ANONYMOUS, NO_FILE, 0]) as u64, hint);
    let other = guest.call(MMAP, &[hint, PAGE, READ_WRITE, PRIVATE_ANONYMOUS, NO_FILE, 0]) as u64;
    assert_ne!(other, hint);
    let occupied = guest.call(MMAP, &[hint, PAGE, 1, PRIVATE_ANONYMOUS | NO_REPLACE, NO_FILE, 0]);
    assert_eq!(occupied, error(libc::EEXIST));
    assert_eq!(guest.call(MMAP, &[hint, PAGE, 1, PRIVATE_ANONYMOUS | FIXED, NO_FILE, 0]) as u64, hint);
}

#[test]
fn pages_are_16_kib_and_page_zero_is_never_mapped() {
    let mut guest = Guest::new();
    let address = guest.map(1, READ_WRITE);
    assert_eq!(address % PAGE, 0);
    guest.process.memory().store(address + PAGE - 8, 1u64).unwrap();
    assert_eq!(guest.call(MUNMAP, &[address + 4096, 4096]), error(libc::EINVAL));
    let low = guest.call(MMAP, &[0, PAGE, 3, PRIVATE_ANONYMOUS | FIXED, NO_FILE, 0]);
    assert_eq!(low, error(libc::EPERM));
}

#[test]
fn a_files_last_page_reads_as_zero_after_the_end_of_the_file() {
    let mut guest = Guest::new();
    let path = guest.directory.path().join("file");
    std::fs::write(&path, vec![7u8; 5000]).unwrap();
    let file = guest.open(&path, libc::O_RDWR) as u64;
    for sharing in [1, 2] {
        let address = guest.call(MMAP, &[0, 2 * PAGE, READ_WRITE, sharing, file, 0]) as u64;
        let memory = guest.process.memory();
        assert_eq!(memory.load::<u8>(address + 4999), Ok(7));
        assert_eq!(memory.load::<u8>(address + 5000), Ok(0));
        assert_eq!(memory.load::<u64>(address + PAGE - 8), Ok(0), "sharing {sharing}");
        let beyond = memory.load::<u8>(address + PAGE).unwrap_err();
        assert_eq!(beyond.cause, FaultCause::BeyondFile);
    }
}

#[test]
fn a_mapping_grows_in_place_or_moves_with_its_contents() {
    let mut guest = Guest::new();
    let wall = guest.map(4 * PAGE, READ_WRITE);
    assert_eq!(guest.call(MUNMAP, &[wall, 2 * PAGE]), 0);
    let hole = guest.call(MMAP, &[wall, PAGE, READ_WRITE, PRIVATE_ANONYMOUS | FIXED, NO_FILE, 0]) as u64;
    guest.process.memory().store(hole, 0x1234u64).unwrap();
    assert_eq!(guest.call(MREMAP, &[hole, PAGE, 2 * PAGE, 0]) as u64, hole);
    assert_eq!(guest.call(MREMAP, &[hole, 2 * PAGE, 3 * PAGE, 0]), error(libc::ENOMEM));
    let moved = guest.call(MREMAP, &[hole, 2 * PAGE, 8 * PAGE, 1]) as u64;
    assert_ne!(moved, hole);
    assert_eq!(guest.process.memory().load::<u64>(moved), Ok(0x1234));
    guest.process.memory().store(moved + 8 * PAGE - 8, 1u64).unwrap();
    assert_eq!(guest.process.memory().load::<u64>(hole).unwrap_err().cause, FaultCause::Unmapped);
    assert_eq!(guest.call(MREMAP, &[moved, 8 * PAGE, PAGE, 0]) as u64, moved);
    assert!(guest.process.memory().load::<u8>(moved + PAGE).is_err());
}

#[test]
fn only_executable_pages_can_be_fetched_from() {
    let mut guest = Guest::new();
    let address = guest.map(PAGE, READ_WRITE);
    let memory = guest.process.memory().clone();
    assert_eq!(memory.fetch(address).unwrap_err().cause, FaultCause::Forbidden);
    assert_eq!(memory.fetch(address + 2).unwrap_err().cause, FaultCause::Misaligned);
    assert_eq!(guest.call(MPROTECT, &[address, PAGE, 5]), 0);
    assert_eq!(memory.fetch(address), Ok(0));
    assert_eq!(memory.store(address, 1u32).unwrap_err().cause, FaultCause::Forbidden);
    assert_eq!(memory.fetch(0x7000_0000).unwrap_err().cause, FaultCause::Unmapped);
}

/// An engine that records invalidations.
#[derive(Default)]
struct RecordedInvalidations(Mutex<Vec<Range<u64>>>);

impl longma_linux::Engine for RecordedInvalidations {
    fn spawn(&self, _: longma_linux::Thread, _: longma_loongarch::State) -> std::io::Result<i32> {
        Err(std::io::Error::from_raw_os_error(libc::EAGAIN))
    }
    fn invalidate(&self, range: Range<u64>) {
        self.0.lock().unwrap().push(range);
    }
}

#[test]
fn the_engine_is_notified_of_every_kind_of_code_change() {
    let mut guest = Guest::new();
    let invalidations = Arc::new(RecordedInvalidations::default());
    guest.process.set_engine(invalidations.clone());
    let changes = || {
        let ranges = std::mem::take(&mut *invalidations.0.lock().unwrap());
        ranges.into_iter().map(|range| (range.start, range.end)).collect::<Vec<_>>()
    };
    let address = guest.map(2 * PAGE, 7);
    let process = guest.process.clone();
    let space = process.address_space();

    assert!(space.protect_code(address) && space.is_code_protected(address));
    assert!(!space.is_code_protected(address + 4096), "one host page, not the guest's whole page");
    process.memory().store(address + 8, 1u32).unwrap();
    assert_eq!(changes(), [(address, address + 4096)], "a store");
    assert!(!space.is_code_protected(address));

    assert!(space.protect_code(address));
    let file = guest.open("/dev/zero", libc::O_RDONLY) as u64;
    assert_eq!(guest.call(63, &[file, address, 100]), 100);
    assert_eq!(changes(), [(address, address + 4096)], "a system call that fills a buffer");

    assert!(space.protect_code(address));
    assert_eq!(process.memory().compare_exchange(address, 0u64, 1), Ok(0));
    assert_eq!(changes(), [(address, address + 4096)], "an atomic operation");

    assert!(space.protect_code(address));
    assert_eq!(guest.call(MPROTECT, &[address, PAGE, 7]), 0);
    assert!(!space.is_code_protected(address));
    assert_eq!(changes(), [(address, address + PAGE)], "mprotect");
    assert_eq!(guest.call(MUNMAP, &[address, PAGE]), 0);
    assert_eq!(changes(), [(address, address + PAGE)], "munmap");
    assert!(!space.protect_code(address), "the page is no longer mapped");
}

#[test]
fn no_write_is_lost_while_another_thread_protects_code() {
    let mut guest = Guest::new();
    let invalidations = Arc::new(RecordedInvalidations::default());
    guest.process.set_engine(invalidations);
    let address = guest.map(PAGE, 7);
    let process = guest.process.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2000 {
                process.address_space().protect_code(address);
            }
        });
        scope.spawn(|| {
            for value in 0..2000u64 {
                process.memory().store(address, value).unwrap();
                assert_eq!(process.memory().load::<u64>(address), Ok(value));
            }
        });
    });
}

#[test]
fn an_access_during_protection_changes_succeeds_or_is_forbidden() {
    let mut guest = Guest::new();
    let address = guest.map(PAGE, READ_WRITE);
    let is_over = AtomicBool::new(false);
    let process = guest.process.clone();
    let (mut permitted, mut forbidden) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for protection in [0, READ_WRITE] {
                    assert_eq!(guest.call(MPROTECT, &[address, PAGE, protection]), 0);
                }
            }
        });
        let memory = process.memory();
        let mut bytes = [0; 64];
        let end = Instant::now() + Duration::from_secs(20);
        // Continue until the other thread has interfered often enough, even on a busy machine.
        for round in 0u64.. {
            if (permitted > 30_000 && forbidden > 30_000) || Instant::now() > end {
                break;
            }
            let result = match round % 4 {
                0 => memory.load::<u64>(address).map(drop),
                1 => memory.store(address + 8, round),
                2 => memory.read(address, &mut bytes),
                _ => memory.compare_exchange(address, 0, 0u32).map(drop),
            };
            match result {
                Ok(()) => permitted += 1,
                Err(fault) if fault.cause == FaultCause::Forbidden => forbidden += 1,
                Err(fault) => {
                    is_over.store(true, Ordering::Relaxed);
                    panic!("round {round}: {fault:?}");
                }
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(permitted > 0 && forbidden > 0, "{permitted} given, {forbidden} forbidden");
}

#[test]
fn an_access_beyond_the_address_space_is_refused_before_it_is_tried() {
    let guest = Guest::new();
    let memory = guest.process.memory();
    for address in [memory.limit(), memory.limit() - 4, u64::MAX, u64::MAX - 8, 1 << 63] {
        let fault = memory.load::<u64>(address).unwrap_err();
        assert_eq!((fault.access, fault.cause), (Access::Read, FaultCause::Unmapped), "{address:#x}");
        assert!(memory.store(address, 0u64).is_err() && memory.fill(address, 9, 0).is_err());
        assert!(memory.read(address, &mut [0; 16]).is_err() && memory.write(address, &[0; 16]).is_err());
    }
}

#[test]
fn a_fault_across_two_pages_reports_the_faulting_page() {
    let mut guest = Guest::new();
    let address = guest.map(2 * PAGE, READ_WRITE);
    assert_eq!(guest.call(MPROTECT, &[address + PAGE, PAGE, 1]), 0);
    let memory = guest.process.memory();
    let fault = memory.store(address + PAGE - 4, u64::MAX).unwrap_err();
    assert_eq!((fault.address, fault.cause), (address + PAGE, FaultCause::Forbidden));
    assert_eq!(memory.load::<u64>(address + PAGE - 4), Ok(0), "all or nothing");
}

#[test]
fn a_16_byte_exchange_is_atomic() {
    let mut guest = Guest::new();
    let address = guest.map(PAGE, READ_WRITE);
    let memory = guest.process.memory();
    memory.store(address, 5u128 << 64 | 6).unwrap();
    assert_eq!(memory.compare_exchange(address, 1u128, 2), Ok(5 << 64 | 6));
    assert_eq!(memory.compare_exchange(address, 5u128 << 64 | 6, 7 << 100), Ok(5 << 64 | 6));
    assert_eq!(memory.load::<u128>(address), Ok(7 << 100));
    assert_eq!(memory.compare_exchange(address + 8, 0u128, 0).unwrap_err().cause, FaultCause::Misaligned);
    assert_eq!(memory.compare_exchange(0x7000_0000, 0u128, 0).unwrap_err().cause, FaultCause::Unmapped);
}

#[test]
fn mremap_keeps_bytes_written_after_the_end_of_a_small_private_file() {
    const MAY_MOVE: u64 = 1;
    let mut guest = Guest::new();
    let path = guest.directory.path().join("small");
    std::fs::write(&path, b"dragon").unwrap();
    let file = guest.open(&path, libc::O_RDONLY) as u64;
    let mapped = guest.call(MMAP, &[0, PAGE, READ_WRITE, 2, file, 0]) as u64;
    // After the first 4 KiB the file ends, but the page is mapped.
    let last = mapped + PAGE - 1;
    guest.process.memory().store(last, 7u8).unwrap();
    let moved = guest.call(MREMAP, &[mapped, PAGE, 4 * PAGE, MAY_MOVE]);
    assert!(moved > 0, "{moved}");
    let moved = moved as u64;
    assert_ne!(moved, mapped);
    assert_eq!(guest.bytes(moved, 7), b"dragon\0");
    assert_eq!(guest.bytes(moved + PAGE - 1, 1), [7]);
    assert!(guest.process.memory().load::<u8>(mapped).is_err(), "it is no longer there");
    // No host mapping was placed at the old address.
    assert_eq!(
        guest.call(MMAP, &[mapped, PAGE, READ_WRITE, PRIVATE_ANONYMOUS | NO_REPLACE, NO_FILE, 0]) as u64,
        mapped
    );
}

#[test]
fn programs_seal_memory_and_install_guards() {
    const MADVISE: u64 = 233;
    const MSEAL: u64 = 462;
    const GUARD_INSTALL: u64 = 102;
    const GUARD_REMOVE: u64 = 103;
    const GROWS_DOWN: u64 = 0x100;
    let mut guest = Guest::new();
    let start = guest.map(4 * PAGE, READ_WRITE);
    assert_eq!(guest.call(MADVISE, &[start, PAGE, GUARD_INSTALL]), 0);
    assert!(guest.process.memory().load::<u64>(start).is_err());
    assert_eq!(guest.call(MADVISE, &[start, PAGE, GUARD_REMOVE]), 0);
    assert_eq!(guest.process.memory().load::<u64>(start), Ok(0));
    assert_eq!(guest.call(MSEAL, &[start, PAGE, 1]), error(libc::EINVAL));
    assert_eq!(guest.call(MSEAL, &[start, PAGE, 0]), 0);
    assert_eq!(guest.call(MUNMAP, &[start, PAGE]), error(libc::EPERM));
    let hole = guest.map(64 * PAGE, READ_WRITE);
    assert_eq!(guest.call(MUNMAP, &[hole, 64 * PAGE]), 0);
    let stack = hole + 60 * PAGE;
    let flags = PRIVATE_ANONYMOUS | FIXED | GROWS_DOWN;
    assert_eq!(guest.call(MMAP, &[stack, PAGE, READ_WRITE, flags, NO_FILE, 0]) as u64, stack);
    guest.process.memory().store(stack - PAGE - 8, 7u64).unwrap();
    assert_eq!(guest.process.memory().load::<u64>(stack - 8), Ok(0));
}
