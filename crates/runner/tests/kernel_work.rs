//! Kernel work occupies the modelled cores and appears in the statistics of runs. Source: the setup of
//! `experiments/affinity-model.toml`: a flow at 40 Gb/s, received by the guest `flow_receive`.

mod simulator;

use simulator::flow::{self, Run, shipped};

/// The shipped machine with these keys added or replaced in `[hosts.os]`.
fn machine(edits: &[(&str, &str)]) -> tempfile::NamedTempFile {
    let text = std::fs::read_to_string(shipped()).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = lines.iter().position(|line| line == "[hosts.os]").unwrap();
    for (key, value) in edits {
        let stated = lines.iter().skip(at).position(|line| line.starts_with(&format!("{key} = ")));
        if let Some(stated) = stated {
            lines.remove(at + stated);
        }
        lines.insert(at + 1, format!("{key} = \"{value}\""));
    }
    let file = tempfile::Builder::new().suffix(".toml").tempfile().unwrap();
    std::fs::write(file.path(), lines.join("\n")).unwrap();
    file
}

/// Settings of the guest: a flow of which 3 MB are counted, and one that keeps a core busy, of which 4 MB in the middle
/// are counted.
const LIGHT: &[&str] = &["begin=1000000"];
const FULL: &[&str] = &["begin=6000000", "bytes=10000000", "path=3000"];

/// Receives a flow with interrupts and protocol on one core and the reader on another.
fn receive(
    (flow, application): (usize, usize),
    settings: &[&str],
    edits: &[(&str, &str)],
    options: &[&str],
) -> Run {
    let machine = machine(edits);
    let wire = if settings == FULL { "eth0:14000000" } else { "eth0:4000000" };
    let (flow, application) = (format!("flow={flow}"), format!("application={application}"));
    flow::receive(machine.path(), &[wire], &[&[&*flow, &*application], settings].concat(), options)
}

/// The cycles of a core by cause must add up to its time.
fn adds_up(run: &Run, core: usize) {
    let of = |name: &str| run.count(&format!("core{core}.{name}"));
    let causes = run.statistics[format!("core{core}")]["cpi"].as_object().unwrap();
    let all: f64 = causes.values().map(|cause| cause["value"].as_f64().unwrap_or(0.0)).sum();
    let instructions = of("instructions");
    assert!((all * instructions - of("cycles")).abs() < 1.0 + of("cycles") * 1e-9, "core {core}");
    let hz = 2.9e9;
    let counted = run.count("run.time") * 1e-12 * hz;
    // An idle core is counted only up to its last work. The program's last read, 128 KiB from the other socket, takes
    // about 15 us longer.
    let since = 20e-6 * hz;
    assert!(
        (of("cycles") - counted).abs() < 0.005 * counted + since,
        "core {core}: {} of {counted}",
        of("cycles")
    );
    let works = ["interrupt", "softirq", "context_switch", "wake_up", "wake_up_interrupt", "tick"];
    let kernel: f64 = works.iter().map(|work| of(&format!("kernel.{work}.cycles"))).sum();
    let system = of("cpi.system") * instructions;
    assert!(kernel > 0.0 && kernel <= system + 1.0, "core {core}: {kernel} of {system}");
}

#[test]
fn cycles_of_a_core_add_up_including_the_kernels() {
    for (flow, application) in [(1, 1), (1, 2), (1, 7)] {
        let run = receive((flow, application), LIGHT, &[], &[]);
        adds_up(&run, flow);
        adds_up(&run, application);
        assert!(run.count(&format!("core{flow}.kernel.interrupt.times")) > 0.0);
    }
}

#[test]
fn a_costlier_interrupt_takes_throughput_of_a_full_core_and_never_gives_any() {
    for key in ["interrupt", "softirq"] {
        let rate = |cost| receive((1, 1), FULL, &[(key, cost)], &[]).number_before(" Gb/s");
        let rates = ["100 ns", "4 us", "20 us"].map(rate);
        assert!(rates.windows(2).all(|pair| pair[1] <= pair[0] * 1.02), "{key}: {rates:?}");
        assert!(rates[2] < rates[0] * 0.9, "{key}: {rates:?}");
    }
}

#[test]
fn a_costlier_switch_leaves_its_core_less_idle() {
    let idle = |cost| {
        let run = receive((1, 2), LIGHT, &[("context_switch", cost)], &[]);
        assert!(run.count("core2.kernel.context_switch.times") > 10.0);
        assert_eq!(
            run.count("core1.kernel.context_switch.times"),
            0.0,
            "a handler is called, not switched to"
        );
        run.count("core2.idle_cycles") / run.count("core2.cycles")
    };
    assert!(idle("3 us") < idle("100 ns") - 0.05);
}

#[test]
fn the_same_run_gives_the_same_statistics() {
    let (one, other) = (receive((0, 3), LIGHT, &[], &[]), receive((0, 3), LIGHT, &[], &[]));
    assert_eq!((one.statistics, one.printed), (other.statistics, other.printed));
}

#[test]
fn the_kernels_work_takes_time_at_level_cache_too() {
    let rate = |interrupt| {
        receive((1, 1), FULL, &[("interrupt", interrupt)], &["--level", "cache"]).number_before(" Gb/s")
    };
    assert!(rate("20 us") < rate("100 ns"));
}
