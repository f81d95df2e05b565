//! Separates the command's own descriptors from the guest's. The guest must find descriptors 0, 1 and 2 as the command
//! received them, and may close any of them. Source: the Rust runtime opens /dev/null on standard descriptors that are
//! closed.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use longma_runner::{
    StoredLimit,
    descriptors::{self, Limit},
};

use super::failure::Failure;

/// An output for lines of text that the guest cannot close or redirect.
#[derive(Clone)]
pub struct Messages(Arc<MessageTarget>);

enum MessageTarget {
    Own(File),
    /// Standard error, as long as it is still the file (device, inode) that the command was started with.
    Standard(u64, u64),
}

impl Messages {
    /// Writes lines to this file.
    pub fn to(file: impl Into<OwnedFd>) -> io::Result<Self> {
        Ok(Self(Arc::new(MessageTarget::Own(descriptors::move_to_reserved(file.into())?.into()))))
    }

    /// Writes a line with a single write.
    pub fn line(&self, text: &str) {
        let text = format!("{text}\n");
        // Errors are ignored: there is nowhere to report them.
        let _ = match &*self.0 {
            MessageTarget::Own(file) => {
                let mut file: &File = file;
                file.write_all(text.as_bytes())
            }
            MessageTarget::Standard(device, inode) if standard_error().ok() == Some((*device, *inode)) => {
                io::stderr().write_all(text.as_bytes())
            }
            MessageTarget::Standard(..) => Ok(()),
        };
    }
}

/// The original standard error. With `prints_messages`, it is duplicated to a descriptor that the guest cannot close. Other
/// runs do without the duplicate, because fork copies the descriptor table up to the highest descriptor.
pub fn messages(prints_messages: bool) -> Result<Messages, Failure> {
    let place = if prints_messages {
        io::stderr().as_fd().try_clone_to_owned().and_then(Messages::to)
    } else {
        standard_error().map(|(device, inode)| Messages(Arc::new(MessageTarget::Standard(device, inode))))
    };
    place.map_err(|error| Failure::host("keep standard error", &error))
}

/// Device and inode of standard error.
fn standard_error() -> io::Result<(u64, u64)> {
    let status = rustix::fs::fstat(io::stderr())?;
    Ok((status.st_dev, status.st_ino))
}

/// Separates the command's own descriptors from the guest's, before the command opens any. `inherited` is the guest's
/// limit on open files, if another guest executed this one. With `is_constant`, a new guest's limit does not depend on
/// the host.
pub fn separate(inherited: Option<Limit>, is_constant: bool) -> Result<(), Failure> {
    descriptors::begin(inherited, is_constant).map_err(|error| {
        let (message, advice) = ("cannot keep its files apart from the program's", error.to_string());
        Failure::short(message, &advice)
    })
}

/// Parses `SOFT:HARD`, a limit of open files.
pub fn parse_limit(text: &str) -> Result<Limit, String> {
    let numbers =
        text.split_once(':').and_then(|(soft, hard)| Some((soft.parse().ok()?, hard.parse().ok()?)));
    numbers.map(|(soft, hard)| Limit { soft, hard }).ok_or_else(|| "write it as SOFT:HARD".into())
}

/// Parses `RESOURCE:SOFT:HARD`, a limit by resource number.
pub fn parse_kept_limit(text: &str) -> Result<StoredLimit, String> {
    let numbers = text.split_once(':').and_then(|(resource, rest)| {
        let Limit { soft, hard } = parse_limit(rest).ok()?;
        Some(StoredLimit { resource: resource.parse().ok()?, soft, hard })
    });
    numbers.ok_or_else(|| "write it as RESOURCE:SOFT:HARD".into())
}

/// Closes the standard descriptors that were closed when the command started, as the guest must find them.
pub fn close_initially_closed() {
    let closed = CLOSED.load(Ordering::Relaxed);
    for descriptor in (0..3).filter(|descriptor| closed & 1 << descriptor != 0) {
        // SAFETY: the descriptor is the runtime's /dev/null, which no code of this process uses.
        unsafe { libc::close(descriptor) };
    }
}

/// Bit n is set if descriptor n was closed at the start.
static CLOSED: AtomicU8 = AtomicU8::new(0);

extern "C" fn remember_closed() {
    // SAFETY: F_GETFD takes no pointers and changes nothing.
    let is_closed = |descriptor: &i32| unsafe { libc::fcntl(*descriptor, libc::F_GETFD) } == -1;
    let closed = (0..3).filter(is_closed).fold(0, |set, descriptor| set | 1 << descriptor);
    CLOSED.store(closed, Ordering::Relaxed);
}

#[used]
// SAFETY: the section holds pointers to functions without arguments that run before `main`; this one does not need the
// runtime.
#[unsafe(link_section = ".init_array")]
static REMEMBER_CLOSED: extern "C" fn() = remember_closed;
