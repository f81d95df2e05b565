//! Tests settings that `longma affinity sweep --vary` changes by netlink and by sysfs, on a veth pair. The tests need root,
//! ip and iperf3.

mod subcommand;
mod veth;

use longma_linux_network::{features, napi};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use subcommand::text;
use veth::{Network, end_with_test, signal};

/// Whether this host can run the tests. Prints the missing prerequisite, so that a skipped test is visible.
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
    // The flow uses IPv4.
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
    assert!(html.contains("<title>Longma: core affinity</title>") && !html.contains("published values"));
    let refused = |words: &[&str]| {
        let output = network.longma(&[&["sweep"], words].concat()).output().unwrap();
        assert!(!output.status.success(), "{words:?}");
        text(&output.stderr)
    };
    let base = ["--interface", "in0", "--vary"];
    let command = refused(&[&base[..], &["zero-copy=0,1", "--", "true"]].concat());
    assert!(command.contains("the load command has no {zero-copy}"), "{command}");
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

/// Runs `ask` in the receiver's network namespace.
fn in_namespace<T: Send>(network: &Network, ask: impl FnOnce() -> T + Send) -> T {
    let path = format!("/run/netns/{}", network.names[0]);
    let entered = || {
        let namespace = std::fs::File::open(path).unwrap();
        let kind = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind)).unwrap();
        ask()
    };
    std::thread::scope(|scope| scope.spawn(entered).join()).unwrap()
}

/// The requested features, the values of NAPI instances, and CPUs and scheduling of their threads. Recreated instances
/// have new numbers.
fn deep_state(network: &Network) -> String {
    let (features, instances) =
        in_namespace(network, || (features::get("in0").unwrap(), napi::get("in0").unwrap()));
    let on: Vec<&str> =
        features.iter().filter(|feature| feature.is_requested).map(|feature| &*feature.name).collect();
    let mut text = format!("{on:?}\n{}", state(network));
    for instance in instances {
        text += &format!("{:?}\n", instance.values);
        let Some(thread) = instance.thread else { continue };
        let script = format!("taskset -c -p {thread}; chrt -p {thread}; cut -d' ' -f19 /proc/{thread}/stat");
        let shown = text_of(&["sh", "-c", &script]);
        text += &shown.replace(&thread.to_string(), "PID");
    }
    text
}

fn text_of(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Sets the features of one offload to different values, sets values of the NAPI instance that differ from the
/// interface's, and pins its thread. Returns false if this kernel has no such values.
fn set_one_by_one(network: &Network) -> bool {
    in_namespace(network, || {
        let requests =
            [("rx-gro", true), ("tx-tcp6-segmentation", false), ("tx-tcp-ecn-segmentation", false)];
        features::request("in0", &requests).unwrap();
    });
    assert!(network.in_receiver("echo 1 > /sys/class/net/in0/threaded").status.success());
    let instances = in_namespace(network, || napi::get("in0"));
    let Some(instance) = instances.ok().and_then(|instances| instances.into_iter().next()) else {
        return false;
    };
    if instance.values.irq_suspend_timeout.is_none() {
        return false;
    }
    let values = napi::NapiValues {
        defer_hard_irqs: Some(7),
        gro_flush_timeout: Some(70_000),
        irq_suspend_timeout: Some(700_000),
        threaded: None,
    };
    in_namespace(network, || napi::set(instance.id, &values)).unwrap();
    let thread = instance.thread.unwrap().to_string();
    text_of(&["taskset", "-c", "-p", "1", &thread]);
    text_of(&["chrt", "-f", "-p", "3", &thread]);
    true
}

const ONE_BY_ONE: [&str; 6] = [
    "tso=0,1",
    "gro=1,0",
    "threaded=1,0",
    "napi-defer-hard-irqs=2",
    "gro-flush-timeout=20000",
    "irq-suspend-timeout=90000",
];

#[test]
fn features_napi_instances_and_their_threads_are_restored_one_by_one_even_after_sigkill() {
    let root = rustix::process::geteuid().is_root();
    let network = if root { Network::bare("o") } else { return eprintln!("skipped: it needs root") };
    if !set_one_by_one(&network) {
        return eprintln!("skipped: the values of NAPI instances need Linux 6.13");
    }
    let before = deep_state(&network);
    assert!(before.contains("SCHED_FIFO") && before.contains("Some(700000)"), "{before}");
    let sweep = |file: &str, repeats: &str, vary: &[&str]| {
        let mut command = network.longma(&["sweep", "--interface", "in0", "--pair", "0,0", "--seconds", "1"]);
        command.args(["--repeats", repeats, "--format", "json", "--output"]).arg(network.path(file));
        command.args(vary.iter().flat_map(|values| ["--vary", values]));
        command
            .args(["--", "sh", "-c", "sleep 1; echo 5 Gbit/s"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    for vary in ONE_BY_ONE.iter().map(std::slice::from_ref).chain([&ONE_BY_ONE[..]]) {
        let file = format!("{}{}.jsonl", vary[0].split('=').next().unwrap(), vary.len());
        let output = sweep(&file, "1", vary).output().unwrap();
        assert!(output.status.success(), "{vary:?}: {}", text(&output.stderr));
        assert_eq!(deep_state(&network), before, "{vary:?}");
    }
    let mut killed = sweep("killed.jsonl", "50", &ONE_BY_ONE).spawn().unwrap();
    let begin = Instant::now();
    while !deep_state(&network).contains("napi_defer_hard_irqs:2") {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing is varied: {}", state(&network));
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(2500));
    signal(&killed, libc::SIGKILL);
    killed.wait().unwrap();
    assert_ne!(deep_state(&network), before);
    let restored = network.longma(&["restore"]).output().unwrap();
    assert!(restored.status.success(), "{}{}", text(&restored.stdout), text(&restored.stderr));
    assert_eq!(deep_state(&network), before);
}

/// The settings are those after a killed `tune`, whose journal the sweep does not use.
#[test]
fn a_sweep_with_another_journal_does_not_begin_while_the_interface_is_changed() {
    let root = rustix::process::geteuid().is_root();
    let network = if root { Network::bare("j") } else { return eprintln!("skipped: it needs root") };
    let sweep = |journal: &str, seconds: &str| {
        let mut command = network.longma(&["sweep", "--interface", "in0", "--pair", "0,0", "--seconds", "1"]);
        command.args(["--vary", "mtu=1400", "--output"]).arg(network.path(journal).with_extension("jsonl"));
        command.arg("--journal").arg(network.path(journal)).args(["--", "sh", "-c"]);
        command.arg(format!("sleep {seconds}; echo 5 Gbit/s"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut killed = sweep("first", "9").spawn().unwrap();
    let begin = Instant::now();
    while !network.settings().contains("1400") {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing is varied: {}", network.settings());
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(&killed, libc::SIGKILL);
    killed.wait().unwrap();
    let output = sweep("second", "1").output().unwrap();
    let words = format!("longma affinity restore --journal {}", network.path("first").display());
    assert!(!output.status.success() && text(&output.stderr).contains(&words), "{}", text(&output.stderr));
    assert!(network.settings().contains("1400"), "nothing was changed");
    let tune = network.longma(&["tune", "--interface", "in0", "--for", "2"]).output().unwrap();
    assert!(!tune.status.success() && text(&tune.stderr).contains(&words), "{}", text(&tune.stderr));
    let restored = network.longma(&["restore", "--journal"]).arg(network.path("first")).output().unwrap();
    assert!(restored.status.success(), "{}", text(&restored.stderr));
    assert!(sweep("second", "1").output().unwrap().status.success());
}

/// MSG_ZEROCOPY is an option of the sender, so it is varied in the command of the load.
#[test]
fn sending_with_msg_zerocopy_is_varied_by_the_load_command() {
    let root = rustix::process::geteuid().is_root();
    let network = if root { Network::bare("q") } else { return eprintln!("skipped: it needs root") };
    let longma = env!("CARGO_BIN_EXE_longma");
    let words = ["netns", "exec", &network.names[1], longma, "affinity", "transfer", "--listen"];
    let mut server = Command::new("ip");
    server.args(words).stdout(Stdio::null()).stderr(Stdio::null());
    end_with_test(&mut server);
    let mut server = server.spawn().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let sweep = |load: &[&str]| {
        let mut command = network.longma(&["sweep", "--interface", "in0", "--pair", "0,0", "--seconds", "1"]);
        command.args(["--repeats", "1", "--format", "json", "--output"]).arg(network.path("q.jsonl"));
        command.args(["--vary", "msg-zerocopy=0,1"]).args(load);
        command.output().unwrap()
    };
    let refused = |load: &[&str], words: &str| {
        let output = sweep(load);
        assert!(!output.status.success() && text(&output.stderr).contains(words), "{}", text(&output.stderr));
    };
    refused(&["--connect", "198.18.1.1"], "iperf3 has no such option; give a load that has it");
    refused(&["--", "echo", "1"], "the load command has no {msg-zerocopy}");
    let transfer = ["--", longma, "affinity", "transfer", "198.18.1.1", "--seconds", "{seconds}"];
    let output = sweep(&[&transfer[..], &["--zero-copy", "{msg-zerocopy}"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["effects"][0]["knob"], "msg-zerocopy", "{result}");
    assert_eq!(result["variants"].as_array().unwrap().len(), 2);
    server.kill().unwrap();
    server.wait().unwrap();
}
