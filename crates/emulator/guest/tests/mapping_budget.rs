//! A guest that exhausts the mapping limit of the process gets ENOMEM, while the emulator can still allocate. This test
//! has a process to itself because it uses up the mappings of the process. Source: mmap(2) (ENOMEM), proc_sys_vm(5)
//! (max_map_count).

use longma_guest::{AddressSpace, Errno, GuestMemory, Protection};

const WHOLE: u64 = 1 << 20;
const FIRST: u64 = 1 << 30;
const WRITABLE: Protection = Protection { read: true, write: true, execute: false };
const READABLE: Protection = Protection { write: false, ..WRITABLE };

/// Far above the usual vm.max_map_count.
const MAPPINGS: u64 = 1 << 17;

fn mapping_limit() -> Option<u64> {
    std::fs::read_to_string("/proc/sys/vm/max_map_count").ok()?.trim().parse().ok()
}

#[test]
fn a_guest_without_free_mappings_gets_enomem_and_the_emulator_keeps_a_reserve() {
    if mapping_limit().is_none_or(|mapping_limit| mapping_limit >= MAPPINGS) {
        eprintln!(
            "skipped: this host gives a process more mappings than this test makes, or does not say how many"
        );
        return;
    }
    let space = AddressSpace::new(GuestMemory::reserve().unwrap());
    let page = space.page_bytes();
    let map = |index: u64| {
        let protection = if index.is_multiple_of(2) { WRITABLE } else { READABLE };
        space.map_zeros(FIRST + index * page, page, protection)
    };
    space.map_zeros(WHOLE, 3 * page, WRITABLE).unwrap();
    space.map_zeros(FIRST - 2 * page, 2 * page, READABLE).unwrap();

    let mapped_count = (0..MAPPINGS).take_while(|index| map(*index).is_ok()).count() as u64;
    assert!((10_000..MAPPINGS).contains(&mapped_count), "{mapped_count}");
    let out_of_memory = Err(Errno(libc::ENOMEM));
    assert_eq!(map(mapped_count), out_of_memory);
    assert_eq!(space.protect(WHOLE + page, page, READABLE), out_of_memory, "it would be three");
    assert_eq!(space.unmap(WHOLE + page, page), out_of_memory);
    assert_eq!(space.advise(WHOLE + page, page, libc::MADV_DONTDUMP), Err(Errno(libc::ENOMEM)));

    // Each of these allocations needs mappings of the host.
    let blocks: Vec<Vec<u8>> = (0..200).map(|_| vec![1; 1 << 20]).collect();
    let threads: Vec<_> = (0..50).map(|index| std::thread::spawn(move || index)).collect();
    let sum: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!((blocks.len(), sum), (200, 49 * 50 / 2));

    // Unmapping whole mappings, and the end of another one, frees some of the limit.
    space.unmap(FIRST - page, 1001 * page).unwrap();
    assert_eq!(map(0), Ok(()));
    space.unmap(WHOLE + page, page).unwrap();
    space.unmap(FIRST, mapped_count * page).unwrap();
}
