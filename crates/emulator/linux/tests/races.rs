//! A confined guest whose second thread reassigns a descriptor while calls of the first one use it. No call may check
//! one file and change another. The files outside the root belong to this test. Source: dup(2), proc_pid_fd(5),
//! openat2(2).

mod guest;

use longma_locks::IgnorePoison;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use guest::Guest;
use longma_guest::host::locks::{Mutex, MutexGuard};

const HERE: u64 = libc::AT_FDCWD as u64;
const EMPTY_PATH: u64 = libc::AT_EMPTY_PATH as u64;
const FOLLOW: u64 = libc::AT_SYMLINK_FOLLOW as u64;
const NO_FOLLOW: u64 = libc::AT_SYMLINK_NOFOLLOW as u64;

const FSETXATTR: u64 = 7;
const DUP: u64 = 23;
const DUP3: u64 = 24;
const MKDIRAT: u64 = 34;
const UNLINKAT: u64 = 35;
const LINKAT: u64 = 37;
const FCHMOD: u64 = 52;
const FCHMODAT: u64 = 53;
const CLOSE: u64 = 57;
const NEWFSTATAT: u64 = 79;
const UTIMENSAT: u64 = 88;

/// The duration of a race. Without protection, each race was lost within a tenth of this.
const RACE_DURATION: Duration = Duration::from_secs(2);

/// A guest with a host file and directory that it may only read, and a file that it may write.
struct Race {
    guest: Guest,
    outside: tempfile::TempDir,
    inherited: File,
    folder: File,
    own: u64,
    /// A descriptor that is reassigned between the files.
    number: u64,
    /// Only one test at a time may use the descriptors of the process.
    _alone: MutexGuard<'static, ()>,
}

impl Race {
    fn new() -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().ignore_poison();
        let outside = tempfile::tempdir().unwrap();
        let path = outside.path().join("secret");
        std::fs::write(&path, "the host's").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
        let mut guest = Guest::confined();
        let own = guest.open("/own", libc::O_RDWR | libc::O_CREAT);
        let number = guest.call(DUP, &[own as u64]);
        assert!(own >= 0 && number >= 0, "{own} {number}");
        let (inherited, folder) = (File::open(path).unwrap(), File::open(outside.path()).unwrap());
        Self { guest, outside, inherited, folder, own: own as u64, number: number as u64, _alone: alone }
    }

    fn secret(&self) -> PathBuf {
        self.outside.path().join("secret")
    }

    /// Runs `act` repeatedly while the other thread reassigns `number`.
    fn run(mut self, mut act: impl FnMut(&mut Guest, u64) -> i64, holds: impl Fn(&Self, i64) -> bool) {
        let (inherited, own, number) = (self.inherited.as_raw_fd() as u64, self.own, self.number);
        let _other = self.guest.other_thread(&[(DUP3, [inherited, number, 0]), (DUP3, [own, number, 0])]);
        let started = Instant::now();
        for tries in 0.. {
            let returned = act(&mut self.guest, number);
            assert!(holds(&self, returned), "lost after {tries} tries");
            if started.elapsed() > RACE_DURATION {
                return;
            }
        }
    }

    /// The descriptor that the next file gets, including files that the emulator opens for itself.
    fn next_number(&self) -> RawFd {
        File::open("/").unwrap().as_raw_fd()
    }
}

#[test]
fn a_mode_change_applies_to_the_checked_file() {
    let race = Race::new();
    let mode = |race: &Race, _| race.secret().metadata().unwrap().mode() & 0o777 == 0o640;
    race.run(|guest, number| guest.call(FCHMOD, &[number, 0o666]), mode);
    let mut race = Race::new();
    let link = race.guest.path(format!("/proc/self/fd/{}", race.number));
    race.run(|guest, _| guest.call(FCHMODAT, &[HERE, link, 0o666]), mode);
}

#[test]
fn time_and_attribute_changes_apply_to_the_checked_file() {
    let mut race = Race::new();
    let times = race.guest.put(&[1i64, 0, 1, 0].map(i64::to_le_bytes).concat());
    race.run(
        |guest, number| guest.call(UTIMENSAT, &[number, 0, times, 0]),
        |race, _| race.secret().metadata().unwrap().mtime() != 1,
    );
    let mut race = Race::new();
    let (name, value) = (race.guest.path("user.longma"), race.guest.put(b"x"));
    race.run(
        |guest, number| guest.call(FSETXATTR, &[number, name, value, 1, 0]),
        |race, _| {
            let path = std::ffi::CString::new(race.secret().into_os_string().into_encoded_bytes()).unwrap();
            // SAFETY: the path is terminated, and the call writes nothing.
            let names = unsafe { libc::listxattr(path.as_ptr(), std::ptr::null_mut(), 0) };
            names <= 0
        },
    );
}

#[test]
fn a_descriptor_link_opens_the_checked_file() {
    let mut race = Race::new();
    let link = race.guest.path(format!("/proc/self/fd/{}", race.number));
    let secret = race.secret().metadata().unwrap().ino();
    race.run(
        |guest, _| {
            let opened = guest.call(56, &[HERE, link, libc::O_RDWR as u64, 0]);
            if opened < 0 {
                return 0;
            }
            // SAFETY: `libc::stat` is plain data.
            let mut status: libc::stat = unsafe { std::mem::zeroed() };
            // SAFETY: the structure is live.
            assert_eq!(unsafe { libc::fstat(opened as RawFd, &raw mut status) }, 0);
            guest.call(CLOSE, &[opened as u64]);
            status.st_ino as i64
        },
        |_, opened| opened as u64 != secret,
    );
}

#[test]
fn a_link_is_created_for_the_checked_file() {
    let one_name = |race: &Race, _| race.secret().metadata().unwrap().nlink() == 1;
    let mut race = Race::new();
    let (link, name) = (race.guest.path(format!("/proc/self/fd/{}", race.number)), race.guest.path("/name"));
    race.run(
        |guest, _| {
            let returned = guest.call(LINKAT, &[HERE, link, HERE, name, FOLLOW]);
            // Remove the link to the guest's own file, which is empty. A link to a host file stays, and the test detects it.
            if returned == 0 && guest.directory.path().join("name").metadata().unwrap().len() == 0 {
                guest.call(UNLINKAT, &[HERE, name, 0]);
            }
            returned
        },
        one_name,
    );
    let mut race = Race::new();
    let (empty, name) = (race.guest.path(""), race.guest.path("/name"));
    race.run(
        |guest, number| {
            let returned = guest.call(LINKAT, &[number, empty, HERE, name, EMPTY_PATH]);
            if returned == 0 && guest.directory.path().join("name").metadata().unwrap().len() == 0 {
                guest.call(UNLINKAT, &[HERE, name, 0]);
            }
            returned
        },
        one_name,
    );
}

#[test]
fn a_path_stays_in_the_root_while_a_thread_guesses_emulator_descriptors() {
    let mut race = Race::new();
    std::fs::create_dir(race.guest.directory.path().join("sub")).unwrap();
    let (folder, number) = (race.folder.as_raw_fd() as u64, race.next_number() as u64);
    let guest = &mut race.guest;
    let (path, new_folder, result) =
        (guest.path("/sub/secret"), guest.path("/sub/made"), guest.put(&[0; 128]));
    let _other = guest.other_thread(&[(DUP3, [folder, number, 0]), (CLOSE, [number, 0, 0])]);
    let started = Instant::now();
    for tries in 0.. {
        let returned = guest.call(NEWFSTATAT, &[HERE, path, result, NO_FOLLOW]);
        assert_ne!(returned, 0, "the host's file is seen after {tries} tries");
        if guest.call(MKDIRAT, &[HERE, new_folder, 0o755]) == 0 {
            guest.call(UNLINKAT, &[HERE, new_folder, libc::AT_REMOVEDIR as u64]);
        }
        assert!(!race.outside.path().join("made").exists(), "a folder is made after {tries} tries");
        if started.elapsed() > RACE_DURATION {
            return;
        }
    }
}
