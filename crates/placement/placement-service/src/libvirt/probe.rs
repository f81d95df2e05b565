//! Probes whether KVM runs guests: starts one whose boot sector ends QEMU. On some hosts, mostly those that are virtual
//! machines themselves, `/dev/kvm` can be opened but guests hang.
//!
//! Source: QEMU's device isa-debug-exit, which ends QEMU with twice the written value plus one; the boot sector's
//! signature is that of the IBM PC's BIOS.

use super::Virtualization;
use super::virsh::wait;
use longma_placement::hypervisor::ShutdownDeadline;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long the guest may take. Its firmware takes 0.3 s under software emulation.
const GUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// `mov al, 0x10; out 0xf4, al; hlt`.
const CODE: [u8; 5] = [0xb0, 0x10, 0xe6, 0xf4, 0xf4];
/// Exit status of QEMU after the guest has written 0x10.
const ENDED_BY_GUEST: i32 = 0x10 * 2 + 1;
/// Names of QEMU: that of the project, and that used by some distributions.
const PROGRAMS: [&str; 2] = ["qemu-system-x86_64", "/usr/libexec/qemu-kvm"];

/// Result of a probe.
#[derive(Debug, PartialEq, Eq)]
enum Probe {
    /// The guest ran.
    Works,
    /// The guest did not run; the reason.
    Fails(String),
    /// QEMU is not installed under this name.
    NoProgram,
}

/// Returns whether a guest runs with an accelerator of QEMU.
fn probe(program: &str, accelerator: &str, timeout: Duration) -> std::io::Result<Probe> {
    let mut sector = [0; 512];
    sector[..CODE.len()].copy_from_slice(&CODE);
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    let mut image = tempfile::NamedTempFile::new()?;
    image.write_all(&sector)?;
    let drive = format!("file={},format=raw,if=floppy,readonly=on", image.path().display());
    let started = Command::new(program)
        .args(["-accel", accelerator, "-machine", "pc", "-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-device", "isa-debug-exit,iobase=0xf4,iosize=1", "-drive", &drive])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match started {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Probe::NoProgram),
        started => started?,
    };
    Ok(match wait(&mut child, timeout, &ShutdownDeadline::default())? {
        None => Probe::Fails(format!("a guest hung for {} s", timeout.as_secs())),
        Some(status) if status.code() == Some(ENDED_BY_GUEST) => Probe::Works,
        Some(status) => Probe::Fails(format!("a guest did not start ({status})")),
    })
}

impl Virtualization {
    /// KVM if `/dev/kvm` can be opened and a guest runs on it. If it can be opened but no guest runs, also returns why.
    /// Without QEMU, or on another architecture than x86-64, no guest is tried.
    pub fn detect() -> (Self, Option<String>) {
        if std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_err() {
            return (Self::Software, None);
        }
        let programs = if cfg!(target_arch = "x86_64") { &PROGRAMS[..] } else { &[] };
        for program in programs {
            match probe(program, "kvm", GUEST_TIMEOUT) {
                Ok(Probe::NoProgram) => {}
                Ok(Probe::Works) => return (Self::Kvm, None),
                Ok(Probe::Fails(why)) => return (Self::Software, Some(why)),
                // The probe itself failed, for example because there is no folder for temporary files.
                Err(_) => break,
            }
        }
        (Self::Kvm, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_under_software_emulation_runs() {
        match probe(PROGRAMS[0], "tcg", Duration::from_secs(60)).unwrap() {
            Probe::NoProgram => eprintln!("skipped: {} is not installed", PROGRAMS[0]),
            found => assert_eq!(found, Probe::Works),
        }
    }

    #[test]
    fn a_guest_that_hangs_or_does_not_start_is_reported() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let program = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            path.display().to_string()
        };
        let message = |program: &str| match probe(program, "kvm", Duration::from_secs(1)).unwrap() {
            Probe::Fails(why) => why,
            found => panic!("{found:?}"),
        };
        assert!(message(&program("hangs", "exec sleep 100")).contains("hung for 1 s"));
        assert!(message(&program("fails", "exit 1")).contains("did not start"));
        assert_eq!(probe("/there/is/none", "kvm", Duration::from_secs(1)).unwrap(), Probe::NoProgram);
    }
}
