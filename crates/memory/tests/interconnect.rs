//! Ways through the hosts of the built-in machines.

use longma_memory::interconnect::{Interconnect, Place};
use longma_sim::Time;
use longma_topology::{BUILTIN, Machine};

fn interconnect(name: &str) -> Interconnect {
    Interconnect::new(&Machine::open(name).unwrap(), 0).unwrap()
}

/// The cache of type `name` that core `core` reaches.
fn cache_of(machine: &Machine, core: usize, name: &str) -> Place {
    let host = &machine.layout().hosts[0];
    let number = host.cores[core].caches.iter().find(|c| host.caches[**c].cache == name);
    Place::Cache(*number.unwrap())
}

#[test]
fn every_place_of_every_built_in_machine_reaches_every_other() {
    for builtin in BUILTIN {
        let machine = Machine::open(builtin.name).unwrap();
        for (index, host) in machine.layout().hosts.iter().enumerate() {
            let mut interconnect = Interconnect::new(&machine, index).unwrap();
            let mut places: Vec<Place> = (0..host.cores.len()).map(Place::Core).collect();
            places.extend((0..host.caches.len()).map(Place::Cache));
            let controllers = host.nodes.iter().map(|n| n.memories.len()).sum();
            places.extend((0..controllers).map(Place::Controller));
            for from in &places {
                for to in &places {
                    let ps = interconnect.idle_ps(*from, *to, 64);
                    assert_eq!(
                        from == to && ps > 0,
                        false,
                        "{}: {from:?} to itself takes {ps} ps",
                        builtin.name
                    );
                    assert!(ps < 1_000_000, "{}: {from:?} to {to:?} takes {ps} ps", builtin.name);
                    let direct = machine.chips[&host.chips[0]].crossbars.is_empty();
                    if let (false, Place::Core(_), Place::Controller(_)) = (direct, from, to) {
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
    let Place::Cache(number) = l3 else { unreachable!() };
    assert_eq!(
        interconnect.way(Place::Core(2), l3),
        ["chip0.x1.core2.in".to_string(), format!("chip0.x1.l3{number}.out")]
    );
    assert_eq!(
        interconnect.way(Place::Controller(1), l3),
        ["chip0.x2.memory1.in".to_string(), format!("chip0.x2.l3{number}.out")]
    );
    // 64 bytes at 16 a cycle of 400 ps, and two cycles through.
    assert_eq!(interconnect.idle_ps(l3, Place::Core(2), 64), 4 * 400 + 2 * 400);
    assert_eq!(interconnect.idle_ps(Place::Core(2), l3, 0), 2 * 400);
}

#[test]
fn an_idle_interconnect_takes_the_idle_time() {
    for builtin in BUILTIN {
        let mut interconnect = interconnect(builtin.name);
        let (from, to) = (Place::Controller(0), Place::Core(0));
        for (turn, bytes) in [0, 1, 64, 200].into_iter().enumerate() {
            let at = 1_000_000 * (1 + turn as u64);
            let expected = at + interconnect.idle_ps(from, to, bytes);
            assert_eq!(interconnect.cross(from, to, bytes, Time::from_ps(at)).ps(), expected);
        }
    }
}
