//! A peer that executes a setuid program: the program's descriptors are not borrowed for the peer. The test requires
//! root and files of other users, and is skipped otherwise.
//!
//! Source: execve(2), pidfd_getfd(2), getauxval(3) AT_SECURE.

use super::*;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const ROLE: &str = "LONGMA_VIA_EXECUTED";
const THIS: &str = "provider::shared_memory::hostile::executed::files_of_a_setuid_program_are_not_read_for_the_peer_that_executed_it";
/// The number of the lent descriptor.
const LENT: i32 = 100;
/// The attacking user.
const NOBODY_UID: u32 = 65_534;

fn again(program: &Path, role: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", THIS, "--nocapture"]).env(ROLE, role).stdout(Stdio::piped());
    command
}

/// Opens a sealed memory file under the number `LENT`, creates the marker file, and sleeps.
fn hold(marker: &str) {
    let (file, _mapping) = create(4096, false).unwrap();
    // SAFETY: the call takes only integers.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), LENT) }, LENT);
    std::fs::write(marker, "held").unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

/// Connects properly, passes the socket to a child that continues the conversation, and then executes a program or just
/// holds the file.
#[expect(
    clippy::zombie_processes,
    reason = "this process becomes another program, and the child ends by itself"
)]
fn connect_and_become(name: &str, program: &str, marker: &str) {
    let hostile = connect(name, Reliability::ReliableDelivery);
    // SAFETY: the call takes only integers; the descriptor survives the exec.
    assert_eq!(unsafe { libc::dup2(hostile.socket.as_raw_fd(), LENT + 1) }, LENT + 1);
    let own = std::env::current_exe().unwrap();
    // The child shares this process's standard output.
    again(&own, &format!("speak {marker}")).stdout(Stdio::inherit()).spawn().unwrap();
    if program.is_empty() {
        return hold(marker);
    }
    let error = again(Path::new(program), &format!("hold {marker}")).stdout(Stdio::null()).exec();
    panic!("{error}");
}

/// Lends a descriptor of the connected process and reports the result.
fn speak(marker: &str) {
    let end = Instant::now() + Duration::from_secs(20);
    while !Path::new(marker).exists() {
        assert!(Instant::now() < end, "nothing is held");
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: the descriptor is inherited and has no other owner here.
    let socket = unsafe { std::os::fd::FromRawFd::from_raw_fd(LENT + 1) };
    let socket: OwnedFd = socket;
    let export = RegionExport {
        handle: 7,
        address: 0x1000,
        length: 4096,
        write: false,
        read: false,
        slot: 0,
        serial: 0,
    };
    send(socket.as_raw_fd(), &ControlMessage::Lend { export, file: LENT as u32 }, None).unwrap();
    // Long enough for the other side to borrow the region, which happens immediately where permitted.
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        if matches!(hear(&socket), Ok(ControlMessage::Mapped { handle: 7, .. })) {
            return println!("\nborrowed");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("\nnot borrowed");
}

/// Whether the server borrows the lent file after the peer has executed `program`, if that is not empty.
fn borrows(folder: &Path, program: &str) -> bool {
    let name = format!("executed-{}-{}", std::process::id(), program.len());
    let settings =
        Settings { single_copy: super::super::settings::SingleCopy::BetweenUsers, ..Settings::default() };
    let nic = Nic::with_provider(Box::new(SharedMemory::open_with(settings).unwrap()));
    let tag = nic.create_protection_tag().unwrap();
    let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
    let _ = nic.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let marker = folder.join(format!("held-{}", program.len()));
    let role = format!("connect {name} {} {program}", marker.display());
    let mut peer: Child =
        again(&folder.join("plain"), &role).uid(NOBODY_UID).gid(NOBODY_UID).spawn().unwrap();
    nic.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&vi).unwrap();
    let lines = BufReader::new(peer.stdout.take().unwrap()).lines();
    let verdict = lines.map_while(Result::ok).find(|line| line.ends_with("borrowed"));
    peer.kill().unwrap();
    peer.wait().unwrap();
    verdict.expect("the peer prints whether the region was borrowed") == "borrowed"
}

#[test]
fn files_of_a_setuid_program_are_not_read_for_the_peer_that_executed_it() {
    if let Ok(role) = std::env::var(ROLE) {
        return match role.split(' ').collect::<Vec<_>>()[..] {
            ["connect", name, marker, program] => connect_and_become(name, program, marker),
            ["hold", marker] => hold(marker),
            ["speak", marker] => speak(marker),
            _ => panic!("{role}"),
        };
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let copy = |name: &str, mode: u32| {
        let path = folder.path().join(name);
        std::fs::copy(std::env::current_exe()?, &path)?;
        chown(&path, Some(0), Some(0))?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode))?;
        Ok::<_, std::io::Error>(path)
    };
    // SAFETY: takes no arguments and returns an integer.
    let is_root = unsafe { libc::geteuid() } == 0;
    let (Ok(_), Ok(setuid), true) = (copy("plain", 0o755), copy("setuid", 0o4755), is_root) else {
        return eprintln!("skipped: needs root");
    };
    assert!(borrows(folder.path(), ""), "a file that the peer owns and lends is borrowed");
    assert!(
        !borrows(folder.path(), setuid.to_str().unwrap()),
        "a setuid program's file was read for the peer"
    );
}
