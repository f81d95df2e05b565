//! System calls in simulated time, made by a guest with a single thread.

mod guest;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use guest::{Guest, error};
use longma_linux::ProcessConfig;
use longma_linux::image::{KernelState, ThreadImage};
use longma_linux::simulated::{CoreSet, Scheduler, SimulationConfig, Sleep, ThreadNumber, Wakeup};
use longma_loongarch::{Fcsr, State, Vector};
use longma_sim::{Duration, Time};

const CLOCK_REALTIME: u64 = 0;
const CLOCK_MONOTONIC: u64 = 1;
const CLOCK_THREAD: u64 = 3;
const MS: u64 = 1_000_000;
const MEMORY_BYTES: u64 = 3 << 30;

/// A scheduler of a single thread on one of two cores. A sleep advances the clock to its deadline or to the next timer.
#[derive(Default)]
struct Alone {
    now_ps: AtomicU64,
    process: std::sync::OnceLock<std::sync::Weak<longma_linux::Process>>,
}

impl Alone {
    fn advance_ns(&self, ns: u64) {
        self.now_ps.fetch_add(ns * 1000, Ordering::Relaxed);
    }

    fn expire(&self) {
        let process = self.process.get().and_then(std::sync::Weak::upgrade).unwrap();
        process.simulation().unwrap().expire_timers(self.now());
    }
}

impl Scheduler for Alone {
    fn now(&self) -> Time {
        Time::from_ps(self.now_ps.load(Ordering::Relaxed))
    }
    fn run_time(&self, _: Option<ThreadNumber>) -> Duration {
        Duration::from_ps(5_000_000)
    }
    fn add(&self, _: ThreadNumber) {}
    fn remove_last(&self, _: ThreadNumber) {}
    fn sleep(&self, _: ThreadNumber, sleep: Sleep) -> Wakeup {
        let process = self.process.get().and_then(std::sync::Weak::upgrade).unwrap();
        let timer = process.simulation().unwrap().next_timer();
        let next = [sleep.deadline, timer].into_iter().flatten().min();
        let next = next.expect("the only thread sleeps forever");
        self.now_ps.fetch_max(next.ps(), Ordering::Relaxed);
        if timer == Some(next) {
            self.expire();
        }
        if sleep.deadline == Some(next) { Wakeup::TimedOut } else { Wakeup::Woken }
    }
    fn wake(&self, _: ThreadNumber) {}
    fn yield_now(&self, _: ThreadNumber) {}
    fn run_blocking(&self, _: ThreadNumber, call: &mut dyn FnMut()) {
        call();
    }
    fn signals_sent(&self, _: ThreadNumber) {}
    fn files_changed(&self) {}
    fn retire_others(&self, _: ThreadNumber) -> Vec<ThreadNumber> {
        Vec::new()
    }
    fn become_only(&self, _: ThreadNumber) {}
    fn handle_interrupts(&self, _: ThreadNumber) -> usize {
        0
    }
    fn cores(&self) -> usize {
        2
    }
    fn core_and_node(&self, _: ThreadNumber) -> (usize, usize) {
        (1, 0)
    }
    fn affinity(&self, thread: ThreadNumber) -> Option<CoreSet> {
        (thread.0 == 0).then(|| CoreSet::first_n(2))
    }
    fn set_affinity(&self, thread: ThreadNumber, _: CoreSet) -> bool {
        thread.0 == 0
    }
}

fn simulated(seed: u64) -> (Guest, Arc<Alone>) {
    let scheduler = Arc::new(Alone::default());
    let config_scheduler = scheduler.clone();
    let guest = Guest::with(|directory| ProcessConfig {
        program: directory.join("program"),
        simulation: Some(SimulationConfig { scheduler: config_scheduler, seed, memory_bytes: MEMORY_BYTES }),
        ..ProcessConfig::default()
    });
    scheduler.process.set(Arc::downgrade(&guest.process)).unwrap();
    (guest, scheduler)
}

/// Starts the fixture's thread on this host thread, so that its calls are in simulated time.
fn started(seed: u64) -> (Guest, Arc<Alone>) {
    let (mut guest, scheduler) = simulated(seed);
    guest.thread.begin(&mut longma_loongarch::State::default());
    (guest, scheduler)
}

fn word(guest: &Guest, address: u64) -> u64 {
    u64::from_le_bytes(guest.bytes(address, 8).try_into().unwrap())
}

fn clock_ns(guest: &mut Guest, clock: u64) -> u64 {
    let result = guest.put(&[0; 16]);
    assert_eq!(guest.call(113, &[clock, result]), 0);
    word(guest, result) * 1_000_000_000 + word(guest, result + 8)
}

fn timespec(guest: &mut Guest, ns: u64) -> u64 {
    let bytes = [(ns / 1_000_000_000).to_le_bytes(), (ns % 1_000_000_000).to_le_bytes()].concat();
    guest.put(&bytes)
}

#[test]
fn clocks_show_simulated_time_from_a_fixed_date_on() {
    let (mut guest, scheduler) = started(1);
    let initial = (clock_ns(&mut guest, CLOCK_REALTIME), clock_ns(&mut guest, CLOCK_MONOTONIC));
    assert_eq!(initial.0 / 1_000_000_000, longma_linux::simulated::clocks::EPOCH_S);
    scheduler.advance_ns(1234);
    assert_eq!(clock_ns(&mut guest, CLOCK_REALTIME) - initial.0, 1234);
    assert_eq!(clock_ns(&mut guest, CLOCK_MONOTONIC) - initial.1, 1234);
    assert_eq!(clock_ns(&mut guest, CLOCK_THREAD), 5000);
    // A core that is slightly behind does not set the clock back.
    scheduler.now_ps.store(0, Ordering::Relaxed);
    assert_eq!(clock_ns(&mut guest, CLOCK_MONOTONIC) - initial.1, 1234);
}

#[test]
fn sleeping_advances_simulated_time_but_not_host_time() {
    let (mut guest, scheduler) = started(1);
    let host = std::time::Instant::now();
    let hour = timespec(&mut guest, 3600 * 1000 * MS);
    assert_eq!(guest.call(101, &[hour, 0]), 0);
    assert_eq!(scheduler.now().ps() / 1000, 3600 * 1000 * MS);
    assert_eq!(guest.call(115, &[CLOCK_MONOTONIC, 0, hour, 0]), 0);
    assert!(host.elapsed() < std::time::Duration::from_secs(60));
    // A sleep until a past time returns at once.
    let now = scheduler.now();
    assert_eq!(guest.call(115, &[CLOCK_MONOTONIC, 1, hour, 0]), 0);
    assert_eq!(scheduler.now(), now);
    let bad = guest.put(&[0xff; 16]);
    assert_eq!(guest.call(101, &[bad, 0]), error(libc::EINVAL));
}

#[test]
fn a_futex_wait_without_a_wake_ends_at_its_timeout() {
    let (mut guest, scheduler) = started(1);
    let futex = guest.put(&7u32.to_le_bytes());
    let limit = timespec(&mut guest, 10 * MS);
    let other = 8;
    assert_eq!(guest.call(98, &[futex, 128, other, limit]), error(libc::EAGAIN));
    assert_eq!(guest.call(98, &[futex, 128, 7, limit]), error(libc::ETIMEDOUT));
    assert_eq!(scheduler.now().ps(), 10 * MS * 1000);
    assert_eq!(guest.call(98, &[futex + 1, 128, 7, limit]), error(libc::EINVAL));
    assert_eq!(guest.call(98, &[futex, 129, 1]), 0);
    // Absolute and past.
    assert_eq!(guest.call(98, &[futex, 128 | 9, 7, limit, 0, u64::MAX]), error(libc::ETIMEDOUT));
    assert_eq!(scheduler.now().ps(), 10 * MS * 1000);
}

#[test]
fn a_wake_operation_changes_the_second_futex() {
    let (mut guest, _) = started(1);
    let (first, second) = (guest.put(&[0; 4]), guest.put(&5u32.to_le_bytes()));
    // FUTEX_WAKE_OP: add 3 to the second futex, and wake its waiters if the old value was above 4.
    let operation = 1u64 << 28 | 4 << 24 | 3 << 12 | 4;
    assert_eq!(guest.call(98, &[first, 128 | 5, 1, 1, second, operation]), 0);
    assert_eq!(guest.bytes(second, 4), 8u32.to_le_bytes());
}

#[test]
fn a_wait_for_files_ends_at_its_timeout_or_when_a_timerfd_expires() {
    let (mut guest, scheduler) = started(1);
    let timer = guest.call(85, &[CLOCK_MONOTONIC, 0]);
    assert!(timer >= 0);
    let entry = [&(timer as i32).to_le_bytes()[..], &1u16.to_le_bytes(), &[0, 0]].concat();
    let files = guest.put(&entry);
    let limit = timespec(&mut guest, 20 * MS);
    assert_eq!(guest.call(73, &[files, 1, limit, 0, 8]), 0);
    assert_eq!(scheduler.now().ps(), 20 * MS * 1000);
    assert_eq!((word(&guest, limit), word(&guest, limit + 8)), (0, 0), "the whole time limit has passed");
    // The timer expires after 7 ms, and then every 5 ms.
    let words = [0, 5 * MS, 0, 7 * MS].map(u64::to_le_bytes).concat();
    let setting = guest.put(&words);
    assert_eq!(guest.call(86, &[timer as u64, 0, setting, 0]), 0);
    let limit = timespec(&mut guest, 100 * MS);
    assert_eq!(guest.call(73, &[files, 1, limit, 0, 8]), 1);
    assert_eq!(scheduler.now().ps(), 27 * MS * 1000);
    scheduler.advance_ns(11 * MS);
    scheduler.expire();
    let count = guest.put(&[0; 8]);
    assert_eq!(guest.call(63, &[timer as u64, count, 8]), 8);
    assert_eq!(word(&guest, count), 3);
    let left = guest.put(&[0; 32]);
    assert_eq!(guest.call(87, &[timer as u64, left]), 0);
    assert_eq!((word(&guest, left + 8), word(&guest, left + 24)), (5 * MS, 4 * MS));
}

#[test]
fn the_same_seed_gives_the_same_random_bytes() {
    let draw = |seed| {
        let (mut guest, _) = started(seed);
        let bytes = guest.put(&[0; 40]);
        assert_eq!(guest.call(278, &[bytes, 33, 0]), 33);
        // AT_RANDOM points to bytes on the stack.
        let auxiliary = guest.process.auxiliary_vector().to_vec();
        let words: Vec<u64> =
            auxiliary.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let random = words.chunks_exact(2).find(|pair| pair[0] == libc::AT_RANDOM).unwrap()[1];
        (guest.bytes(bytes, 40), guest.bytes(random, 16))
    };
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
    assert_eq!(draw(3).0[33..], [0; 7], "no more bytes than requested");
}

#[test]
fn ids_are_the_same_on_every_run_and_refer_to_this_process() {
    let (mut guest, _) = started(1);
    let id = i64::from(longma_linux::simulated::identity::FIRST_ID);
    assert_eq!([guest.call(172, &[]), guest.call(178, &[]), guest.call(173, &[])], [id, id, 1]);
    // Signal 0 only checks whether the process or thread exists.
    assert_eq!(guest.call(129, &[id as u64, 0]), 0);
    assert_eq!(guest.call(131, &[id as u64, id as u64, 0]), 0);
    assert_eq!(guest.call(131, &[id as u64, id as u64 + 1, 0]), error(libc::ESRCH));
}

#[test]
fn the_model_provides_the_cores() {
    let (mut guest, _) = started(1);
    let set = guest.put(&[0; 128]);
    assert_eq!(guest.call(123, &[0, 128, set]), 8);
    assert_eq!(word(&guest, set), 0b11);
    let core = guest.put(&[0; 8]);
    assert_eq!(guest.call(168, &[core, core + 4, 0]), 0);
    assert_eq!(word(&guest, core), 1);
    let absent_core = guest.put(&[0b100, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(guest.call(122, &[0, 8, absent_core]), error(libc::EINVAL));
    assert_eq!(guest.call(122, &[99, 8, set]), error(libc::ESRCH));
}

#[test]
fn a_functional_process_uses_the_host_clock() {
    let mut guest = Guest::new();
    let host = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let seconds = clock_ns(&mut guest, CLOCK_REALTIME) / 1_000_000_000;
    assert!(seconds.abs_diff(host) < 5);
    assert_eq!(guest.call(172, &[]), i64::from(std::process::id() as i32));
}

/// The contents of a file, read by the guest.
fn contents(guest: &mut Guest, path: &str) -> String {
    let file = guest.open(path, libc::O_RDONLY);
    assert!(file >= 0, "{path}: {file}");
    String::from_utf8(guest.read(file)).unwrap()
}

#[test]
fn priorities_groups_and_sessions_are_simulated() {
    const SET_NICE: u64 = 140;
    const GET_NICE: u64 = 141;
    const PGRP: u64 = 1;
    let (mut guest, _) = started(1);
    // SAFETY: the call takes no pointers; it lowers the host priority of this test's thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
    let own_id = guest.call(172, &[]) as u64;
    assert_eq!((guest.call(GET_NICE, &[0, 0]), guest.call(GET_NICE, &[PGRP, own_id])), (20, 20));
    assert_eq!(guest.call(SET_NICE, &[0, own_id, 7]), 0);
    assert_eq!(guest.call(GET_NICE, &[0, 0]), 13);
    assert_eq!(guest.call(SET_NICE, &[0, 0, 6]), error(libc::EACCES));
    assert_eq!(guest.call(GET_NICE, &[9, 0]), error(libc::EINVAL));
    // sched_getscheduler, ioprio_get; sched_getattr
    assert_eq!((guest.call(120, &[0]), guest.call(31, &[1, 0])), (0, 2 << 13 | 5));
    let attributes = guest.put(&[0; 64]);
    assert_eq!(guest.call(275, &[0, attributes, 56, 0]), 0);
    assert_eq!(word(&guest, attributes), 56, "an ordinary policy");
    assert_eq!(word(&guest, attributes + 16), 7);
    // getpgid, setpgid, getsid, setsid
    assert_eq!((guest.call(155, &[0]), guest.call(155, &[own_id])), (own_id as i64, own_id as i64));
    assert_eq!((guest.call(154, &[0, 0]), guest.call(154, &[own_id, 1])), (0, error(libc::EPERM)));
    assert_eq!((guest.call(156, &[0]), guest.call(157, &[])), (1, error(libc::EPERM)));
}

#[test]
fn proc_describes_the_modelled_machine() {
    let (mut guest, scheduler) = started(1);
    let up_s = clock_ns(&mut guest, CLOCK_MONOTONIC) / 1_000_000_000;
    let result = guest.put(&[0; 112]);
    assert_eq!(guest.call(179, &[result]), 0);
    assert_eq!(word(&guest, result + 32), MEMORY_BYTES);
    for name in ["/proc/meminfo", "//proc/./meminfo"] {
        let first = contents(&mut guest, name).lines().next().unwrap().to_owned();
        assert_eq!(first, format!("{:<15} {:>8} kB", "MemTotal:", MEMORY_BYTES / 1024), "{name}");
    }
    let folder = guest.open("/proc", libc::O_RDONLY) as u64;
    let name = guest.path("loadavg");
    let by_folder = guest.call(56, &[folder, name, 0, 0]);
    assert_eq!(String::from_utf8(guest.read(by_folder)).unwrap(), contents(&mut guest, "/proc/loadavg"));
    assert_eq!(contents(&mut guest, "/proc/uptime"), format!("{up_s}.00 {}.99\n", 2 * up_s - 1));
    scheduler.advance_ns(1000 * MS);
    assert!(contents(&mut guest, "/proc/uptime").starts_with(&format!("{}.00 ", up_s + 1)));
    let kernel = contents(&mut guest, "/proc/stat");
    assert_eq!(kernel.lines().filter(|line| line.starts_with("cpu")).count(), 3, "{kernel}");
    let own_id = guest.call(172, &[]);
    let line = contents(&mut guest, "/proc/self/stat");
    assert!(line.starts_with(&format!("{own_id} (program) R 1 {own_id} 1 0 -1 ")), "{line}");
    assert_eq!(line.split_whitespace().count(), 52, "{line}");
    let status = contents(&mut guest, "/proc/self/status");
    assert!(status.contains(&format!("Pid:\t{own_id}\nPPid:\t1\n")), "{status}");
    assert_eq!(guest.open("/proc/meminfo", libc::O_RDWR), error(libc::EACCES));
}

#[test]
fn a_core_set_round_trips_through_guest_memory() {
    let set = CoreSet::first_n(70);
    assert_eq!(CoreSet::from_bytes(&set.to_bytes()), set);
    assert!(set.contains(69) && !set.contains(70) && !set.contains(usize::MAX));
    assert!(CoreSet::from_bytes(&[0; 8]).is_empty());
    assert_eq!(set.intersection(CoreSet::from_bytes(&[0b10])), CoreSet::from_bytes(&[2]));
}

#[test]
fn saved_registers_are_restored() {
    let mut state =
        State { pc: 0x1234, fcc: [1, 0, 1, 0, 0, 0, 0, 1], fcsr: Fcsr(0x305), ..State::default() };
    state.set_r(7, u64::MAX);
    state.v[31] = Vector([1, 2, 3, 4]);
    state.lbt.eflags = 0x41;
    let image = ThreadImage::new(ThreadNumber(3), &state, KernelState::default(), None);
    assert_eq!(image.state().unwrap(), state);
    let short = ThreadImage { general: vec![0; 31], ..image };
    assert!(short.state().is_err());
}
