//! Two network namespaces joined by a veth pair, for tests of `longma affinity`.
#![allow(dead_code, reason = "each test program uses only some of the functions")]

use crate::subcommand::text;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Two named namespaces joined by a veth pair, with a server unless created by [`Network::bare`]. Dropping it removes
/// them.
pub struct Network {
    /// The receiver's namespace and the sender's.
    pub names: [String; 2],
    server: Option<Child>,
    folder: tempfile::TempDir,
}

/// Time limit of a command in seconds.
const LIMIT: u32 = 300;

/// Makes the kernel kill a command when the test ends or after [`LIMIT`].
pub fn end_with_test(command: &mut Command) {
    let end = || {
        // SAFETY: system calls with constants. The alarm survives exec, and no handler is installed.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::alarm(LIMIT);
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made.
    unsafe { command.pre_exec(end) };
}

fn ip(words: &[&str]) {
    let output = Command::new("ip").args(words).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
}

impl Network {
    /// Creates the network with an iperf3 server in the sender's namespace.
    pub fn new(name: &str) -> Self {
        let mut network = Self::bare(name);
        let mut server = Command::new("ip");
        server
            .args(["netns", "exec", &network.names[1], "iperf3", "--server"])
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        end_with_test(&mut server);
        network.server = Some(server.spawn().unwrap());
        std::thread::sleep(Duration::from_millis(500));
        // Start from a value that is not the default, so that restoring is visible.
        network.set_rps("1");
        network
    }

    /// Creates the network without a server.
    pub fn bare(name: &str) -> Self {
        let names = ["r", "s"].map(|end| format!("lt{}{name}{end}", std::process::id()));
        let [receiver, sender] = [&names[0], &names[1]];
        for name in &names {
            ip(&["netns", "add", name]);
        }
        ip(&[
            "link", "add", "in0", "netns", receiver, "type", "veth", "peer", "name", "out0", "netns", sender,
        ]);
        for (name, link, address) in [(receiver, "in0", "198.18.1.2/30"), (sender, "out0", "198.18.1.1/30")] {
            ip(&["-n", name, "addr", "add", address, "dev", link]);
            ip(&["-n", name, "link", "set", link, "up"]);
            ip(&["-n", name, "link", "set", "lo", "up"]);
        }
        Self { names, server: None, folder: tempfile::tempdir().unwrap() }
    }

    /// A path in the test's temporary folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs a shell script in the receiver's namespace.
    pub fn in_receiver(&self, script: &str) -> Output {
        let words = ["netns", "exec", &self.names[0], "sh", "-c", script];
        Command::new("ip").args(words).output().unwrap()
    }

    /// Sets the RPS mask of the receiver's queue.
    pub fn set_rps(&self, mask: &str) {
        assert!(
            self.in_receiver(&format!("echo {mask} > /sys/class/net/in0/queues/rx-0/rps_cpus"))
                .status
                .success()
        );
    }

    /// All settings of the interface that a sweep may change.
    pub fn settings(&self) -> String {
        text(&self.in_receiver("grep . /sys/class/net/in0/queues/*/* /sys/class/net/in0/mtu /proc/sys/net/core/rps_sock_flow_entries 2>/dev/null").stdout)
    }

    /// The RPS mask of the receiver's queue.
    pub fn rps(&self) -> u32 {
        let mask = text(&self.in_receiver("cat /sys/class/net/in0/queues/rx-0/rps_cpus").stdout);
        u32::from_str_radix(&mask.trim().replace(',', ""), 16).unwrap()
    }

    /// A `longma affinity` command in the receiver's namespace.
    pub fn longma(&self, words: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[0], env!("CARGO_BIN_EXE_longma"), "affinity"]).args(words);
        command.env("LONGMA_AFFINITY_JOURNAL", self.path("journal"));
        command.env("LONGMA_AFFINITY_STATE", self.path("decisions"));
        end_with_test(&mut command);
        command
    }

    /// Starts a sweep with the server as the peer.
    pub fn sweep(&self, repeats: &str) -> Child {
        let file = self.path("results.jsonl");
        let words = [
            "sweep",
            "--interface",
            "in0",
            "--connect",
            "198.18.1.1",
            "--seconds",
            "1",
            "--repeats",
            repeats,
            "--output",
        ];
        let mut command = self.longma(&words);
        command.arg(file).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until a sweep has changed the mask from `before`.
    pub fn wait_for_change(&self, before: u32) {
        let begin = Instant::now();
        while self.rps() == before {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "the sweep did not change the RPS mask within 60 s"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "delete", name]).output();
        }
    }
}

/// Sends a signal to a child of the test.
pub fn signal(child: &Child, signal: libc::c_int) {
    // SAFETY: the process is a child of the test and has not been waited for, so its id is not reused.
    unsafe { libc::kill(child.id() as i32, signal) };
}
