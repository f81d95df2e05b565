//! A completion queue shared by many VIs: every VI with a completion is reported soon, at a cost that does not grow
//! with the number of idle VIs.
//!
//! Source: VIA, completion queues. `LONGMA_VIA_QUEUE_VIS=4000 cargo test -p longma-via --test completion_queue --
//! --nocapture` prints the cost ratio for that number.

use longma_random::SplitMix64;
use longma_via::provider::shared_memory::{Limits, Settings, SharedMemory};
use longma_via::provider::udp::Udp;
use longma_via::*;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
/// Long enough for quiet VIs to be parked.
const A_WHILE: Option<Duration> = Some(Duration::from_millis(30));

/// A NIC that accepts any number of connections, with memory.
struct Host {
    nic: Nic,
    tag: ProtectionTag,
    memory: MemoryRegion,
}

fn host() -> Host {
    host_of(shared_memory())
}

fn shared_memory() -> Nic {
    // SAFETY: reads and writes the given structure.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
    let limits = Limits { user_connections: u32::MAX, nic_connections: u32::MAX, ..Limits::default() };
    let settings = Settings { limits, ..Settings::default() };
    Nic::with_provider(Box::new(SharedMemory::open_with(settings).unwrap()))
}

fn udp() -> Nic {
    Nic::with_provider(Box::new(Udp::open("127.0.0.1:0".parse().unwrap()).unwrap()))
}

fn host_of(nic: Nic) -> Host {
    let tag = nic.create_protection_tag().unwrap();
    let memory = nic.allocate(1 << 22, MemoryAttributes::local(tag)).unwrap();
    Host { nic, tag, memory }
}

impl Host {
    fn vi(&self, queue: Option<&CompletionQueue>) -> Vi {
        self.nic.create_vi(ViAttributes::new(self.tag), None, queue).unwrap()
    }

    fn receive(&self, vi: &Vi, length: usize) {
        vi.post_receive(&Descriptor::receive(&[self.memory.segment(0, length)])).unwrap();
    }

    fn send(&self, vi: &Vi, length: usize) {
        vi.post_send(&Descriptor::send(&[self.memory.segment(0, length)])).unwrap();
        while vi.send_done().is_some() {}
    }
}

fn fresh_name() -> Address {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    Address::local(format!("queue-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}

fn connect(server: (&Host, &Vi), client: &Vi) {
    let name = fresh_name();
    let _ = server.0.nic.connect_wait(&name, Some(Duration::ZERO));
    std::thread::scope(|scope| {
        scope.spawn(|| server.0.nic.connect_wait(&name, TIMEOUT).unwrap().accept(server.1).unwrap());
        client.connect(&Address::local("client"), &name, TIMEOUT).unwrap();
    });
}

/// Clients of one server whose VIs share a completion queue, each with a posted receive at the server.
struct Crowd {
    server: Host,
    clients: Host,
    queue: CompletionQueue,
    /// Pairs of server VI and client VI.
    vis: Vec<(Vi, Vi)>,
}

fn crowd(count: usize) -> Crowd {
    crowd_on([host(), host()], count)
}

fn crowd_on([server, clients]: [Host; 2], count: usize) -> Crowd {
    let queue = server.nic.create_completion_queue(4 * count + 1024).unwrap();
    let name = fresh_name();
    let _ = server.nic.connect_wait(&name, Some(Duration::ZERO));
    let at_server: Vec<Vi> = (0..count).map(|_| server.vi(Some(&queue))).collect();
    let at_clients: Vec<Vi> = (0..count).map(|_| clients.vi(None)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for vi in &at_server {
                server.nic.connect_wait(&name, TIMEOUT).unwrap().accept(vi).unwrap();
                server.receive(vi, 64);
            }
        });
        let remote = Address::new(&server.nic.attributes().local_address, &name.discriminator);
        for vi in &at_clients {
            vi.connect(&Address::local("client"), &remote, TIMEOUT).unwrap();
        }
    });
    Crowd { server, clients, queue, vis: at_server.into_iter().zip(at_clients).collect() }
}

impl Crowd {
    /// Waits until most of them are parked.
    fn settle(&self) {
        assert!(matches!(self.queue.wait(A_WHILE), Err(Error::Timeout)));
    }

    /// Takes the next notification.
    fn heard(&self) -> u32 {
        let (number, queue) = self.queue.wait(TIMEOUT).expect("a notification arrives");
        assert_eq!(queue, Queue::Receive);
        number
    }
}

#[test]
fn a_busy_vi_does_not_starve_other_vis_of_the_queue() {
    let crowd = crowd(2);
    let [(loud, loud_client), (quiet, quiet_client)] = &crowd.vis[..] else { panic!() };
    (0..120).for_each(|_| crowd.server.receive(loud, 64));
    (0..120).for_each(|_| crowd.clients.send(loud_client, 8));
    crowd.clients.send(quiet_client, 8);
    let before = (0..120).take_while(|_| crowd.heard() != quiet.number()).count();
    assert!(before <= 40, "{before} messages of the busy VI were reported first");
}

#[test]
fn a_thread_sleeping_on_a_queue_sees_a_vi_that_connects_later() {
    let (server, clients) = (host(), host());
    let queue = server.nic.create_completion_queue(16).unwrap();
    let (vi, client) = (server.vi(Some(&queue)), clients.vi(None));
    server.receive(&vi, 64);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| queue.wait(Some(Duration::from_secs(5))));
        std::thread::sleep(Duration::from_millis(100));
        connect((&server, &vi), &client);
        std::thread::sleep(Duration::from_millis(100));
        clients.send(&client, 8);
        assert_eq!(waiting.join().unwrap().ok(), Some((vi.number(), Queue::Receive)));
    });
}

#[test]
fn a_thread_sleeping_on_a_vi_sees_its_connection() {
    let (server, clients) = (host(), host());
    let (vi, client) = (server.vi(None), clients.vi(None));
    server.receive(&vi, 64);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| vi.receive_wait(Some(Duration::from_secs(5))));
        std::thread::sleep(Duration::from_millis(100));
        connect((&server, &vi), &client);
        std::thread::sleep(Duration::from_millis(100));
        clients.send(&client, 8);
        assert!(waiting.join().unwrap().is_ok_and(|completion| completion.is_success()));
    });
}

/// Wakes a parked thread.
struct Unpark(std::thread::Thread, AtomicBool);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// The output of the future, or `None` after `limit`. The future is polled only when woken.
fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let woken = Arc::new(Unpark(std::thread::current(), AtomicBool::new(true)));
    let waker = Waker::from(woken.clone());
    let mut future = std::pin::pin!(future);
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if woken.1.swap(false, Ordering::SeqCst)
            && let Poll::Ready(outcome) = future.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return Some(outcome);
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    None
}

#[test]
fn futures_of_a_queue_and_of_a_vi_are_woken_for_a_vi_connected_later() {
    let (server, clients) = (host(), host());
    let queue = server.nic.create_completion_queue(16).unwrap();
    let (of_queue, of_vi) = (server.vi(Some(&queue)), server.vi(None));
    let (one, two) = (clients.vi(None), clients.vi(None));
    [&of_queue, &of_vi].into_iter().for_each(|vi| server.receive(vi, 64));
    let limit = Duration::from_secs(5);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| within(limit, queue.notification()));
        let completed = scope.spawn(|| within(limit, of_vi.receive_completion()));
        std::thread::sleep(Duration::from_millis(100));
        connect((&server, &of_queue), &one);
        connect((&server, &of_vi), &two);
        std::thread::sleep(Duration::from_millis(100));
        [&one, &two].into_iter().for_each(|vi| clients.send(vi, 8));
        assert_eq!(waiter.join().unwrap(), Some((of_queue.number(), Queue::Receive)));
        assert!(completed.join().unwrap().is_some_and(|outcome| outcome.is_ok_and(|done| done.is_success())));
    });
}

#[test]
fn a_message_on_any_of_many_idle_vis_is_reported() {
    let crowd = crowd(100);
    for round in 0..3 {
        for (vi, client) in &crowd.vis {
            if round > 0 {
                crowd.settle();
            }
            crowd.clients.send(client, 8);
            if round == 2 {
                // No thread sleeps: poll at intervals.
                let end = Instant::now() + Duration::from_secs(20);
                while crowd.queue.done() != Some((vi.number(), Queue::Receive)) {
                    assert!(Instant::now() < end, "the completion of VI {} is not reported", vi.number());
                    std::thread::sleep(Duration::from_micros(50));
                }
            } else {
                assert_eq!(crowd.heard(), vi.number());
            }
            assert!(vi.receive_done().unwrap().is_success());
            crowd.server.receive(vi, 64);
        }
    }
}

#[test]
fn a_queue_future_is_woken_by_each_of_many_idle_vis() {
    let crowd = crowd(100);
    for (vi, client) in &crowd.vis {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| within(Duration::from_secs(10), crowd.queue.notification()));
            std::thread::sleep(Duration::from_millis(5));
            crowd.clients.send(client, 8);
            assert_eq!(waiter.join().unwrap(), Some((vi.number(), Queue::Receive)));
        });
        assert!(vi.receive_done().unwrap().is_success());
    }
}

#[test]
fn a_fragmented_message_and_a_full_ring_reach_a_vi_that_is_not_polled() {
    let crowd = crowd(40);
    // Messages from memory that the program has registered are sent in parts.
    let mut own = vec![7u8; 1 << 20];
    // SAFETY: the vector outlives the region and is not accessed while the region exists.
    let region = unsafe {
        crowd.clients.nic.register(own.as_mut_ptr(), own.len(), MemoryAttributes::local(crowd.clients.tag))
    }
    .unwrap();
    for (vi, client) in &crowd.vis {
        // The first message uses the receive posted for small ones.
        crowd.settle();
        crowd.clients.send(client, 8);
        assert_eq!(crowd.heard(), vi.number());
        assert!(vi.receive_done().unwrap().is_success());
        crowd.server.receive(vi, 1 << 20);
        (0..300).for_each(|_| crowd.server.receive(vi, 8));
        crowd.settle();
        client.post_send(&Descriptor::send(&[region.segment(0, 1 << 20)])).unwrap();
        (0..300).for_each(|_| {
            client.post_send(&Descriptor::send(&[crowd.clients.memory.segment(0, 8)])).unwrap();
        });
        let end = Instant::now() + Duration::from_secs(20);
        let mut heard = 0;
        while heard < 301 {
            // Queued parts are sent when the program makes a call.
            client.progress();
            if crowd.queue.wait(Some(Duration::from_millis(1))).is_ok() {
                assert!(vi.receive_done().unwrap().is_success());
                heard += 1;
            }
            assert!(Instant::now() < end, "{heard} of 301 messages arrived");
        }
        while client.send_done().is_some() {}
    }
}

#[test]
fn an_answer_on_an_idle_vi_wakes_the_thread_sleeping_on_the_queue() {
    let crowd = crowd(60);
    for (vi, client) in crowd.vis.iter().take(20) {
        crowd.settle();
        crowd.clients.receive(client, 64);
        std::thread::scope(|scope| {
            let (sender, waits) = mpsc::channel();
            let crowd = &crowd;
            scope.spawn(move || sender.send(crowd.queue.wait(Some(Duration::from_secs(5))).ok()));
            std::thread::sleep(Duration::from_millis(20));
            // The program uses the VI in all ways while another thread sleeps.
            vi.progress();
            crowd.server.send(vi, 8);
            assert!(client.receive_wait(TIMEOUT).unwrap().is_success());
            std::thread::sleep(Duration::from_millis(5));
            crowd.clients.send(client, 8);
            assert_eq!(waits.recv().unwrap(), Some((vi.number(), Queue::Receive)));
        });
        assert!(vi.receive_done().unwrap().is_success());
    }
}

#[test]
fn the_disconnect_or_drop_of_a_silent_peer_is_detected() {
    let mut crowd = crowd(60);
    crowd.settle();
    let mut ended = Vec::new();
    for index in 0..10 {
        let (vi, client) = crowd.vis.remove(0);
        match index % 2 {
            0 => client.disconnect().unwrap(),
            _ => drop(client),
        }
        // The posted receive is flushed, and the queue is notified.
        assert_eq!(crowd.heard(), vi.number());
        assert!(vi.receive_done().unwrap().status.contains(Status::FLUSHED));
        assert_eq!(vi.state(), ViState::Error);
        ended.push(vi);
    }
    // After reconnecting they are reported again.
    for vi in &ended {
        vi.disconnect().unwrap();
        let client = crowd.clients.vi(None);
        connect((&crowd.server, vi), &client);
        crowd.server.receive(vi, 64);
        crowd.settle();
        crowd.clients.send(&client, 8);
        assert_eq!(crowd.heard(), vi.number());
        assert!(vi.receive_done().unwrap().is_success());
        vi.disconnect().unwrap();
    }
}

/// Clients send at random times, several messages at a time, and wait for their answers. The servers wait for the
/// queue, poll it at intervals, or send unsolicited messages. `LONGMA_VIA_QUEUE_SECONDS=600` runs a campaign.
fn exchanges_messages_at_random(hosts: [Host; 2], count: usize) {
    const TALKERS: usize = 4;
    let seconds = std::env::var("LONGMA_VIA_QUEUE_SECONDS").ok().and_then(|text| text.parse().ok());
    let crowd = crowd_on(hosts, count);
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(3));
    let (stop, answered) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for server in 0..2 {
            let (crowd, stop) = (&crowd, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let notification = if server == 0 {
                        crowd.queue.wait(Some(Duration::from_millis(200))).ok()
                    } else {
                        std::thread::sleep(Duration::from_micros(300));
                        crowd.queue.done()
                    };
                    let Some((number, _)) = notification else { continue };
                    let vi = &crowd.vis.iter().find(|pair| pair.0.number() == number).unwrap().0;
                    assert!(vi.receive_done().unwrap().is_success());
                    crowd.server.receive(vi, 64);
                    crowd.server.send(vi, 8);
                }
            });
        }
        let talkers: Vec<_> = (0..TALKERS)
            .map(|talker| {
                let (crowd, answered) = (&crowd, &answered);
                scope.spawn(move || {
                    let mut random = SplitMix64::new(talker as u64);
                    while Instant::now() < end {
                        // Each talker has its own VIs, a few of which are used often and the others rarely.
                        let mine = count / TALKERS;
                        let which = if random.below(8) == 0 { random.index(mine) } else { 0 };
                        let (_, vi) = &crowd.vis[talker * mine + which];
                        crowd.clients.receive(vi, 64);
                        crowd.clients.send(vi, 8);
                        let heard = vi.receive_wait(TIMEOUT);
                        assert!(heard.is_ok_and(|heard| heard.is_success()), "VI {which} of {talker}");
                        answered.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_micros(random.below(1024)));
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = talkers.into_iter().map(|talker| talker.join()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(outcomes.iter().all(Result::is_ok), "a client was not answered");
    });
    let answered = answered.into_inner();
    println!("{answered} answers");
    assert!(answered > 0, "no client asked");
}

#[test]
fn many_randomly_sending_clients_are_all_answered_over_shared_memory() {
    exchanges_messages_at_random([host(), host()], 200);
}

#[test]
fn many_randomly_sending_clients_are_all_answered_over_udp() {
    exchanges_messages_at_random([host_of(udp()), host_of(udp())], 60);
}

/// The processor time of this process.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the given structure.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The processor time per completion in three cases: one VI of the crowd is active and polled for; the same with
/// sleeping; all VIs are active in turn, with sleeping. The minimum of many short rounds is used, to exclude the cost
/// of keeping connections alive.
fn costs(hosts: [Host; 2], count: usize) -> [Duration; 3] {
    let crowd = crowd_on(hosts, count);
    crowd.settle();
    let exchange = |(vi, client): &(Vi, Vi), sleeps: bool| {
        crowd.clients.send(client, 8);
        let notification = if sleeps {
            crowd.queue.wait(TIMEOUT).ok()
        } else {
            std::iter::repeat_with(|| crowd.queue.done()).find_map(|notification| notification)
        };
        assert_eq!(notification, Some((vi.number(), Queue::Receive)));
        assert!(vi.receive_done().unwrap().is_success());
        crowd.server.receive(vi, 64);
    };
    let last = &crowd.vis[count - 1];
    let least = |completions: u32, one: &mut dyn FnMut()| {
        let round = |_| {
            let before = cpu_time();
            (0..completions).for_each(|_| one());
            (cpu_time() - before) / completions
        };
        (0..30).map(round).min().unwrap()
    };
    let polled = least(50, &mut || exchange(last, false));
    let sleep_and_exchange = |pair: &(Vi, Vi)| {
        let _ = crowd.queue.wait(Some(Duration::from_micros(100)));
        exchange(pair, true);
    };
    let slept = least(20, &mut || sleep_and_exchange(last));
    let mut turn = crowd.vis.iter().cycle();
    let in_turn = least(20, &mut || sleep_and_exchange(turn.next().unwrap()));
    [polled, slept, in_turn]
}

/// Prints the costs with few and with many VIs, and checks that their ratio is small.
fn compare_costs(open: fn() -> Nic, few: usize, many: usize) {
    let hosts = || [host_of(open()), host_of(open())];
    let (of_few, of_many) = (costs(hosts(), few), costs(hosts(), many));
    let names = ["polled", "slept for", "all in turn"];
    for ((name, few_cost), many_cost) in names.into_iter().zip(of_few).zip(of_many) {
        let ratio = many_cost.as_secs_f64() / few_cost.as_secs_f64();
        println!(
            "{name}: {few_cost:?} of processor a completion with {few} VIs, {many_cost:?} with {many}: {ratio:.2} times"
        );
        assert!(ratio < 4.0, "{name}: {ratio} times the cost with {} times the VIs", many / few);
    }
}

fn wanted_vis() -> Option<usize> {
    std::env::var("LONGMA_VIA_QUEUE_VIS").ok()?.parse().ok()
}

#[test]
#[ignore = "a measurement"]
fn the_cost_of_a_completion_does_not_grow_with_the_vis_that_have_none() {
    compare_costs(shared_memory, 32, wanted_vis().unwrap_or(800));
}

#[test]
#[ignore = "a measurement"]
fn the_cost_of_a_completion_over_udp_does_not_grow_with_the_vis_that_have_none() {
    compare_costs(udp, 32, wanted_vis().unwrap_or(600));
}
