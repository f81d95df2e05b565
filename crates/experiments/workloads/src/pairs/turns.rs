//! Which of this host's processors a run is on.
//! Source: sched_setaffinity(2).

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Keeps this thread, and those that it begins, on the `number`th of the processors that it may use, counted around.
///
/// The host threads of a run take turns, so a second processor gains them nothing: on one, each finds in its caches what the one
/// before had, and waking it interrupts nobody. Where the system refuses, they are spread as ever, and the result is the same.
pub(super) fn keep_on_one_processor(number: usize) {
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
    fn a_run_stays_on_one_processor_of_those_allowed_and_the_caller_goes_where_it_went() {
        let before = sched_getaffinity(None).unwrap();
        for number in [0, 1, 1000] {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    keep_on_one_processor(number);
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
