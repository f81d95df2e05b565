//! A peer that executes a setuid program: what that program holds is not read for the peer.
//! Not portable to where the test is not root, or files of other users cannot be made; there it says so and ends.
//! Source: execve(2), pidfd_getfd(2), getauxval(3) AT_SECURE.

use super::*;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const ROLE: &str = "LONGMA_VIA_EXECUTED";
const THIS: &str = "provider::shared_memory::hostile::executed::what_a_setuid_program_holds_is_not_read_for_the_peer_that_became_it";
/// The descriptor that is lent.
const LENT: i32 = 100;
/// The user that attacks.
const NOBODY: u32 = 65_534;

fn again(program: &Path, role: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", THIS, "--nocapture"]).env(ROLE, role).stdout(Stdio::piped());
    command
}

/// Holds a sealed memory file under the number, says so by a file, and stays.
fn hold(marker: &str) {
    let (file, _mapping) = create(4096, false).unwrap();
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), LENT) }, LENT);
    std::fs::write(marker, "held").unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

/// Connects in good order, leaves its socket to a child, which speaks on, and becomes another program or only holds the file itself.
#[expect(
    clippy::zombie_processes,
    reason = "this process becomes another program, and the child ends by itself"
)]
fn connect_and_become(name: &str, program: &str, marker: &str) {
    let hostile = connect(name, Reliability::ReliableDelivery);
    // SAFETY: numbers only: the socket outlives the program.
    assert_eq!(unsafe { libc::dup2(hostile.socket.as_raw_fd(), LENT + 1) }, LENT + 1);
    let own = std::env::current_exe().unwrap();
    // What it says goes where this process's words go.
    again(&own, &format!("speak {marker}")).stdout(Stdio::inherit()).spawn().unwrap();
    if program.is_empty() {
        return hold(marker);
    }
    let error = again(Path::new(program), &format!("hold {marker}")).stdout(Stdio::null()).exec();
    panic!("{error}");
}

/// Lends what the process that connected holds, and says what became of it.
fn speak(marker: &str) {
    let end = Instant::now() + Duration::from_secs(20);
    while !Path::new(marker).exists() {
        assert!(Instant::now() < end, "nothing is held");
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: inherited, and nobody else here has it.
    let socket = unsafe { std::os::fd::FromRawFd::from_raw_fd(LENT + 1) };
    let socket: OwnedFd = socket;
    let showing =
        Showing { handle: 7, address: 0x1000, length: 4096, write: false, read: false, slot: 0, serial: 0 };
    send(socket.as_raw_fd(), &Letter::Lend { showing, file: LENT as u32 }, None).unwrap();
    // Long enough for the other side to borrow it, as it does at once where it may.
    let end = Instant::now() + Duration::from_secs(2);
    while Instant::now() < end {
        if matches!(hear(&socket), Ok(Letter::Mapped { handle: 7, .. })) {
            return println!("\nborrowed");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("\nnot borrowed");
}

/// Whether the server borrows what the peer lends after it has executed `program` (or nothing).
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
    let mut peer: Child = again(&folder.join("plain"), &role).uid(NOBODY).gid(NOBODY).spawn().unwrap();
    nic.connect_wait(&Address::local(&name), SOON).unwrap().accept(&vi).unwrap();
    let lines = BufReader::new(peer.stdout.take().unwrap()).lines();
    let said = lines.map_while(Result::ok).find(|line| line.ends_with("borrowed"));
    peer.kill().unwrap();
    peer.wait().unwrap();
    said.expect("the peer says what became of it") == "borrowed"
}

#[test]
fn what_a_setuid_program_holds_is_not_read_for_the_peer_that_became_it() {
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
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::geteuid() } == 0;
    let (Ok(_), Ok(setuid), true) = (copy("plain", 0o755), copy("setuid", 0o4755), is_root) else {
        return eprintln!("left out: needs root");
    };
    assert!(borrows(folder.path(), ""), "what a peer lends of its own is borrowed");
    assert!(
        !borrows(folder.path(), setuid.to_str().unwrap()),
        "a setuid program's file was read for the peer"
    );
}
