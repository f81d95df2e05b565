//! Parses random text as a machine file. It must be rejected with a report, or accepted and drawn, without a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_topology::{Detail, Machine, check, draw_svg, draw_text};

fuzz_target!(|text: &str| {
    let checked = check("fuzz.toml", text);
    assert_eq!(checked.machine.is_some(), checked.report.errors() == 0);
    checked.report.located();
    if let Some(machine) = checked.machine {
        let again = Machine::parse("again", &machine.to_toml()).expect("what was accepted is accepted again");
        assert_eq!(machine.parts(), again.parts());
        if machine.layout().hosts.iter().map(|h| h.cores.len()).sum::<usize>() < 1000 {
            draw_text(&machine, 80, Detail::Fitting, false);
            draw_svg(&machine, 80, Detail::Fitting);
        }
    }
});
