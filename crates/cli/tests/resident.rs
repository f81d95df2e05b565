//! Tests how much host memory a modelled machine uses in addition to its guest. bench/simulation covers larger guests.
//! Source: the limit is stated in the book's page on validation.

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// Peak resident memory, in MiB, of a run of `touch`, which writes a word in every 1024 bytes of 1 GiB.
#[expect(clippy::zombie_processes, reason = "wait4 waits for it and says what it held")]
fn resident_mib(level: &[&str]) -> u64 {
    let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guests/prebuilt/loongarch64/touch");
    let mut command = Command::new(env!("CARGO_BIN_EXE_longma"));
    command.arg("run").args(level).arg(guest).args(["1024", "1024"]).stdout(Stdio::null());
    let child = command.spawn().expect("the command starts");
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both pointers are to values of the right type that outlive the call.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, usage.as_mut_ptr()) };
    assert_eq!((waited, status), (child.id() as i32, 0), "{level:?}");
    // SAFETY: a rusage of zeros is valid, and the call has filled it.
    unsafe { usage.assume_init() }.ru_maxrss as u64 >> 10
}

#[test]
fn a_machine_of_four_cores_takes_little_more_than_its_guest() {
    let guest = resident_mib(&[]);
    assert!(guest >= 1024, "the guest was not all there: {guest} MiB");
    for core in ["in-order", "out-of-order"] {
        let level = ["--machine", "loongson-3a5000", "--level", "timing", "--core", core, "--quiet"];
        let modelled = resident_mib(&level);
        assert!(modelled < guest * 3 / 2 + 200, "{core}: {modelled} MiB, {guest} MiB without a model");
        let warmed = resident_mib(&[&level[..], &["--roi"]].concat());
        assert!(warmed < guest * 3 / 2 + 200, "{core}, warming: {warmed} MiB");
    }
}
