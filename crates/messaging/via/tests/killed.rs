//! One of two processes is killed at a random moment: the other is notified within a second, and nothing is leaked.
//! `LONGMA_VIA_KILLS=100 cargo test -p longma-via --test killed` runs the campaign.

use longma_random::SplitMix64;
use longma_via::*;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "LONGMA_VIA_ROLE";
const TEST: &str = "the_survivor_gets_an_error_within_a_second_and_nothing_leaks";
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(30));

/// The numbers of open files and of mapped shared memory files of this process.
fn holdings() -> (usize, usize) {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (files, maps.lines().filter(|line| line.contains("longma-via")).count())
}

/// Connects, exchanges messages until the connection ends, and reports that. `manner` selects how the end is detected:
/// by polling, while asleep, or without a check.
fn round(nic: &Nic, tag: ProtectionTag, is_server: bool, name: &str, manner: usize) {
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let memory = nic.allocate(1 << 18, MemoryAttributes::remote(tag)).unwrap();
    let size = [8, 3000, 100_000][manner % 3];
    let receive = || vi.post_receive(&Descriptor::receive(&[memory.segment(1 << 17, 1 << 17)]));
    for _ in 0..8 {
        receive().unwrap();
    }
    if is_server {
        nic.connect_wait(&Address::local(name), TIMEOUT).unwrap().accept(&vi).unwrap();
    } else {
        while vi.connect(&Address::local("client"), &Address::local(name), TIMEOUT).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    println!("connected");
    if !is_server {
        vi.post_send(&Descriptor::send(&[memory.segment(0, size)])).unwrap();
    }
    while vi.state() == ViState::Connected {
        let received = match manner % 3 {
            0 => vi.receive_done(),
            1 => vi.receive_wait(TIMEOUT).ok(),
            _ => {
                // The program does not look for completions; only the state shows the end.
                std::thread::sleep(Duration::from_millis(1));
                vi.number().is_multiple_of(2).then(|| vi.receive_done()).flatten()
            }
        };
        if received.is_some_and(|received| received.is_success()) {
            let _ = receive();
            let _ = vi.post_send(&Descriptor::send(&[memory.segment(0, size)]));
        }
        while vi.send_done().is_some() {}
    }
    println!("told");
}

/// The process that outlives its peers.
fn survive(is_server: bool, name: &str, rounds: usize) {
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let mut before = None;
    for index in 0..rounds {
        round(&nic, tag, is_server, name, index);
        // The provider's thread releases the peer shortly after the VI.
        let end = Instant::now() + Duration::from_secs(2);
        // Compare with the first round, in which the objects that stay open (listener, epoll) were opened.
        let expected = *before.get_or_insert_with(|| {
            std::thread::sleep(Duration::from_millis(100));
            holdings()
        });
        while holdings() != expected {
            assert!(Instant::now() < end, "before {expected:?}, now {:?}", holdings());
            std::thread::sleep(Duration::from_millis(5));
        }
        println!("clean");
    }
}

fn start(role: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", TEST, "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

/// Reads lines until one ends with `word`.
fn hear(lines: &mut Lines<BufReader<ChildStdout>>, word: &str) {
    for line in lines {
        if line.unwrap().ends_with(word) {
            return;
        }
    }
    panic!("the process ended without saying {word:?}");
}

fn campaign(survivor_is_server: bool, kills: usize) -> Duration {
    let name = format!("killed-{}-{survivor_is_server}", std::process::id());
    let (mut survivor, mut heard) = start(&format!("survive {survivor_is_server} {kills} {name}"));
    let mut longest = Duration::ZERO;
    // Each process kills at other moments.
    let mut random = SplitMix64::new(std::process::id().into());
    for _ in 0..kills {
        let (mut victim, _its_lines) = start(&format!("victim {} 0 {name}", !survivor_is_server));
        hear(&mut heard, "connected");
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        // `Child::kill` sends SIGKILL.
        victim.kill().unwrap();
        let begin = Instant::now();
        hear(&mut heard, "told");
        longest = longest.max(begin.elapsed());
        victim.wait().unwrap();
        hear(&mut heard, "clean");
    }
    assert!(survivor.wait().unwrap().success());
    longest
}

#[test]
fn the_survivor_gets_an_error_within_a_second_and_nothing_leaks() {
    if let Ok(role) = std::env::var(ROLE) {
        let [what, is_server, rounds, name] = role.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{role}")
        };
        let (is_server, rounds): (bool, usize) = (is_server.parse().unwrap(), rounds.parse().unwrap());
        if what == "survive" {
            return survive(is_server, name, rounds);
        }
        let nic = Nic::open().unwrap();
        let tag = nic.create_protection_tag().unwrap();
        return round(&nic, tag, is_server, name, std::process::id() as usize % 2);
    }
    let kills = std::env::var("LONGMA_VIA_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(10);
    for survivor_is_server in [true, false] {
        let longest = campaign(survivor_is_server, kills / 2);
        println!("{} kills, detected after {longest:?} at most", kills / 2);
        assert!(longest < Duration::from_secs(1), "detected after {longest:?}");
    }
}
