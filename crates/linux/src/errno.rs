//! Error numbers as system calls return them.
//! Not a list of names for people: the tracer prints those.
//! Source: Linux include/uapi/asm-generic/errno.h (LoongArch and x86-64 share it).

/// An error number, 1-4095.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(
    /// The number, positive.
    pub i32,
);

impl Errno {
    /// The call was interrupted before it did anything: after the signal it must be made again if the action has SA_RESTART,
    /// and return EINTR otherwise. Never seen by the guest.
    pub(crate) const RESTART: Self = Self(512);

    /// The call found signals that must be delivered before it does anything, and is made again after them whatever their
    /// actions say. Never seen by the guest.
    pub(crate) const RESTART_ALWAYS: Self = Self(513);

    /// What a host call returned, as a result.
    pub(crate) fn check(returned: i64) -> Result<u64, Self> {
        if (-4095..0).contains(&returned) { Err(Self(-returned as i32)) } else { Ok(returned as u64) }
    }

    /// The value a system call returns to the guest for this error.
    pub(crate) fn returned(self) -> u64 {
        i64::from(-self.0) as u64
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&std::io::Error::from_raw_os_error(self.0), f)
    }
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Errno({} {self})", self.0)
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// An address the guest may not use.
impl From<longma_loongarch::Fault> for Errno {
    fn from(_: longma_loongarch::Fault) -> Self {
        Self(libc::EFAULT)
    }
}
