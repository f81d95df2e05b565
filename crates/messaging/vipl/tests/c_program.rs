//! C programs written to VIPL compile with the system's compiler, link with the library, and work. The behaviour of
//! descriptors is tested by the conformance suite of `longma-via`.
//!
//! Source: VI Architecture Specification 1.0 and the Developer's Guide for the cases in `c/rules.c`; those in
//! `c/abuse.c` are our own.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The directory with the library, next to this test program.
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

/// Runs a server and a client, each with its device arguments after the number of rounds.
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
    // A port that was free a moment ago.
    let server = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let device = format!("udp:{server}");
    plays(&program, "udp", 300, [&[&device], &["udp:127.0.0.1:0", &server]]);
}

/// A C program with test cases, built once.
struct Cases {
    source: &'static str,
    /// The library to link with.
    library: &'static str,
    built: OnceLock<(tempfile::TempDir, PathBuf)>,
}

/// Linked with the library that includes the modelled NICs.
static RULES: Cases = Cases { source: "tests/c/rules.c", library: "-lvipl_myrinet", built: OnceLock::new() };
static ABUSE: Cases = Cases { source: "tests/c/abuse.c", library: "-lvipl", built: OnceLock::new() };

impl Cases {
    fn program(&self) -> &Path {
        let (_, program) = self.built.get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let program = compile(self.source, folder.path(), &[self.library]);
            (folder, program)
        });
        program
    }

    fn is_kept(&self, case: &str) {
        let output = Command::new("timeout").arg("90").arg(self.program()).arg(case).output();
        let output = output.expect("a process");
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out == format!("{case}: kept\n"), "{:?} {error}", output.status);
    }

    fn are(&self, cases: &[&str]) {
        let output = Command::new(self.program()).arg("--list").output().expect("a process");
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(listed.lines().collect::<Vec<_>>(), cases);
    }
}

macro_rules! cases {
    ($program:ident, $all:ident, $($case:ident: $test:ident),* $(,)?) => {
        $(#[test]
        fn $test() {
            $program.is_kept(stringify!($case));
        })*

        #[test]
        fn $all() {
            $program.are(&[$(stringify!($case)),*]);
        }
    };
}

cases! {
    RULES, every_case_of_the_program_of_rules_is_run,
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
    memory_address: memory_is_asked_for_by_an_address_that_lies_in_it,
    names: device_names_open_their_nics_and_no_others,
    wrong_handles: every_call_refuses_a_handle_that_is_none,
    long_name: a_name_too_long_for_the_servers_room_is_not_written_there,
    threads: threads_that_use_and_destroy_one_vi_do_no_harm,
    devices: one_program_moves_data_on_every_kind_of_nic,
}

cases! {
    ABUSE, every_case_of_the_program_of_abuse_is_run,
    nulls: a_null_pointer_is_refused_wherever_one_is_asked_for,
    destroyed_at_once: of_threads_that_give_one_thing_back_one_succeeds,
    destroyed_under_a_wait: what_somebody_waits_for_is_not_destroyed_and_the_wait_ends,
    within_callbacks: everything_may_be_called_from_a_callback,
    forked: a_child_that_closes_what_is_its_parents_does_no_harm,
    signals: signals_end_no_wait_early,
    unusable_memory: memory_that_cannot_be_written_to_is_not_registered,
}
