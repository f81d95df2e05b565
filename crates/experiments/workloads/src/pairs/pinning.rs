//! Pins runs to processors of this host.
//!
//! Source: sched_setaffinity(2).

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins this thread and its children to the `number`th usable processor, modulo their number.
///
/// The host threads of a run alternate, so a second processor would not speed it up. On one processor they share
/// caches, and waking one needs no interprocessor interrupt. If pinning fails, only the run time is affected.
pub(super) fn pin_to_processor(number: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut processors = (0..CpuSet::MAX_CPU).filter(|&processor| allowed.is_set(processor)).cycle();
    let Some(processor) = processors.nth(number) else { return };
    let mut one = CpuSet::new();
    one.set(processor);
    let _ = sched_setaffinity(None, &one);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_pinned_to_one_allowed_processor_and_the_caller_is_unaffected() {
        let before = sched_getaffinity(None).unwrap();
        for number in [0, 1, 1000] {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    pin_to_processor(number);
                    let own = sched_getaffinity(None).unwrap();
                    assert_eq!(own.count(), 1);
                    let inherited = std::thread::spawn(|| sched_getaffinity(None).unwrap()).join().unwrap();
                    assert_eq!(inherited, own);
                    assert!((0..CpuSet::MAX_CPU).all(|cpu| !own.is_set(cpu) || before.is_set(cpu)));
                });
            });
        }
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
