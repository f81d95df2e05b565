//! A predictor of indirect targets like "last-target", in Rust. It is not part of a build of Longma; compile it for
//! WebAssembly: `rustc --target wasm32-unknown-unknown --crate-type cdylib -O -C panic=abort -C strip=symbols last_target.rs`.
#![no_std]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const MAX_SETS: usize = 1 << 14;
const WAYS: usize = 4;
const DEFAULT_ENTRIES: u32 = 512;

/// A branch and its last target.
type Entry = (AtomicU64, AtomicU64);

/// The branches of each set, the most recent first.
static SETS: [[Entry; WAYS]; MAX_SETS] =
    [const { [const { (AtomicU64::new(0), AtomicU64::new(0)) }; WAYS] }; MAX_SETS];
static MASK: AtomicU32 = AtomicU32::new(0);

fn set(branch: u64) -> &'static [Entry; WAYS] {
    &SETS[(branch >> 2) as usize & MASK.load(Relaxed) as usize]
}

fn way(set: &[Entry; WAYS], branch: u64) -> Option<usize> {
    set.iter().position(|entry| entry.0.load(Relaxed) == branch)
}

#[unsafe(no_mangle)]
extern "C" fn start(entries: u32, _history: u32) {
    let entries = if entries == 0 { DEFAULT_ENTRIES } else { entries };
    let sets = 1 << (entries / WAYS as u32).clamp(1, MAX_SETS as u32).ilog2();
    MASK.store(sets - 1, Relaxed);
}

#[unsafe(no_mangle)]
extern "C" fn predict(branch: u64) -> u64 {
    let set = set(branch);
    way(set, branch).map_or(0, |way| set[way].1.load(Relaxed))
}

#[unsafe(no_mangle)]
extern "C" fn train(branch: u64, target: u64) {
    let set = set(branch);
    for way in (1..=way(set, branch).unwrap_or(WAYS - 1)).rev() {
        set[way].0.store(set[way - 1].0.load(Relaxed), Relaxed);
        set[way].1.store(set[way - 1].1.load(Relaxed), Relaxed);
    }
    set[0].0.store(branch, Relaxed);
    set[0].1.store(target, Relaxed);
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}
