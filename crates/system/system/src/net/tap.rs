//! A tap device of the host. Source: Linux, Documentation/networking/tuntap.rst.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Carrier, Frames, MAX_FRAME_BYTES};

/// An open tap device.
#[derive(Debug)]
pub struct Tap(File);

impl Tap {
    /// Opens a device; without a name, creates a new one.
    pub fn open(name: Option<&str>) -> io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
        // SAFETY: all bytes of the structure may be zero.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let name = name.unwrap_or_default().as_bytes();
        if name.len() >= request.ifr_name.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name is longer than 15 bytes"));
        }
        request.ifr_name.iter_mut().zip(name).for_each(|(place, byte)| *place = *byte as libc::c_char);
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the descriptor is open, and the request reads and writes an ifreq.
        match unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } {
            0 => Ok(Self(file)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn receive(&mut self, frames: &mut Frames) {
        let mut buffer = [0; 1 << 16];
        while frames.has_room() {
            match self.0.read(&mut buffer) {
                Ok(bytes @ 1..=MAX_FRAME_BYTES) => frames.deliver(buffer[..bytes].to_vec()),
                // Larger frames do not fit the NIC's buffers.
                Ok(1..) => {}
                _ => return,
            }
        }
    }
}

impl Carrier for Tap {
    fn exchange(&mut self, frames: &mut Frames, _: u64, wait: Duration) {
        for frame in std::mem::take(&mut frames.to_network) {
            // A device that is down or full drops frames.
            let _ = self.0.write(&frame);
        }
        self.receive(frames);
        if frames.to_guest.is_empty() && !wait.is_zero() {
            let limit = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
            // An error or a signal ends the wait.
            let _ = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit));
            self.receive(frames);
        }
    }
}
