//! Error numbers of Linux system calls. Source: Linux include/uapi/asm-generic/errno.h (LoongArch and x86-64 share it).

/// An error number from 1 to 4095.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(
    /// The positive number.
    pub i32,
);

impl Errno {
    /// A signal interrupted the call before it had any effect. After delivery, the call restarts if the action has
    /// SA_RESTART and fails with EINTR otherwise. The guest never sees this value.
    pub const RESTART: Self = Self(512);

    /// The call found pending signals before it had any effect. After delivery it restarts regardless of SA_RESTART.
    /// The guest never sees this value.
    pub const RESTART_ALWAYS: Self = Self(513);

    /// Converts the raw return value of a host system call into a result.
    ///
    /// # Errors
    /// The error that `returned` encodes, for -4095 to -1.
    pub fn check(returned: i64) -> Result<u64, Self> {
        if (-4095..0).contains(&returned) { Err(Self(-returned as i32)) } else { Ok(returned as u64) }
    }

    /// The symbolic name, such as `ENOENT`; empty for an unassigned number.
    pub fn name(self) -> &'static str {
        usize::try_from(self.0).ok().and_then(|number| NAMES.get(number)).copied().unwrap_or("")
    }

    /// The negative value that a system call returns to the guest for this error.
    pub fn returned(self) -> u64 {
        i64::from(-self.0) as u64
    }
}

/// Symbolic names indexed by number; 0, 41 and 58 are unassigned.
#[rustfmt::skip]
const NAMES: [&str; 134] = [
    "", "EPERM", "ENOENT", "ESRCH", "EINTR", "EIO", "ENXIO", "E2BIG", "ENOEXEC", "EBADF", "ECHILD",
    "EAGAIN", "ENOMEM", "EACCES", "EFAULT", "ENOTBLK", "EBUSY", "EEXIST", "EXDEV", "ENODEV",
    "ENOTDIR", "EISDIR", "EINVAL", "ENFILE", "EMFILE", "ENOTTY", "ETXTBSY", "EFBIG", "ENOSPC",
    "ESPIPE", "EROFS", "EMLINK", "EPIPE", "EDOM", "ERANGE", "EDEADLK", "ENAMETOOLONG", "ENOLCK",
    "ENOSYS", "ENOTEMPTY", "ELOOP", "", "ENOMSG", "EIDRM", "ECHRNG", "EL2NSYNC", "EL3HLT", "EL3RST",
    "ELNRNG", "EUNATCH", "ENOCSI", "EL2HLT", "EBADE", "EBADR", "EXFULL", "ENOANO", "EBADRQC",
    "EBADSLT", "", "EBFONT", "ENOSTR", "ENODATA", "ETIME", "ENOSR", "ENONET", "ENOPKG", "EREMOTE",
    "ENOLINK", "EADV", "ESRMNT", "ECOMM", "EPROTO", "EMULTIHOP", "EDOTDOT", "EBADMSG", "EOVERFLOW",
    "ENOTUNIQ", "EBADFD", "EREMCHG", "ELIBACC", "ELIBBAD", "ELIBSCN", "ELIBMAX", "ELIBEXEC",
    "EILSEQ", "ERESTART", "ESTRPIPE", "EUSERS", "ENOTSOCK", "EDESTADDRREQ", "EMSGSIZE",
    "EPROTOTYPE", "ENOPROTOOPT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EOPNOTSUPP", "EPFNOSUPPORT",
    "EAFNOSUPPORT", "EADDRINUSE", "EADDRNOTAVAIL", "ENETDOWN", "ENETUNREACH", "ENETRESET",
    "ECONNABORTED", "ECONNRESET", "ENOBUFS", "EISCONN", "ENOTCONN", "ESHUTDOWN", "ETOOMANYREFS",
    "ETIMEDOUT", "ECONNREFUSED", "EHOSTDOWN", "EHOSTUNREACH", "EALREADY", "EINPROGRESS", "ESTALE",
    "EUCLEAN", "ENOTNAM", "ENAVAIL", "EISNAM", "EREMOTEIO", "EDQUOT", "ENOMEDIUM", "EMEDIUMTYPE",
    "ECANCELED", "ENOKEY", "EKEYEXPIRED", "EKEYREVOKED", "EKEYREJECTED", "EOWNERDEAD",
    "ENOTRECOVERABLE", "ERFKILL", "EHWPOISON"
];

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&std::io::Error::from_raw_os_error(self.0), f)
    }
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Errno({} {})", self.0, self.name())
    }
}

impl std::error::Error for Errno {}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<Errno> for std::io::Error {
    fn from(error: Errno) -> Self {
        Self::from_raw_os_error(error.0)
    }
}

/// A guest memory fault during a system call becomes EFAULT.
impl From<longma_loongarch::Fault> for Errno {
    fn from(_: longma_loongarch::Fault) -> Self {
        Self(libc::EFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_names_of_the_manual() {
        let named = [
            (libc::EPERM, "EPERM"),
            (libc::ENOSYS, "ENOSYS"),
            (libc::ELOOP, "ELOOP"),
            (libc::EHWPOISON, "EHWPOISON"),
        ];
        for (number, name) in named {
            assert_eq!(Errno(number).name(), name);
        }
        assert_eq!(
            (Errno(0).name(), Errno(134).name(), Errno(-1).name(), Errno(512).name()),
            ("", "", "", "")
        );
    }
}
