//! Attackers against a server that keeps serving: random sequences of steps by one attacker, and six concurrent
//! attacker processes, some of which are killed. `honest.rs` measures a well-behaved client during the attack.
//!
//! The campaign: `LONGMA_VIA_ATTACK_SECONDS=3600 cargo test -p longma-via --lib six_attackers -- --nocapture`.

use super::attacker::{AttackStep, Attacker, step};
use super::honest::{Halts, MAX_DELAY, end_if_it_hangs, run_honest_client, run_server};
use super::trace::Trace;
use super::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicI32;

const SECOND: Duration = Duration::from_secs(1);

/// A NIC with memory that attackers must not reach, which accepts every client.
pub(super) struct Victim {
    nic: Nic,
    tag: ProtectionTag,
    memory: MemoryRegion,
    _shown: [MemoryRegion; 2],
    hidden: MemoryRegion,
    pub(super) name: String,
}

impl Victim {
    fn new(name: String) -> Victim {
        let nic = Nic::open().unwrap();
        let tag = nic.create_protection_tag().unwrap();
        let other = nic.create_protection_tag().unwrap();
        let open = |write, read| MemoryAttributes { tag, rdma_write: write, rdma_read: read };
        let hidden = nic.allocate(4096, MemoryAttributes::remote(other)).unwrap();
        (0..512).for_each(|index| hidden.write(index * 8, &SECRET.to_le_bytes()));
        let shown = [open(true, false), open(true, true)].map(|open| nic.allocate(8192, open).unwrap());
        let memory = nic.allocate(1 << 17, MemoryAttributes::local(tag)).unwrap();
        let _ = nic.connect_wait(&Address::local(&name), Some(Duration::ZERO));
        Victim { nic, tag, memory, _shown: shown, hidden, name }
    }

    /// A VI with posted receives.
    fn vi(&self, level: Reliability) -> Vi {
        let vi = self.nic.create_vi(ViAttributes::new(self.tag).with_reliability(level), None, None).unwrap();
        (0..4).for_each(|_| self.receive(&vi));
        vi
    }

    fn receive(&self, vi: &Vi) {
        let _ = vi.post_receive(&Descriptor::receive(&[self.memory.segment(0, 1 << 16)]));
    }

    /// Accepts all pending requests.
    pub(super) fn take_in(&self, vis: &mut Vec<Vi>) {
        while let Ok(asked) = self.nic.connect_wait(&Address::local(&self.name), Some(Duration::ZERO)) {
            assert!(asked.credentials().is_some());
            let vi = self.vi(asked.remote_attributes().reliability);
            if asked.accept(&vi).is_ok() {
                vis.push(vi);
            }
        }
    }

    /// Serves a VI once, using all operations. Returns `false` when the connection has ended.
    pub(super) fn serve(&self, vi: &Vi, turn: u64) -> bool {
        if vi.state() != ViState::Connected {
            return false;
        }
        if let Some(received) = vi.receive_done()
            && received.is_success()
        {
            self.receive(vi);
            let length = received.length.min(1 << 16) as usize;
            let _ = vi.post_send(&Descriptor::send(&[self.memory.segment(0, length)]));
        }
        if turn.is_multiple_of(5) {
            let remote = RemoteSegment { address: 0x1000 + turn % 64, handle: MemoryHandle(0x10_0001) };
            let own = [self.memory.segment(70_000, 64 + (turn % 7) as usize * 4000)];
            let descriptor = match turn % 3 {
                0 => Descriptor::rdma_write(&own, remote),
                1 => Descriptor::rdma_read(&own, remote),
                _ => Descriptor::send(&own),
            };
            let _ = vi.post_send(&descriptor);
        }
        while vi.send_done().is_some() {}
        true
    }

    fn check(&self) {
        let untouched = (0..512).all(|index| self.hidden.atomic(index * 8).load(Order::Relaxed) == SECRET);
        assert!(untouched, "memory that no peer may write was written");
    }
}

/// An attack: how far the attacker follows the protocol, its reliability level, and its steps.
#[derive(Debug, Clone)]
struct Attack {
    behaves: u8,
    level: u8,
    steps: Vec<AttackStep>,
}

fn attack() -> impl Strategy<Value = Attack> {
    // Most attacks complete the handshake; some abandon it.
    (prop_oneof![6 => Just(3u8), 1 => 0u8..3], 0u8..3, prop::collection::vec(step(), 1..40))
        .prop_map(|(behaves, level, steps)| Attack { behaves, level, steps })
}

impl Attack {
    fn level(&self) -> Reliability {
        Reliability::ALL[usize::from(self.level)]
    }
}

/// Runs an attack as a client of `name`. The connection is closed at the end.
fn attack_server(name: &str, attack: &Attack) {
    let Ok(socket) = connect_socket(name) else { return };
    let mut attacker = Attacker::new(socket);
    attacker.behave(attack.behaves, attack.level());
    attack.steps.iter().for_each(|step| attacker.act(step));
    assert!(!attacker.has_learnt(SECRET), "memory that no peer may read was read");
}

/// Runs an attack as a server at `name`, for one client.
fn attack_client(name: &str, attack: &Attack, ready: &AtomicBool) {
    let place = Named::own(&Settings::default(), name.as_bytes()).unwrap();
    let listening = place.listen(name.as_bytes()).unwrap();
    ready.store(true, Order::Release);
    rendezvous_readable(&listening);
    // SAFETY: no peer address is requested.
    let fd = unsafe {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        libc::accept4(listening.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags)
    };
    if fd < 0 {
        return;
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    let mut attacker = Attacker::new(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) });
    if attack.behaves == 3 {
        attacker.behave_as_server(attack.level());
    }
    attack.steps.iter().for_each(|step| attacker.act(step));
    assert!(!attacker.has_learnt(SECRET), "memory that no peer may read was read");
}

fn rendezvous_readable(socket: &OwnedFd) {
    crate::provider::shared_memory::acceptor::readable(
        &[socket.as_raw_fd()],
        Some(Instant::now() + SECOND * 5),
    );
}

fn fresh_name(what: &str) -> String {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    format!("{what}-{}-{}", std::process::id(), COUNT.fetch_add(1, Order::Relaxed))
}

proptest! {
    #![proptest_config(Config { cases: 48, max_shrink_iters: 200, ..Config::default() })]

    #[test]
    fn a_malicious_client_does_not_stop_the_server_or_reach_its_memory(attack in attack()) {
        let victim = Victim::new(fresh_name("attacked-server"));
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                attack_server(&victim.name, &attack);
                over.store(true, Order::Release);
            });
            let (mut vis, mut turn) = (Vec::new(), 0);
            while !over.load(Order::Acquire) {
                let begin = Instant::now();
                victim.take_in(&mut vis);
                vis.retain(|vi| victim.serve(vi, turn));
                turn += 1;
                assert!(begin.elapsed() < SECOND * 10, "a turn of the server hung");
                std::thread::yield_now();
            }
            let begin = Instant::now();
            drop(vis);
            assert!(begin.elapsed() < SECOND * 10, "leaving hung");
        });
        victim.check();
    }

    #[test]
    fn a_malicious_server_gets_no_access_and_the_client_gets_an_error(attack in attack()) {
        let victim = Victim::new(fresh_name("attacked-client"));
        let (name, ready, over) = (fresh_name("evil"), AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                attack_client(&name, &attack, &ready);
                over.store(true, Order::Release);
            });
            while !ready.load(Order::Acquire) {
                std::thread::yield_now();
            }
            let vi = victim.vi(attack.level());
            let begin = Instant::now();
            let limit = Some(Duration::from_millis(300));
            let outcome = vi.connect(&Address::local("honest"), &Address::local(&name), limit);
            // Allows for the call's own time limit, another one for the regions after the answer, and a busy machine.
            assert!(begin.elapsed() < SECOND * 10, "connecting hung");
            let mut turn = 0;
            while outcome.is_ok() && victim.serve(&vi, turn) && !over.load(Order::Acquire) {
                turn += 1;
                std::thread::yield_now();
            }
            let begin = Instant::now();
            vi.disconnect().unwrap();
            assert!(begin.elapsed() < SECOND * 10, "leaving hung");
        });
        victim.check();
    }
}

// ---- six at once ----------------------------------------------------------------------------------------------------

const ROLE: &str = "LONGMA_VIA_ATTACKER";
const THIS: &str = "provider::shared_memory::hostile::campaign::six_concurrent_attackers_neither_stop_the_server_nor_delay_an_honest_client";

/// The attacker process: attacks until it is killed. It prints each seed first, so that the attack can be repeated.
fn attack_for_ever(name: &str, first_seed: u64) {
    let config = Config { failure_persistence: None, ..Config::default() };
    for seed in first_seed.. {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(config.clone(), random);
        let attack = attack().new_tree(&mut runner).unwrap().current();
        attack_server(name, &attack);
    }
}

fn start_attacker(name: &str, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", THIS, "--nocapture"])
        .env(ROLE, format!("{seed} {name}"))
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// Runs six attackers at a time while `may_continue` returns true. Returns the number of attackers killed.
fn attack_with_six(name: &str, may_continue: impl Fn() -> bool) -> u32 {
    let mut seed = 0;
    let mut next = || {
        seed += 1;
        start_attacker(name, seed * 1_000_000)
    };
    let mut attackers: Vec<_> = (0..6).map(|_| next()).collect();
    let (mut random, mut kills) = (SplitMix64::new(1), 0);
    while may_continue() {
        std::thread::sleep(Duration::from_millis(50 + random.below(500)));
        // Kill a random attacker at any point and start another one.
        let mut killed = std::mem::replace(&mut attackers[random.below(6) as usize], next());
        let ended = killed.try_wait().unwrap();
        assert!(ended.is_none(), "an attacker exited before it was killed, {ended:?}; see its output above");
        killed.kill().unwrap();
        killed.wait().unwrap();
        kills += 1;
    }
    for attacker in &mut attackers {
        attacker.kill().unwrap();
        attacker.wait().unwrap();
    }
    kills
}

#[test]
fn six_concurrent_attackers_neither_stop_the_server_nor_delay_an_honest_client() {
    if let Ok(role) = std::env::var(ROLE) {
        let (seed, name) = role.split_once(' ').unwrap();
        return attack_for_ever(name, seed.parse().unwrap());
    }
    let seconds = std::env::var("LONGMA_VIA_ATTACK_SECONDS").ok().and_then(|text| text.parse().ok());
    let length = Duration::from_secs(seconds.unwrap_or(4));
    let end = Instant::now() + length;
    let _watched = end_if_it_hangs(length + length / 8 + SECOND * 60);
    // A control without attackers runs at the same time, to measure the effect of the machine alone.
    let (victim, control) = (Victim::new(fresh_name("six")), Victim::new(fresh_name("control")));
    let (stop, stop_serving) = (AtomicBool::new(false), AtomicBool::new(false));
    let clients = [Nic::open().unwrap(), Nic::open().unwrap()];
    let (servers, halts) = ([AtomicI32::new(0), AtomicI32::new(0)], Halts::new());
    let traces = [Trace::new(), Trace::new()];
    std::thread::scope(|scope| {
        scope.spawn(|| halts.look(&traces, &stop_serving));
        let served = [(&victim, &servers[0]), (&control, &servers[1])]
            .map(|(victim, thread)| scope.spawn(|| run_server(victim, thread, &halts, &stop_serving)));
        let (halts, stop) = (&halts, &stop);
        let asking = [
            (&clients[0], &victim, &servers[0], &traces[0]),
            (&clients[1], &control, &servers[1], &traces[1]),
        ]
        .map(|(nic, victim, thread, trace)| {
            scope.spawn(move || run_honest_client(nic, &victim.name, thread, (halts, trace), stop))
        });
        // The well-behaved client connects first.
        std::thread::sleep(Duration::from_millis(100));
        let may_continue = || Instant::now() < end && asking.iter().all(|asking| !asking.is_finished());
        let kills = attack_with_six(&victim.name, may_continue);
        stop.store(true, Order::Release);
        let answers = asking.map(|asking| asking.join());
        stop_serving.store(true, Order::Release);
        let [attacked, alone] = answers.map(|answers| answers.unwrap());
        let [served, apart] = served.map(|served| served.join().unwrap());
        println!("{} attacks accepted, {kills} attackers killed", served.accepted - 1);
        println!("with attackers: longest turn of the server {:?}; {attacked}", served.longest_turn);
        println!("without attackers: longest turn of the server {:?}; {alone}", apart.longest_turn);
        assert!(served.accepted > 1, "there was no attack");
        // In a few seconds next to other tests, a single stall of the machine dominates. The short form only detects
        // permanent delays.
        let limit = if seconds.is_some() { MAX_DELAY } else { 25 * MAX_DELAY };
        let more = attacked.longest().saturating_sub(alone.longest());
        assert!(more <= limit, "an answer was held up for {more:?} longer than any without attackers");
        let more = served.longest_turn.saturating_sub(apart.longest_turn);
        assert!(more <= limit, "a turn of the server took {more:?} longer than any without attackers");
    });
    victim.check();
}
