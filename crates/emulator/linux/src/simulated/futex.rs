//! Futexes in simulated time, with a queue of waiting threads for each address. Threads are woken in order of arrival.
//! Futexes shared with other processes are handled by [`crate::threads`]; priority inheritance is not supported.
//! Source: futex(2), futex_waitv(2); Linux kernel/futex (waitwake.c, requeue.c, syscalls.c).

use longma_locks::IgnorePoison;
use std::collections::{BTreeMap, VecDeque};

use longma_guest::Errno;
use longma_sim::Time;

use super::calls::Caller;
use super::clocks::{Clock, after_ns, timespec_ns};
use super::{Arguments, EINVAL, Returned, Simulation, Sleep, ThreadNumber, Wakeup};

const AGAIN: Errno = Errno(libc::EAGAIN);
const FUTEX_WAIT: u32 = 0;
const FUTEX_WAKE: u32 = 1;
const FUTEX_REQUEUE: u32 = 3;
const FUTEX_CMP_REQUEUE: u32 = 4;
const FUTEX_WAKE_OP: u32 = 5;
const FUTEX_WAIT_BITSET: u32 = 9;
const FUTEX_WAKE_BITSET: u32 = 10;
/// FUTEX_PRIVATE_FLAG and FUTEX2_PRIVATE.
const PRIVATE: u32 = 128;
/// FUTEX_CLOCK_REALTIME.
const CLOCK_REALTIME: u32 = 256;
/// FUTEX_BITSET_MATCH_ANY.
const BITSET_MATCH_ANY: u32 = u32::MAX;
/// FUTEX_WAITV_MAX.
pub(crate) const MAX_WAITERS: u64 = 128;
/// sizeof(struct futex_waitv): val, uaddr, flags, reserved.
pub(crate) const WAITER_BYTES: u64 = 24;
/// FUTEX2_SIZE_U32, the only size that the kernel supports.
const SIZE_U32: u32 = 2;

/// A thread that waits for a futex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiter {
    thread: ThreadNumber,
    bits: u32,
    /// The index of the futex, if the thread waits for several.
    index: Option<u32>,
}

/// The waiting threads by guest address, in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    waiting: BTreeMap<u64, VecDeque<Waiter>>,
    /// The index of the futex that woke a thread, until the thread reads it.
    woken: BTreeMap<ThreadNumber, u32>,
}

impl Queues {
    fn join(&mut self, address: u64, waiter: Waiter) {
        self.waiting.entry(address).or_default().push_back(waiter);
    }

    /// Removes `thread` from all queues.
    fn leave(&mut self, thread: ThreadNumber) {
        self.waiting.retain(|_, queue| {
            queue.retain(|waiter| waiter.thread != thread);
            !queue.is_empty()
        });
    }

    /// Removes up to `limit` threads that wait at `address` for one of `bits`.
    fn take(&mut self, address: u64, limit: usize, bits: u32) -> Vec<ThreadNumber> {
        let Some(queue) = self.waiting.get_mut(&address) else { return Vec::new() };
        let mut removed: Vec<Waiter> = Vec::new();
        queue.retain(|waiter| {
            let wakes = removed.len() < limit && waiter.bits & bits != 0;
            if wakes {
                removed.push(*waiter);
            }
            !wakes
        });
        if queue.is_empty() {
            self.waiting.remove(&address);
        }
        for waiter in &removed {
            self.woken.insert(waiter.thread, waiter.index.unwrap_or(0));
            if waiter.index.is_some() {
                self.leave(waiter.thread);
            }
        }
        removed.into_iter().map(|waiter| waiter.thread).collect()
    }

    /// Moves up to `limit` threads from the queue at `from` to the one at `to`. Returns their number.
    fn requeue(&mut self, from: u64, to: u64, limit: usize) -> u64 {
        let Some(mut queue) = self.waiting.remove(&from) else { return 0 };
        let moved: VecDeque<_> = queue.drain(..limit.min(queue.len())).collect();
        let count = moved.len() as u64;
        if !queue.is_empty() {
            self.waiting.insert(from, queue);
        }
        if count > 0 {
            self.waiting.entry(to).or_default().extend(moved);
        }
        count
    }
}

impl Simulation {
    /// Wakes up to `limit` threads that wait at `address` for one of `bits`. Returns their number.
    pub(crate) fn wake_futex(&self, address: u64, limit: usize, bits: u32) -> u64 {
        let woken = self.futexes.lock().ignore_poison().take(address, limit, bits);
        woken.iter().for_each(|thread| self.scheduler.wake(*thread));
        woken.len() as u64
    }
}

/// The arguments of a futex call.
struct Call<'a> {
    caller: &'a Caller<'a>,
    address: u64,
    address2: u64,
    value: u32,
}

fn load_word(caller: &Caller<'_>, address: u64) -> Result<u32, Errno> {
    if !address.is_multiple_of(4) {
        return Err(EINVAL);
    }
    Ok(caller.memory().load(address)?)
}

/// Checks the address of a futex. A private futex needs only an aligned address; for a shared one, the page must be
/// writable or belong to a file.
fn check_address(caller: &Caller<'_>, address: u64, private: bool) -> Result<(), Errno> {
    if !address.is_multiple_of(4) {
        return Err(EINVAL);
    }
    let mapping = if private { None } else { Some(caller.space.mapping(address)) };
    match mapping {
        None => Ok(()),
        Some(Some((_, mapping))) if mapping.protection.write || mapping.origin.is_file => Ok(()),
        Some(_) => Err(Errno(libc::EFAULT)),
    }
}

/// Converts the signed count of FUTEX_WAKE, FUTEX_WAKE_BITSET and FUTEX_WAKE_OP, which wake at least one thread. The
/// requeue operations reject negative counts instead.
fn count(value: u64) -> usize {
    (value as i32).max(1) as usize
}

/// Implements futex(2) in simulated time. Returns `None` for futexes that [`crate::threads`] handles.
pub(crate) fn futex(caller: &Caller<'_>, arguments: Arguments) -> Option<Returned> {
    let [address, command, value, timeout, address2, value3] = arguments;
    let command = command as u32;
    if command & PRIVATE == 0 && is_shared(caller, address) {
        return None;
    }
    if command & CLOCK_REALTIME != 0 && command & !(PRIVATE | CLOCK_REALTIME) != FUTEX_WAIT_BITSET {
        return Some(Err(Errno(libc::ENOSYS)));
    }
    if let Err(error) = check_address(caller, address, command & PRIVATE != 0) {
        return Some(Err(error));
    }
    let call = Call { caller, address, address2, value: value as u32 };
    let absolute =
        if command & CLOCK_REALTIME != 0 { Clock::Wall(super::clocks::EPOCH_S) } else { MONOTONIC };
    // The requeue operations and FUTEX_WAKE_OP have a second count in place of the timeout.
    let value2 = timeout;
    let value3 = value3 as u32;
    Some(match command & !(PRIVATE | CLOCK_REALTIME) {
        FUTEX_WAIT => call.wait(timeout, None, BITSET_MATCH_ANY),
        FUTEX_WAIT_BITSET => call.wait(timeout, Some(absolute), value3),
        FUTEX_WAKE => Ok(caller.simulation.wake_futex(address, count(value), BITSET_MATCH_ANY)),
        FUTEX_WAKE_BITSET if value3 == 0 => Err(EINVAL),
        FUTEX_WAKE_BITSET => Ok(caller.simulation.wake_futex(address, count(value), value3)),
        FUTEX_REQUEUE => call.requeue(value, value2, None),
        FUTEX_CMP_REQUEUE => call.requeue(value, value2, Some(value3)),
        FUTEX_WAKE_OP => call.wake_op(value, value2, value3),
        // Priority inheritance. Programs work without it.
        _ => Err(Errno(libc::ENOSYS)),
    })
}

const MONOTONIC: Clock = Clock::Wall(super::clocks::UP_S);

/// Whether other processes may wait at `address`.
fn is_shared(caller: &Caller<'_>, address: u64) -> bool {
    caller.space.mapping(address).is_some_and(|(_, mapping)| mapping.shared)
}

impl Call<'_> {
    /// Waits. `clock` is the clock of an absolute timeout; without it, the timeout is relative.
    fn wait(&self, timeout: u64, clock: Option<Clock>, bits: u32) -> Returned {
        if bits == 0 {
            return Err(EINVAL);
        }
        let deadline = deadline(self.caller, timeout, clock)?;
        if load_word(self.caller, self.address)? != self.value {
            return Err(AGAIN);
        }
        let number = self.caller.number;
        self.caller
            .simulation
            .futexes
            .lock()
            .ignore_poison()
            .join(self.address, Waiter { thread: number, bits, index: None });
        sleep(self.caller.simulation, number, timeout != 0, deadline).map(|_| 0)
    }

    fn requeue(&self, wake: u64, limit: u64, expected: Option<u32>) -> Returned {
        let now = load_word(self.caller, self.address)?;
        load_word(self.caller, self.address2)?;
        if (wake as i32) < 0 || (limit as i32) < 0 {
            return Err(EINVAL);
        }
        if expected.is_some_and(|expected| expected != now) {
            return Err(AGAIN);
        }
        let woken = match wake as usize {
            0 => 0,
            wake => self.caller.simulation.wake_futex(self.address, wake, BITSET_MATCH_ANY),
        };
        Ok(woken
            + self.caller.simulation.futexes.lock().ignore_poison().requeue(
                self.address,
                self.address2,
                limit as usize,
            ))
    }

    /// FUTEX_WAKE_OP: changes the second futex and wakes waiters of the first one. Wakes waiters of the second one if
    /// its old value satisfies the comparison.
    fn wake_op(&self, wake: u64, wake_second: u64, operation: u32) -> Returned {
        load_word(self.caller, self.address)?;
        let old = load_word(self.caller, self.address2)?;
        let signed = |bits: u32| ((bits << 20) as i32) >> 20;
        let (mut operand, compared) = (signed(operation >> 12 & 0xfff), signed(operation & 0xfff));
        if operation >> 31 != 0 {
            operand = 1i32.wrapping_shl(operand as u32 & 31);
        }
        let new = match operation >> 28 & 7 {
            0 => operand as u32,
            1 => old.wrapping_add(operand as u32),
            2 => old | operand as u32,
            3 => old & !(operand as u32),
            4 => old ^ operand as u32,
            _ => return Err(Errno(libc::ENOSYS)),
        };
        let old = old as i32;
        let holds = match operation >> 24 & 0xf {
            0 => old == compared,
            1 => old != compared,
            2 => old < compared,
            3 => old <= compared,
            4 => old > compared,
            5 => old >= compared,
            _ => return Err(Errno(libc::ENOSYS)),
        };
        self.caller.memory().store(self.address2, new)?;
        let mut woken = self.caller.simulation.wake_futex(self.address, count(wake), BITSET_MATCH_ANY);
        if holds {
            woken += self.caller.simulation.wake_futex(self.address2, count(wake_second), BITSET_MATCH_ANY);
        }
        Ok(woken)
    }
}

/// The deadline of a wait whose timeout is at `address`; `None` for an infinite wait.
fn deadline(caller: &Caller<'_>, address: u64, clock: Option<Clock>) -> Result<Option<Time>, Errno> {
    let Some(timeout) = caller.memory().read_optional::<16>(address)? else { return Ok(None) };
    let ns = timespec_ns(timeout)?;
    Ok(match clock {
        None => after_ns(caller.simulation, ns),
        Some(clock) => clock.at_ns(ns),
    })
}

/// Waits in the queues that the thread has joined. Returns the index of the futex that woke it.
fn sleep(simulation: &Simulation, thread: ThreadNumber, timed: bool, deadline: Option<Time>) -> Returned {
    let wakeup =
        simulation.scheduler.sleep(thread, Sleep { deadline, reason: "a futex", ..Sleep::default() });
    let mut queues = simulation.futexes.lock().ignore_poison();
    if let Some(index) = queues.woken.remove(&thread) {
        return Ok(index.into());
    }
    queues.leave(thread);
    match wakeup {
        Wakeup::Woken | Wakeup::TimedOut => Err(Errno(libc::ETIMEDOUT)),
        Wakeup::NotBegun => Err(Errno::RESTART_ALWAYS),
        // As in the kernel, a wait with a timeout does not restart after a handler.
        Wakeup::Signalled if timed => Err(Errno(libc::EINTR)),
        Wakeup::Signalled => Err(Errno::RESTART),
    }
}

pub(crate) fn futex_waitv(caller: &Caller<'_>, arguments: Arguments) -> Returned {
    let [waiters, count, flags, timeout, clock, _] = arguments;
    if count == 0 || count > MAX_WAITERS || flags != 0 || waiters == 0 {
        return Err(EINVAL);
    }
    let memory = caller.memory();
    let clock = match clock as i32 {
        libc::CLOCK_MONOTONIC => MONOTONIC,
        libc::CLOCK_REALTIME => Clock::Wall(super::clocks::EPOCH_S),
        _ if timeout == 0 => MONOTONIC,
        _ => return Err(EINVAL),
    };
    let deadline = deadline(caller, timeout, Some(clock))?;
    let mut waits = Vec::with_capacity(count as usize);
    for index in 0..count {
        let at = waiters.wrapping_add(WAITER_BYTES * index);
        let (value, address): (u64, u64) = (memory.load(at)?, memory.load(at.wrapping_add(8))?);
        let (flags, reserved): (u32, u32) =
            (memory.load(at.wrapping_add(16))?, memory.load(at.wrapping_add(20))?);
        if flags & !PRIVATE != SIZE_U32 || reserved != 0 {
            return Err(EINVAL);
        }
        if u64::from(load_word(caller, address)?) != value {
            return Err(AGAIN);
        }
        waits.push((address, index as u32));
    }
    for (address, index) in waits {
        caller
            .simulation
            .futexes
            .lock()
            .ignore_poison()
            .join(address, Waiter { thread: caller.number, bits: BITSET_MATCH_ANY, index: Some(index) });
    }
    sleep(caller.simulation, caller.number, timeout != 0, deadline)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(thread: u32, bits: u32, index: Option<u32>) -> Waiter {
        Waiter { thread: ThreadNumber(thread), bits, index }
    }

    fn numbers(threads: &[ThreadNumber]) -> Vec<u32> {
        threads.iter().map(|thread| thread.0).collect()
    }

    #[test]
    fn the_longest_waiters_are_woken_first() {
        let mut queues = Queues::default();
        for thread in [5, 3, 9] {
            queues.join(0x100, waiter(thread, BITSET_MATCH_ANY, None));
        }
        assert_eq!(numbers(&queues.take(0x100, 2, BITSET_MATCH_ANY)), [5, 3]);
        assert_eq!(numbers(&queues.take(0x100, 2, BITSET_MATCH_ANY)), [9]);
        assert!(queues.take(0x100, 1, BITSET_MATCH_ANY).is_empty());
    }

    #[test]
    fn only_waiters_with_a_matching_bitset_are_woken() {
        let mut queues = Queues::default();
        queues.join(0x100, waiter(1, 0b01, None));
        queues.join(0x100, waiter(2, 0b10, None));
        assert_eq!(numbers(&queues.take(0x100, 9, 0b10)), [2]);
        assert_eq!(numbers(&queues.take(0x100, 9, 0b01)), [1]);
    }

    #[test]
    fn requeued_waiters_queue_after_existing_ones() {
        let mut queues = Queues::default();
        for thread in 0..3 {
            queues.join(0x100, waiter(thread, BITSET_MATCH_ANY, None));
        }
        queues.join(0x200, waiter(7, BITSET_MATCH_ANY, None));
        assert_eq!(queues.requeue(0x100, 0x200, 2), 2);
        assert_eq!(numbers(&queues.take(0x200, 9, BITSET_MATCH_ANY)), [7, 0, 1]);
        assert_eq!(numbers(&queues.take(0x100, 9, BITSET_MATCH_ANY)), [2]);
    }

    #[test]
    fn a_thread_that_waits_for_several_futexes_leaves_all_of_them_when_one_wakes_it() {
        let mut queues = Queues::default();
        for (index, address) in [0x100, 0x200, 0x300].into_iter().enumerate() {
            queues.join(address, waiter(4, BITSET_MATCH_ANY, Some(index as u32)));
        }
        assert_eq!(numbers(&queues.take(0x200, 1, BITSET_MATCH_ANY)), [4]);
        assert_eq!(queues.woken[&ThreadNumber(4)], 1);
        assert!(queues.waiting.is_empty());
    }
}
