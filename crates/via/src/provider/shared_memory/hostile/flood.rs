//! Peers that have much to say, all at once, while another has one thing to say that its answer waits for.
//! Not what letters bring; that is in `one_trick.rs`.
//! Source: proc(5), /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats.rst).

use super::*;

/// Connections of the flood. A user may have that many where a process has the usual 1024 descriptors.
const PEERS: usize = 240;
/// What an honest client may have to wait while others are heard.
const MOST: Duration = Duration::from_millis(10);

/// What the kernel tells of a thread of this process.
fn of_thread(thread: i32, name: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/self/task/{thread}/{name}")).ok()
}

/// The threads that hear letters.
fn hearers() -> std::collections::BTreeSet<i32> {
    let entries = std::fs::read_dir("/proc/self/task").unwrap();
    let threads = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    threads
        .filter(|thread| of_thread(*thread, "comm").is_some_and(|name| name.trim() == "via-monitor"))
        .collect()
}

/// A NIC, and the thread that hears its letters: other tests' NICs have theirs, and some are opened in the same moment.
fn open() -> (Nic, i32) {
    loop {
        let before = hearers();
        let nic = Nic::open().unwrap();
        // A thread has its name a little after it began.
        std::thread::sleep(Duration::from_millis(20));
        let new: Vec<_> = hearers().difference(&before).copied().collect();
        if let [thread] = new[..] {
            return (nic, thread);
        }
    }
}

/// Processor time of a thread so far: a wait for a processor is the machine's doing.
fn worked(thread: i32) -> Duration {
    let told = of_thread(thread, "schedstat").unwrap();
    Duration::from_nanos(told.split_whitespace().next().unwrap().parse().unwrap())
}

#[test]
fn news_of_one_peer_is_heard_soon_however_many_others_have_much_to_say() {
    let (nic, hearer) = open();
    let tag = nic.create_protection_tag().unwrap();
    let new_vi = || nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let name = format!("flood-{}", std::process::id());
    let listen = |wait| nic.connect_wait(&Address::local(&name), wait);
    let _ = listen(Some(Duration::ZERO));
    let accept = |vi: &Vi| listen(SOON).unwrap().accept(vi).unwrap();
    // Memory that no peer maps: the server's own thread stores what is written there.
    let mut bytes = vec![0u64; 512];
    let attributes = MemoryAttributes { tag, rdma_write: true, rdma_read: false };
    // SAFETY: it outlives the region, and is used through that only.
    let target = unsafe { nic.register(bytes.as_mut_ptr().cast(), 4096, attributes) }.unwrap();

    let client = Nic::open().unwrap();
    let client_tag = client.create_protection_tag().unwrap();
    let own = client.allocate(4096, MemoryAttributes::local(client_tag)).unwrap();
    let honest = client.create_vi(ViAttributes::new(client_tag), None, None).unwrap();
    let served = new_vi();
    let (talkers, _vis): (Vec<_>, Vec<_>) = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            honest.connect(&Address::local("honest"), &Address::local(&name), SOON).unwrap();
        });
        accept(&served);
        connecting.join().unwrap();
        let meet = |_| {
            let talker = scope.spawn(|| connect(&name, Reliability::ReliableDelivery));
            let vi = new_vi();
            accept(&vi);
            (talker.join().unwrap(), vi)
        };
        (0..PEERS).map(meet).unzip()
    });

    let (file, _mapping) = create(4096, false).unwrap();
    // How long the server's thread that hears letters worked until what was written was there.
    let write = |value: u64| {
        own.write(0, &value.to_le_bytes());
        let (begin, before) = (Instant::now(), worked(hearer));
        honest.post_send(&Descriptor::rdma_write(&[own.segment(0, 8)], target.remote(0))).unwrap();
        let word = target.atomic(0);
        while word.load(Order::Acquire) != value {
            assert!(begin.elapsed() < Duration::from_secs(20), "it is never heard");
            std::thread::yield_now();
        }
        let took = worked(hearer) - before;
        while honest.send_done().is_none() {}
        took
    };
    let alone = (1..10).map(write).min().unwrap();
    let mut flooded: Vec<_> = (10..19)
        .map(|value| {
            for slot in 0..60 {
                let showing = Showing {
                    handle: 1 + slot,
                    address: 0x1000,
                    length: 4096,
                    write: false,
                    read: true,
                    slot,
                    serial: 0,
                };
                for talker in &talkers {
                    let _ = send(talker.socket.as_raw_fd(), &Letter::Show(showing), Some(file.as_raw_fd()));
                }
            }
            write(value)
        })
        .collect();
    flooded.sort_unstable();
    assert!(flooded[flooded.len() / 2] < MOST, "{flooded:?}, and {alone:?} alone");
}
