//! A prefetcher of the next lines, in Rust. It is not part of a build of Longma; compile it for WebAssembly:
//! `rustc --target wasm32-unknown-unknown --crate-type cdylib -O -C panic=abort -C strip=symbols next_line.rs`.
#![no_std]

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

#[link(wasm_import_module = "longma")]
unsafe extern "C" {
    safe fn prefetch(line: u64);
}

static DEGREE: AtomicU32 = AtomicU32::new(1);
static DISTANCE: AtomicU32 = AtomicU32::new(1);

#[unsafe(no_mangle)]
extern "C" fn start(_line_bytes: u32, _page_lines: u64, degree: u32, distance: u32, _streams: u32) {
    DEGREE.store(degree, Relaxed);
    DISTANCE.store(distance, Relaxed);
}

#[unsafe(no_mangle)]
extern "C" fn observe(line: u64, _instruction: u64, event: u32) {
    // A hit on a line that was not prefetched.
    if event == 2 {
        return;
    }
    let first = line.wrapping_add(DISTANCE.load(Relaxed).into());
    (0..DEGREE.load(Relaxed)).for_each(|n| prefetch(first.wrapping_add(n.into())));
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}
