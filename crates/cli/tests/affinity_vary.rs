//! Tests settings that `longma affinity sweep --vary` changes by netlink and by sysfs, on a veth pair. The tests need root,
//! ip and iperf3.

mod subcommand;
mod veth;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use subcommand::text;
use veth::{Network, signal};

/// Whether this host can run the tests. Prints what is missing, so that a skipped test is visible.
fn can_sweep() -> bool {
    let has = |name: &str, words: &[&str]| {
        Command::new(name).args(words).output().is_ok_and(|output| output.status.success())
    };
    let can = rustix::process::geteuid().is_root()
        && has("iperf3", &["--version"])
        && has("ip", &["-V"])
        && has("unshare", &["--net", "true"]);
    if !can {
        eprintln!("skipped: a sweep needs root, ip and iperf3");
    }
    can
}

/// The settings as the kernel's own tools show them.
fn state(network: &Network) -> String {
    let script = "ip -details link show dev in0 | grep -o 'g[rs]o[a-z0-9_]*size [0-9]*'; \
        cd /sys/class/net/in0 && grep . napi_defer_hard_irqs gro_flush_timeout threaded mtu";
    text(&network.in_receiver(script).stdout) + &network.settings()
}

fn sweep(network: &Network, file: &str, repeats: &str, vary: &[&str]) -> Command {
    let mut command =
        network.longma(&["sweep", "--interface", "in0", "--connect", "198.18.1.1", "--cpus", "0"]);
    command.args(["--seconds", "1", "--repeats", repeats, "--format", "json", "--output"]);
    command.arg(network.path(file)).args(vary.iter().flat_map(|values| ["--vary", values]));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Values that no pair of an unchanged interface has.
const VARIED: [&str; 5] = [
    "gro-max-size=185000,190000",
    "gso-max-size=60000",
    "gro-ipv4-max-size=187000",
    "napi-defer-hard-irqs=2",
    "gro-flush-timeout=20000",
];

#[test]
fn big_tcp_sizes_and_deferred_interrupts_are_restored_even_after_sigkill() {
    if !can_sweep() {
        return;
    }
    let network = Network::new("b");
    network.set_rps("0");
    let before = state(&network);
    let mut killed = sweep(&network, "v.jsonl", "50", &VARIED).spawn().unwrap();
    let begin = Instant::now();
    while !(state(&network).contains("gro_max_size 18") || state(&network).contains("gro_max_size 19")) {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing is varied: {}", state(&network));
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(500));
    let during = state(&network);
    for setting in ["gso_max_size 60000", "napi_defer_hard_irqs:2", "gro_flush_timeout:20000"] {
        assert!(during.contains(setting), "{setting}: {during}");
    }
    signal(&killed, libc::SIGKILL);
    killed.wait().unwrap();
    assert_ne!(state(&network), before);
    let restored = network.longma(&["restore", "--format", "json"]).output().unwrap();
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    assert!(text(&restored.stdout).contains("gro-ipv4-max-size"), "{}", text(&restored.stdout));
    assert_eq!(state(&network), before);
    let whole = sweep(&network, "v.jsonl", "1", &VARIED).output().unwrap();
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    assert_eq!(state(&network), before);
    let result: serde_json::Value = serde_json::from_slice(&whole.stdout).unwrap();
    assert_eq!(result["effects"][0]["knob"], "gro-max-size", "{result}");
    // The flow is one of IPv4.
    let notes = text(&whole.stderr);
    assert!(notes.contains("gro-max-size does nothing where the flow is one of IPv4"), "{notes}");
}

#[test]
fn a_page_of_a_varied_sweep_has_intervals_and_zero_copy_is_varied_at_the_sender() {
    if !can_sweep() {
        return;
    }
    let network = Network::new("z");
    let page = network.path("z.html");
    let mut command = sweep(&network, "z.jsonl", "2", &["zero-copy=0,1", "gro=0,1"]);
    let swept = command.arg("--html").arg(&page).output().unwrap();
    assert!(swept.status.success(), "{}", text(&swept.stderr));
    let html = std::fs::read_to_string(&page).unwrap();
    for part in
        ["id=\"effects\"", "zero-copy 0 → 1", "Effect on throughput", "id=\"variants\"", "id=\"shares\""]
    {
        assert!(html.contains(part), "{part}");
    }
    let refused = |words: &[&str]| {
        let output = network.longma(&[&["sweep"], words].concat()).output().unwrap();
        assert!(!output.status.success(), "{words:?}");
        text(&output.stderr)
    };
    let base = ["--interface", "in0", "--vary"];
    let command = refused(&[&base[..], &["zero-copy=0,1", "--", "true"]].concat());
    assert!(command.contains("leave a load command out"), "{command}");
    let both = refused(&[&base[..], &["rfs=0,1", "--vary", "arfs=0,1", "--connect", "198.18.1.1"]].concat());
    assert!(both.contains("vary one of them"), "{both}");
    let far =
        refused(&[&base[..], &["xps=1,00000000,00000000,00000000", "--connect", "198.18.1.1"]].concat());
    assert!(far.contains("there is no CPU 96"), "{far}");
    let large = refused(&[&base[..], &["gso-max-size=4000000", "--connect", "198.18.1.1"]].concat());
    assert!(large.contains("the driver of in0 takes packets of at most"), "{large}");
    let own = network.path("z.jsonl");
    let own = refused(
        &[&base[..], &["gro=1", "--output", own.to_str().unwrap(), "--html", own.to_str().unwrap()]].concat(),
    );
    assert!(own.contains("the page would overwrite"), "{own}");
}
