//! A C program written to VIPL compiles with the system's compiler, links with the library, and two of its processes talk.
//! Not a test of what the calls mean; that is the conformance suite of `longma-via`.
//! Source: none.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where cargo put the library: beside this test.
fn library_folder() -> PathBuf {
    std::env::current_exe().expect("a path").parent().expect("a folder").to_path_buf()
}

fn compile(folder: &Path, link: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = folder.join("ping_pong");
    let libraries = library_folder();
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(source.join("include"))
        .arg(source.join("tests/ping_pong.c"))
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

fn plays(program: &Path, name: &str) {
    let name = format!("vipl-{name}-{}", std::process::id());
    let start = |role: &str| {
        let mut command = Command::new("timeout");
        command.arg("60").arg(program).args([role, &name, "3000"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process")
    };
    let children = [start("server"), start("client")];
    for (child, role) in children.into_iter().zip(["server", "client"]) {
        let output = child.wait_with_output().expect("an end");
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{role}: {:?} {error}", output.status);
        assert_eq!(out, format!("{role}: 3000 rounds\n"));
    }
}

#[test]
fn a_program_linked_with_the_shared_library_plays_ping_pong_between_two_processes() {
    let folder = tempfile::tempdir().unwrap();
    plays(&compile(folder.path(), &["-lvipl"]), "shared");
}

#[test]
fn a_program_linked_with_the_static_library_plays_ping_pong_between_two_processes() {
    let folder = tempfile::tempdir().unwrap();
    let archive = library_folder().join("libvipl.a");
    let archive = archive.to_str().unwrap();
    plays(&compile(folder.path(), &[archive, "-lpthread", "-ldl", "-lm", "-lgcc_s"]), "static");
}
