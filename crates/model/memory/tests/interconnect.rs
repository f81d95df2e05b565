//! Routes, latencies and bandwidths in the hosts of the built-in machines.

use longma_memory::interconnect::{Endpoint, Interconnect};
use longma_sim::Time;
use longma_topology::{BUILTIN, Machine};

fn interconnect(name: &str) -> Interconnect {
    Interconnect::new(&Machine::open(name).unwrap(), 0).unwrap()
}

/// The cache of type `name` that core `core` reaches.
fn cache_of(machine: &Machine, core: usize, name: &str) -> Endpoint {
    let host = &machine.layout().hosts[0];
    let number = host.cores[core].caches.iter().find(|c| host.caches[**c].cache == name);
    Endpoint::Cache(*number.unwrap())
}

#[test]
fn every_endpoint_of_every_builtin_machine_reaches_every_other() {
    for builtin in BUILTIN {
        let machine = Machine::open(builtin.name).unwrap();
        for (index, host) in machine.layout().hosts.iter().enumerate() {
            let mut interconnect = Interconnect::new(&machine, index).unwrap();
            let mut endpoints: Vec<Endpoint> = (0..host.cores.len()).map(Endpoint::Core).collect();
            endpoints.extend((0..host.caches.len()).map(Endpoint::Cache));
            let controllers = host.nodes.iter().map(|n| n.memories.len()).sum();
            endpoints.extend((0..controllers).map(Endpoint::Controller));
            for from in &endpoints {
                for to in &endpoints {
                    let ps = interconnect.idle_ps(*from, *to, 64);
                    if from == to {
                        assert_eq!(ps, 0, "{}: {from:?} to itself takes time", builtin.name);
                    }
                    assert!(ps < 1_000_000, "{}: {from:?} to {to:?} takes {ps} ps", builtin.name);
                    let direct = machine.chips[&host.chips[0]].crossbars.is_empty();
                    if let (false, Endpoint::Core(_), Endpoint::Controller(_)) = (direct, from, to) {
                        assert!(ps > 0, "{}: {from:?} to {to:?} takes no time", builtin.name);
                    }
                }
            }
        }
    }
}

#[test]
fn a_core_of_the_3a5000_reaches_its_cache_by_x1_and_memory_by_x2() {
    let machine = Machine::open("loongson-3a5000").unwrap();
    let mut interconnect = interconnect("loongson-3a5000");
    let l3 = cache_of(&machine, 2, "l3");
    let Endpoint::Cache(number) = l3 else { unreachable!() };
    assert_eq!(
        interconnect.route(Endpoint::Core(2), l3),
        ["chip0.x1.core2.in".to_string(), format!("chip0.x1.l3{number}.out")]
    );
    assert_eq!(
        interconnect.route(Endpoint::Controller(1), l3),
        ["chip0.x2.memory1.in".to_string(), format!("chip0.x2.l3{number}.out")]
    );
    // 64 bytes at 16 per cycle of 400 ps, and two cycles to cross.
    assert_eq!(interconnect.idle_ps(l3, Endpoint::Core(2), 64), 4 * 400 + 2 * 400);
    assert_eq!(interconnect.idle_ps(Endpoint::Core(2), l3, 0), 2 * 400);
}

#[test]
fn a_transfer_on_an_idle_interconnect_takes_the_idle_time() {
    for builtin in BUILTIN {
        let mut interconnect = interconnect(builtin.name);
        let (from, to) = (Endpoint::Controller(0), Endpoint::Core(0));
        for (turn, bytes) in [0, 1, 64, 200].into_iter().enumerate() {
            let at = 1_000_000 * (1 + turn as u64);
            let expected = at + interconnect.idle_ps(from, to, bytes);
            assert_eq!(interconnect.cross(from, to, bytes, Time::from_ps(at)).ps(), expected);
        }
    }
}

/// A built-in machine with `from` replaced by `to` in its machine file.
fn changed(name: &str, from: &str, to: &str) -> Machine {
    let (file, text) = Machine::text(name).unwrap();
    assert!(text.contains(from), "{name} has no `{from}`");
    Machine::parse(&file, &text.replace(from, to)).unwrap_or_else(|report| panic!("{report}"))
}

/// Additional latency of a load from node `to`'s memory by a core of node `from`, compared with a core of `to`,
/// picoseconds.
fn extra_of_remote(machine: &Machine, interconnect: &mut Interconnect, from: usize, to: usize) -> u64 {
    let host = &machine.layout().hosts[0];
    let memory = Endpoint::Controller(host.nodes.iter().take(to).map(|n| n.memories.len()).sum());
    let mut load = |node: usize| {
        let core = Endpoint::Core(host.nodes[node].cores[0]);
        interconnect.idle_ps(core, memory, 0) + interconnect.idle_ps(memory, core, 64)
    };
    load(from) - load(to)
}

#[test]
fn remote_memory_has_the_additional_latency_stated_in_the_machine_file() {
    for name in ["hygon-8node", "sandybridge-2x6"] {
        let machine = Machine::open(name).unwrap();
        let stated = machine.hosts[0].distances.as_ref().unwrap().latency.as_ref().unwrap();
        let mut interconnect = interconnect(name);
        for (from, row) in stated.rows.iter().enumerate() {
            for (to, latency) in row.iter().enumerate() {
                let expected = latency.ps() - stated.rows[to][to].ps();
                let actual = extra_of_remote(&machine, &mut interconnect, from, to);
                assert!(
                    actual.abs_diff(expected) <= 2,
                    "{name}, {from} to {to}: {actual} ps, stated {expected} ps"
                );
            }
        }
    }
}

#[test]
fn a_route_between_nodes_without_a_link_uses_two_links() {
    let mut interconnect = interconnect("hygon-8node");
    let links = |way: Vec<&str>| way.iter().filter(|c| c.starts_with("links.")).count();
    assert_eq!(links(interconnect.route(Endpoint::Core(0), Endpoint::Controller(0))), 0);
    assert_eq!(links(interconnect.route(Endpoint::Core(0), Endpoint::Controller(3))), 1);
    assert_eq!(links(interconnect.route(Endpoint::Core(0), Endpoint::Controller(4))), 1);
    assert_eq!(links(interconnect.route(Endpoint::Core(0), Endpoint::Controller(7))), 2);
}

/// Bytes a second when each of `ways` transfers `requests` lines, all requested at once.
fn throughput(interconnect: &mut Interconnect, ways: &[(Endpoint, Endpoint)], requests: u64) -> f64 {
    let mut end = 0;
    for _ in 0..requests {
        for (from, to) in ways {
            end = end.max(interconnect.cross(*from, *to, 64, Time::ZERO).ps());
        }
    }
    (requests * ways.len() as u64 * 64) as f64 / (end as f64 * 1e-12)
}

#[test]
fn the_rate_of_a_link_limits_transfers_between_nodes() {
    let mut interconnect = interconnect("hygon-8node");
    let ways: Vec<_> = (0..8).map(|core| (Endpoint::Controller(1), Endpoint::Core(core))).collect();
    let actual = throughput(&mut interconnect, &ways, 1000);
    assert!((20.5e9..21.3e9).contains(&actual), "{actual} bytes per second over a link of 21.3 GB/s");
}

#[test]
fn two_parallel_links_carry_twice_as_much() {
    let mut interconnect = interconnect("sandybridge-2x6");
    let ways: Vec<_> = (6..12).map(|core| (Endpoint::Controller(0), Endpoint::Core(core))).collect();
    let got = throughput(&mut interconnect, &ways, 1000);
    assert!((31e9..32e9).contains(&got), "{got} bytes per second over two links of 16 GB/s");
}

#[test]
fn crossbar_ports_transfer_concurrently_and_a_bus_serializes() {
    let machine = Machine::open("loongson-3a5000").unwrap();
    let mut crossbar = interconnect("loongson-3a5000");
    let ways: Vec<_> = (0..4).map(|core| (cache_of(&machine, core, "l3"), Endpoint::Core(core))).collect();
    // Each core's port takes 16 bytes per cycle; the cache has four banks.
    let actual = throughput(&mut crossbar, &ways, 1000);
    assert!((155e9..160.1e9).contains(&actual), "{actual} bytes per second by four ports of 40 GB/s");
    let mut bus = interconnect("piii-myrinet");
    let ways = [(Endpoint::Controller(0), Endpoint::Core(0)), (Endpoint::Core(1), Endpoint::Controller(0))];
    let actual = throughput(&mut bus, &ways, 1000);
    assert!((1.0e9..1.065e9).contains(&actual), "{actual} bytes per second on a bus of 8 bytes at 133 MHz");
}

#[test]
fn separate_channels_for_reads_and_writes_do_not_disturb_each_other() {
    let ways = [(Endpoint::Controller(0), Endpoint::Cache(0)), (Endpoint::Cache(0), Endpoint::Controller(0))];
    let rate = |machine: &Machine| {
        let host = &machine.layout().hosts[0];
        let l3 = Endpoint::Cache(*host.cores[0].caches.last().unwrap());
        let ways = ways.map(|(from, to)| {
            let endpoint_of = |p| if p == Endpoint::Cache(0) { l3 } else { p };
            (endpoint_of(from), endpoint_of(to))
        });
        throughput(&mut Interconnect::new(machine, 0).unwrap(), &ways, 1000)
    };
    let separate = rate(&Machine::open("loongson-3a5000").unwrap());
    let width = "width = \"128 bit\"\nlatency = \"2 cycles\"";
    let joint = rate(&changed("loongson-3a5000", width, &format!("{width}\nseparate_read_write = false")));
    assert!((separate / joint - 2.0).abs() < 0.05, "{separate} and {joint} bytes per second");
}

#[test]
fn a_host_without_crossbars_and_links_is_connected() {
    let link = "[[hosts.links]]\nname = \"qpi0\"";
    let (_, text) = Machine::text("sandybridge-2x6").unwrap();
    let links = text.find(link).unwrap()..text.find("[hosts.distances]").unwrap();
    let machine = changed("sandybridge-2x6", &text[links], "");
    let mut interconnect = Interconnect::new(&machine, 0).unwrap();
    assert_eq!(extra_of_remote(&machine, &mut interconnect, 0, 1).div_ceil(1000), 52);
    let route = interconnect.route(Endpoint::Core(0), Endpoint::Controller(1));
    assert!(route.contains(&"links.assumed0_1.node0_to_node1"), "{route:?}");
}

#[test]
fn ports_are_found_by_the_names_that_devices_use() {
    let mut interconnect = interconnect("godson3");
    let mac = interconnect.port("chip0.mac1").unwrap();
    assert_eq!(mac, Endpoint::Port { chip: 0, index: 1 });
    assert_eq!(interconnect.port("chip0.mac2"), None);
    assert_eq!(interconnect.port("chip1.mac0"), None);
    assert_eq!(interconnect.port("mac0"), None);
    let l2 = cache_of(&Machine::open("godson3").unwrap(), 0, "l2");
    assert_eq!(interconnect.route(mac, l2)[0], "chip0.x1.mac1.in");
    // The wires of HyperTransport, 16 bits at 1600 MT/s, are narrower than the crossbar.
    let ht = interconnect.port("chip0.ht0").unwrap();
    assert_eq!(interconnect.route(l2, ht).last(), Some(&"chip0.ht0.wires.out"));
    assert!(interconnect.idle_ps(l2, ht, 64) >= 64 * 1_000_000 / 3_200);
}

#[test]
fn an_unknown_host_is_an_error_that_states_the_number_of_hosts() {
    let error = Interconnect::new(&Machine::open("sandybridge-2x6").unwrap(), 2).unwrap_err();
    assert_eq!(
        error.to_string(),
        "machine `sandybridge-2x6` has 2 hosts, so there is no host 2: number them from 0"
    );
}

#[test]
fn statistics_name_every_channel_and_its_bytes() {
    let mut interconnect = interconnect("loongson-3a5000");
    interconnect.cross(Endpoint::Controller(0), Endpoint::Core(1), 64, Time::ZERO);
    let mut statistics = longma_sim::Statistics::default();
    let elapsed = longma_sim::Duration::from_ps(16_000);
    interconnect.report(&mut statistics, "interconnect", elapsed).unwrap();
    let json = statistics.to_json();
    let port = &json["interconnect"]["chip0"]["x1"]["core1"]["out"];
    assert_eq!(port["bytes"]["value"], 64);
    assert_eq!(port["utilisation"]["value"], 0.1);
    assert_eq!(json["interconnect"]["chip0"]["x1"]["core0"]["out"]["bytes"]["value"], 0);
    interconnect.clear_statistics();
    assert!(interconnect.channels().iter().all(|c| c.bytes() == 0));
}
