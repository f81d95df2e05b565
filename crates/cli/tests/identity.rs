//! Tests the user that a program with --fixed-names sees: the calls that change it do not affect the host's user.
//! Source: setuid(2), setfsuid(2).

mod programs;

use programs::*;
use tempfile::tempdir;

const USER: i32 = 1000;

/// Becomes user `id` with call `number`; exits with the result of creating the file named by its argument, or of the
/// call if it fails.
fn id_changing_program(number: i32, id: i32) -> Vec<u32> {
    let mut code =
        vec![add(A0, ZERO, id), add(A1, ZERO, id), add(A2, ZERO, id), add(A7, ZERO, number), SYSCALL];
    code.extend([bnez(A0, 7)]);
    // O_CREAT | O_WRONLY
    code.extend([add(A0, ZERO, -100), load(A1, SP, 16), add(A2, ZERO, 0x41), add(A3, ZERO, 0x180)]);
    code.extend([add(A7, ZERO, 56), SYSCALL, EXIT[0], EXIT[1]]);
    code
}

#[test]
fn changing_to_the_reported_user_keeps_file_access() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("file");
    // setregid, setgid, setreuid, setuid, setresuid, setresgid
    for number in [143, 144, 145, 146, 147, 149] {
        let program = place(folder.path(), "changer", &executable(&id_changing_program(number, USER), &[]));
        for options in [&["--fixed-names"][..], &["--quiet", "--level", "cache"]] {
            let output = finish(longma_run().args(options).arg(&program).arg(&file));
            assert_eq!(output.status.code(), Some(3), "{number} {options:?}: {}", text(&output.stderr));
            std::fs::remove_file(&file).unwrap();
        }
        let other = place(folder.path(), "other", &executable(&id_changing_program(number, 0), &[]));
        let output = finish(longma_run().arg("--fixed-names").arg(&other).arg(&file));
        assert_eq!(output.status.code(), Some(256 - libc::EPERM), "{number}");
    }
}
