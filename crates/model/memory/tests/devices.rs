//! Devices, line lock, way partitioning and prefetchers, as programs and drivers observe them. The unit tests of the
//! crate test coherence under random programs.

use longma_memory::interconnect::{Endpoint, MAX_SKEW};
use longma_memory::placement::SpaceId;
use longma_memory::{Allocate, Detail, LockWindow, MemoryPort, MemorySystem, Requester, Source};
use longma_sim::{Cycle, Duration, Statistics, Time, Value};
use longma_topology::{BUILTIN, Machine};

fn system(name: &str, detail: Detail) -> MemorySystem {
    MemorySystem::new(&Machine::open(name).unwrap(), 0, detail, 1).unwrap()
}

/// Translates a virtual address.
fn physical(system: &mut MemorySystem, address: u64) -> u64 {
    let page = system.spaces().page_bytes();
    system.spaces().translate(SpaceId(0), address / page, 0).0 * page + address % page
}

fn count(system: &MemorySystem, name: &str) -> u64 {
    let mut statistics = Statistics::default();
    system.report(&mut statistics, Duration::from_ps(1_000_000)).unwrap();
    match statistics.get(name).map(|s| &s.value) {
        Some(Value::Counter(counter)) => counter.value(),
        _ => 0,
    }
}

fn load(system: &mut MemorySystem, core: usize, address: u64) -> Source {
    system.port(core).load(address, 8, 0x100, Cycle(0)).source
}

#[test]
fn a_device_write_to_memory_invalidates_the_line_in_every_core() {
    let mut system = system("godson3", Detail::Counts);
    let at = physical(&mut system, 0x4000);
    let mac = system.interconnect().port("chip0.mac0").unwrap();
    for core in 0..4 {
        load(&mut system, core, 0x4000);
    }
    system.device_write(mac, at, 32, Allocate::No, Time::ZERO);
    assert_eq!(load(&mut system, 2, 0x4000), Source::LocalMemory);
    assert_eq!(system.check(), Ok(()));
}

#[test]
fn a_device_write_into_the_shared_cache_hits_later() {
    let mut system = system("godson3", Detail::Timing);
    let at = physical(&mut system, 0x4000);
    let mac = system.interconnect().port("chip0.mac0").unwrap();
    let end = system.device_write(mac, at, 1500, Allocate::Shared { ways: 2 }, Time::ZERO);
    assert!(end > Time::ZERO && end < Time::from_ps(2_000_000), "1500 bytes took {end}");
    assert_eq!(load(&mut system, 1, 0x4000), Source::Level2);
    assert_eq!(load(&mut system, 1, 0x4000 + 1490), Source::Level2);
    assert_eq!(count(&system, "l2.dca_fills"), 47);
    assert_eq!(system.check(), Ok(()));
}

#[test]
fn device_writes_do_not_evict_lines_in_ways_beyond_their_limit() {
    let mut system = system("godson3", Detail::Counts);
    let mac = system.interconnect().port("chip0.mac0").unwrap();
    // The program's data fills half of each set of the 4 MiB, 4-way cache; packets are written over the whole cache.
    let bytes = 2 << 20;
    for address in (0..bytes).step_by(32) {
        load(&mut system, 0, address);
    }
    let fill = |system: &mut MemorySystem, ways| {
        for packet in 0..(16u64 << 20) / 32 {
            system.device_write(mac, (1 << 30) + packet * 32, 32, Allocate::Shared { ways }, Time::ZERO);
        }
    };
    let survivors = |system: &mut MemorySystem| {
        let lines = (0..bytes).step_by(32 * 97);
        let all = lines.clone().count();
        let cached_count = lines.filter(|a| load(system, 0, *a) != Source::LocalMemory).count();
        cached_count as f64 / all as f64
    };
    fill(&mut system, 1);
    let limited = survivors(&mut system);
    for address in (0..bytes).step_by(32) {
        load(&mut system, 0, address);
    }
    fill(&mut system, 4);
    let unlimited = survivors(&mut system);
    // The single way that devices may fill held half of the data, because data fills the lowest ways first.
    assert!(limited > 0.45 && unlimited < 0.1, "{limited} of the lines survived one way, {unlimited} four");
    assert!(count(&system, "l2.dca_leaks") > 100_000);
}

#[test]
fn locked_lines_survive_any_flood_and_devices_write_straight_into_them() {
    let mut system = system("loongson-3a5000", Detail::Counts);
    let at = physical(&mut system, 0);
    system.set_lock_window(0, 0, Some(LockWindow { base: at, mask: !0x3fff })).unwrap();
    let io = system.interconnect().port("chip0.io").unwrap();
    let window = || (0..0x4000u64).step_by(64);
    for address in window() {
        load(&mut system, 0, address);
    }
    for line in 0..(64u64 << 20) / 64 {
        load(&mut system, 1, (1 << 26) + line * 64);
    }
    assert!(window().all(|a| load(&mut system, 2, a) == Source::Level3), "a locked line was evicted");
    let writes = count(&system, "memory.line_writes");
    system.device_write(io, at, 0x4000, Allocate::LockedOnly, Time::ZERO);
    assert_eq!(count(&system, "memory.line_writes"), writes, "a write to a locked line went to memory");
    assert!(window().all(|a| load(&mut system, 3, a) == Source::Level3));
    // Outside the window, the same kind of write goes to memory.
    system.device_write(io, at + 0x10_0000, 64, Allocate::LockedOnly, Time::ZERO);
    assert_eq!(count(&system, "memory.line_writes"), writes + 1);
    assert_eq!(system.check(), Ok(()));
    system.set_lock_window(0, 0, None).unwrap();
    for line in 0..(64u64 << 20) / 64 {
        load(&mut system, 1, (1 << 26) + line * 64);
    }
    assert_eq!(load(&mut system, 2, 0), Source::LocalMemory);
}

#[test]
fn one_way_of_each_set_stays_unlocked() {
    let mut system = system("loongson-3a5000", Detail::Counts);
    // The window contains all addresses; without the limit, all 16 ways would be locked.
    system.set_lock_window(0, 1, Some(LockWindow { base: 0, mask: 0 })).unwrap();
    for line in 0..(32u64 << 20) / 64 {
        load(&mut system, 0, line * 64);
    }
    assert_eq!(system.check(), Ok(()));
    assert_eq!(count(&system, "l3.locked"), 15 * (16 << 20) / 64 / 16);
    assert!(count(&system, "l3.lock_refusals") > 0);
    assert!(system.set_lock_window(0, 4, None).unwrap_err().to_string().contains("no lock window 4"));
}

#[test]
fn a_core_confined_to_one_way_does_not_disturb_its_neighbour() {
    let survivors = |confined: bool| {
        let mut system = system("loongson-3a4000", Detail::Counts);
        if confined {
            system.set_ways(Requester::Core(1), 1);
        }
        let buffer = || (0..4u64 << 20).step_by(64);
        for address in buffer() {
            load(&mut system, 0, address);
        }
        for line in 0..(32u64 << 20) / 64 {
            load(&mut system, 1, (1 << 26) + line * 64);
        }
        // The lines are far apart, so that no prefetcher fetches them.
        let sampled = || buffer().step_by(67);
        sampled().filter(|a| load(&mut system, 0, *a) != Source::LocalMemory).count() as f64
            / sampled().count() as f64
    };
    let (confined, free) = (survivors(true), survivors(false));
    assert!(confined > 0.85 && free < 0.2, "{confined} survived a confined neighbour, {free} a free one");
}

#[test]
fn a_stream_prefetcher_hides_memory_from_a_sequential_reader() {
    let text = Machine::text("zns-host").unwrap().1;
    let prefetcher = "[caches.l2.prefetcher]\nkind = \"stream\"\ndegree = 4\ndistance = 16\nsource = \"zen3\"\n\n[caches.l3]\n";
    let with = text.replace("[caches.l3]\n", prefetcher);
    let run = |text: &str| {
        let mut system =
            MemorySystem::new(&Machine::parse("m", text).unwrap(), 0, Detail::Timing, 1).unwrap();
        let (mut now, mut port) = (0, system.port(0));
        for line in 0..20_000u64 {
            now = port.load(line * 64, 8, 0x100, Cycle(now)).ready.0;
        }
        assert_eq!(system.check(), Ok(()));
        (now, count(&system, "core0.l2.useful_prefetches"), count(&system, "core0.l2.prefetched"))
    };
    let (slow, none, _) = run(&text);
    let (fast, useful, prefetched) = run(&with);
    assert_eq!(none, 0);
    assert!(
        useful * 10 > prefetched * 9 && useful > 14_000,
        "{useful} of {prefetched} prefetches were useful"
    );
    assert!(fast * 3 < slow, "{fast} cycles with the prefetcher, {slow} without");
}

/// Once the first level's prefetcher follows a stream, only its requests reach the second level. They must train the
/// second level's prefetcher; otherwise its stream would end as soon as the first level is ahead of the reader.
#[test]
fn prefetches_of_the_first_level_continue_the_streams_of_the_second() {
    let text = Machine::text("zns-host").unwrap().1;
    let second = "[caches.l2.prefetcher]\nkind = \"stream\"\ndegree = 4\ndistance = 16\nsource = \"zen3\"\n\n[caches.l3]\n";
    let first =
        "[caches.l1d.prefetcher]\nkind = \"next-line\"\ndegree = 2\nsource = \"zen3\"\n\n[caches.l2]\n";
    let with_second = text.replace("[caches.l3]\n", second);
    let with_both = with_second.replace("[caches.l2]\n", first);
    const LINES: u64 = 20_000;
    let run = |text: &str| {
        let mut system =
            MemorySystem::new(&Machine::parse("m", text).unwrap(), 0, Detail::Timing, 1).unwrap();
        let (mut now, mut port) = (0, system.port(0));
        for line in 0..LINES {
            now = port.load(line * 64, 8, 0x100, Cycle(now)).ready.0;
        }
        assert_eq!(system.check(), Ok(()));
        let useful = |cache: &str| count(&system, &format!("core0.{cache}.useful_prefetches"));
        (now, useful("l1d"), useful("l2"))
    };
    let (together, of_first, of_second) = run(&with_both);
    assert!(of_first * 10 > LINES * 9, "prefetches of the first level: {of_first}");
    assert!(of_second * 10 > LINES * 7, "prefetches of the second level: {of_second}");
    let (without_device, ..) = run(&with_second);
    assert!(
        together < without_device,
        "both took {together} cycles, the second level's alone {without_device}"
    );
}

#[test]
fn a_line_modified_by_another_core_is_read_from_that_core() {
    let mut system = system("loongson-3a5000", Detail::Timing);
    let write = system.port(0).store(0x4000, 8, 0, Cycle(0));
    let start = write.ready.0;
    let read = system.port(1).load(0x4000, 8, 0, Cycle(start));
    assert_eq!(read.source, Source::Peer);
    let duration = read.ready.0 - start - u64::from(read.translation_cycles);
    assert!((41..300).contains(&duration), "a transfer took {duration} cycles");
    assert_eq!(system.port(2).load(0x4000, 8, 0, Cycle(read.ready.0)).source, Source::Level3);
}

/// Cores are simulated one after another, and a device's transfer is reserved as a whole, so requests do not arrive in
/// time order.
#[test]
fn a_hit_in_the_shared_cache_does_not_wait_for_requests_microseconds_later() {
    for builtin in BUILTIN {
        let mut system = system(builtin.name, Detail::Timing);
        if system.cores() < 2 {
            continue;
        }
        let (first, second) = (0x4000, 0x4000 + 32 * system.line_bytes());
        for address in [first, second] {
            load(&mut system, 0, address);
        }
        let hit = |system: &mut MemorySystem, address, at| {
            let answer = system.port(1).load(address, 8, 0x100, Cycle(at));
            answer.ready.0 - at - u64::from(answer.translation_cycles)
        };
        let (early, now) = (Duration::from_ps(100_000_000), Duration::from_ps(200_000_000));
        let at = system.cycles_of(1, early);
        let idle = hit(&mut system, first, at);
        // Sixteen lines go to all banks later, almost as late as the permitted skew allows.
        let later = now.ps() + MAX_SKEW.ps() - 1_000_000;
        let bytes = 16 * system.line_bytes();
        system.device_write(
            Endpoint::Core(0),
            1 << 30,
            bytes,
            Allocate::Shared { ways: 1 },
            Time::from_ps(later),
        );
        let at = system.cycles_of(1, now);
        let level = hit(&mut system, second, at);
        assert!(level <= idle + 2, "{}: {level} cycles, {idle} on an idle machine", builtin.name);
    }
}

#[test]
fn misses_beyond_the_registers_wait() {
    let mut system = system("sandybridge-2x6", Detail::Timing);
    system.port(0).load(0, 8, 0, Cycle(0));
    let mut port = system.port(0);
    let at = 100_000;
    // An order of lines and instructions that no prefetcher recognizes.
    let scattered = [33, 5, 58, 12, 47, 21, 62, 9, 39, 27, 51, 2, 44, 16, 60, 30, 7, 55, 36, 19].into_iter();
    let load =
        |(n, line): (usize, u64)| port.load(line * 64, 8, 0x1000 + 4 * n as u64, Cycle(at)).ready.0 - at;
    let ready: Vec<u64> = scattered.enumerate().map(load).collect();
    // Ten line fill buffers: the eleventh miss waits until the first line returns.
    assert!(ready[..10].iter().all(|r| *r < 400), "{ready:?}");
    assert!(ready[10] > ready[0] + 100, "{ready:?}");
    assert!(count(&system, "core0.l1d.mshr_waits") >= 10);
}

#[test]
fn the_same_seed_gives_the_same_bits() {
    let run = || {
        let mut system = system("godson3", Detail::Timing);
        let mut state = 1u64;
        for n in 0..30_000u64 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let address = (state >> 33) % (8 << 20);
            let mut port = system.port((state >> 60) as usize % 4);
            if n % 3 == 0 {
                port.store(address & !7, 8, 0, Cycle(n * 10));
            } else {
                port.load(address & !7, 8, 0, Cycle(n * 10));
            }
        }
        let mut statistics = Statistics::default();
        system.report(&mut statistics, Duration::from_ps(1_000_000)).unwrap();
        statistics.to_text()
    };
    assert_eq!(run(), run());
}

#[test]
fn devices_contend_with_cores_whose_clock_is_ahead() {
    let (at, lead) = (Time::from_ps(3_000_000), Duration::from_ps(5_000_000));
    let load_takes = |ahead: Duration, busy: bool| {
        let mut system = system("godson3", Detail::Timing);
        let line = physical(&mut system, 0x4000);
        let mac = system.interconnect().port("chip0.mac0").unwrap();
        system.port(0).load(0x10_0000, 8, 0x100, Cycle(0));
        system.set_lead(ahead);
        // The device keeps the controllers busy at the time of the load, which the core's clock determines.
        if busy {
            (0..8).for_each(|_| _ = system.device_write(mac, line, 8192, Allocate::No, at));
        }
        let cycle = (at.checked_add(ahead).unwrap().ps() * 8).div_ceil(10_000);
        system.port(0).load(0x10_1000, 8, 0x100, Cycle(cycle)).ready.0 - cycle
    };
    let [alone, busy, busy_ahead] = [(Duration::ZERO, false), (Duration::ZERO, true), (lead, true)]
        .map(|case| load_takes(case.0, case.1));
    assert!(busy > alone * 3 / 2, "{busy} and {alone} cycles");
    // Refreshes fall at other times.
    assert!(busy_ahead.abs_diff(busy) < busy / 5, "{busy_ahead} and {busy} cycles");
}

/// How long a device waits for a line, ns, on `godson3` with `from` replaced by `to`: from memory, and from the shared
/// cache.
fn a_device_waits(from: &str, to: &str) -> [f64; 2] {
    let (_, text) = Machine::text("godson3").unwrap();
    assert_eq!(text.matches(from).count(), 1, "{from}");
    let machine = Machine::parse("test.toml", &text.replace(from, to)).unwrap();
    let mut system = MemorySystem::new(&machine, 0, Detail::Timing, 1).unwrap();
    let mac = system.interconnect().port("chip0.mac0").unwrap();
    let (cold, warm) = (physical(&mut system, 0x4000), physical(&mut system, 0x8000));
    load(&mut system, 0, 0x8000);
    // Much later, when nothing is in flight.
    let at = Time::from_ps(50_000_000);
    [cold, warm].map(|address| (system.device_read(mac, address, 32, at).ps() - at.ps()) as f64 / 1000.0)
}

#[test]
fn a_device_waits_for_memory_and_the_shared_cache_for_their_stated_latencies() {
    let usual = a_device_waits("latency = \"170 ns\"", "latency = \"170 ns\"");
    // A core's latency includes its own caches: 170 ns in total, and 43.75 ns to the second level.
    assert!((100.0..170.0).contains(&usual[0]), "{usual:?}");
    assert!((10.0..44.0).contains(&usual[1]), "{usual:?}");
    let slow_memory = a_device_waits("latency = \"170 ns\"", "latency = \"1170 ns\"");
    assert!((slow_memory[0] - usual[0] - 1000.0).abs() < 60.0, "{usual:?}, {slow_memory:?}");
    assert_eq!(slow_memory[1], usual[1]);
    let slow_cache = a_device_waits("latency = \"35 cycles\"", "latency = \"65 cycles\"");
    // 30 cycles at 800 MHz.
    assert!((slow_cache[1] - usual[1] - 37.5).abs() < 1.0, "{usual:?}, {slow_cache:?}");
}
