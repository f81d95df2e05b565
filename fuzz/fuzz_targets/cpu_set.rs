//! Parses random text as a list and as a mask of CPUs. Each must be rejected or accepted, and accepted sets must parse
//! to the same set after printing, in both formats.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_cpu_set::CpuSet;

fuzz_target!(|text: &str| {
    for set in [text.parse::<CpuSet>(), CpuSet::from_mask(text)].into_iter().flatten() {
        assert_eq!(set.to_string().parse(), Ok(set.clone()));
        assert_eq!(CpuSet::from_mask(&set.mask()), Ok(set));
    }
});
