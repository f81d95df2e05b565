//! The raw event for loads that miss the L2 cache. The kernel has no generic event for it, so it depends on the
//! processor. `hardware` counts it.
//!
//! Source: Intel's event files (perfmon, HSW to SPR: L2_RQSTS.DEMAND_DATA_RD_MISS); AMD, Processor Programming
//! Reference for families 17h, 19h and 1Ah (PMCx064, L2CacheReqStat, LsRdBlkC); Arm Architecture Reference Manual, D17
//! (L2D_CACHE_REFILL).

use longma_topology::Sysfs;
use std::collections::BTreeMap;
use std::path::Path;

/// Conditions on /proc/cpuinfo, and the event of matching processors: event number in bits 7:0, unit mask in bits 15:8.
const EVENTS: [(&[CpuTest], u64); 3] = [
    // Haswell and later, which are recognized by AVX2. Earlier processors have a different unit mask.
    (&[("vendor_id", |value| value == "GenuineIntel"), ("flags", |value| has(value, "avx2"))], 0x2124),
    (
        &[
            ("vendor_id", |value| value == "AuthenticAMD"),
            ("cpu family", |value| ["23", "25", "26"].contains(&value)),
        ],
        0x0864,
    ),
    (&[("CPU implementer", |value| value == "0x41")], 0x17),
];

/// A field of /proc/cpuinfo and a predicate on its value.
type CpuTest = (&'static str, fn(&str) -> bool);

fn has(words: &str, word: &str) -> bool {
    words.split_whitespace().any(|candidate| candidate == word)
}

/// The raw event of this host's CPUs; `None` if unknown or if the CPUs are of different kinds.
pub fn misses() -> Option<u64> {
    let several = Path::new("/sys/bus/event_source/devices/cpu_core").exists();
    event(&Sysfs::live()).filter(|_| !several)
}

/// The event that all processors of a host share.
fn event(host: &Sysfs) -> Option<u64> {
    let of = |fields: &BTreeMap<String, String>| {
        let is = |(name, is): &CpuTest| fields.get(*name).is_some_and(|value| is(value));
        EVENTS.iter().find(|(asked, _)| asked.iter().all(is)).map(|(_, event)| *event)
    };
    let processors = host.cpuinfo();
    let mut events = processors.values().map(of);
    let first = events.next()??;
    events.all(|event| event == Some(first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_processor_has_its_own_event() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("proc")).unwrap();
        let event = |cpuinfo: &str| {
            std::fs::write(folder.path().join("proc/cpuinfo"), cpuinfo).unwrap();
            event(&Sysfs::recorded(folder.path()))
        };
        let x86 = |vendor: &str, family: u32, flags: &str| {
            format!("processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nflags\t\t: fpu {flags}\n")
        };
        assert_eq!(event(&x86("GenuineIntel", 6, "avx avx2")), Some(0x2124));
        assert_eq!(event(&x86("GenuineIntel", 6, "avx")), None, "Sandy Bridge");
        assert_eq!(event(&x86("AuthenticAMD", 26, "avx2")), Some(0x0864));
        assert_eq!(event(&x86("AuthenticAMD", 21, "avx2")), None, "Excavator");
        assert_eq!(event(&x86("HygonGenuine", 24, "avx2")), None);
        let arm = "processor\t: 0\nFeatures\t: fp\nCPU implementer\t: 0x41\n\nprocessor\t: 1\nCPU implementer\t: 0x41\n";
        assert_eq!(event(arm), Some(0x17));
        assert_eq!(event(&arm.replacen("0x41", "0x61", 1)), None, "of two makers");
        for odd in ["", "\n\n", ":", "processor", "vendor_id : GenuineIntel"] {
            assert_eq!(event(odd), None);
        }
    }
}
