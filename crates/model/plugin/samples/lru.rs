//! A replacement policy like "lru", in Rust. It is not part of a build of Longma; compile it for WebAssembly:
//! `rustc --target wasm32-unknown-unknown --crate-type cdylib -O -C panic=abort -C strip=symbols lru.rs`.
#![no_std]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const MAX_LINES: usize = 1 << 20;

/// The time of the last use of each line, in uses of all lines.
static TIMES: [AtomicU64; MAX_LINES] = [const { AtomicU64::new(0) }; MAX_LINES];
static NOW: AtomicU64 = AtomicU64::new(0);
static WAYS: AtomicU32 = AtomicU32::new(1);

fn time(set: u32, way: u32) -> &'static AtomicU64 {
    // Without the message of a panic, which would be most of the module.
    TIMES.get((set * WAYS.load(Relaxed) + way) as usize).unwrap_or_else(|| core::arch::wasm32::unreachable())
}

#[unsafe(no_mangle)]
extern "C" fn start(_sets: u32, ways: u32, _line_bytes: u32) {
    WAYS.store(ways, Relaxed);
}

#[unsafe(no_mangle)]
extern "C" fn used(set: u32, way: u32, _line: u64, _instruction: u64, _kind: u32) {
    let now = NOW.load(Relaxed) + 1;
    NOW.store(now, Relaxed);
    time(set, way).store(now, Relaxed);
}

#[unsafe(no_mangle)]
extern "C" fn filled(set: u32, way: u32, line: u64, instruction: u64, kind: u32) {
    used(set, way, line, instruction, kind);
}

#[unsafe(no_mangle)]
extern "C" fn victim(set: u32, allowed: u64, _line: u64, _instruction: u64, _kind: u32) -> u32 {
    let ways = (0..WAYS.load(Relaxed)).filter(|way| allowed >> way & 1 == 1);
    ways.min_by_key(|way| time(set, *way).load(Relaxed)).unwrap_or(0)
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}
