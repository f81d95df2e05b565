//! Tests of the journal on a simulated host: a crash after each byte written, damaged and foreign files, a second
//! writer, rejected writes, renamed interfaces, other namespaces, and reused interrupt and thread ids.

use super::*;
use crate::fake::FakeHost;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

const IRQ: &str = "proc/irq/41/smp_affinity_list";
const RPS: &str = "sys/class/net/eth0/queues/rx-0/rps_cpus";

fn host() -> FakeHost {
    FakeHost::with(&[(IRQ, "0-1"), (RPS, "00"), ("proc/sys/net/core/rps_sock_flow_entries", "0")])
}

fn rps() -> Setting {
    Setting::Rps { interface: "eth0".parse().unwrap(), queue: 0 }
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    (folder, path)
}

#[test]
fn a_setting_changed_several_times_is_restored_to_its_first_value() {
    let (host, (_folder, path)) = (host(), folder());
    let before = host.all();
    let mut journal = Journal::begin(&path, &host).unwrap();
    for value in ["0", "1", "0-1", "1"] {
        journal.set(&Setting::Irq(41), value).unwrap();
    }
    journal.set(&rps(), "2").unwrap();
    assert_eq!(host.read(IRQ).unwrap(), "1");
    assert!(journal.restore().unwrap().is_whole());
    assert_eq!(host.all(), before);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_truncated_journal_stops_changes_and_all_settings_are_restored() {
    let (host, (_folder, path)) = (host(), folder());
    let before = host.all();
    let mut journal = Journal::begin(&path, &host).unwrap();
    journal.set(&rps(), "3").unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    let error = journal.set(&Setting::Irq(41), "0").unwrap_err().to_string();
    assert!(error.contains("changed its length"), "{error}");
    drop(journal);
    assert_eq!(host.all(), before);
}

#[test]
fn dropping_a_journal_restores_all_settings() {
    let (host, (_folder, path)) = (host(), folder());
    let before = host.all();
    Journal::begin(&path, &host).unwrap().set(&rps(), "3").unwrap();
    assert_eq!(host.all(), before);
    assert_eq!(Journal::recover(&path, &host, false).unwrap(), None);
}

/// The journal and the files at every point where a writer can crash: between journaling and writing, and after writing.
fn crash_states() -> Vec<(Vec<u8>, BTreeMap<String, String>)> {
    let (host, (_folder, path)) = (host(), folder());
    let mut journal = Journal::begin(&path, &host).unwrap();
    let mut states = Vec::new();
    let settings = [
        (Setting::Irq(41), "0"),
        (rps(), "2"),
        (Setting::Irq(41), "1"),
        (rps(), "3"),
        (Setting::HostFlows, "64"),
    ];
    for (setting, value) in settings {
        let before = host.all();
        journal.set(&setting, value).unwrap();
        let text = std::fs::read(&path).unwrap();
        states.extend([(text.clone(), before), (text, host.all())]);
    }
    // Simulates a kill: the journal must not be dropped.
    std::mem::forget(journal);
    states
}

#[test]
fn after_a_kill_at_any_step_everything_is_restored() {
    let original = host().all();
    for (step, (text, files)) in crash_states().into_iter().enumerate() {
        let (restarted, (_folder, path)) = (host(), folder());
        files.iter().for_each(|(path, value)| restarted.put(path, value));
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(
            matches!(Journal::begin(&path, &restarted), Err(JournalError::NotRestored { .. })),
            "step {step}"
        );
        let restored = Journal::recover(&path, &restarted, false).unwrap().unwrap();
        assert!(restored.is_whole(), "step {step}: {restored:?}");
        assert_eq!(restarted.all(), original, "step {step}");
        assert_eq!(Journal::recover(&path, &restarted, false).unwrap(), None, "step {step}");
    }
}

#[test]
fn a_partially_written_line_is_ignored_at_any_length() {
    let states = crash_states();
    // The writer crashes while it appends the third line. An incomplete line has no effect.
    let (before, files) = &states[3];
    let after = &states[4].0;
    for length in before.len()..after.len() {
        let (restarted, (_folder, path)) = (host(), folder());
        files.iter().for_each(|(path, value)| restarted.put(path, value));
        std::fs::write(&path, [before, &after[before.len()..length]].concat()).unwrap();
        assert!(Journal::recover(&path, &restarted, false).unwrap().unwrap().is_whole(), "{length}");
        assert_eq!(restarted.all(), host().all(), "{length}");
    }
}

#[test]
fn a_missing_folder_is_not_created() {
    let (host, (_folder, path)) = (host(), folder());
    let path = path.with_file_name("mistyped").join("journal");
    let error = Journal::begin(&path, &host).err().unwrap().to_string();
    assert!(
        error.contains("there is no directory ")
            && error.contains("mistyped: create it, or name another file with --journal"),
        "{error}"
    );
    assert!(!path.parent().unwrap().exists());
    assert_eq!(Journal::recover(&path, &host, false).unwrap(), None);
}

#[test]
fn a_file_that_is_not_a_journal_is_rejected_and_unchanged() {
    let (host, (_folder, path)) = (host(), folder());
    for foreign in ["\0\0\0\0\0\0", "unrelated notes", "\n", "{\"affinity_sweep\":1"] {
        std::fs::write(&path, foreign).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(
            matches!(Journal::begin(&path, &host), Err(JournalError::Damaged { line: 1, .. })),
            "{foreign:?}"
        );
        assert!(
            matches!(Journal::recover(&path, &host, false), Err(JournalError::Damaged { line: 1, .. })),
            "{foreign:?}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), foreign.as_bytes());
    }
}

#[test]
fn a_journal_with_a_damaged_line_is_rejected_without_changes() {
    let (mut text, files) = crash_states().pop().unwrap();
    let (restarted, (_folder, path)) = (host(), folder());
    files.iter().for_each(|(path, value)| restarted.put(path, value));
    let second = text.iter().position(|byte| *byte == b'\n').unwrap() + 2;
    text[second] ^= 0x10;
    std::fs::write(&path, text).unwrap();
    assert!(matches!(Journal::recover(&path, &restarted, false), Err(JournalError::Damaged { line: 2, .. })));
    assert_eq!(restarted.all(), files);
}

/// A host in one of the [`crash_states`], with its journal.
fn crashed_host(text: &[u8], files: &BTreeMap<String, String>) -> (FakeHost, tempfile::TempDir, PathBuf) {
    let (restarted, (folder, path)) = (host(), folder());
    files.iter().for_each(|(path, value)| restarted.put(path, value));
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    (restarted, folder, path)
}

#[test]
fn a_journal_with_any_flipped_bit_is_rejected_and_kept() {
    let (text, files) = crash_states().pop().unwrap();
    let (restarted, _folder, path) = crashed_host(&text, &files);
    for bit in 0..text.len() * 8 {
        let mut flipped = text.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &flipped).unwrap();
        let error = Journal::recover(&path, &restarted, false).err();
        assert!(
            matches!(error, Some(JournalError::Damaged { .. } | JournalError::FormatVersion { .. })),
            "bit {bit}: {error:?}"
        );
        assert!(Journal::begin(&path, &restarted).is_err());
        assert!(std::fs::read(&path).unwrap() == flipped && restarted.all() == files, "bit {bit}");
    }
}

#[test]
fn a_journal_truncated_anywhere_is_rejected_and_kept() {
    let (text, files) = crash_states().pop().unwrap();
    let (restarted, _folder, path) = crashed_host(&text, &files);
    let ends: Vec<usize> = (1..text.len()).filter(|at| text[at - 1] == b'\n').collect();
    let last = *ends.last().unwrap();
    let without_second = [&text[..ends[0]], &text[ends[1]..]].concat();
    let cuts = (1..text.len()).map(|length| text[..length].to_vec());
    for cut in cuts.chain([without_second, [&text[..], &text[last..]].concat()]) {
        std::fs::write(&path, &cut).unwrap();
        let error = Journal::recover(&path, &restarted, false).unwrap_err();
        assert!(matches!(error, JournalError::Damaged { .. }), "{error:?}");
        assert!(std::fs::read(&path).unwrap() == cut && restarted.all() == files, "{}", cut.len());
    }
    let message = Journal::recover(&path, &restarted, false).unwrap_err().to_string();
    assert!(message.contains("the file is kept") && message.contains("restore manually"), "{message}");
}

#[test]
fn a_journal_with_another_format_version_is_rejected_and_kept() {
    let (host, (_folder, path)) = (host(), folder());
    for (form, text) in [
        (1, "{\"affinity_journal\":1,\"host\":\"b net:1\",\"writer\":7}\n".to_string()),
        (3, "{\"affinity_journal\":3,\"more\":[]} 00000000 00000000\n{}\n".to_string()),
    ] {
        std::fs::write(&path, &text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let error = Journal::begin(&path, &host).err();
        assert!(
            matches!(error, Some(JournalError::FormatVersion { form: found, .. }) if found == form),
            "{error:?}"
        );
        assert!(matches!(Journal::recover(&path, &host, false), Err(JournalError::FormatVersion { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
}

/// A host whose interface has an index, and a journal whose writer was killed.
fn host_with_interface_index() -> (FakeHost, tempfile::TempDir, PathBuf) {
    let (host, (folder, path)) = (host(), folder());
    host.put("sys/class/net/eth0/ifindex", "7");
    host.put("sys/class/net/eth0/mtu", "1500");
    let mut journal = Journal::begin(&path, &host).unwrap();
    journal.set(&rps(), "2").unwrap();
    journal.set(&Setting::Mtu("eth0".parse().unwrap()), "1400").unwrap();
    std::mem::forget(journal);
    let copy = path.with_extension("copy");
    std::fs::copy(&path, &copy).unwrap();
    (host, folder, copy)
}

#[test]
fn renamed_interfaces_are_restored_and_others_with_the_old_name_are_unchanged() {
    let (host, _folder, path) = host_with_interface_index();
    host.rename("eth0", "zz0");
    host.put("sys/class/net/eth0/ifindex", "9");
    host.put("sys/class/net/eth0/mtu", "1400");
    assert!(Journal::recover(&path, &host, false).unwrap().unwrap().is_whole());
    let mtu = |name: &str| host.read(&format!("sys/class/net/{name}/mtu")).unwrap();
    assert_eq!((mtu("zz0"), mtu("eth0")), ("1500".into(), "1400".into()));
    assert_eq!(host.read("sys/class/net/zz0/queues/rx-0/rps_cpus").unwrap(), "00");
}

#[test]
fn renaming_an_interface_stops_further_changes_but_all_are_restored() {
    let (host, (_folder, path)) = (host(), folder());
    host.put("sys/class/net/eth0/ifindex", "7");
    let mut journal = Journal::begin(&path, &host).unwrap();
    journal.set(&rps(), "2").unwrap();
    host.rename("eth0", "zz0");
    for error in [journal.set(&rps(), "1").unwrap_err(), journal.foreign().remove(0)] {
        assert_eq!(error.to_string(), "eth0 (interface 7) was renamed to zz0 by another program");
    }
    assert!(journal.restore().unwrap().is_whole());
    assert_eq!(host.read("sys/class/net/zz0/queues/rx-0/rps_cpus").unwrap(), "00");
    assert_eq!(Journal::recover(&path, &host, false).unwrap(), None);
}

#[test]
fn settings_of_a_removed_interface_stay_in_the_journal() {
    let (host, _folder, path) = host_with_interface_index();
    let files = host.all();
    for file in files.keys().filter(|file| file.contains("/eth0/")) {
        host.remove(file);
    }
    let restored = Journal::recover(&path, &host, false).unwrap().unwrap();
    assert!(!restored.is_whole(), "{restored:?}");
    assert!(matches!(Journal::begin(&path, &host), Err(JournalError::NotRestored { settings: 2, .. })));
    // The interface returns from another namespace.
    files.iter().for_each(|(file, text)| host.put(file, text));
    assert!(Journal::recover(&path, &host, false).unwrap().unwrap().is_whole());
}

#[test]
fn a_sysfs_of_another_namespace_is_not_written() {
    let (mut host, _folder, path) = host_with_interface_index();
    host.foreign_sysfs = Some("its eth0 is interface 3".into());
    let before = (host.all(), std::fs::read(&path).unwrap());
    let other = path.with_extension("other");
    for error in
        [Journal::begin(&other, &host).err().unwrap(), Journal::recover(&path, &host, false).err().unwrap()]
    {
        let message = error.to_string();
        assert!(message.contains("ip netns exec") && message.contains("mount -t sysfs"), "{message}");
    }
    assert_eq!((host.all(), std::fs::read(&path).unwrap()), before);
}

#[test]
fn a_setting_locked_by_another_process_is_not_changed() {
    let (mut host, (_folder, path)) = (host(), folder());
    host.kept.insert("sys/class/net/eth0".into());
    let mut journal = Journal::begin(&path, &host).unwrap();
    let message = journal.set(&rps(), "1").unwrap_err().to_string();
    assert!(message.contains("another longma") && message.contains("/sys/class/net/eth0"), "{message}");
    journal.set(&Setting::Irq(41), "1").unwrap();
    assert_eq!(host.read(RPS).unwrap(), "00");
}

#[test]
fn removing_the_journal_during_use_stops_further_changes() {
    let (host, (_folder, path)) = (host(), folder());
    let mut journal = Journal::begin(&path, &host).unwrap();
    journal.set(&rps(), "1").unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(journal.set(&rps(), "2").unwrap_err().to_string().contains("another program removed it"));
    assert!(journal.restore().unwrap().is_whole());
    assert_eq!(host.read(RPS).unwrap(), "00");
}

/// Simulates a server that forks for each connection.
#[test]
fn ended_threads_are_removed_from_the_journal_which_stays_small() {
    let (host, (_folder, path)) = (host(), folder());
    let stat = crate::watch::tests::stat("server", 0, 0);
    let spawn = |thread: u32, cpus: &str| {
        host.put(&format!("proc/{thread}/task/{thread}/stat"), &stat);
        host.put_thread(thread, cpus.parse().unwrap());
    };
    let mut journal = Journal::begin(&path, &host).unwrap();
    spawn(7, "0-1");
    journal.set(&Setting::Thread { process: 7, thread: 7, started: 900 }, "1").unwrap();
    for first in (100..4100).step_by(100) {
        let children: Vec<u32> = (first..first + 100).collect();
        children.iter().for_each(|child| spawn(*child, "1"));
        // This child was forked before its parent was bound.
        host.put_thread(first, "0-1".parse().unwrap());
        let list = children.iter().map(|child| format!("{child} ")).collect::<String>();
        host.put("proc/7/task/7/children", &list);
        journal.inherit().unwrap();
        assert_eq!(journal.changes.len(), 1 + 99);
        if first < 4000 {
            children.iter().for_each(|child| host.remove(&format!("proc/{child}/task/{child}/stat")));
        }
    }
    assert!(std::fs::metadata(&path).unwrap().len() < 400_000);
    std::mem::forget(journal);
    let copy = path.with_extension("copy");
    std::fs::copy(&path, &copy).unwrap();
    let restored = Journal::recover(&copy, &host, false).unwrap().unwrap();
    assert_eq!((restored.is_whole(), restored.settings.len()), (true, 100));
    assert!(
        restored.settings.iter().all(|(_, outcome)| *outcome == RestoreOutcome::Restored),
        "{restored:?}"
    );
    assert_eq!(
        (host.thread_cpus(7).unwrap().to_string(), host.thread_cpus(4050).unwrap().to_string()),
        ("0-1".into(), "0-1".into())
    );
}

/// A server that was bound to CPU 1 has ended. Its children have another parent.
#[test]
fn processes_that_an_ended_server_left_behind_are_restored_or_named() {
    left_behind(&|host| host.remove("proc/7/task/7/stat"));
}

/// The server's parent does not wait for it, so it stays as a zombie.
#[test]
fn a_zombie_counts_as_an_ended_server() {
    left_behind(&|host| {
        let file = "proc/7/task/7/stat";
        let stat = host.read(file).unwrap().replace("(x) S", "(x) Z");
        host.put(file, &stat);
    });
}

/// Checks the processes that remain after `end` has ended process 7.
fn left_behind(end: &dyn Fn(&FakeHost)) {
    let (host, (_folder, path)) = (host(), folder());
    let spawn = |process: u32, (group, session): (u32, u32), started: u64, cpus: &str| {
        let field = |field: u32| match field {
            5 => u64::from(group),
            6 => u64::from(session),
            22 => started,
            _ => 1,
        };
        let fields: Vec<String> = (4..=52).map(|number| field(number).to_string()).collect();
        host.put(
            &format!("proc/{process}/task/{process}/stat"),
            &format!("{process} (x) S {}", fields.join(" ")),
        );
        host.put_thread(process, cpus.parse().unwrap());
    };
    spawn(7, (7, 3), 900, "0-1");
    let mut journal = Journal::begin(&path, &host).unwrap();
    journal.set(&Setting::Thread { process: 7, thread: 7, started: 900 }, "1").unwrap();
    spawn(20, (7, 3), 950, "1");
    spawn(21, (21, 7), 950, "1");
    // This process has its own session.
    spawn(22, (22, 22), 950, "1");
    // The first process is older than the server. The second one has other CPUs.
    spawn(23, (23, 23), 800, "1");
    spawn(24, (24, 24), 950, "0");
    end(&host);
    let restored = journal.restore().unwrap();
    assert!(restored.is_whole(), "{restored:?}");
    let now = [20, 21, 22, 23, 24].map(|process| host.thread_cpus(process).unwrap().to_string());
    assert_eq!(now, ["0-1", "0-1", "1", "1", "0"]);
    let named: Vec<_> = restored
        .settings
        .iter()
        .filter(|(_, outcome)| matches!(outcome, RestoreOutcome::LeftBehind { .. }))
        .collect();
    let expected = RestoreOutcome::LeftBehind { found: "1".into(), of: 7, was: "0-1".into() };
    assert_eq!(named, [&(Setting::Thread { process: 22, thread: 22, started: 950 }, expected)]);
}

#[test]
fn an_interface_is_claimed_before_any_of_its_settings_is_changed() {
    let (mut host, (_folder, path)) = (host(), folder());
    host.kept.insert("sys/class/net/eth0".into());
    let mut journal = Journal::begin(&path, &host).unwrap();
    let message = journal.claim(&"eth0".parse().unwrap()).unwrap_err().to_string();
    assert!(message.contains("another longma") && message.contains("/sys/class/net/eth0"), "{message}");
    assert!(journal.claim(&"eth1".parse().unwrap()).is_ok());
}

/// After SIGKILL a driver may be reloaded: the interrupt number is then free, reused by another device with the CPU
/// that was set here, or assigned to the same device again.
#[test]
fn a_reused_or_freed_interrupt_number_is_ignored() {
    let of = |name: &str| format!("sys/kernel/irq/41/{name}");
    let host_with_irq = |chip: &str, line: &str| {
        let host = host();
        host.put(&of("chip_name"), chip);
        host.put(&of("hwirq"), line);
        host.put("sys/kernel/irq/1/hwirq", "1");
        host
    };
    let original = host_with_irq("PCI-MSIX-0000:00:03.0", "1");
    let (_folder, path) = folder();
    let mut journal = Journal::begin(&path, &original).unwrap();
    journal.set(&Setting::Irq(41), "1").unwrap();
    original.put(&of("hwirq"), "2");
    let refused = journal.set(&Setting::Irq(41), "0").unwrap_err().to_string();
    assert!(refused.contains("another device has its number"), "{refused}");
    std::mem::forget(journal);
    let text = std::fs::read(&path).unwrap();
    // The writer is regarded as dead, but this process still holds the lock on the first file.
    let path = path.with_file_name("again");
    let restored = |host: &FakeHost| {
        std::fs::write(&path, &text).unwrap();
        Journal::recover(&path, host, false).unwrap().unwrap().settings.remove(0).1
    };
    for (chip, line) in [("PCI-MSIX-0000:00:04.0", "1"), ("PCI-MSIX-0000:00:03.0", "2")] {
        let now = host_with_irq(chip, line);
        now.put(IRQ, "1");
        assert_eq!((restored(&now), now.writes().len()), (RestoreOutcome::Ended, 0), "{chip} {line}");
    }
    let free = host_with_irq("", "");
    [&*of("chip_name"), &*of("hwirq"), IRQ].iter().for_each(|path| free.remove(path));
    assert_eq!(restored(&free), RestoreOutcome::Ended);
    let same = host_with_irq("PCI-MSIX-0000:00:03.0", "1");
    same.put(IRQ, "1");
    assert_eq!((restored(&same), same.read(IRQ).unwrap()), (RestoreOutcome::Restored, "0-1".into()));
    // If the kernel does not report the device, only the number can be compared.
    let host_without_irq_info = host();
    host_without_irq_info.put(IRQ, "1");
    assert_eq!(restored(&host_without_irq_info), RestoreOutcome::Restored);
}

/// After SIGKILL, a thread ID and its process ID may be reused. Threads of the new process have inherited nothing,
/// even if their affinity looks inherited.
#[test]
fn a_thread_id_reused_by_another_process_is_ignored() {
    let stat = |started: u64| {
        let fields: Vec<String> =
            (4..=52).map(|field| if field == 22 { started } else { 1 }.to_string()).collect();
        format!("8 (x) S {}", fields.join(" "))
    };
    let bound = |(process, started): (u64, u64), cpus: &str| {
        let host = host();
        host.put("proc/7/task/7/stat", &stat(process));
        host.put("proc/7/task/8/stat", &stat(started));
        host.put_thread(8, cpus.parse().unwrap());
        host
    };
    let thread = Setting::Thread { process: 7, thread: 8, started: 100 };
    let (_folder, path) = folder();
    let before = bound((50, 100), "0-1");
    let mut journal = Journal::begin(&path, &before).unwrap();
    journal.set(&thread, "1").unwrap();
    std::mem::forget(journal);
    let text = std::fs::read(&path).unwrap();
    let path = path.with_file_name("again");
    // The same thread; a new thread of the same process that inherited its affinity; a thread of another process that
    // has the same affinity by chance.
    for (started, now) in [((50, 100), "0-1"), ((50, 101), "0-1"), ((101, 101), "1")] {
        std::fs::write(&path, &text).unwrap();
        let host = bound(started, "1");
        Journal::recover(&path, &host, false).unwrap();
        assert_eq!(host.thread_cpus(8).unwrap().to_string(), now, "{started:?}");
    }
}

#[test]
fn external_changes_are_reported_and_kept() {
    let (host, (_folder, path)) = (host(), folder());
    let mut journal = Journal::begin(&path, &host).unwrap();
    journal.set(&Setting::Irq(41), "0").unwrap();
    journal.set(&rps(), "1").unwrap();
    host.put(IRQ, "1");
    assert!(matches!(&journal.foreign()[..], [JournalError::Foreign { found, .. }] if found == "1"));
    assert!(matches!(journal.set(&Setting::Irq(41), "0"), Err(JournalError::Foreign { .. })));
    let restored = journal.restore().unwrap();
    assert!(!restored.is_whole());
    assert_eq!(restored.settings[1], (Setting::Irq(41), RestoreOutcome::Foreign { found: "1".into() }));
    assert_eq!((host.read(IRQ).unwrap(), host.read(RPS).unwrap()), ("1".into(), "00".into()));
}

#[test]
fn an_unchanged_setting_is_also_monitored() {
    let (host, (_folder, path)) = (host(), folder());
    let mut journal = Journal::begin(&path, &host).unwrap();
    journal.set(&rps(), "0").unwrap();
    assert!(journal.foreign().is_empty());
    host.put(RPS, "3");
    assert_eq!(journal.foreign().len(), 1);
    assert_eq!(journal.restore().unwrap().settings, [(rps(), RestoreOutcome::Foreign { found: "3".into() })]);
}

#[test]
fn a_second_writer_is_rejected_with_the_pid_of_the_first() {
    let (host, (_folder, path)) = (host(), folder());
    let _first = Journal::begin(&path, &host).unwrap();
    let own = std::process::id();
    assert!(matches!(Journal::begin(&path, &host), Err(JournalError::InUse { writer, .. }) if writer == own));
    assert!(matches!(Journal::recover(&path, &host, false), Err(JournalError::InUse { .. })));
}

#[test]
fn a_rejected_write_is_an_error_and_the_setting_stays() {
    let (mut host, (_folder, path)) = (host(), folder());
    host.refused.insert(IRQ.into());
    let before = host.all();
    let mut journal = Journal::begin(&path, &host).unwrap();
    let refused = journal.set(&Setting::Irq(41), "1").unwrap_err();
    assert!(
        matches!(&refused, JournalError::Refused { error, .. } if error.raw_os_error() == Some(libc::EIO))
    );
    journal.set(&rps(), "1").unwrap();
    assert!(journal.restore().unwrap().is_whole());
    assert_eq!(host.all(), before);
}

/// The driver rounds a written value. The write fails with an error that names the stored value, and the previous value
/// is restored at once. The original value is restored at the end, and also after a kill at the worst moment.
#[test]
fn a_rounded_value_is_refused_with_what_was_stored_and_restored() {
    let (mut host, (_folder, path)) = (host(), folder());
    let ring = || Setting::Driver { interface: "eth0".parse().unwrap(), fact: DriverProperty::RxRing };
    host.put_driver("eth0", DriverProperty::RxRing, 256);
    host.rounded.insert(DriverProperty::RxRing, 64);
    let mut journal = Journal::begin(&path, &host).unwrap();
    for accepted in ["512", "1024"] {
        journal.set(&ring(), accepted).unwrap();
        let error = journal.set(&ring(), "500").unwrap_err();
        assert!(matches!(error, JournalError::Refused { .. }), "{error}");
        assert!(
            error.to_string().contains("to `500`: `512` was stored instead") || accepted == "512",
            "{error}"
        );
        assert_eq!(ring().read(&host).unwrap(), accepted);
        assert!(journal.foreign().is_empty());
    }
    // Simulates a kill while the stored value is in effect.
    let text = std::fs::read(&path).unwrap();
    drop(journal);
    assert_eq!(ring().read(&host).unwrap(), "256");
    let (_folder, path) = folder();
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    host.put_driver("eth0", DriverProperty::RxRing, 512);
    assert!(Journal::recover(&path, &host, false).unwrap().unwrap().is_whole());
    assert_eq!(ring().read(&host).unwrap(), "256");
}

#[test]
fn unrestored_and_missing_settings_stay_in_the_journal() {
    let (mut host, (_folder, path)) = (host(), folder());
    let mut journal = Journal::begin(&path, &host).unwrap();
    journal.set(&Setting::Irq(41), "1").unwrap();
    journal.set(&rps(), "1").unwrap();
    std::mem::forget(journal);
    // The lock of a dead writer would be gone. A copy of the file simulates that.
    let copy = path.with_extension("copy");
    std::fs::copy(&path, &copy).unwrap();
    host.refused.insert(IRQ.into());
    host.remove(RPS);
    let restored = Journal::recover(&copy, &host, false).unwrap().unwrap();
    assert_eq!(restored.settings[0].1, RestoreOutcome::Gone { was: "00".into() });
    assert!(matches!(restored.settings[1].1, RestoreOutcome::Failed { .. }));
    host.refused.clear();
    // A missing interface may be in another namespace, unless the user confirms that it is gone.
    for discards_missing in [false, true] {
        let restored = Journal::recover(&copy, &host, discards_missing).unwrap().unwrap();
        assert_eq!(restored.is_whole(), discards_missing, "{restored:?}");
    }
    assert_eq!(Journal::recover(&copy, &host, false).unwrap(), None);
    assert_eq!(host.read(IRQ).unwrap(), "0-1");
}

#[test]
fn a_journal_of_another_boot_or_namespace_is_not_applied() {
    let (mut host, (_folder, path)) = (host(), folder());
    host.identity = "boot1 net:1 cookie:5".parse().unwrap();
    let mut journal = Journal::begin(&path, &host).unwrap();
    journal.set(&rps(), "1").unwrap();
    std::mem::forget(journal);
    let copy = path.with_extension("copy");
    std::fs::copy(&path, &copy).unwrap();
    let mut other = FakeHost::with(&[(RPS, "1")]);
    other.identity = "boot1 net:2 cookie:6".parse().unwrap();
    assert!(matches!(Journal::recover(&copy, &other, false), Err(JournalError::OtherNamespace { .. })));
    assert!(matches!(Journal::begin(&copy, &other), Err(JournalError::NotRestored { .. })));
    assert_eq!(other.read(RPS).unwrap(), "1");
    other.identity = "boot2 net:1 cookie:5".parse().unwrap();
    assert!(matches!(Journal::recover(&copy, &other, false), Err(JournalError::OtherNamespace { .. })));
    assert!(Journal::begin(&copy, &other).is_ok());
}

/// The kernel reuses inode numbers. Before Linux 5.14 there is no cookie.
#[test]
fn a_namespace_with_a_reused_inode_number_is_detected() {
    let mut host = host();
    for (was, current, is_other) in [
        ("boot1 net:1 cookie:5", "boot1 net:1 cookie:6", true),
        ("boot1 net:1 cookie:5", "boot1 net:1 cookie:5", false),
        ("boot1 net:1", "boot1 net:1", false),
        ("boot1 net:1", "boot1 net:1 cookie:6", false),
    ] {
        let (_folder, path) = folder();
        host.identity = was.parse().unwrap();
        let mut journal = Journal::begin(&path, &host).unwrap();
        journal.set(&rps(), "1").unwrap();
        std::mem::forget(journal);
        let copy = path.with_extension("copy");
        std::fs::copy(&path, &copy).unwrap();
        let mut other = FakeHost::with(&[(RPS, "1")]);
        other.identity = current.parse().unwrap();
        let recovered = Journal::recover(&copy, &other, false);
        if is_other {
            assert!(matches!(recovered, Err(JournalError::OtherNamespace { .. })), "{was}, {current}");
        } else {
            let restored = recovered.unwrap().unwrap();
            assert!(restored.is_whole(), "{was}, {current}");
            assert_eq!(restored.may_be_another, !was.contains("cookie"), "{was}, {current}");
        }
        assert_eq!(other.read(RPS).unwrap(), if is_other { "1" } else { "00" }, "{was}, {current}");
        host.put(RPS, "00");
    }
}

#[test]
fn a_journal_of_a_deleted_testbed_does_not_block_others() {
    let (mut host, (_folder, path)) = (host(), folder());
    host.ends_with_writer = true;
    let mut journal = Journal::begin(&path, &host).unwrap();
    journal.set(&rps(), "1").unwrap();
    std::mem::forget(journal);
    let copy = path.with_extension("copy");
    std::fs::copy(&path, &copy).unwrap();
    assert_eq!(Journal::recover(&copy, &self::host(), false).unwrap(), None);
    assert!(Journal::begin(&copy, &self::host()).is_ok());
}

#[test]
fn symlinks_and_world_writable_files_are_rejected() {
    let (host, (folder, path)) = (host(), folder());
    let target = folder.path().join("target");
    std::fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    assert!(matches!(Journal::begin(&path, &host), Err(JournalError::File { .. })));
    std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(Journal::begin(&target, &host), Err(JournalError::File { .. })));
}
