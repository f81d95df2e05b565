//! The modelled Myrinet: programs for the ordinary interface run on it, and its times follow from the times of its
//! components. Comparisons with published figures are experiments.

use longma_topology::Machine;
use longma_via::provider::{Established, Incoming, Link, Memory, OutgoingRequest, Provider, RegionInfo};
use longma_via::{
    Address, Descriptor, Error, MemoryAttributes, MemoryHandle, MemoryRegion, Nic, NicAttributes,
    Reliability, Vi, ViAttributes,
};
use longma_via_myrinet::{Fabric, Kind, Myrinet, Parameters, Settings};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connected VI on each of two hosts, with one buffer each.
struct Pair {
    fabric: Fabric,
    vis: [Vi; 2],
    buffers: [MemoryRegion; 2],
}

fn parameters() -> Parameters {
    Parameters::of(&Machine::open("piii-myrinet").unwrap()).unwrap()
}

fn pair(settings: Settings, reliability: Reliability, receives: usize) -> Pair {
    let fabric = Fabric::new(parameters(), settings).unwrap();
    let providers = [0, 1].map(|station| Box::new(fabric.nic(station).unwrap()) as Box<dyn Provider>);
    connected(fabric, providers, reliability, receives, 0)
}

/// Connects a VI of each provider. The server posts `early` of its receives before it accepts.
fn connected(
    fabric: Fabric,
    providers: [Box<dyn Provider>; 2],
    reliability: Reliability,
    receives: usize,
    early: usize,
) -> Pair {
    let ends = providers.map(|provider| {
        let nic = Nic::with_provider(provider);
        let tag = nic.create_protection_tag().unwrap();
        let buffer = nic.allocate(102_400, MemoryAttributes::remote(tag)).unwrap();
        let vi = nic.create_vi(ViAttributes::new(tag).with_reliability(reliability), None, None).unwrap();
        (nic, vi, buffer)
    });
    let [(_, client, from), (nic, server, to)] = ends;
    for _ in 0..early {
        server.post_receive(&Descriptor::receive(&[to.segment(0, 102_400)])).unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| nic.connect_wait(&Address::local("test"), None).unwrap().accept(&server).unwrap());
        loop {
            match client.connect(&Address::local("me"), &Address::new("1", "test"), None) {
                Ok(_) => break,
                Err(longma_via::Error::NoMatch(_)) => std::thread::yield_now(),
                Err(other) => panic!("{other}"),
            }
        }
    });
    // In a single thread, so that the order of operations on both hosts is deterministic.
    for (vi, buffer, early) in [(&client, &from, 0), (&server, &to, early)] {
        for _ in early..receives {
            vi.post_receive(&Descriptor::receive(&[buffer.segment(0, 102_400)])).unwrap();
        }
    }
    Pair { fabric, vis: [client, server], buffers: [from, to] }
}

impl Pair {
    /// Waits until `look` returns a value, advancing the time.
    fn wait<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(self.fabric.skip(), "nothing is in progress, and the awaited event did not occur");
        }
    }

    /// The one-way latency, microseconds: half the mean of `count` round trips.
    fn latency_us(&self, bytes: usize, count: u32) -> f64 {
        let one_way = |from: usize, to: usize| {
            self.vis[from].post_send(&Descriptor::send(&[self.buffers[from].segment(0, bytes)])).unwrap();
            let got = self.wait(|| self.vis[to].receive_done());
            assert!(got.is_success() && got.length as usize == bytes, "{got:?}");
            self.vis[to].post_receive(&Descriptor::receive(&[self.buffers[to].segment(0, 102_400)])).unwrap();
            assert!(self.wait(|| self.vis[from].send_done()).is_success());
        };
        for _ in 0..10 {
            one_way(0, 1);
            one_way(1, 0);
        }
        let begin = self.fabric.time(0);
        for _ in 0..count {
            one_way(0, 1);
            one_way(1, 0);
        }
        (self.fabric.time(0).ps() - begin.ps()) as f64 / 2e6 / f64::from(count)
    }

    /// The bandwidth of `count` messages in a row, MB/s.
    fn bandwidth(&self, bytes: usize, count: u32) -> f64 {
        let begin = self.fabric.time(1);
        let (mut posted, mut sent, mut received) = (0, 0, 0);
        while received < count {
            let mut moved = false;
            if posted < count && posted - sent < 64 {
                self.vis[0].post_send(&Descriptor::send(&[self.buffers[0].segment(0, bytes)])).unwrap();
                posted += 1;
                moved = true;
            }
            while let Some(completion) = self.vis[0].send_done() {
                assert!(completion.is_success());
                sent += 1;
                moved = true;
            }
            while let Some(completion) = self.vis[1].receive_done() {
                assert!(completion.is_success());
                received += 1;
                moved = true;
                self.vis[1]
                    .post_receive(&Descriptor::receive(&[self.buffers[1].segment(0, 102_400)]))
                    .unwrap();
            }
            assert!(moved || self.fabric.skip(), "{posted} posted, {sent} sent, {received} received");
        }
        let seconds = (self.fabric.time(1).ps() - begin.ps()) as f64 / 1e12;
        bytes as f64 * f64::from(count) / seconds / 1e6
    }
}

const KINDS: [Kind; 2] = [Kind::Bvia, Kind::Myvia];

#[test]
fn the_curves_have_the_shape_that_the_components_determine() {
    for kind in KINDS {
        let pair = pair(Settings::of(kind), Reliability::ReliableDelivery, 100);
        let small = pair.latency_us(4, 50);
        let large = pair.latency_us(102_400, 5);
        let peak = pair.bandwidth(102_400, 50);
        let tiny = pair.bandwidth(4, 500);
        println!("{kind:?}: {small:.2} us at 4 B, {large:.0} us at 100 KiB, {tiny:.3} and {peak:.1} MB/s");
        for bytes in [64, 256, 1024, 4096, 16384, 65536] {
            println!(
                "  {bytes}: {:.2} us {:.2} MB/s",
                pair.latency_us(bytes, 20),
                pair.bandwidth(bytes, 200)
            );
        }
        // Three sequential DMAs of 100 KiB, at 110, 160 and 126 MB/s, and some processing.
        let alone = 102.4 / 0.110 + 102.4 / 0.160 + 102.4 / 0.126;
        assert!(large > alone && large < 1.2 * alone, "{large}");
        assert!(small > 10.0 && small < 60.0, "{small}");
        assert!(peak < 110.0 && peak > 40.0, "{peak}");
    }
}

#[test]
fn the_same_calls_take_the_same_simulated_time() {
    for kind in KINDS {
        let times = [(); 2].map(|()| {
            let pair = pair(Settings::of(kind), Reliability::ReliableDelivery, 80);
            pair.bandwidth(5000, 100);
            pair.latency_us(64, 20);
            (pair.fabric.time(0), pair.fabric.time(1))
        });
        assert_eq!(times[0], times[1], "{kind:?}");
    }
}

#[test]
fn data_arrives_unchanged_at_every_reliability_level() {
    for kind in KINDS {
        for reliability in Reliability::ALL {
            let pair = pair(Settings::of(kind), reliability, 4);
            let bytes: Vec<u8> = (0..10_000u32).map(|i| (i * 7) as u8).collect();
            pair.buffers[0].write(0, &bytes);
            pair.vis[0].post_send(&Descriptor::send(&[pair.buffers[0].segment(0, 10_000)])).unwrap();
            pair.wait(|| pair.vis[1].receive_done());
            assert!(pair.wait(|| pair.vis[0].send_done()).is_success());
            let mut got = vec![0; 10_000];
            pair.buffers[1].read(0, &mut got);
            assert_eq!(got, bytes);
            // Transfer some of the bytes by RDMA, to another address.
            let from = [pair.buffers[0].segment(1, 5)];
            let write = Descriptor::rdma_write(&from, pair.buffers[1].remote(50_001)).with_immediate(9);
            pair.vis[0].post_send(&write).unwrap();
            let arrived = pair.wait(|| pair.vis[1].receive_done());
            assert_eq!(arrived.immediate, Some(9));
            pair.buffers[1].read(50_001, &mut got[..5]);
            assert_eq!(got[..5], bytes[1..6]);
        }
    }
}

#[test]
fn a_small_ring_that_overflows_is_refilled_by_interrupts_and_keeps_the_order() {
    let settings = Settings { small_ring: 4, low_water: 1, ..Settings::of(Kind::Myvia) };
    let pair = pair(settings, Reliability::ReliableDelivery, 0);
    for number in 0..100u8 {
        pair.vis[1]
            .post_receive(&Descriptor::receive(&[pair.buffers[1].segment(usize::from(number), 1)]))
            .unwrap();
    }
    for number in 0..100u8 {
        pair.buffers[0].write(usize::from(number), &[number]);
        pair.vis[0].post_send(&Descriptor::send(&[pair.buffers[0].segment(usize::from(number), 1)])).unwrap();
    }
    for _ in 0..100 {
        assert!(pair.wait(|| pair.vis[1].receive_done()).is_success());
    }
    let mut got = [0; 100];
    pair.buffers[1].read(0, &mut got);
    assert!(got.iter().enumerate().all(|(place, number)| place == usize::from(*number)), "{got:?}");
    let counts = pair.fabric.counts(0);
    assert!(counts.interrupts > 5 && counts.most_in_big_ring > 50, "{counts:?}");
}

#[test]
fn blocking_calls_work_from_two_threads() {
    for kind in KINDS {
        let pair = pair(Settings::of(kind), Reliability::ReliableReception, 8);
        let limit = Some(std::time::Duration::from_secs(20));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert!(pair.vis[1].receive_wait(limit).unwrap().is_success());
                    pair.vis[1]
                        .post_receive(&Descriptor::receive(&[pair.buffers[1].segment(0, 64)]))
                        .unwrap();
                    pair.vis[1].post_send(&Descriptor::send(&[pair.buffers[1].segment(0, 8)])).unwrap();
                    assert!(pair.vis[1].send_wait(limit).unwrap().is_success());
                }
            });
            for _ in 0..50 {
                pair.vis[0].post_receive(&Descriptor::receive(&[pair.buffers[0].segment(0, 64)])).unwrap();
                pair.vis[0].post_send(&Descriptor::send(&[pair.buffers[0].segment(0, 8)])).unwrap();
                assert!(pair.vis[0].send_wait(limit).unwrap().is_success());
                assert!(pair.vis[0].receive_wait(limit).unwrap().is_success());
            }
        });
    }
}

/// A modelled NIC whose host's operating system returns from the set-up of a connection late.
struct Late(Myrinet, Duration);

struct LateRequest(Box<dyn Incoming>, Duration);

impl Provider for Late {
    fn attributes(&self) -> &NicAttributes {
        self.0.attributes()
    }

    fn known_hosts(&self) -> Vec<Vec<u8>> {
        self.0.known_hosts()
    }

    fn listen(&self, local: &Address) -> Result<(), Error> {
        self.0.listen(local)
    }

    fn stop_listening(&self, local: &Address) {
        self.0.stop_listening(local);
    }

    fn wait(&self, local: &Address, deadline: Option<Instant>) -> Result<Box<dyn Incoming>, Error> {
        Ok(Box::new(LateRequest(self.0.wait(local, deadline)?, self.1)))
    }

    fn request(&self, ask: &OutgoingRequest<'_>, deadline: Option<Instant>) -> Result<Established, Error> {
        let established = self.0.request(ask, deadline);
        std::thread::sleep(self.1);
        established
    }

    fn allocate(&self, length: usize) -> Result<Option<Arc<dyn Memory>>, Error> {
        self.0.allocate(length)
    }

    fn register_region(&self, region: &RegionInfo) {
        self.0.register_region(region);
    }

    fn deregister_region(&self, handle: MemoryHandle) {
        self.0.deregister_region(handle);
    }
}

impl Incoming for LateRequest {
    fn remote(&self) -> &Address {
        self.0.remote()
    }

    fn remote_attributes(&self) -> &ViAttributes {
        self.0.remote_attributes()
    }

    fn accept(self: Box<Self>, vi: u32, attributes: &ViAttributes, tag: u32) -> Result<Box<dyn Link>, Error> {
        let link = self.0.accept(vi, attributes, tag);
        std::thread::sleep(self.1);
        link
    }

    fn reject(self: Box<Self>) {
        self.0.reject();
    }
}

#[test]
fn simulated_times_do_not_depend_on_which_thread_connects_first() {
    for kind in [Kind::Bvia, Kind::Myvia] {
        let measured = [[0, 200], [200, 0]].map(|late| {
            let fabric = Fabric::new(parameters(), Settings::of(kind)).unwrap();
            let providers = [0, 1].map(|station| {
                let nic = fabric.nic(station).unwrap();
                Box::new(Late(nic, Duration::from_millis(late[station]))) as Box<dyn Provider>
            });
            let pair = connected(fabric, providers, Reliability::ReliableDelivery, 4, 2);
            let begin = [0, 1].map(|station| pair.fabric.time(station).ps());
            (begin, pair.latency_us(64, 3), pair.fabric.time(0).ps(), pair.fabric.counts(1))
        });
        assert_eq!(measured[0], measured[1], "{kind:?}: the server or the client was late");
    }
}
