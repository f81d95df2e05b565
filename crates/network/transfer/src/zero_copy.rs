//! Sends without copies: the kernel reads the pages of the buffer while it transmits, and reports later when it no longer
//! needs them.
//!
//! Source: Linux Documentation/networking/msg_zerocopy.rst; include/uapi/linux/errqueue.h.

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, send};
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// SO_EE_ORIGIN_ZEROCOPY and SO_EE_CODE_ZEROCOPY_COPIED.
const ORIGIN: u8 = 5;
const COPIED: u8 = 1;
/// Unfinished sends after which reports are read. The kernel limits the memory for them (net.core.optmem_max).
const MAX_PENDING: u64 = 64;
/// Interval at which reports are polled.
const NAP: Duration = Duration::from_micros(50);

/// The outcome of the sends without copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completions {
    /// Number of sends.
    pub sends: u64,
    /// Number of sends that the kernel reported as finished.
    pub completed: u64,
    /// The zero-copy sends whose data the kernel copied nevertheless.
    pub copied: u64,
}

/// A socket that sends without copies.
pub struct ZeroCopySender<'a> {
    stream: &'a TcpStream,
    completions: Completions,
    stall_limit: Duration,
}

impl<'a> ZeroCopySender<'a> {
    /// Prepares a socket. `stall_limit` is how long it may send nothing.
    ///
    /// # Errors
    /// The kernel's error if it does not support zero-copy sends.
    pub fn new(stream: &'a TcpStream, stall_limit: Duration) -> io::Result<Self> {
        let on: libc::c_int = 1;
        // SAFETY: the option's value is an integer that outlives the call.
        let status = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ZEROCOPY,
                (&raw const on).cast(),
                size_of_val(&on) as libc::socklen_t,
            )
        };
        if status < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { stream, completions: Completions::default(), stall_limit })
    }

    /// Sends a part of `data`, which must stay unchanged until [`ZeroCopySender::finish`] returns.
    ///
    /// # Errors
    /// The kernel's error; `TimedOut` if nothing can be sent for a long time.
    pub fn send(&mut self, data: &[u8]) -> io::Result<()> {
        let begin = Instant::now();
        let flags = MsgFlags::from_bits_retain(libc::MSG_ZEROCOPY);
        loop {
            match send(self.stream.as_raw_fd(), data, flags) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                // There is no memory for another report.
                Err(Errno::ENOBUFS) if begin.elapsed() < self.stall_limit => {
                    self.look()?;
                    std::thread::sleep(NAP);
                }
                Err(Errno::ENOBUFS | Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
        self.completions.sends += 1;
        if self.completions.sends - self.completions.completed >= MAX_PENDING {
            self.look()?;
        }
        Ok(())
    }

    /// Waits until the kernel needs no more data, and returns the outcome of the sends.
    ///
    /// # Errors
    /// The kernel's error; `TimedOut` if it takes too long.
    pub fn finish(mut self) -> io::Result<Completions> {
        let begin = Instant::now();
        while self.completions.completed < self.completions.sends {
            if begin.elapsed() > self.stall_limit {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.look()?;
            std::thread::sleep(NAP);
        }
        Ok(self.completions)
    }

    /// Reads the available reports.
    fn look(&mut self) -> io::Result<()> {
        let mut space = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        loop {
            let message = match recvmsg::<()>(self.stream.as_raw_fd(), &mut [], Some(&mut space), flags) {
                Ok(message) => message,
                Err(Errno::EAGAIN) => return Ok(()),
                Err(Errno::EINTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for control in message.cmsgs()? {
                let report = match control {
                    ControlMessageOwned::Ipv4RecvErr(report, _) => report,
                    ControlMessageOwned::Ipv6RecvErr(report, _) => report,
                    _ => continue,
                };
                if report.ee_origin != ORIGIN {
                    continue;
                }
                // The first and the last number of the finished sends.
                let count = u64::from(report.ee_data.wrapping_sub(report.ee_info)) + 1;
                self.completions.completed += count;
                if report.ee_code & COPIED != 0 {
                    self.completions.copied += count;
                }
            }
        }
    }
}
