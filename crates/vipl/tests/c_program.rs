//! C programs written to VIPL compile with the system's compiler, link with the library, and do what they should.
//! Not a test of what descriptors do; that is the conformance suite of `longma-via`.
//! Source: VI Architecture Specification 1.0 and the Developer's Guide, for what `c/rules.c` holds the library to.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Where cargo put the library: beside this test.
fn library_folder() -> PathBuf {
    std::env::current_exe().expect("a path").parent().expect("a folder").to_path_buf()
}

fn compile(source: &str, folder: &Path, link: &[&str]) -> PathBuf {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join(Path::new(source).file_stem().expect("a name"));
    let libraries = library_folder();
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
        .arg(home.join("include"))
        .arg(home.join(source))
        .arg("-o")
        .arg(&program)
        .arg(format!("-L{}", libraries.display()))
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .args(link)
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Server and client, each with what comes after the number of rounds.
fn plays(program: &Path, name: &str, rounds: u32, devices: [&[&str]; 2]) {
    let name = format!("vipl-{name}-{}", std::process::id());
    let start = |role: &str, devices: &[&str]| {
        let mut command = Command::new("timeout");
        command.arg("60").arg(program).args([role, &name, &rounds.to_string()]).args(devices);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process")
    };
    let children = [start("server", devices[0]), start("client", devices[1])];
    for (child, role) in children.into_iter().zip(["server", "client"]) {
        let output = child.wait_with_output().expect("an end");
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{role}: {:?} {error}", output.status);
        assert_eq!(out, format!("{role}: {rounds} rounds\n"));
    }
}

#[test]
fn a_program_linked_with_the_shared_library_plays_ping_pong_between_two_processes() {
    let folder = tempfile::tempdir().unwrap();
    plays(&compile("examples/ping_pong.c", folder.path(), &["-lvipl"]), "shared", 3000, [&[], &[]]);
}

#[test]
fn a_program_linked_with_the_static_library_plays_ping_pong_between_two_processes() {
    let folder = tempfile::tempdir().unwrap();
    let archive = library_folder().join("libvipl.a");
    let link = [archive.to_str().unwrap(), "-lpthread", "-ldl", "-lm", "-lgcc_s"];
    plays(&compile("examples/ping_pong.c", folder.path(), &link), "static", 3000, [&[], &[]]);
}

#[test]
fn the_same_program_plays_over_udp_when_it_opens_that_device() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("examples/ping_pong.c", folder.path(), &["-lvipl"]);
    // A port that was free just now.
    let server = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let device = format!("udp:{server}");
    plays(&program, "udp", 300, [&[&device], &["udp:127.0.0.1:0", &server]]);
}

/// The program of the rules, built once for all its cases.
fn rules() -> &'static Path {
    static PROGRAM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = PROGRAM.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let program = compile("tests/c/rules.c", folder.path(), &["-lvipl"]);
        (folder, program)
    });
    program
}

fn is_kept(case: &str) {
    let output = Command::new("timeout").arg("90").arg(rules()).arg(case).output().expect("a process");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out == format!("{case}: kept\n"), "{:?} {error}", output.status);
}

macro_rules! rules {
    ($($case:ident: $test:ident),* $(,)?) => {
        $(#[test]
        fn $test() {
            is_kept(stringify!($case));
        })*

        #[test]
        fn every_case_of_the_program_is_run() {
            let output = Command::new(rules()).arg("--list").output().expect("a process");
            let listed = String::from_utf8_lossy(&output.stdout).into_owned();
            assert_eq!(listed.lines().collect::<Vec<_>>(), [$(stringify!($case)),*]);
        }
    };
}

rules! {
    accept_again: an_accept_that_fails_leaves_the_request_for_another_answer,
    peers: a_vi_that_asks_for_a_peer_is_pending_until_it_has_one_or_gives_up,
    stranger: who_is_not_the_peer_that_was_asked_for_is_refused,
    same_name: peers_of_one_discriminator_on_two_hosts_find_each_other,
    status_shm: a_status_in_memory_changes_without_any_call_over_shared_memory,
    status_udp: a_status_in_memory_changes_without_any_call_over_udp,
    destroy: what_is_in_use_is_not_destroyed,
    malformed: a_descriptor_that_contradicts_itself_completes_with_a_format_error,
    gone_memory: a_descriptor_in_memory_given_back_is_not_written_to,
    management: a_nic_tells_which_others_it_knows,
    names: device_names_open_their_nics_and_no_others,
    wrong_handles: every_call_refuses_a_handle_that_is_none,
    long_name: a_name_too_long_for_the_servers_room_is_not_written_there,
    threads: threads_that_use_and_destroy_one_vi_do_no_harm,
    devices: one_program_moves_data_on_every_kind_of_nic,
}
