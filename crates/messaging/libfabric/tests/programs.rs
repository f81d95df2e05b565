//! Programs written to libfabric, over the provider as libfabric loads it: C programs of this crate, fi_info, fi_pingpong,
//! and an MPI program. They need libfabric's headers and programs, and Open MPI: `./test libfabric` installs them.
//!
//! `LONGMA_FI_KILLS` is the number of peers that are killed in each of two tests, 5 by default.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// A folder with the provider under the name that libfabric looks for, for all tests.
fn provider_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        // Next to the library, which cargo puts into the folder of this program, or above it.
        let program = std::env::current_exe().expect("a path");
        let built = program.parent().expect("a folder");
        let library = [built, built.parent().expect("a folder")]
            .map(|folder| folder.join("liblongma_libfabric.so"))
            .into_iter()
            .find(|library| library.exists())
            .expect("the library is built with the tests");
        let folder =
            PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("libfabric-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        fs::copy(library, folder.join("liblongma-fi.so")).expect("a copy");
        folder
    })
}

/// A program that finds the provider, killed after a minute.
fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60"]).arg(program).env("FI_PROVIDER_PATH", provider_folder());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn succeeds(what: &str, output: &Output) -> String {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {:?}\n{out}\n{error}", output.status);
    out.into_owned()
}

fn compile(compiler: &str, source: &str, link: &[&str]) -> PathBuf {
    let name = Path::new(source).file_stem().expect("a name").to_string_lossy().into_owned();
    let program = provider_folder().join(format!("{name}-{:?}", std::thread::current().id()));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let mut build = Command::new(compiler);
    build
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"])
        .arg(source)
        .arg("-o")
        .arg(&program)
        .args(link);
    succeeds("the compiler", &build.output().expect("a C compiler"));
    program
}

fn run_cases(source: &str, cases: &[&str]) {
    let program = compile("cc", source, &["-lfabric"]);
    for case in cases {
        succeeds(case, &command(&program).arg(case).output().expect("a process"));
    }
}

fn kills() -> u32 {
    std::env::var("LONGMA_FI_KILLS").map_or(5, |text| text.parse().expect("LONGMA_FI_KILLS is a number"))
}

#[test]
#[ignore = "needs libfabric: ./test libfabric"]
fn fi_info_lists_the_provider() {
    let output = command("fi_info").args(["-p", "longma"]).output().expect("fi_info");
    let text = succeeds("fi_info", &output);
    assert!(text.contains("provider: longma") && text.contains("type: FI_EP_RDM"), "{text}");
}

/// A server, which is killed if the test fails.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ping_pong(kind: &str) {
    // The processes find each other by a TCP port.
    let free =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("a port").port();
    let common = ["-p", "longma", "-e", kind, "-I", "200", "-c"];
    let mut server = command("fi_pingpong");
    let _server = Server(server.args(common).args(["-B", &free.to_string()]).spawn().expect("fi_pingpong"));
    let mut attempts = 0;
    loop {
        let mut client = command("fi_pingpong");
        let client = client.args(common).args(["-P", &free.to_string(), "127.0.0.1"]);
        let output = client.output().expect("fi_pingpong");
        attempts += 1;
        if !output.status.success() && attempts < 20 {
            // The server may not listen yet.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        }
        let text = succeeds("fi_pingpong", &output);
        assert!(text.contains("1m"), "all sizes: {text}");
        return;
    }
}

#[test]
#[ignore = "needs libfabric: ./test libfabric"]
fn fi_pingpong_runs() {
    ping_pong("rdm");
    ping_pong("msg");
}

#[test]
#[ignore = "needs libfabric: ./test libfabric"]
fn messages_arrive_whole_and_in_order() {
    run_cases("transfers.c", &["messages", "floods", "multiple"]);
}

#[test]
#[ignore = "needs libfabric: ./test libfabric"]
fn tagged_messages_go_to_the_receives_that_match() {
    run_cases("transfers.c", &["tags", "passing"]);
}

#[test]
#[ignore = "needs libfabric: ./test libfabric"]
fn remote_memory_is_accessed_as_it_permits() {
    run_cases("transfers.c", &["memory_by_offset", "memory_by_address", "atomics"]);
}

#[test]
#[ignore = "needs libfabric: ./test libfabric"]
fn connected_endpoints_exchange_messages_until_one_side_ends() {
    run_cases("connected.c", &["all", "killed"]);
}

#[test]
#[ignore = "needs libfabric: ./test libfabric"]
fn wrong_arguments_are_refused() {
    run_cases("endings.c", &["wrong_arguments", "one_process"]);
}

#[test]
#[ignore = "needs libfabric: ./test libfabric"]
fn operations_with_a_peer_that_closed_fail_after_its_messages() {
    run_cases("endings.c", &["closed"]);
}

#[test]
#[ignore = "needs libfabric: ./test libfabric"]
fn a_forked_child_can_close_its_copies() {
    run_cases("endings.c", &["forked"]);
}

#[test]
#[ignore = "needs libfabric: ./test libfabric"]
fn operations_with_a_peer_that_is_killed_fail() {
    let program = compile("cc", "endings.c", &["-lfabric"]);
    for seed in 1..=kills() {
        for case in ["killed", "killed_in_exchange"] {
            let output = command(&program).args([case, &seed.to_string()]).output().expect("a process");
            succeeds(&format!("{case} {seed}"), &output);
        }
    }
}

#[test]
#[ignore = "needs Open MPI: ./test libfabric"]
fn an_mpi_program_gets_right_results() {
    let program = compile("mpicc", "mpi.c", &[]);
    for ranks in ["2", "4"] {
        let output = command("mpirun")
            .args([
                "--allow-run-as-root",
                "--oversubscribe",
                "-np",
                ranks,
                "--mca",
                "pml",
                "cm",
                "--mca",
                "mtl",
                "ofi",
            ])
            .args(["--mca", "mtl_ofi_provider_include", "longma", "--mca", "mpi_yield_when_idle", "1"])
            .arg(&program)
            .output()
            .expect("mpirun");
        assert!(succeeds("mpirun", &output).contains("all right"));
    }
}
