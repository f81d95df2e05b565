//! Tests `longma placement`: starts a service, kills and restarts it, and checks that all requests are kept.
#![cfg(feature = "placement")]

mod subcommand;

use nix::pty::{Winsize, openpty};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use subcommand::{Subcommand, text};

const PLACEMENT: Subcommand = Subcommand("placement");

/// A service with a simulated host. Its state directory outlives the process.
struct Service {
    state: tempfile::TempDir,
    child: Child,
}

fn start(state: &Path) -> Child {
    let state = state.to_str().unwrap();
    let arguments =
        "serve --all-in-one --hypervisor fake --machine hygon-8node --name h1 --listen 127.0.0.1:0 --state";
    let arguments: Vec<&str> = arguments.split(' ').chain([state]).collect();
    let child = PLACEMENT.command(&arguments).stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    // The file of a previous service may still exist, so wait until the service answers.
    while !PLACEMENT.output(&["list", "--state", state]).status.success() {
        assert!(began.elapsed() < Duration::from_secs(60), "the service does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
    child
}

impl Service {
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let child = start(state.path());
        Self { state, child }
    }

    fn arguments<'a>(&'a self, arguments: &'a str) -> Vec<&'a str> {
        arguments.split(' ').chain(["--state", self.state.path().to_str().unwrap()]).collect()
    }

    fn output_of(&self, arguments: &str) -> String {
        PLACEMENT.success(&self.arguments(arguments))
    }

    fn json(&self, arguments: &str) -> Value {
        PLACEMENT.json(&self.arguments(&format!("{arguments} --json")))
    }

    fn failure_of(&self, arguments: &str) -> String {
        PLACEMENT.failure(&self.arguments(arguments))
    }

    /// Kills the process, as a power cut would.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn restart(&mut self) {
        self.child = start(self.state.path());
    }

    /// Waits until the audit finds no differences.
    fn wait_for_clean_audit(&self) {
        let began = Instant::now();
        loop {
            let audit = PLACEMENT.output(&self.arguments("audit"));
            let all = self.json("list");
            let at_rest = all
                .as_array()
                .unwrap()
                .iter()
                .all(|vm| ["running", "stopped"].contains(&vm["state"].as_str().unwrap()));
            if audit.status.success() && at_rest && text(&audit.stdout).contains("s ago") {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "{} {all}", text(&audit.stdout));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn from_request_to_delete_with_kills_in_between() {
    let mut service = Service::new();
    assert!(service.output_of("list").contains("longma placement request"));
    let output = service.output_of("request web --vcpus 4 --memory 8GiB");
    assert!(
        output.starts_with("virtual machine 1 (web) on h1, node ") && output.ends_with(": running\n"),
        "{output}"
    );
    service.output_of("request db --vcpus 2 --memory 4GiB --cpu exclusive --anti-affinity spread:node");
    let list = service.output_of("list");
    assert!(list.lines().next().unwrap().starts_with("ID  TENANT   NAME  STATE"), "{list}");
    assert!(list.contains("8 GiB") && list.contains("exclusive"));
    let shown = service.output_of("show web");
    assert!(shown.contains("web of tenant default") && shown.contains("8 GiB on node"), "{shown}");

    let why = service.output_of("explain big --vcpus 12 --memory 100GiB --virtual-nodes 1");
    assert!(why.contains("h1 does not fit") && why.contains("memory: needs 102400"), "{why}");
    let why = service.output_of("explain small --vcpus 1 --memory 1GiB");
    assert!(why.contains("h1 fits, node") && why.contains("chosen") && why.contains("packing"), "{why}");

    let before = service.json("show db")["placement"]["cells"][0]["node"].clone();
    let moved = service.output_of("rebind db");
    assert!(moved.starts_with("virtual machine 2 (db) moved: h1, node "), "{moved}");
    let place = service.json("show db")["placement"].clone();
    assert_ne!(place["cells"][0]["node"], before);

    service.kill();
    assert!(service.failure_of("list").contains("longma placement serve"), "the message names a remedy");
    service.restart();
    assert_eq!(service.json("show db")["placement"], place, "the promised resources are still reserved");
    // The fake hypervisor died with the service; its domains are created again.
    service.wait_for_clean_audit();

    service.output_of("stop web");
    service.kill();
    service.restart();
    service.wait_for_clean_audit();
    assert_eq!(service.json("show web")["state"], "stopped");
    assert!(service.output_of("start web").contains("running"));
    assert!(service.output_of("delete web").contains("deleted"));
    assert!(service.failure_of("show web").contains("there is no virtual machine web"));
    assert!(service.output_of("hosts").contains("h1    up"));
    assert!(service.output_of("alarms").contains("no alarms"));
    assert!(service.output_of("defragment").contains("of the free memory"));
    assert!(service.output_of("events --after 0 --count 3").contains("reserved virtual machine 1 on h1"));
    assert!(service.output_of("drain h1").contains("1 stay on it"));
    assert!(service.failure_of("request more --vcpus 1 --memory 1GiB").contains("longma placement explain"));
    service.output_of("drain h1 --undo");
    assert!(service.output_of("request more --vcpus 1 --memory 1GiB").contains("running"));
}

#[test]
fn interrupted_requests_are_carried_out_once() {
    let mut service = Service::new();
    for round in 0..8u64 {
        let arguments =
            format!("request v{round} --vcpus 1 --memory 1GiB --cpu exclusive --no-wait --key k{round}");
        let mut asking = PLACEMENT
            .command(&service.arguments(&arguments))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The delays range from before the request arrives to after the machine exists.
        std::thread::sleep(Duration::from_millis(round * 6));
        service.kill();
        asking.wait().unwrap();
        service.restart();
        service.output_of(&arguments);
    }
    service.wait_for_clean_audit();
    let all = service.json("list");
    let all = all.as_array().unwrap();
    assert_eq!(all.len(), 8);
    let mut cpus: Vec<u64> =
        all.iter().map(|vm| vm["placement"]["cells"][0]["cpus"][0].as_u64().unwrap()).collect();
    cpus.sort_unstable();
    cpus.dedup();
    assert_eq!(cpus.len(), 8, "each has a separate CPU");
}

#[test]
fn the_service_ends_on_sigterm() {
    let mut service = Service::new();
    service.output_of("request a --vcpus 1 --memory 1GiB");
    let pid = Pid::from_raw(service.child.id() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let began = Instant::now();
    let status = service.child.wait().unwrap();
    assert!(
        status.success() && began.elapsed() < Duration::from_secs(15),
        "{status} after {:?}",
        began.elapsed()
    );
}

#[test]
fn a_remote_agent_is_admitted_by_its_token() {
    let service = Service::new();
    let token = service.output_of("token add far --role agent --host far");
    let file = service.state.path().join("far.token");
    std::fs::write(&file, token).unwrap();
    let access: Value =
        serde_json::from_slice(&std::fs::read(service.state.path().join("client.json")).unwrap()).unwrap();
    let url = access["url"].as_str().unwrap();
    let arguments = [
        "agent",
        "--server",
        url,
        "--token-file",
        file.to_str().unwrap(),
        "--hypervisor",
        "fake",
        "--machine",
        "hygon-8node",
        "--name",
        "far",
    ];
    let mut agent = PLACEMENT.command(&arguments).stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    while !service.output_of("hosts").contains("far") {
        assert!(began.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(100));
    }
    service.output_of("drain h1");
    assert!(service.output_of("request a --vcpus 1 --memory 1GiB").contains("on far"));
    let pid = Pid::from_raw(agent.id() as i32).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(agent.wait().unwrap().success());
    assert!(
        service.output_of("token list").contains("far")
            && !service.output_of("token list").contains("longma-")
    );
    service.output_of("quota acme --vms 1 --memory 4GiB");
    // The agent has ended, which the service detects after 30 s of silence.
    service.output_of("drain far");
    service.output_of("drain h1 --undo");
    service.output_of("request a --tenant acme --vcpus 1 --memory 1GiB");
    assert!(service.failure_of("request b --tenant acme --vcpus 1 --memory 1GiB").contains("quota is 1"));
    assert!(service.output_of("quota").contains("1 of 1"));
}

#[test]
fn errors_name_a_remedy() {
    let nowhere = tempfile::tempdir().unwrap();
    let state = nowhere.path().to_str().unwrap();
    let message = PLACEMENT.failure(&["list", "--state", state]);
    assert!(message.contains("client.json") && message.contains("serve --all-in-one"), "{message}");
    let service = Service::new();
    let own = service.state.path().to_str().unwrap();
    let second = ["serve", "--all-in-one", "--hypervisor", "fake", "--listen", "127.0.0.1:0", "--state", own];
    assert!(PLACEMENT.failure(&second).contains("another service uses this directory"));
    let open = ["serve", "--listen", "0.0.0.0:0", "--state", state];
    assert!(PLACEMENT.failure(&open).contains("--tls-cert"));
    let real = ["serve", "--all-in-one", "--machine", "hygon-8node", "--state", state];
    assert!(PLACEMENT.failure(&real).contains("--hypervisor fake"));
    let away =
        ["serve", "--all-in-one", "--libvirt", "qemu+unix:///system?socket=/nowhere", "--state", state];
    let message = PLACEMENT.failure(&away);
    assert!(message.contains("apt-get install") && message.contains("--hypervisor fake"), "{message}");
    for (arguments, says) in [
        ("--machine hygon-8node", "--machine is for the agent of this machine"),
        ("--reserved 0", "--reserved is for the agent of this machine"),
        ("--hosts 2", "only with --all-in-one"),
        (
            "--all-in-one --hypervisor fake --libvirt test:///default",
            "--libvirt has no effect with --hypervisor fake",
        ),
        (
            "--all-in-one --hypervisor fake --virtualization kvm",
            "--virtualization has no effect with --hypervisor fake",
        ),
        ("--images pictures", "--images pictures: give an absolute path"),
    ] {
        let arguments: Vec<&str> = ["serve", "--listen", "127.0.0.1:0", "--state", state]
            .into_iter()
            .chain(arguments.split(' '))
            .collect();
        assert!(PLACEMENT.failure(&arguments).contains(says), "{arguments:?}");
    }
    let wrong = service.failure_of("request web --vcpus 4000 --memory 1GiB --smt avoid");
    assert!(
        wrong.contains("vcpus: is 4000") && wrong.contains("smt: needs exclusive CPUs"),
        "every field: {wrong}"
    );
    assert!(
        service.failure_of("request a,b --vcpus 1 --memory 1GiB").contains("name: may contain only letters")
    );
    assert!(service.failure_of("request a --vcpus 1 --memory 1000B").contains("--memory"));
    assert!(service.failure_of("show 99").contains("there is no virtual machine 99"));
}

/// Standard error of the service may be closed, or be a file on a full disk.
#[test]
fn a_service_works_with_unwritable_standard_error() {
    for into_full_disk in [false, true] {
        let state = tempfile::tempdir().unwrap();
        let folder = state.path().to_str().unwrap();
        let arguments =
            ["serve", "--all-in-one", "--hypervisor", "fake", "--machine", "hygon-8node", "--name", "h1"];
        let mut command =
            PLACEMENT.command(&[&arguments[..], &["--listen", "127.0.0.1:0", "--state", folder]].concat());
        if into_full_disk {
            command.stderr(std::fs::File::options().write(true).open("/dev/full").unwrap());
        } else {
            command.stderr(Stdio::piped());
        }
        let mut child = command.spawn().unwrap();
        drop(child.stderr.take());
        let began = Instant::now();
        while !PLACEMENT.output(&["list", "--state", folder]).status.success() {
            assert!(began.elapsed() < Duration::from_secs(60), "the service does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        for _ in 0..3 {
            let refused = PLACEMENT
                .failure(&["request", "much", "--vcpus", "1024", "--memory", "4TiB", "--state", folder]);
            assert!(refused.contains("host h1"), "{refused}");
            assert!(PLACEMENT.failure(&["show", "999", "--state", folder]).contains("999"));
        }
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let asked = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(asked.elapsed() < Duration::from_secs(20), "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_tokens_role_must_match_its_scope() {
    let service = Service::new();
    assert!(
        service.failure_of("token add q --role tenant --host x").contains("--host is for the role agent")
    );
    assert!(
        service.failure_of("token add q --role agent --tenant x").contains("--tenant is for the role tenant")
    );
    service.output_of("token add q --role operator");
    let removed: serde_json::Value =
        serde_json::from_str(&service.output_of("token remove q --json")).unwrap();
    assert_eq!(removed, serde_json::json!({ "removed": "q" }));
    assert!(service.failure_of("events --count 0").contains("--count"));
    assert!(service.failure_of("request a --vcpus 1 --memory 10").contains("as 8GiB"));
}

/// The output of a command in a terminal of 80 columns.
fn in_a_terminal(arguments: &[&str]) -> String {
    let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    let terminal = openpty(&size, None).unwrap();
    let mut command = PLACEMENT.command(arguments);
    let mut child = command.stdout(terminal.slave).stderr(Stdio::null()).spawn().unwrap();
    // Close the parent's copy, so that the terminal is closed when the child ends.
    drop(command);
    let mut bytes = Vec::new();
    // The end of a pseudoterminal is reported as an error.
    let _ = std::fs::File::from(terminal.master).read_to_end(&mut bytes);
    child.wait().unwrap();
    text(&bytes).replace("\r\n", "\n")
}

#[test]
fn output_fits_a_terminal_of_80_columns() {
    let service = Service::new();
    let long = "a-virtual-machine-with-a-name-of-sixty-characters-and-no-less";
    service.output_of(&format!(
        "request {long} --vcpus 4 --memory 8GiB --cpu exclusive --tenant a-tenant-of-some-length"
    ));
    service.output_of("request b --vcpus 8 --memory 8GiB --virtual-nodes 2");
    let commands = [
        "hosts",
        "list",
        "explain big --vcpus 12 --memory 100GiB --virtual-nodes 1",
        "explain small --vcpus 1 --memory 1GiB",
        "show 1",
        "show b",
        "alarms --all",
        "audit",
        "quota",
        "token list",
    ];
    for arguments in commands {
        let printed = in_a_terminal(&service.arguments(arguments));
        let widest = printed.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(widest > 5 && widest <= 80, "{arguments}: {widest}\n{printed}");
        assert!(!printed.contains('…'), "nothing is cut: {printed}");
    }
    let list = in_a_terminal(&service.arguments("list"));
    // The name is wrapped within its column, and complete.
    let heading = list.lines().next().unwrap();
    let (from, to) = (heading.find("NAME").unwrap(), heading.find("STATE").unwrap());
    let name: String =
        list.lines().skip(1).filter_map(|line| line.get(from..to.min(line.len()))).map(str::trim).collect();
    assert!(name.starts_with(long), "{list}");
}
