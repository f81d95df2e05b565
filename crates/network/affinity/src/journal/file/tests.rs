//! Tests of `file`.

use super::*;

/// SIGKILL of a sweep that is starting its load: the child holds the lock until it executes the load.
#[test]
fn a_lock_that_a_child_of_a_killed_writer_holds_is_awaited() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let head = |writer: u32| Header {
        affinity_journal: FORMAT_VERSION,
        host: Default::default(),
        writer,
        ends_with_writer: false,
    };
    let held = |writer: u32| {
        std::fs::write(&path, sealed(&json(&head(writer)), 0)).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let heir = File::open(&path).unwrap();
        rustix::fs::flock(&heir, FlockOperation::NonBlockingLockExclusive).unwrap();
        heir
    };
    let heir = held(ended.id());
    let holds = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(heir);
    });
    assert!(Log::open(&path, false).unwrap().is_some());
    holds.join().unwrap();
    let _heir = held(std::process::id());
    assert!(matches!(Log::open(&path, false), Err(JournalError::InUse { .. })));
}
