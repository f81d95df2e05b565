//! Many peers send control messages concurrently, while another peer needs a single one to be handled.
//!
//! Source: proc(5), /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst).

use super::*;

/// The number of flooding connections. A user may have that many with the usual limit of 1024 descriptors.
const PEERS: usize = 240;
/// The maximum delay for a well-behaved client during the flood.
const MAX_CLIENT_DELAY: Duration = Duration::from_millis(10);

const ROLE: &str = "LONGMA_VIA_FLOOD";
const THIS: &str =
    "provider::shared_memory::hostile::flood::events_of_one_peer_are_seen_soon_while_others_are_busy";

/// The processor time of the busiest monitor thread. Time spent waiting for a processor is the machine's fault and not
/// counted.
fn cpu_time() -> Duration {
    let entries = std::fs::read_dir("/proc/self/task").unwrap();
    let times = entries.filter_map(|entry| {
        let file = |name: &str| std::fs::read_to_string(entry.as_ref().ok()?.path().join(name)).ok();
        let hears = file("comm")?.trim() == "via-monitor";
        file("schedstat")?.split_whitespace().next()?.parse().ok().filter(|_| hears)
    });
    Duration::from_nanos(times.max().unwrap())
}

#[test]
fn events_of_one_peer_are_seen_soon_while_others_are_busy() {
    if std::env::var_os(ROLE).is_none() {
        // Run in a separate process, without monitor threads of other tests.
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        let status = alone.args(["--exact", THIS, "--nocapture"]).env(ROLE, "alone").status().unwrap();
        return assert!(status.success(), "{status}");
    }
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let new_vi = || nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let name = format!("flood-{}", std::process::id());
    let listen = |wait| nic.connect_wait(&Address::local(&name), wait);
    let _ = listen(Some(Duration::ZERO));
    let accept = |vi: &Vi| listen(TIMEOUT).unwrap().accept(vi).unwrap();
    // Peers cannot map this memory, so the server's own thread performs their writes.
    let mut bytes = vec![0u64; 512];
    let attributes = MemoryAttributes { tag, rdma_write: true, rdma_read: false };
    // SAFETY: the memory outlives the region and is accessed only through it.
    let target = unsafe { nic.register(bytes.as_mut_ptr().cast(), 4096, attributes) }.unwrap();

    let client = Nic::open().unwrap();
    let client_tag = client.create_protection_tag().unwrap();
    let own = client.allocate(4096, MemoryAttributes::local(client_tag)).unwrap();
    let honest = client.create_vi(ViAttributes::new(client_tag), None, None).unwrap();
    let served = new_vi();
    let (flooders, _vis): (Vec<_>, Vec<_>) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            honest.connect(&Address::local("honest"), &Address::local(&name), TIMEOUT).unwrap();
        });
        accept(&served);
        connecting.join().unwrap();
        let connect_hostile = |_| {
            let talker = scope.spawn(|| connect(&name, Reliability::ReliableDelivery));
            let vi = new_vi();
            accept(&vi);
            (talker.join().unwrap(), vi)
        };
        (0..PEERS).map(connect_hostile).unzip()
    });

    let (file, _mapping) = create(4096, false).unwrap();
    // The processor time that the server's monitor thread needs until a write has been stored.
    let write = |value: u64| {
        own.write(0, &value.to_le_bytes());
        let (begin, before) = (Instant::now(), cpu_time());
        honest.post_send(&Descriptor::rdma_write(&[own.segment(0, 8)], target.remote(0))).unwrap();
        let word = target.atomic(0);
        while word.load(Order::Acquire) != value {
            assert!(begin.elapsed() < Duration::from_secs(20), "the write was never stored");
            std::thread::yield_now();
        }
        let took = cpu_time() - before;
        while honest.send_done().is_none() {}
        took
    };
    let alone = (1..10).map(write).min().unwrap();
    let mut flooded: Vec<_> = (10..19)
        .map(|value| {
            for slot in 0..60 {
                let message = ControlMessage::Export(page_at(slot));
                for flooder in &flooders {
                    let _ = send(flooder.socket.as_raw_fd(), &message, Some(file.as_raw_fd()));
                }
            }
            write(value)
        })
        .collect();
    flooded.sort_unstable();
    assert!(flooded[flooded.len() / 2] < MAX_CLIENT_DELAY, "{flooded:?}, and {alone:?} alone");
}
