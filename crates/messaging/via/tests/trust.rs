//! Access control of the shared-memory NIC: who may connect, the credentials reported, and the messages of refusals.

use longma_via::provider::shared_memory::*;
use longma_via::*;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

struct Side {
    provider: Arc<SharedMemory>,
    nic: Nic,
    tag: ProtectionTag,
    vi: Vi,
}

fn side(settings: Settings) -> Side {
    let provider = SharedMemory::open_with(settings).unwrap();
    let nic = Nic::with_provider(Box::new(provider.clone()));
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    Side { provider, nic, tag, vi }
}

fn own_uid() -> u32 {
    // SAFETY: takes no arguments and returns an integer.
    unsafe { libc::geteuid() }
}

fn name(what: &str) -> Address {
    Address::local(format!("trust-{what}-{}", std::process::id()))
}

/// The result for the client, while the server accepts one permitted request or waits for half a second.
fn connect(server: &Side, client: &Side, name: &Address) -> Result<(), Error> {
    let _ = server.nic.connect_wait(name, Some(Duration::ZERO));
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| client.vi.connect(&Address::local("client"), name, TIMEOUT).map(|_| ()));
        while !asking.is_finished() {
            if let Ok(asked) = server.nic.connect_wait(name, Some(Duration::from_millis(20))) {
                asked.accept(&server.vi).unwrap();
            }
        }
        asking.join().unwrap()
    })
}

#[test]
fn each_side_learns_the_other_sides_process_and_user() {
    let (server, client) = (side(Settings::default()), side(Settings::default()));
    let name = name("credentials");
    let _ = server.nic.connect_wait(&name, Some(Duration::ZERO));
    assert!(client.vi.peer_credentials().is_none(), "there is no peer yet");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let asked = server.nic.connect_wait(&name, TIMEOUT).unwrap();
            let credentials = asked.credentials().unwrap();
            assert_eq!(credentials.uid, own_uid());
            asked.accept(&server.vi).unwrap();
        });
        client.vi.connect(&Address::local("client"), &name, TIMEOUT).unwrap();
    });
    for vi in [&server.vi, &client.vi] {
        let credentials = vi.peer_credentials().unwrap();
        // SAFETY: takes no arguments and returns an integer.
        assert_eq!((credentials.uid, credentials.gid), (own_uid(), unsafe { libc::getegid() }));
    }
}

#[test]
fn a_client_that_is_not_allowed_is_refused_and_both_sides_get_the_reason() {
    let stranger = own_uid().wrapping_add(1);
    let clients = Allow::users(&[stranger]);
    let server = side(Settings { clients, ..Settings::default() });
    let client = side(Settings::default());
    let error = connect(&server, &client, &name("stranger")).unwrap_err();
    let reason = format!("user {} with group", own_uid());
    assert!(matches!(&error, Error::Refused(text) if text.contains(&reason)), "{error}");
    let refused = server.provider.take_refusals();
    assert_eq!((refused.len(), refused[0].uid, refused[0].by_peer), (1, own_uid(), false));
    assert!(refused[0].reason.contains(&reason), "{refused:?}");
    assert_eq!(client.vi.state(), ViState::Idle);
}

#[test]
fn a_client_sends_nothing_to_another_users_server() {
    let server = side(Settings::default());
    let servers = Allow::users(&[own_uid().wrapping_add(1)]);
    let client = side(Settings { servers, ..Settings::default() });
    let error = connect(&server, &client, &name("impostor")).unwrap_err();
    assert!(matches!(&error, Error::Refused(text) if text.contains("by this side")), "{error}");
}

#[test]
fn a_name_in_a_directory_is_found_only_there() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let directory = Some(Directory { path: folder.path().to_path_buf(), mode: 0o600 });
    let settings = Settings { directory, ..Settings::default() };
    let (server, client) = (side(settings.clone()), side(settings));
    let elsewhere = side(Settings::default());
    let name = name("directory");
    let _ = server.nic.connect_wait(&name, Some(Duration::ZERO));
    let other = elsewhere.vi.connect(&Address::local("client"), &name, TIMEOUT);
    assert!(matches!(other, Err(Error::NoMatch(_))));
    connect(&server, &client, &name).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    drop((server, client));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the name was not removed with the NIC");
}

/// Waits until a side has logged a refusal.
fn refusal(side: &Side) -> Refused {
    for _ in 0..2000 {
        if let Some(refused) = side.provider.take_refusals().pop() {
            return refused;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("nothing was refused");
}

#[test]
fn a_region_over_the_limit_is_refused_to_both_and_messages_still_arrive() {
    let limits = Limits { peer_bytes: 2 << 20, ..Limits::default() };
    let (server, client) = (side(Settings { limits, ..Settings::default() }), side(Settings::default()));
    let large = client.nic.allocate(8 << 20, MemoryAttributes::remote(client.tag)).unwrap();
    connect(&server, &client, &name("limit")).unwrap();
    let (of_server, of_client) = (refusal(&server), refusal(&client));
    assert!(!of_server.by_peer && of_client.by_peer);
    assert!(
        of_server.reason.contains("would exceed the limit of 2097152")
            && of_server.reason == of_client.reason,
        "{of_server:?} {of_client:?}"
    );
    let to = server.nic.allocate(1 << 20, MemoryAttributes::local(server.tag)).unwrap();
    server.vi.post_receive(&Descriptor::receive(&[to.segment(0, 1 << 20)])).unwrap();
    large.write(7 << 20, &[7; 1 << 20]);
    client.vi.post_send(&Descriptor::send(&[large.segment(7 << 20, 1 << 20)])).unwrap();
    let received = loop {
        client.vi.progress();
        if let Some(received) = server.vi.receive_done() {
            break received;
        }
    };
    assert!(received.is_success() && received.length == 1 << 20, "{received:?}");
    let mut got = vec![0; 1 << 20];
    to.read(0, &mut got);
    assert!(got.iter().all(|byte| *byte == 7));
}

#[test]
fn connections_per_user_are_limited_and_freed_when_they_end() {
    let limits = Limits { user_connections: 1, ..Limits::default() };
    let server = side(Settings { limits, ..Settings::default() });
    let (first, second) = (side(Settings::default()), side(Settings::default()));
    let name = name("count");
    connect(&server, &first, &name).unwrap();
    let error = connect(&server, &second, &name).unwrap_err();
    assert!(error.to_string().contains("1 connections, and no more are allowed"), "{error}");
    first.vi.disconnect().unwrap();
    server.vi.disconnect().unwrap();
    connect(&server, &second, &name).unwrap();
}

/// Sends 12 KiB from memory that is not enabled for RDMA. Returns whether the message stays there until it is received.
fn stays_in_sender_memory(server: &Side, client: &Side) -> bool {
    let from = client.nic.allocate(1 << 16, MemoryAttributes::local(client.tag)).unwrap();
    let to = server.nic.allocate(1 << 16, MemoryAttributes::local(server.tag)).unwrap();
    let (mut in_memory, mut turns) = (false, 0);
    // The region is lent some time after it was registered.
    while !in_memory && turns < 200 {
        from.write(0, &[turns as u8; 12 << 10]);
        server.vi.post_receive(&Descriptor::receive(&[to.segment(0, 1 << 16)])).unwrap();
        client.vi.post_send(&Descriptor::send(&[from.segment(0, 12 << 10)])).unwrap();
        let sent = client.vi.send_done();
        in_memory = sent.is_none();
        let received = server.vi.receive_wait(TIMEOUT).unwrap();
        assert!(received.is_success() && received.length == 12 << 10, "{received:?}");
        let mut got = vec![0; 12 << 10];
        to.read(0, &mut got);
        assert!(got.iter().all(|byte| *byte == turns as u8));
        assert!(sent.or_else(|| client.vi.send_wait(TIMEOUT).ok()).unwrap().is_success());
        turns += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    in_memory
}

#[test]
fn large_messages_are_copied_once_between_processes_of_a_user_unless_disabled() {
    for (ours, theirs, expected) in [
        (SingleCopy::SameUser, SingleCopy::SameUser, true),
        (SingleCopy::Never, SingleCopy::SameUser, false),
        (SingleCopy::SameUser, SingleCopy::Never, false),
    ] {
        let (server, client) =
            [ours, theirs].map(|single_copy| side(Settings { single_copy, ..Settings::default() })).into();
        connect(&server, &client, &name(&format!("copy-{ours:?}-{theirs:?}"))).unwrap();
        assert_eq!(stays_in_sender_memory(&server, &client), expected, "{ours:?} {theirs:?}");
    }
}
