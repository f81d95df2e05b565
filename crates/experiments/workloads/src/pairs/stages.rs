//! Divides a flow's cycles into the stages of packet processing: driver, protocol, copy, wake-up and so on.
//!
//! Source: Hanford et al. 2014 (driver, protocol, copy) and Cai et al., SIGCOMM 2021, table 1 (which separates memory
//! management and scheduling) profile receivers by these stages. The assignment of guest functions to stages is our
//! own.

use serde_json::Value;

use super::{core_sum, count};

/// The stages in the order of packet processing, and the remainder.
pub const STAGES: [&str; 9] = [
    "interrupts",
    "driver",
    "buffers",
    "protocol",
    "rest of a frame",
    "wake-ups",
    "system calls",
    "copy",
    "the program",
];

/// The guest's functions with the index of their stage. Code of the C library that makes a system call is counted as
/// part of the call.
const FUNCTIONS: [(&str, usize); 33] = [
    ("softirq", 1),
    ("poll_frames", 1),
    ("poll_ring", 1),
    ("poll_all", 1),
    ("busy_poll", 1),
    ("merge", 1),
    ("send_first", 1),
    ("send_second", 1),
    ("send_segment", 1),
    ("allocate_buff", 2),
    ("release", 2),
    ("memset", 2),
    ("steer", 3),
    ("steering", 3),
    ("deliver", 3),
    ("receive_large", 3),
    ("process_backlog", 3),
    ("socket_receive", 3),
    ("take_headers", 3),
    ("take_data", 3),
    ("keep_early", 3),
    ("acknowledge", 3),
    ("fill_headers", 3),
    ("internet_sum", 3),
    ("socket_read", 3),
    ("memcpy", 3),
    ("other_work", 4),
    ("wake_reader", 5),
    ("syscall", 6),
    ("sccp", 6),
    ("read", 6),
    ("__syscall_ret", 6),
    ("copy_plain", 7),
];

/// Cycles of the cores that work for a flow by stage. The last entry is the remainder. `result` is the output of
/// `longma run --stats-out`. Its counts of functions are sums over all cores, so `cores` must include every core that
/// ran a function.
pub fn cycles(result: &Value, cores: &[u32]) -> [f64; STAGES.len()] {
    let all = &result["statistics"];
    let kernel = |works: &[&str]| {
        let names: Vec<String> = works.iter().map(|work| format!("kernel.{work}.cycles")).collect();
        core_sum(all, cores, &names.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let mut sums = [0.0; STAGES.len()];
    sums[0] = kernel(&["interrupt", "softirq"]);
    sums[5] = kernel(&["wake_up", "wake_up_interrupt", "context_switch"]);
    // The kernel's remaining time is system calls, and a few timer ticks.
    sums[6] = cause_cycles(all, cores, "system") - sums[0] - sums[5];
    sums[1] = cause_cycles(all, cores, "device");
    for function in result["functions"].as_array().into_iter().flatten() {
        let stage = FUNCTIONS.iter().find(|(name, _)| function["function"] == *name).map(|(_, stage)| *stage);
        if let Some(stage) = stage {
            sums[stage] += function["cycles"].as_f64().unwrap_or(0.0);
        }
    }
    let busy = core_sum(all, cores, &["cycles"]) - core_sum(all, cores, &["idle_cycles"]);
    sums[STAGES.len() - 1] = busy - sums.iter().sum::<f64>();
    sums
}

/// Cycles of these cores that their CPI stacks attribute to a cause.
fn cause_cycles(all: &Value, cores: &[u32], cause: &str) -> f64 {
    let of = |core: &u32| {
        count(all, &format!("core{core}.cpi.{cause}")) * count(all, &format!("core{core}.instructions"))
    };
    cores.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_affinity::pairs::Pair;
    use serde_json::json;

    #[test]
    fn every_cycle_and_every_function_is_in_one_stage() {
        let value = |value: f64| json!({ "value": value });
        let core = |busy: f64, interrupt: f64| {
            json!({
                "cycles": value(busy + 100.0), "idle_cycles": value(100.0), "instructions": value(10.0),
                "cpi": { "system": value(30.0), "device": value(1.0) },
                "kernel": { "interrupt": { "cycles": value(interrupt) }, "context_switch": { "cycles": value(20.0) } },
            })
        };
        let function = |name: &str, cycles: f64| json!({ "function": name, "cycles": cycles });
        let result = json!({
            "statistics": { "core1": core(1000.0, 200.0), "core2": core(2000.0, 0.0) },
            "functions": [function("poll_frames", 40.0), function("memset", 50.0), function("take_data", 60.0),
                function("copy_plain", 700.0), function("main", 80.0), function("strcmp", 5.0)],
        });
        let found = cycles(&result, &[1, 2]);
        assert_eq!(found[..8], [200.0, 60.0, 50.0, 60.0, 0.0, 40.0, 360.0, 700.0]);
        assert_eq!(found.iter().sum::<f64>(), 3000.0);
        assert_eq!(cycles(&result, &[2]).iter().sum::<f64>(), 2000.0);
    }

    /// With `rps=3`, the protocol runs on a third core: its functions count, so its time must, too.
    #[test]
    fn no_stage_is_negative_if_a_third_core_runs_the_protocol() {
        let value = |value: f64| json!({ "value": value });
        let core = |busy: f64| json!({ "cycles": value(busy + 9.0), "idle_cycles": value(9.0) });
        let function = |name: &str, cycles: f64| json!({ "function": name, "cycles": cycles });
        let result = json!({
            "statistics": { "core1": core(100.0), "core2": core(200.0), "core3": core(5000.0) },
            "functions": [function("poll_frames", 90.0), function("take_data", 4000.0), function("copy_plain", 180.0)],
        });
        let settings = ["rps=3".parse().unwrap()];
        let cores = crate::pairs::working_cores(Pair { flow: 1, application: 2 }, &settings);
        let found = cycles(&result, &cores);
        assert!(found.iter().all(|cycles| *cycles >= 0.0), "{found:?}");
        assert_eq!(found.iter().sum::<f64>(), 5300.0);
    }

    /// A renamed or inlined function would silently be counted as part of the program.
    #[test]
    fn all_listed_functions_exist_in_the_receiver() {
        let program = include_bytes!("../../../../../guests/prebuilt/loongarch64/flow_receive-lasx");
        let inlined_where_short = ["keep_early", "syscall", "sccp", "read", "__syscall_ret"];
        for (name, _) in FUNCTIONS.iter().filter(|(name, _)| !inlined_where_short.contains(name)) {
            let whole = [b"\0", name.as_bytes(), b"\0"].concat();
            assert!(program.windows(whole.len()).any(|at| at == whole), "{name}");
        }
    }
}
