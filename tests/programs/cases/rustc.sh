# title: rustc compiles and runs a program
# version: rustc --version
# timeout: 300
cat >t.rs <<'END'
use std::collections::{BTreeMap, HashMap}; use std::sync::{mpsc, Arc, Mutex}; use std::thread;
fn main() {
    let (tx, rx) = mpsc::channel(); let total = Arc::new(Mutex::new(0u64));
    for t in 0..4u64 { let (tx, total) = (tx.clone(), total.clone()); thread::spawn(move || { for i in 0..1000 { *total.lock().unwrap() += i * t; } tx.send(t).unwrap(); }); }
    drop(tx); let mut seen: Vec<_> = rx.iter().collect(); seen.sort();
    let mut m = HashMap::new(); for i in 0..10000u32 { *m.entry(i % 97).or_insert(0u32) += i; } let b: BTreeMap<_, _> = m.into_iter().collect();
    println!("{seen:?} {} {:?} {:.10}", total.lock().unwrap(), b.iter().nth(50), (2.0f64).powf(0.5));
    let caught = std::panic::catch_unwind(|| { let v: Vec<i32> = vec![]; v[std::hint::black_box(0)] }); println!("{}", caught.is_err());
}
END
rustc -O -C linker=gcc t.rs 2>&1 && ./t 2>/dev/null
