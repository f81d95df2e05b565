//! Tests of the commands: sh(1) runs them on simulated files.

use super::*;
use crate::advice::DriverCapabilities;
use crate::fake::topology;
use crate::interface::{Device, Irq};
use crate::pairs::Pair;
use std::path::Path;
use std::process::Command;

fn nic(queues: u32) -> Nic {
    let name = |queue| format!("eth0-TxRx-{queue}");
    let irq = |queue| Irq { number: 40 + queue, name: name(queue), cpus: Some("0-15".parse().unwrap()) };
    Nic {
        rx_queues: (0..queues).collect(),
        irqs: (0..queues).map(irq).collect(),
        device: Some(Device { name: "0000:41:00.0".into(), port: Some(1) }),
        ..crate::advice::tests::nic(Some(0))
    }
}

fn of(nic: &Nic, abilities: DriverCapabilities) -> Commands {
    let pair = Pair { flow: 1, application: 2 };
    commands(&[nic], &QueuePlacement::of(&topology(2, 1, 4, 1), &[(nic, abilities)], pair, None, false))
}

/// Runs a script with folders in place of /proc and /sys, and returns the arguments of its calls of `ethtool`.
fn run(script: &str, root: &Path) -> String {
    let tools = root.join("tools");
    std::fs::create_dir_all(&tools).unwrap();
    let log = root.join("ethtool.log");
    let ethtool = format!("#!/bin/sh\necho \"$*\" >> {}\n", log.display());
    std::fs::write(tools.join("ethtool"), ethtool).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(tools.join("ethtool"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let root = root.display();
    let script = script.replace("/proc/", &format!("{root}/proc/")).replace("/sys/", &format!("{root}/sys/"));
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
    let status =
        Command::new("timeout").args(["20", "sh", "-ec", &script]).env("PATH", path).status().unwrap();
    assert!(status.success(), "{script}");
    std::fs::read_to_string(log).unwrap_or_default()
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn read(root: &Path, path: &str) -> String {
    std::fs::read_to_string(root.join(path)).unwrap().trim().into()
}

/// The files of a NIC whose interrupts have other numbers than when the advice was given.
fn renumbered(queues: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut table = String::from("  CPU0\n 41: 5 PCI eth1-TxRx-0\n");
    for queue in 0..queues {
        table += &format!(" {}: 5 PCI-MSI 1-edge eth0-TxRx-{queue}\n", 70 + queue);
        put(folder.path(), &format!("proc/irq/{}/smp_affinity_list", 70 + queue), "0-7");
        put(folder.path(), &format!("sys/class/net/eth0/queues/rx-{queue}/rps_cpus"), "ff");
    }
    put(folder.path(), "sys/class/net/eth0/queues/rx-0/rps_flow_cnt", "4096");
    put(folder.path(), "proc/interrupts", &table);
    folder
}

#[test]
fn the_script_and_the_shell_find_interrupts_by_name_and_reduce_the_queues() {
    let commands = of(&nic(8), DriverCapabilities { is_combined: Some(true), has_table: true });
    let shell: Vec<String> =
        commands.now.iter().filter(|line| !line.starts_with("taskset")).cloned().collect();
    for script in [commands.script.clone(), shell.join("\n")] {
        let folder = renumbered(8);
        let root = folder.path();
        assert_eq!(run(&script, root), "-X eth0 equal 2\n-L eth0 combined 2\n");
        let affinity = |irq: u32| read(root, &format!("proc/irq/{irq}/smp_affinity_list"));
        assert_eq!([affinity(70), affinity(71), affinity(72)], ["1", "3", "0-7"]);
        assert_eq!(read(root, "sys/class/net/eth0/queues/rx-7/rps_cpus"), "0");
        assert_eq!(read(root, "sys/class/net/eth0/queues/rx-0/rps_flow_cnt"), "0");
    }
    assert_eq!(commands.systemd, "[Service]\nCPUAffinity=0,2\n");
    let start =
        "ACTION==\"add\", SUBSYSTEM==\"net\", KERNELS==\"0000:41:00.0\", ATTR{dev_port}==\"1\", RUN+=\"";
    assert!(commands.udev.starts_with(start), "{}", commands.udev);
    assert!(commands.udev.contains(&commands.script_path) && !commands.udev.contains("irq/"));
}

#[test]
fn one_queue_is_directed_as_the_sweep_did() {
    let commands = of(&nic(1), DriverCapabilities { is_combined: Some(true), has_table: true });
    assert_eq!(commands.now[0], "echo 1 > /proc/irq/40/smp_affinity_list");
    assert!(commands.now[1].contains("echo 0 > $queue/rps_cpus"), "{:?}", commands.now);
    assert_eq!(commands.systemd, "[Service]\nCPUAffinity=2\n");
}

/// irqbalance runs the script for each interrupt, with the path of its device and its number.
#[test]
fn irqbalance_is_kept_from_a_device_and_not_from_numbers_that_change() {
    let banned = |nic: &Nic, path: &str, number: &str| {
        let keep = of(nic, DriverCapabilities::default()).keep;
        assert!(keep[0].contains("--policyscript=") && !keep.concat().contains("banirq"), "{keep:?}");
        let folder = renumbered(2);
        let script = keep[1..].join("\n");
        let script = script.replace("/proc/", &format!("{}/proc/", folder.path().display()));
        let words = ["20", "sh", "-c", &script, "policy", path, number];
        let output = Command::new("timeout").args(words).output().unwrap();
        assert!(output.stderr.is_empty(), "{output:?}");
        output.stdout == b"ban=true\n"
    };
    let pci = "/sys/devices/pci0000:40/0000:40:01.1/";
    assert!(banned(&nic(2), &format!("{pci}0000:41:00.0"), "70"));
    assert!(!banned(&nic(2), &format!("{pci}0000:41:00.1"), "70"));
    // A virtio device's interrupts are listed under its parent PCI device.
    let virtio = Nic { device: Some(Device { name: "virtio2".into(), port: None }), ..nic(2) };
    assert!(banned(&virtio, "/sys/devices/pci0000:00/0000:00:03.0", "71"));
    assert!(!banned(&virtio, "/sys/devices/pci0000:00/0000:00:03.0", "41"));
}

#[test]
fn a_driver_that_can_do_one_of_both_is_asked_for_that() {
    let words = |is_combined, has_table| {
        let commands = of(&nic(8), DriverCapabilities { is_combined, has_table });
        commands.now.into_iter().filter(|line| line.starts_with("ethtool")).collect::<Vec<_>>()
    };
    assert_eq!(words(Some(false), false), ["ethtool -L eth0 rx 2"]);
    assert_eq!(words(None, true), ["ethtool -X eth0 equal 2"]);
    assert!(words(None, false).is_empty());
}

/// The kernel allows every character in a name except `/`, `:` and white space. sh(1) must parse the command back to
/// the intended path.
#[test]
fn commands_for_an_interface_with_any_name_write_to_its_files_and_do_nothing_else() {
    for name in ["a;id", "$(id)", "x'y", "a\"b", "*", "`id`", "a&b", "eth0.100"] {
        let veth = Nic { name: name.parse().unwrap(), irqs: vec![], device: None, ..nic(1) };
        let commands = of(&veth, DriverCapabilities::default());
        let path = commands.now[0].strip_prefix("echo 2 > ").unwrap();
        let script = format!("printf %s {path}");
        let read = Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(
            String::from_utf8(read.stdout).unwrap(),
            format!("/sys/class/net/{name}/queues/rx-0/rps_cpus")
        );
        let folder = tempfile::tempdir().unwrap();
        put(folder.path(), &format!("sys/class/net/{name}/queues/rx-0/rps_cpus"), "0");
        run(&commands.script, folder.path());
        let written = folder.path().join(format!("sys/class/net/{name}/queues/rx-0/rps_cpus"));
        assert_eq!(std::fs::read_to_string(written).unwrap(), "2\n");
        assert_eq!(commands.udev.starts_with("# no rule"), name != "eth0.100", "{}", commands.udev);
        assert_eq!(commands.udev.lines().count(), 1);
    }
}
