//! Tests of registered memory: handles over many registrations, concurrent access to the same bytes, and page faults.
//!
//! Source: VIA, memory registration.

use longma_via::*;
use std::collections::BTreeSet;

fn open() -> (Nic, ProtectionTag) {
    let nic = Nic::open().expect("a NIC");
    let tag = nic.create_protection_tag().expect("a tag");
    (nic, tag)
}

#[test]
fn a_released_handle_is_not_reused_within_a_hundred_thousand_registrations() {
    let (nic, tag) = open();
    let mut bytes = vec![0u8; 64];
    let mut seen = BTreeSet::new();
    for count in 0..100_000 {
        // SAFETY: the vector outlives the region and is not used otherwise.
        let region = unsafe { nic.register(bytes.as_mut_ptr(), bytes.len(), MemoryAttributes::local(tag)) };
        let handle = region.expect("a registration").handle().0;
        assert!(
            handle != 0 && seen.insert(handle),
            "handle {handle:#x} was reused after {count} registrations"
        );
    }
}

#[test]
fn a_new_region_has_a_different_handle_than_live_and_released_ones() {
    let (nic, tag) = open();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).expect("a VI");
    let kept = nic.allocate(4096, MemoryAttributes::local(tag)).expect("memory");
    let removed = nic.allocate(4096, MemoryAttributes::local(tag)).expect("memory").segment(0, 8);
    for _ in 0..5000 {
        let other = nic.allocate(4096, MemoryAttributes::local(tag)).expect("memory");
        assert_ne!(other.handle(), kept.handle());
        assert_ne!(other.handle(), removed.handle);
    }
    drop(vi);
}

#[test]
fn concurrent_word_accesses_are_not_torn() {
    let (nic, tag) = open();
    let memory = nic.allocate(4096, MemoryAttributes::local(tag)).expect("memory");
    const WRITERS: u64 = 3;
    let word_of = |writer: u64| (writer + 1) * 0x0101_0101_0101_0101;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let memory = &memory;
            scope.spawn(move || {
                for round in 0..20_000 {
                    memory.write(round % 64 * 8, &word_of(writer).to_ne_bytes());
                    memory.write(1024, &[writer as u8 + 1; 777]);
                }
            });
        }
        let known: BTreeSet<u64> = (0..WRITERS).map(word_of).chain([0]).collect();
        for round in 0..20_000 {
            let (mut word, mut bytes) = ([0; 8], [0; 777]);
            memory.read(round % 64 * 8, &mut word);
            let word = u64::from_ne_bytes(word);
            assert!(known.contains(&word), "torn read of {word:#x}");
            memory.read(1024, &mut bytes);
            assert!(bytes.iter().all(|byte| u64::from(*byte) <= WRITERS));
        }
    });
}

/// The minor page faults of this thread so far.
fn faults() -> i64 {
    // SAFETY: all zeros is a valid `rusage`, which the call overwrites.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage.ru_minflt
    }
}

#[test]
fn prefaulted_memory_is_written_without_page_faults() {
    const BYTES: usize = 4 << 20;
    let (nic, tag) = open();
    let text = vec![1; BYTES];
    let cost = |prefault, huge_pages| {
        let options = AllocationOptions { prefault, huge_pages };
        let memory = nic.allocate_with(BYTES, MemoryAttributes::local(tag), options).unwrap();
        let before = faults();
        memory.write(0, &text);
        faults() - before
    };
    // Transparent huge pages reduce the number of faults, but one fault is not enough.
    assert!(cost(false, false) > 1);
    assert!(cost(true, false) <= 1);
    assert!(cost(true, true) <= 1);
}
