//! The polling path between two processes makes no system calls and no allocations.
//!
//! Source: seccomp(2). With its filter installed, any system call of the thread except exit raises SIGSYS, whose
//! handler ends the process.

use longma_via::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "LONGMA_VIA_ROLE";
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));

/// Exit codes of a process that allocated, that woke or waited for a thread, or that made another system call.
const ALLOCATED: i32 = 3;
const FUTEX: i32 = 4;
const SYSTEM_CALL: i32 = 5;

/// A process that loses its core for some milliseconds is treated as not polling: its provider's thread sleeps on the
/// VI, and the peer has to wake it. On a busy machine, the test needs several attempts until a run has no such wakeup.
const RUNS: usize = 20;

/// Counts allocations per thread. The provider's thread, which monitors peers, is not part of the polling path.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all calls are forwarded to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Forbids this thread all system calls except exit.
fn forbid_system_calls() {
    const LOAD_NUMBER: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JUMP_IF_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        step(LOAD_NUMBER, 0, 0, 0),
        step(JUMP_IF_EQUAL, 0, 1, libc::SYS_exit_group as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, 0, libc::SECCOMP_RET_TRAP),
    ];
    extern "C" fn end(_: libc::c_int, about: *const libc::siginfo_t, _: *const libc::c_void) {
        // SAFETY: the kernel passes a siginfo, which for SIGSYS has the call's address at byte 16 and its number at
        // byte 24. `_exit` is permitted.
        unsafe {
            let call = about.cast::<u8>().add(24).cast::<i32>().read();
            libc::_exit(if i64::from(call) == libc::SYS_futex { FUTEX } else { SYSTEM_CALL })
        }
    }
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the handler only ends the process. The program consists of four valid instructions and affects only the
    // system calls of this thread.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = end as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()), 0);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

fn connect(nic: &Nic, vi: &Vi, is_server: bool, name: &str) {
    if is_server {
        nic.connect_wait(&Address::local(name), TIMEOUT).unwrap().accept(vi).unwrap();
    } else {
        while vi.connect(&Address::local("client"), &Address::local(name), TIMEOUT).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// One process's half of the test: messages of all in-process types in both directions, and RDMA writes, all polled.
fn play(role: &str, name: &str) {
    let is_server = role == "server";
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let queue = nic.create_completion_queue(256).unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), Some(&queue), Some(&queue)).unwrap();
    let memory = nic.allocate(1 << 20, MemoryAttributes::remote(tag)).unwrap();
    let receive =
        |size: usize| vi.post_receive(&Descriptor::receive(&[memory.segment(1 << 19, size)])).unwrap();
    receive(1 << 19);
    connect(&nic, &vi, is_server, name);
    let collect = || {
        while queue.done().is_none() {
            std::hint::spin_loop();
        }
    };
    let send = |size: usize| {
        vi.post_send(&Descriptor::send(&[memory.segment(0, size)])).unwrap();
        loop {
            collect();
            if let Some(sent) = vi.send_done() {
                assert!(sent.is_success());
                return;
            }
            // The peer's answer came first.
            assert!(vi.receive_done().is_some());
        }
    };
    let take = || {
        collect();
        let received = vi.receive_done().unwrap_or_else(|| panic!("a notification without a completion"));
        assert!(received.is_success());
    };
    // Sizes of messages that are in the slot, that pass through the arena, and that are fetched from the sender's
    // mapped memory.
    const SIZES: [usize; 5] = [8, 48, 1000, 7000, 200_000];
    let rounds = |count: usize| {
        for round in 0..count {
            let size = SIZES[round % SIZES.len()];
            if is_server {
                take();
                receive(1 << 19);
                send(size);
            } else {
                // A large message completes when it has been fetched, so its completion is collected with the answer.
                vi.post_send(&Descriptor::send(&[memory.segment(0, size)])).unwrap();
                let (mut sent, mut received) = (false, false);
                while !(sent && received) {
                    let Some((_, which)) = queue.done() else { continue };
                    match which {
                        Queue::Send => sent = vi.send_done().unwrap().is_success(),
                        Queue::Receive => received = vi.receive_done().unwrap().is_success(),
                    }
                }
                receive(1 << 19);
            }
        }
    };
    // The first rounds fault in pages and grow buffers.
    rounds(20);
    forbid_system_calls();
    let before = ALLOCATIONS.get();
    rounds(5000);
    let allocated = ALLOCATIONS.get() - before;
    // SAFETY: ends the process without cleanup, which would need system calls.
    unsafe { libc::_exit(if allocated == 0 { 0 } else { ALLOCATED }) };
}

#[test]
fn five_thousand_round_trips_allocate_nothing_and_make_no_system_call() {
    if let Ok(role) = std::env::var(ROLE) {
        let (role, name) = role.split_once(' ').unwrap();
        return play(role, name);
    }
    for run in 0..RUNS {
        let name = format!("polling-{}-{run}", std::process::id());
        let mut children = [start("server", &name), start("client", &name)];
        let codes = codes_of(&mut children);
        if codes == [Some(0); 2] {
            return;
        }
        let woke = codes.contains(&Some(FUTEX));
        assert!(
            woke && !codes.contains(&Some(SYSTEM_CALL)) && !codes.contains(&Some(ALLOCATED)),
            "{codes:?}"
        );
    }
    panic!("in each of {RUNS} runs one process woke the other");
}

/// Runs the test above again as one of the two processes.
fn start(role: &str, name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "five_thousand_round_trips_allocate_nothing_and_make_no_system_call",
            "--nocapture",
        ])
        .env(ROLE, format!("{role} {name}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// The exit codes of both processes. If one fails, the other would poll forever and is killed.
fn codes_of(children: &mut [Child; 2]) -> [Option<i32>; 2] {
    let begin = Instant::now();
    loop {
        let ends = children.each_mut().map(|child| child.try_wait().unwrap());
        if let [Some(one), Some(other)] = ends {
            return [one.code(), other.code()];
        }
        if ends.iter().flatten().any(|end| !end.success()) || begin.elapsed() > Duration::from_secs(60) {
            for child in children.iter_mut() {
                let _ = child.kill();
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn the_tracer_detects_a_system_call() {
    if std::env::var(ROLE).is_ok() {
        forbid_system_calls();
        std::thread::yield_now();
        // SAFETY: ends the process; not reached.
        unsafe { libc::_exit(0) };
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_tracer_detects_a_system_call", "--nocapture"])
        .env(ROLE, "x")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(SYSTEM_CALL));
}
