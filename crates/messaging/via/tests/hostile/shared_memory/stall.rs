//! A page to which accesses block until `release`, by means of userfaultfd. Without permission to use userfaultfd, the
//! page is an ordinary one and the tests are weaker.
//!
//! Source: userfaultfd(2), ioctl_userfaultfd(2).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The kernel's `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// The kernel's `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

const UFFD_API: u64 = 0xaa;
const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const REGISTER_MISSING: u64 = 1;

/// A page to which accesses block until [`BlockingPage::release`].
pub(super) struct BlockingPage {
    base: *mut libc::c_void,
    file: std::sync::Mutex<Option<OwnedFd>>,
}

// SAFETY: the address is never dereferenced here.
unsafe impl Sync for BlockingPage {}

impl BlockingPage {
    pub(super) fn new() -> BlockingPage {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: creates a mapping at an address chosen by the kernel.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: the call takes only integers.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as i32;
        if fd < 0 {
            eprintln!("userfaultfd is not permitted: accesses do not block, so this test is weaker");
            return BlockingPage { base, file: std::sync::Mutex::default() };
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut api = Api { api: UFFD_API, features: 0, ioctls: 0 };
        let mut register = Register { start: base as u64, length: 4096, mode: REGISTER_MISSING, ioctls: 0 };
        // SAFETY: the structures are those that the calls require.
        unsafe {
            assert_eq!(libc::ioctl(file.as_raw_fd(), UFFDIO_API, &raw mut api), 0);
            assert_eq!(libc::ioctl(file.as_raw_fd(), UFFDIO_REGISTER, &raw mut register), 0);
        }
        BlockingPage { base, file: std::sync::Mutex::new(Some(file)) }
    }

    pub(super) fn address(&self) -> u64 {
        self.base as u64
    }

    /// Unblocks all threads that wait for the page.
    pub(super) fn release(&self) {
        self.file.lock().unwrap().take();
    }
}

impl Drop for BlockingPage {
    fn drop(&mut self) {
        self.release();
        // SAFETY: the mapping is owned by `self`.
        unsafe { libc::munmap(self.base, 4096) };
    }
}
