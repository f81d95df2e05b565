//! Tests that the engine answers every register access and completes transfers of zero bytes.

use crate::machine::*;
use longma_devices::Device;
use longma_devices::idma::MAP;
use longma_sim::Time;
use proptest::prelude::*;

fn access() -> impl Strategy<Value = (u64, u32, u64, bool, u64)> {
    let offset = prop_oneof![
        6 => (0u64..4, 0u64..22).prop_map(|(channel, register)| channel * 0x100 + register * 8),
        1 => (0u64..6).prop_map(|register| 0x800 + register * 8),
        1 => 0u64..0x2000,
        1 => any::<u64>(),
    ];
    let value = prop_oneof![
        any::<u64>(),
        Just(u64::MAX),
        0u64..0x400,
        (0u64..6000).prop_map(|n| MEMORY + n),
        (0u64..6000).prop_map(|n| STORE + n),
    ];
    let width = prop_oneof![5 => Just(8u32), 1 => 0u32..20];
    (offset, width, value, any::<bool>(), 0u64..200_000)
}

proptest! {
    #[test]
    fn no_access_panics_hangs_or_reverses_time(
        accesses in proptest::collection::vec(access(), 1..200), seed in any::<u64>(),
    ) {
        let mut machine = Machine::new(4096, seed);
        for (offset, width, value, write, ps) in accesses {
            if write {
                machine.idma.write(offset, width, value, machine.now, &mut machine.bus);
            } else {
                machine.idma.read(offset, width, machine.now, &mut machine.bus);
            }
            machine.pass(ps);
            prop_assert!(machine.idma.next_event().is_none_or(|at| at > machine.now));
            let text = serde_json::to_string(machine.idma.state()).unwrap();
            let state = serde_json::from_str(&text).unwrap();
            prop_assert!(longma_devices::idma::Idma::restore(spec(), state).is_ok(), "{}", text);
        }
    }
}

#[test]
fn written_registers_read_back() {
    let mut machine = Machine::new(4096, 1);
    for register in MAP.blocks[0].registers.iter().filter(|r| r.name != "CONTROL" && r.name != "POSITION") {
        machine.set(2, register.name, 0x1234_5678_9abc_def0);
        let actual = machine.get(2, register.name);
        let written = matches!(register.access, longma_devices::registers::Access::ReadWrite);
        assert_eq!(actual, if written { 0x1234_5678_9abc_def0 } else { 0 }, "{}", register.name);
    }
    let control = machine.engine("IDENTITY");
    assert_eq!(field("IDENTITY", "READ_CHANNELS").of(control), 3);
    assert_eq!(field("IDENTITY", "TAGS").of(control), 128);
}

#[test]
fn accesses_outside_registers_are_counted() {
    let mut machine = Machine::new(4096, 1);
    machine.idma.write(0x70, 8, 1, machine.now, &mut machine.bus);
    assert_eq!(machine.idma.read(0xfff, 4, machine.now, &mut machine.bus).value, 0);
    assert_eq!((machine.engine("BAD_ACCESSES"), machine.engine("BAD_ACCESSES")), (2, 0));
}

#[test]
fn an_earlier_time_is_treated_as_the_last_one() {
    let mut machine = Machine::new(4096, 1);
    machine.pass(1_000_000);
    machine.idma.write(offset(Some(0), "CONTROL"), 8, 1, Time::ZERO, &mut machine.bus);
    assert!(machine.flag(0, "DONE"), "nothing to move");
}
