//! Tests of the packaged recommendation: its script runs on simulated files, and its files are checked by the programs
//! that read them, where those are installed.

use super::*;
use crate::advice::DriverCapabilities;
use crate::fake::topology;
use crate::interface::Irq;
use crate::pairs::Pair;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn files(package: Package, name: &str) -> Vec<ConfigurationFile> {
    let irq = |queue: u32| Irq {
        number: 40 + queue,
        name: format!("eth0-TxRx-{queue}"),
        cpus: Some("0-7".parse().unwrap()),
    };
    let nic = Nic {
        name: name.parse().unwrap(),
        rx_queues: (0..4).collect(),
        irqs: (0..4).map(irq).collect(),
        ..crate::advice::tests::nic(Some(0))
    };
    let abilities = DriverCapabilities { is_combined: Some(true), has_table: true };
    let pair = Pair { flow: 1, application: 2 };
    let placement = QueuePlacement::of(&topology(2, 1, 4, 1), &[(&nic, abilities)], pair, None, false);
    package.files(&[&nic], &placement)
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Whether a program accepts these arguments; `None` if it is not installed.
fn accepts(program: &str, words: &[&str]) -> Option<bool> {
    let output = Command::new("timeout").args([&["60", program][..], words].concat()).output().unwrap();
    // timeout(1): 127 if the command is not found.
    if output.status.code() == Some(127) {
        eprintln!("not checked: there is no {program}");
        return None;
    }
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {words:?}: {out}{errors}");
    Some(true)
}

#[test]
fn the_script_sets_the_queues_and_restores_what_was_before() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let tools = root.join("tools");
    put(root, "tools/ethtool", &format!("#!/bin/sh\necho \"$*\" >> {}/log\n", root.display()));
    std::fs::set_permissions(tools.join("ethtool"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut table = String::from("  CPU0\n");
    for queue in 0..4 {
        table += &format!(" {}: 5 PCI-MSI eth0-TxRx-{queue}\n", 70 + queue);
        put(root, &format!("proc/irq/{}/smp_affinity_list", 70 + queue), "0-7");
        put(root, &format!("sys/class/net/eth0/queues/rx-{queue}/rps_cpus"), "ff");
    }
    put(root, "proc/interrupts", &table);
    put(root, "run/unrelated", "");
    let script = &files(Package::Systemd, "eth0")[1];
    assert!(script.is_program);
    let prefix = root.display();
    let text = ["/proc/", "/sys/", "/run/"]
        .iter()
        .fold(script.text.clone(), |text, part| text.replace(part, &format!("{prefix}{part}")));
    put(root, "script", &text);
    let run = |word: &str| {
        let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default());
        let script = root.join("script");
        let words = ["20", "sh", script.to_str().unwrap(), word];
        let output = Command::new("timeout").args(words).env("PATH", path).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    };
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap().trim().to_string();
    let affinity = |irq: u32| read(&format!("proc/irq/{irq}/smp_affinity_list"));
    run("stop");
    assert_eq!(affinity(70), "0-7", "nothing was started");
    // A second start, as after a renamed device, keeps the first values.
    run("start");
    run("start");
    assert_eq!([affinity(70), affinity(71), affinity(72)], ["1", "3", "0-7"]);
    assert_eq!(read("sys/class/net/eth0/queues/rx-3/rps_cpus"), "0");
    run("stop");
    assert_eq!([affinity(70), affinity(71)], ["0-7", "0-7"]);
    assert_eq!(read("sys/class/net/eth0/queues/rx-3/rps_cpus"), "ff");
    let log = read("log");
    assert!(log.starts_with("-X eth0 equal 2\n-L eth0 combined 2\n"), "{log}");
    assert!(log.ends_with("-L eth0 combined 4\n-X eth0 default"), "{log}");
    assert_eq!(std::fs::read_dir(root.join("run")).unwrap().count(), 1, "nothing is left");
}

#[test]
fn systemd_accepts_the_unit() {
    let made = files(Package::Systemd, "eth0");
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, &made[1].text).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    // The program must exist.
    let unit = made[0].text.replace(&made[1].path, script.to_str().unwrap());
    let path = folder.path().join("longma-affinity-eth0.service");
    std::fs::write(&path, unit).unwrap();
    accepts("systemd-analyze", &["verify", "--man=no", path.to_str().unwrap()]);
    assert_eq!(made[0].path, "/etc/systemd/system/longma-affinity-eth0.service");
    assert!(made[0].text.contains("BindsTo=sys-subsystem-net-devices-eth0.device\n"), "{}", made[0].text);
}

/// Expected names by systemd-escape(1) --path.
#[test]
fn device_units_of_odd_names_are_escaped() {
    assert_eq!(device_unit("eth0.100"), "sys-subsystem-net-devices-eth0.100.device");
    assert_eq!(device_unit("br-a1"), r"sys-subsystem-net-devices-br\x2da1.device");
    assert_eq!(device_unit("a%b"), r"sys-subsystem-net-devices-a\x25b.device");
}

#[test]
fn the_tuned_profile_runs_its_script() {
    let made = files(Package::Tuned, "eth0");
    assert_eq!(made[0].path, "/etc/tuned/longma-affinity-eth0/tuned.conf");
    assert_eq!(
        (made[1].path.as_str(), made[1].is_program),
        ("/etc/tuned/longma-affinity-eth0/script.sh", true)
    );
    // tuned reads profiles by Python's parser of INI files.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuned.conf");
    std::fs::write(&path, &made[0].text).unwrap();
    let read = "import configparser, sys; p = configparser.ConfigParser(interpolation=None); p.read(sys.argv[1]); \
        assert p['script']['script'] == '${i:PROFILE_DIR}/script.sh' and p['main']['summary'], dict(p['main'])";
    accepts("python3", &["-c", read, path.to_str().unwrap()]);
}

/// The interface's name contains a template that Ansible would expand.
#[test]
fn ansible_accepts_the_tasks() {
    for name in ["eth0", "a{{b", "c{%d"] {
        let made = files(Package::Ansible, name);
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tasks.yml"), &made[0].text).unwrap();
        let play = folder.path().join("play.yml");
        let text = "- hosts: localhost\n  gather_facts: false\n  tasks:\n    - ansible.builtin.import_tasks: tasks.yml\n";
        std::fs::write(&play, text).unwrap();
        accepts("ansible-playbook", &["--syntax-check", "-i", "localhost,", play.to_str().unwrap()]);
        assert_eq!(made[0].text.matches("ansible.builtin.").count(), 3);
        assert!(!made[0].text.contains(&format!("net/{name}/")) || name == "eth0", "{}", made[0].text);
    }
}

#[test]
fn names_of_files_have_no_special_characters() {
    for package in [Package::Tuned, Package::Systemd, Package::Ansible] {
        for file in files(package, "a;id$x") {
            assert!(file.path.contains("longma-affinity-a_id_x"), "{}", file.path);
            if file.is_program {
                assert!(accepts("sh", &["-n", "-c", &file.text]).unwrap_or(true));
            }
        }
    }
}
