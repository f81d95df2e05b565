//! Rejects impossible speeds: clocks of 0 Hz, and bandwidths above the peak, which is width x transfers per second.

use crate::parts::{MachineFile, Operation};
use crate::read::{Problems, SourcePositions};
use crate::units::{Bandwidth, Frequency, TransferRate, Width};

pub(super) fn check(file: &MachineFile, problems: &mut Problems) {
    for core in file.cores.values() {
        clock(&core.marks, "clock", Some(core.clock), problems);
        let executed: Vec<Operation> = core.units.iter().flat_map(|u| u.operations.iter().copied()).collect();
        if !executed.is_empty() {
            for (name, timing) in core.operations.iter() {
                let known = Operation::WORDS.iter().find(|w| w.0 == name);
                if known.is_some_and(|w| !executed.contains(&w.1)) {
                    let help = format!("add \"{name}\" to the `operations` of one of the core's units");
                    let message = format!("no execution unit executes `{name}`");
                    problems.error(timing.marks.at(), message, "timed here", help);
                }
            }
        }
    }
    for chip in file.chips.values() {
        clock(&chip.marks, "uncore_clock", chip.uncore_clock, problems);
        chip.crossbars.iter().for_each(|x| clock(&x.marks, "clock", x.clock, problems));
        for port in &chip.ports {
            wires(&port.marks, port.width, port.rate, port.bandwidth, problems);
        }
    }
    for memory in file.memories.values() {
        let peak = memory.peak_bytes_per_second();
        beyond(&memory.marks, "bandwidth", memory.bandwidth, peak, problems);
    }
    for host in &file.hosts {
        for link in &host.links {
            wires(&link.marks, link.width, link.rate, link.bandwidth, problems);
        }
        for bus in &host.buses {
            wires(&bus.marks, bus.width, bus.rate, bus.bandwidth, problems);
            let peak = match bus.bandwidth {
                Some(Bandwidth::Rate(rate)) => Some(rate.bits_per_second() / 8),
                _ => peak(bus.width, bus.rate),
            };
            beyond(&bus.marks, "sustained_write", bus.sustained_write, peak, problems);
            beyond(&bus.marks, "sustained_read", bus.sustained_read, peak, problems);
        }
    }
}

fn clock(marks: &SourcePositions, key: &str, clock: Option<Frequency>, problems: &mut Problems) {
    if marks.sound(&[key]) && clock.is_some_and(|c| c.hz() == 0) {
        problems.error(
            marks.key(key),
            "the clock is 0 Hz".into(),
            "here",
            "give a positive frequency".into(),
        );
    }
}

fn peak(width: Option<Width>, rate: Option<TransferRate>) -> Option<u64> {
    width?.bits().checked_mul(rate?.per_second()).map(|bits| bits / 8)
}

fn wires(
    marks: &SourcePositions,
    width: Option<Width>,
    rate: Option<TransferRate>,
    bandwidth: Option<Bandwidth>,
    problems: &mut Problems,
) {
    if marks.sound(&["width", "rate", "bandwidth"]) {
        beyond(marks, "bandwidth", bandwidth, peak(width, rate), problems);
    }
}

fn beyond(
    marks: &SourcePositions,
    key: &str,
    bandwidth: Option<Bandwidth>,
    peak: Option<u64>,
    problems: &mut Problems,
) {
    let (Some(Bandwidth::Rate(bandwidth)), Some(peak)) = (bandwidth, peak) else { return };
    if bandwidth.bits_per_second() / 8 > peak {
        let max = crate::units::BitRate::new(peak.saturating_mul(8));
        let message = format!("{bandwidth} is more than the peak of {max}, which is width x rate");
        problems.error(marks.key(key), message, "impossible rate", "correct it, `width` or `rate`".into());
    }
}
