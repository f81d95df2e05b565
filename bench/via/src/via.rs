//! Measures the shared-memory provider through its public interface.

use crate::processes::{Cores, fresh_name, measure, rounds_ns, time_ns};
use longma_via::*;
use std::sync::atomic::Ordering;
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

struct Side {
    nic: Nic,
    vi: Vi,
    memory: MemoryRegion,
    /// The peer's memory.
    remote: RemoteSegment,
}

fn open(bytes: usize) -> (Nic, Vi, MemoryRegion) {
    let nic = Nic::open().expect("a NIC");
    let tag = nic.create_protection_tag().expect("a tag");
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).expect("a VI");
    let memory = nic.allocate(bytes, MemoryAttributes::remote(tag)).expect("memory");
    // Fill the data, so that it is not zero pages; the words for signals between the two sides start as zero.
    let words = bytes.min(8192);
    memory.write(0, &vec![0; words]);
    memory.write(words, &vec![1; bytes - words]);
    (nic, vi, memory)
}

/// Sends the address of our memory to the peer and receives the peer's.
fn introduce(nic: Nic, vi: Vi, memory: MemoryRegion, wait: impl FnOnce(&Nic, &Vi)) -> Side {
    vi.post_receive(&Descriptor::receive(&[memory.segment(64, 16)])).expect("room");
    wait(&nic, &vi);
    let own = memory.remote(0);
    memory.write(0, &own.address.to_le_bytes());
    memory.write(8, &u64::from(own.handle.0).to_le_bytes());
    vi.post_send(&Descriptor::send(&[memory.segment(0, 16)])).expect("room");
    vi.send_wait(TIMEOUT).expect("a send");
    vi.receive_wait(TIMEOUT).expect("an introduction");
    let mut bytes = [0; 16];
    memory.read(64, &mut bytes);
    let number = |range: std::ops::Range<usize>| u64::from_le_bytes(bytes[range].try_into().expect("eight"));
    let remote = RemoteSegment { address: number(0..8), handle: MemoryHandle(number(8..16) as u32) };
    memory.write(0, &[0; 128]);
    Side { nic, vi, memory, remote }
}

fn serve(name: &str, bytes: usize) -> Side {
    let (nic, vi, memory) = open(bytes);
    let address = Address::local(name);
    introduce(nic, vi, memory, |nic, vi| {
        nic.connect_wait(&address, TIMEOUT).expect("a client").accept(vi).expect("a connection");
    })
}

fn connect(name: &str, bytes: usize) -> Side {
    let (nic, vi, memory) = open(bytes);
    introduce(nic, vi, memory, |_, vi| {
        while vi.connect(&Address::local(""), &Address::local(name), TIMEOUT).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}

fn await_receive(vi: &Vi) {
    loop {
        if let Some(completion) = vi.receive_done() {
            assert!(completion.is_success(), "{completion:?}");
            return;
        }
    }
}

/// Waits for the server's RDMA write of at least `least` to the word.
fn await_word(memory: &MemoryRegion, offset: usize, least: u64) {
    let word = memory.atomic(offset);
    while word.load(Ordering::Acquire) < least {}
}

const READY: usize = 4088;

fn say_ready(side: &Side) {
    side.memory.atomic(READY - 8).store(1, Ordering::Release);
    let remote = RemoteSegment { address: side.remote.address + READY as u64, ..side.remote };
    side.vi.post_send(&Descriptor::rdma_write(&[side.memory.segment(READY - 8, 8)], remote)).expect("room");
    side.vi.send_wait(TIMEOUT).expect("a write");
}

/// One-way latency of send and receive of `bytes`, ns.
pub fn latency_ns(cores: Cores, bytes: usize, rounds: u64) -> Option<f64> {
    let name = fresh_name("latency");
    let room = bytes.max(4096) + 4096;
    // Send the answer first, then repost the used receive.
    let exchange = |side: &Side, send_first: bool| {
        let (out, into) = ([side.memory.segment(0, bytes)], [side.memory.segment(4096, bytes)]);
        if !send_first {
            await_receive(&side.vi);
        }
        side.vi.post_send(&Descriptor::send(&out)).expect("room");
        while side.vi.send_done().is_none() {}
        side.vi.post_receive(&Descriptor::receive(&into)).expect("room");
        if send_first {
            await_receive(&side.vi);
        }
    };
    let prepare = |side: &Side| {
        for _ in 0..4 {
            side.vi.post_receive(&Descriptor::receive(&[side.memory.segment(4096, bytes)])).expect("room");
        }
    };
    let server = || {
        let side = serve(&name, room);
        prepare(&side);
        say_ready(&side);
        (0..rounds).for_each(|_| exchange(&side, false));
        let _ = &side.nic;
        std::thread::sleep(Duration::from_millis(50));
    };
    let client = || {
        let side = connect(&name, room);
        prepare(&side);
        await_word(&side.memory, READY, 1);
        rounds_ns(rounds, |_| exchange(&side, true)) / rounds as f64 / 2.0
    };
    measure(cores, server, client)
}

/// One-way latency of an RDMA write of 8 bytes to memory that the peer polls, ns.
pub fn rdma_write_ns(cores: Cores, rounds: u64) -> Option<f64> {
    let name = fresh_name("rdma");
    let strike = |side: &Side, round: u64| {
        side.memory.atomic(0).store(round, Ordering::Relaxed);
        let remote = RemoteSegment { address: side.remote.address + 2048, ..side.remote };
        side.vi.post_send(&Descriptor::rdma_write(&[side.memory.segment(0, 8)], remote)).expect("room");
        while side.vi.send_done().is_none() {}
    };
    let server = || {
        let side = serve(&name, 8192);
        say_ready(&side);
        for round in 1..=rounds {
            await_word(&side.memory, 2048, round);
            strike(&side, round);
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let client = || {
        let side = connect(&name, 8192);
        await_word(&side.memory, READY, 1);
        rounds_ns(rounds, |round| {
            strike(&side, round + 1);
            await_word(&side.memory, 2048, round + 1);
        }) / rounds as f64
            / 2.0
    };
    measure(cores, server, client)
}

/// Number of receives that the server keeps posted.
const WINDOW: u64 = 1000;
/// Number of messages after which it sends its progress.
const CREDIT_EVERY: u64 = 100;

/// Rate of a stream of messages of `bytes`, in millions per second. The server reports its progress by RDMA write.
pub fn rate_mps(cores: Cores, bytes: usize, messages: u64) -> Option<f64> {
    let name = fresh_name("rate");
    stream(cores, name, bytes, messages, WINDOW, CREDIT_EVERY).map(|ns| messages as f64 * 1e3 / ns)
}

/// Bandwidth of a stream of messages of `bytes`, in GB/s.
pub fn bandwidth_gbps(cores: Cores, bytes: usize) -> Option<f64> {
    let name = fresh_name("bandwidth");
    let messages = ((2u64 << 30) / bytes as u64).clamp(100, 200_000);
    stream(cores, name, bytes, messages, 8, 2).map(|ns| (messages * bytes as u64) as f64 / ns)
}

fn stream(
    cores: Cores,
    name: String,
    bytes: usize,
    messages: u64,
    window: u64,
    credit_every: u64,
) -> Option<f64> {
    let room = bytes + 8192;
    let server = || {
        let side = serve(&name, room);
        let into = [side.memory.segment(8192, bytes)];
        let receive = Descriptor::receive(&into);
        for _ in 0..window {
            side.vi.post_receive(&receive).expect("room");
        }
        say_ready(&side);
        let credit = RemoteSegment { address: side.remote.address + 2048, ..side.remote };
        for message in 1..=messages {
            await_receive(&side.vi);
            side.vi.post_receive(&receive).expect("room");
            if message % credit_every == 0 || message == messages {
                side.memory.atomic(0).store(message, Ordering::Relaxed);
                side.vi
                    .post_send(&Descriptor::rdma_write(&[side.memory.segment(0, 8)], credit))
                    .expect("room");
                while side.vi.send_done().is_none() {}
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let client = || {
        let side = connect(&name, room);
        await_word(&side.memory, READY, 1);
        let out = [side.memory.segment(8192, bytes)];
        let send = Descriptor::send(&out);
        let mut under_way = 0;
        let ns = rounds_ns(messages, |message| {
            while message - side.memory.atomic(2048).load(Ordering::Acquire) >= window {
                under_way -= u64::from(side.vi.send_done().is_some());
                std::hint::spin_loop();
            }
            side.vi.post_send(&send).expect("room");
            under_way += 1;
            while side.vi.send_done().is_some() {
                under_way -= 1;
            }
        });
        while under_way > 0 {
            under_way -= u64::from(side.vi.send_done().is_some());
        }
        await_word(&side.memory, 2048, messages);
        ns
    };
    measure(cores, server, client)
}

/// Bandwidth of RDMA writes of `bytes` to the same address, in GB/s.
pub fn rdma_gbps(cores: Cores, bytes: usize) -> Option<f64> {
    let name = fresh_name("rdma-bandwidth");
    let rounds = (2usize << 30) / bytes;
    let server = || {
        let side = serve(&name, bytes + 8192);
        say_ready(&side);
        await_word(&side.memory, 2048, 1);
    };
    let client = || {
        let side = connect(&name, bytes + 8192);
        await_word(&side.memory, READY, 1);
        let remote = RemoteSegment { address: side.remote.address + 8192, ..side.remote };
        let out = [side.memory.segment(8192, bytes)];
        let write = Descriptor::rdma_write(&out, remote);
        let strike = |write: &Descriptor<'_>| {
            side.vi.post_send(write).expect("room");
            while side.vi.send_done().is_none() {}
        };
        strike(&write);
        let ns = rounds_ns(rounds as u64, |_| strike(&write));
        side.memory.atomic(0).store(1, Ordering::Relaxed);
        let end = RemoteSegment { address: side.remote.address + 2048, ..side.remote };
        strike(&Descriptor::rdma_write(&[side.memory.segment(0, 8)], end));
        (rounds * bytes) as f64 / ns
    };
    measure(cores, server, client)
}

/// Cost of the calls in ns, in one thread: post send, send done, post receive, receive done, and an RDMA write with its
/// completion.
pub fn call_costs_ns() -> [f64; 5] {
    let name = fresh_name("costs");
    let (nic, vi, memory) = open(16384);
    let (_other, peer, peers_memory) = open(16384);
    std::thread::scope(|scope| {
        let (nic, vi, address) = (&nic, &vi, Address::local(&name));
        scope.spawn(move || {
            nic.connect_wait(&address, TIMEOUT).expect("a client").accept(vi).expect("a connection")
        });
        while peer.connect(&Address::local(""), &Address::local(&name), TIMEOUT).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let (out, into) = ([memory.segment(0, 8)], [peers_memory.segment(8192, 8)]);
    let rounds = 100_000;
    let mut costs = [0.0; 5];
    const BATCH: usize = 100;
    for _ in 0..rounds / BATCH {
        costs[2] += time_ns(|| {
            (0..BATCH).for_each(|_| peer.post_receive(&Descriptor::receive(&into)).expect("room"))
        });
        costs[0] += time_ns(|| (0..BATCH).for_each(|_| vi.post_send(&Descriptor::send(&out)).expect("room")));
        costs[1] += time_ns(|| (0..BATCH).for_each(|_| assert!(vi.send_done().is_some())));
        costs[3] += time_ns(|| (0..BATCH).for_each(|_| assert!(peer.receive_done().is_some())));
        costs[4] += time_ns(|| {
            for _ in 0..BATCH {
                vi.post_send(&Descriptor::rdma_write(&out, peers_memory.remote(4096))).expect("room");
                assert!(vi.send_done().is_some());
            }
        });
    }
    costs.map(|cost| cost / rounds as f64)
}
