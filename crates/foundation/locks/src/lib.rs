//! Lock results without poison.
//!
//! A lock of the standard library is poisoned when a thread panics while it holds the lock. Longma's data is valid
//! after each statement that can panic, or the owner of the lock handles the poison itself. The panic is reported where
//! it happens; a second panic in each thread that takes the lock later would only hide it.
//!
//! Locks without poisoning, such as parking_lot's, are no alternative: they queue waiting threads in a table of the
//! process. If a process forks while another thread has locked that table, the child waits forever.

use std::sync::LockResult;

/// The value of a lock result, even if a thread panicked while it held the lock.
///
/// It applies to the results of `Mutex::lock`, `RwLock::read` and `write`, `Condvar::wait`, `get_mut` and `into_inner`.
pub trait IgnorePoison {
    /// The guard, or the contents of the lock.
    type Value;

    /// Returns the guard or the contents.
    fn ignore_poison(self) -> Self::Value;
}

impl<T> IgnorePoison for LockResult<T> {
    type Value = T;

    #[inline]
    fn ignore_poison(self) -> T {
        self.unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Condvar, Mutex, RwLock};
    use std::time::Duration;

    /// A function that panics with the guard of a lock.
    fn panic_with<G>(guard: impl FnOnce() -> G) {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guard = guard();
            std::panic::resume_unwind(Box::new("with the lock"));
        }));
        assert!(panicked.is_err());
    }

    #[test]
    fn a_poisoned_mutex_gives_its_contents() {
        let mut mutex = Mutex::new(1);
        panic_with(|| mutex.lock().unwrap());
        assert!(mutex.is_poisoned());
        *mutex.lock().ignore_poison() += 1;
        *mutex.get_mut().ignore_poison() += 1;
        assert_eq!(mutex.into_inner().ignore_poison(), 3);
    }

    #[test]
    fn a_poisoned_lock_is_read_and_written() {
        let lock = RwLock::new(1);
        panic_with(|| lock.write().unwrap());
        *lock.write().ignore_poison() += 1;
        assert_eq!(*lock.read().ignore_poison(), 2);
    }

    #[test]
    fn a_condition_variable_returns_the_guard_of_a_poisoned_mutex() {
        let (mutex, condition) = (Mutex::new(1), Condvar::new());
        panic_with(|| mutex.lock().unwrap());
        let result = condition.wait_timeout(mutex.lock().ignore_poison(), Duration::ZERO);
        let (guard, _) = result.ignore_poison();
        assert_eq!(*guard, 1);
    }
}

/// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
