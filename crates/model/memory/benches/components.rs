//! Host time per operation of each component. Run with `cargo bench -p longma-memory --bench components`.

use longma_memory::dram::Controllers;
use longma_memory::interconnect::{Endpoint, Interconnect};
use longma_memory::placement::{AddressSpaces, FrameOrder, PhysicalPage, SpaceId};
use longma_memory::translation::{Side, Tlbs};
use longma_random::mix;
use longma_sim::{Duration, Resource, Time};
use longma_topology::Machine;
use std::hint::black_box;

const TURNS: u64 = 4_000_000;

/// CPU time of this thread in nanoseconds, unaffected by other load on the host.
fn processor_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(f64::NAN)
}

/// Prints the mean CPU time of one call; the best of three runs.
fn measure(name: &str, mut turn: impl FnMut(u64) -> u64) {
    let mut best = f64::INFINITY;
    for _ in 0..3 {
        let start = processor_ns();
        let sum = (0..TURNS).fold(0u64, |sum, i| sum.wrapping_add(turn(i)));
        black_box(sum);
        best = best.min((processor_ns() - start) / TURNS as f64);
    }
    println!("{name:<58} {best:6.1} ns");
}

fn resources() {
    let new = || Resource::new(40_000_000_000, Duration::from_ps(1 << 16));
    let (mut resource, mut base) = (new(), 0);
    measure("Resource::acquire, 25 % of the rate, in time order", |_| {
        base += 6400;
        resource.acquire(Time::from_ps(base), 64).ps()
    });
    let (mut resource, mut base) = (new(), 0);
    measure("Resource::acquire, 50 %, four cores in turn, a quantum each", |i| {
        base += if i % 1000 == 0 { 800_000 } else { 0 };
        resource.acquire(Time::from_ps(base + i % 250 * 3200), 64).ps()
    });
    let (mut resource, mut base) = (new(), 0);
    measure("Resource::acquire, 400 %, four cores in turn, a quantum each", |i| {
        base += if i % 1000 == 0 { 400_000 } else { 0 };
        resource.acquire(Time::from_ps(base + i % 250 * 1600), 64).ps()
    });
}

fn controllers(machine: &Machine) {
    let new = || Controllers::new(machine, 0).expect("a machine with memory");
    let (mut controllers, mut at) = (new(), 0);
    measure("Controllers::access, random reads", |i| {
        at += 100_000;
        controllers.access((i & 1) as usize, mix(i) >> 32 << 6, 64, false, Time::from_ps(at)).ps()
    });
    let (mut controllers, mut at) = (new(), 0);
    measure("Controllers::access, a stream of reads", |i| {
        at += 3000;
        controllers.access((i >> 2 & 1) as usize, i << 6, 64, false, Time::from_ps(at)).ps()
    });
}

fn interconnect(machine: &Machine) {
    let mut interconnect = Interconnect::new(machine, 0).expect("a machine with memory");
    let cache = machine.layout().hosts[0].cores[0].caches.last().copied().unwrap_or(0);
    let mut at = 0;
    measure("Interconnect::cross, a request without data", |i| {
        let core = Endpoint::Core((i & 3) as usize);
        interconnect.cross(core, Endpoint::Cache(cache), 0, Time::from_ps(i)).ps()
    });
    measure("Interconnect::cross, a line through one crossbar", |i| {
        at += 3000;
        let core = Endpoint::Core((i & 3) as usize);
        interconnect.cross(Endpoint::Cache(cache), core, 64, Time::from_ps(at)).ps()
    });
}

fn translations(machine: &Machine) {
    let core = &machine.cores["la464"];
    let frame = |page: u64| PhysicalPage(page + 7);
    for (what, pages) in [("one page", 1), ("48 pages", 48), ("1000 pages", 1000), ("100,000 pages", 100_000)]
    {
        let mut tlbs = Tlbs::new(core, 16 << 10);
        measure(&format!("Tlbs::translate, {what} at random"), |i| {
            let page = mix(i) % pages;
            tlbs.translate(Side::Data, SpaceId(0), page, || frame(page)).page.0
        });
    }
    let mut spaces = AddressSpaces::new(machine, 0, 16 << 10, FrameOrder::Shuffled { seed: 0 })
        .expect("a machine with memory");
    measure("AddressSpaces::translate, 1 GiB at random", |i| {
        let page = spaces.translate(SpaceId(0), mix(i) % 65_536, 0).0;
        spaces.controller_of(page << 14).1
    });
}

fn main() {
    let machine = Machine::open("loongson-3a5000").expect("a built-in machine");
    resources();
    controllers(&machine);
    interconnect(&machine);
    translations(&machine);
}
