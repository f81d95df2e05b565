//! The polling path between two processes makes no system call and allocates nothing.
//! Not a measurement of its speed.
//! Source: seccomp(2): once its filter is in force, a thread that makes any system call but to exit is sent SIGSYS, whose handler ends
//! the process.

use longma_via::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "LONGMA_VIA_ROLE";
const SOON: Option<Duration> = Some(Duration::from_secs(20));

/// How a process ends that allocated, that woke or waited for somebody, that made another system call.
const ALLOCATED: i32 = 3;
const FUTEX: i32 = 4;
const SYSTEM_CALL: i32 = 5;

/// A process that loses its core for some milliseconds counts as one that does not poll: its provider's thread sleeps on its VI, and the
/// peer has to wake it. On a busy machine a whole run without that may take some runs.
const RUNS: usize = 20;

/// Counts what each thread allocates: the provider's own thread, which watches over the peers, is not on the path.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// From now on this thread may only exit.
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
        // SAFETY: the kernel gives a siginfo; that of SIGSYS has the call's address and then its number at byte 24. `_exit` is allowed.
        unsafe {
            let call = about.cast::<u8>().add(24).cast::<i32>().read();
            libc::_exit(if i64::from(call) == libc::SYS_futex { FUTEX } else { SYSTEM_CALL })
        }
    }
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the handler only ends the process; the program is four well-formed steps and changes nothing but what this thread may
    // ask for.
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
        nic.connect_wait(&Address::local(name), SOON).unwrap().accept(vi).unwrap();
    } else {
        while vi.connect(&Address::local("client"), &Address::local(name), SOON).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// One process's half of the work: messages of all in-process kinds, both ways, and RDMA writes, all polled.
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
            // The other's answer came first.
            assert!(vi.receive_done().is_some());
        }
    };
    let take = || {
        collect();
        let received = vi.receive_done().unwrap_or_else(|| panic!("a notification without a completion"));
        assert!(received.is_success());
    };
    // In its slot, through the arena, fetched from the sender's mapped memory.
    const SIZES: [usize; 5] = [8, 48, 1000, 7000, 200_000];
    let rounds = |count: usize| {
        for round in 0..count {
            let size = SIZES[round % SIZES.len()];
            if is_server {
                take();
                receive(1 << 19);
                send(size);
            } else {
                // A large message completes when it was fetched: collected with the answer.
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
    // The first rounds bring in pages and let capacities grow.
    rounds(20);
    forbid_system_calls();
    let before = ALLOCATIONS.get();
    rounds(5000);
    let allocated = ALLOCATIONS.get() - before;
    // SAFETY: ends the process without the clean-up that would need system calls.
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

/// The test above again, as one of the two processes.
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

/// What two processes end with. When one fails the other would poll for ever, and is killed.
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
fn the_test_above_notices_a_system_call() {
    if std::env::var(ROLE).is_ok() {
        forbid_system_calls();
        std::thread::yield_now();
        // SAFETY: ends the process; not reached.
        unsafe { libc::_exit(0) };
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_test_above_notices_a_system_call", "--nocapture"])
        .env(ROLE, "x")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(SYSTEM_CALL));
}
