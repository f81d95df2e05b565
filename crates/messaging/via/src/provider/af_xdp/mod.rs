//! The AF_XDP provider: Ethernet frames with their own EtherType, bypassing the kernel's network stack. Both ends must
//! be on the same Ethernet. The provider uses one queue in copy mode, which works with every driver (veth requires it).
//!
//! Source: Linux, Documentation/networking/af_xdp.rst.

mod program;
mod rings;

use super::datagram::medium::{Medium, Peer, Resolve};
use super::datagram::{DatagramNic, OverDatagrams, TimeLimits};
use crate::error::Error;
use program::{ETHER_TYPE, Program};
use rings::{Mapping, Ring};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The number of receive frames, of transmit frames, and of entries in each ring. A power of two.
const FRAMES: u32 = 1024;
const FRAME_BYTES: u32 = 2048;

/// The space that the kernel reserves before a received frame, in bytes.
const XDP_PACKET_HEADROOM: u32 = 256;

const ETHERNET_HEADER: usize = 14;
const BROADCAST: [u8; 6] = [0xff; 6];

/// A NIC that uses a network interface.
pub struct AfXdp {
    nic: DatagramNic,
}

impl AfXdp {
    /// Opens queue 0 of the interface `name`.
    ///
    /// # Errors
    /// If there is no such interface, it is not Ethernet, or the system does not permit AF_XDP. The provider `udp`
    /// needs no privileges.
    pub fn open(name: &str) -> Result<Self, Error> {
        Self::open_with(name, TimeLimits::default())
    }

    /// Like [`AfXdp::open`], with other time limits.
    ///
    /// # Errors
    /// Those of [`AfXdp::open`].
    pub fn open_with(name: &str, limits: TimeLimits) -> Result<Self, Error> {
        let medium = XskSocket::open(name).map_err(|error| explain_system_error(name, error))?;
        let host = medium.host(Peer::Hardware(medium.mac_address));
        let mtu = u32::from(medium.mtu);
        Ok(Self { nic: DatagramNic::new(Box::new(medium), limits, format!("af_xdp:{name}"), host, mtu)? })
    }
}

/// Converts a system error into one that names the likely cause and the alternative.
fn explain_system_error(interface: &str, error: Error) -> Error {
    let Error::System { what, source } = error else { return error };
    let why = match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            " (it needs the capabilities CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF)"
        }
        Some(libc::EAFNOSUPPORT | libc::ENOSYS | libc::EOPNOTSUPP) => {
            " (this kernel or driver has no AF_XDP)"
        }
        Some(libc::EBUSY | libc::EEXIST) => " (another program uses the interface's queue or its XDP hook)",
        _ => "",
    };
    let advice =
        format!("AF_XDP on {interface}: {what}: {source}{why}; the provider `udp` needs no privileges");
    Error::NotSupported(advice)
}

/// The AF_XDP socket, its rings and its frames.
struct XskSocket {
    socket: OwnedFd,
    fill: Ring<u64>,
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    completion: Ring<u64>,
    umem: Mapping,
    free_frames: Vec<u64>,
    mac_address: [u8; 6],
    mtu: u16,
    frame: Vec<u8>,
    // The last field, so that the program is detached after the socket is closed.
    _program: Program,
}

impl XskSocket {
    fn open(name: &str) -> Result<Self, Error> {
        let (index, mac_address, mtu) = interface(name)?;
        // SAFETY: only creates a new descriptor.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(Error::last_system("opening the AF_XDP socket"));
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let umem = Mapping::new(None, 0, 2 * FRAMES as usize * FRAME_BYTES as usize)?;
        let register = libc::xdp_umem_reg {
            addr: umem.address(),
            len: umem.length() as u64,
            chunk_size: FRAME_BYTES,
            headroom: 0,
            flags: 0,
            tx_metadata_len: 0,
        };
        set_xdp_option(fd, libc::XDP_UMEM_REG, &register)?;
        let rings =
            [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING];
        for ring in rings {
            set_xdp_option(fd, ring, &FRAMES)?;
        }
        let offsets = ring_offsets(fd)?;
        let mut fill = Ring::map(fd, libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, FRAMES)?;
        let completion = Ring::map(fd, libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, FRAMES)?;
        let rx = Ring::map(fd, libc::XDP_PGOFF_RX_RING as u64, &offsets.rx, FRAMES)?;
        let tx = Ring::map(fd, libc::XDP_PGOFF_TX_RING as u64, &offsets.tx, FRAMES)?;
        for frame in 0..FRAMES {
            fill.produce(u64::from(frame * FRAME_BYTES));
        }
        let free_frames = (FRAMES..2 * FRAMES).map(|frame| u64::from(frame * FRAME_BYTES)).collect();
        bind(fd, index)?;
        let program = Program::attach(index)?;
        program.redirect(0, fd)?;
        let frame = Vec::with_capacity(FRAME_BYTES as usize);
        Ok(Self {
            socket,
            fill,
            rx,
            tx,
            completion,
            umem,
            free_frames,
            mac_address,
            mtu,
            frame,
            _program: program,
        })
    }

    fn wake(&self) {
        // SAFETY: there is no buffer and no address; the call only makes the kernel process the ring.
        unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                std::ptr::null(),
                0,
                libc::MSG_DONTWAIT,
                std::ptr::null(),
                0,
            )
        };
    }
}

/// The index, hardware address and MTU of an interface.
fn interface(name: &str) -> Result<(u32, [u8; 6], u16), Error> {
    let unknown = || {
        Error::InvalidParameter(format!(
            "there is no Ethernet interface `{name}`; `ip link` lists the interfaces"
        ))
    };
    let c_name = CString::new(name).map_err(|_| unknown())?;
    // SAFETY: the string is local and NUL-terminated.
    let index = unsafe { libc::if_nametoindex(c_name.as_ptr()) };
    if index == 0 {
        return Err(unknown());
    }
    let read = |what: &str| std::fs::read_to_string(format!("/sys/class/net/{name}/{what}"));
    let from_files = || -> Option<([u8; 6], u16)> {
        let address = hardware_address(read("address").ok()?.trim())?;
        Some((address, read("mtu").ok()?.trim().parse().ok()?))
    };
    // Prefer the ioctl: sysfs shows the network namespace in which it was mounted, which may be another one.
    let found = query_interface(&c_name).or_else(from_files);
    let (hardware, mtu) = found.ok_or_else(unknown)?;
    let max_mtu = FRAME_BYTES - XDP_PACKET_HEADROOM - ETHERNET_HEADER as u32;
    Ok((index, hardware, mtu.min(max_mtu as u16)))
}

fn query_interface(name: &CString) -> Option<([u8; 6], u16)> {
    // SAFETY: only creates a new descriptor.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the descriptor was just opened and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zeros is a valid value of this structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let bytes = name.as_bytes();
    if bytes.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    // SAFETY: the request is local and names an interface; the kernel fills in the address of the union.
    let hardware = unsafe {
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR as _, &raw mut request) < 0 {
            return None;
        }
        request.ifr_ifru.ifru_hwaddr
    };
    if hardware.sa_family != libc::ARPHRD_ETHER {
        return None;
    }
    // SAFETY: as above; the kernel fills in the MTU of the union.
    let mtu = unsafe {
        if libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) < 0 {
            return None;
        }
        request.ifr_ifru.ifru_mtu
    };
    let address = std::array::from_fn(|byte| hardware.sa_data[byte] as u8);
    Some((address, u16::try_from(mtu).unwrap_or(u16::MAX)))
}

fn hardware_address(text: &str) -> Option<[u8; 6]> {
    let mut address = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut address {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(address)
}

fn set_xdp_option<T>(fd: RawFd, option: libc::c_int, value: &T) -> Result<(), Error> {
    // SAFETY: the kernel reads the value, which has the given size.
    let status = unsafe {
        let length = size_of::<T>() as libc::socklen_t;
        libc::setsockopt(fd, libc::SOL_XDP, option, std::ptr::from_ref(value).cast(), length)
    };
    if status < 0 { Err(Error::last_system("setting up the AF_XDP rings")) } else { Ok(()) }
}

fn ring_offsets(fd: RawFd) -> Result<libc::xdp_mmap_offsets, Error> {
    // SAFETY: all zeros is a valid value of this structure.
    let mut offsets: libc::xdp_mmap_offsets = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::xdp_mmap_offsets>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to a local structure.
    let status = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_XDP,
            libc::XDP_MMAP_OFFSETS,
            (&raw mut offsets).cast(),
            &raw mut length,
        )
    };
    if status < 0 || length as usize != size_of::<libc::xdp_mmap_offsets>() {
        let refused = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        return Err(Error::system("querying the AF_XDP rings", refused));
    }
    Ok(offsets)
}

fn bind(fd: RawFd, index: u32) -> Result<(), Error> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: index,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    let length = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: the address is local and has the given length.
    let status = unsafe { libc::bind(fd, (&raw const address).cast(), length) };
    if status < 0 { Err(Error::last_system("binding the AF_XDP socket")) } else { Ok(()) }
}

impl Medium for XskSocket {
    fn send(&mut self, to: Peer, datagram: &[u8]) {
        while let Some(address) = self.completion.consume() {
            self.free_frames.push(address);
        }
        let Peer::Hardware(to) = to else { return };
        // Without a free frame, the datagram is treated as lost and retransmitted.
        let Some(address) = self.free_frames.pop() else { return self.wake() };
        self.frame.clear();
        self.frame.extend(to);
        self.frame.extend(self.mac_address);
        self.frame.extend(ETHER_TYPE.to_be_bytes());
        self.frame.extend_from_slice(datagram);
        let descriptor = libc::xdp_desc { addr: address, len: self.frame.len() as u32, options: 0 };
        let fits = self.frame.len() <= FRAME_BYTES as usize;
        if !fits || !self.umem.write(address as usize, &self.frame) || !self.tx.produce(descriptor) {
            self.free_frames.push(address);
        }
        if self.tx.needs_wakeup() {
            self.wake();
        }
    }

    fn receive(&mut self, datagram: &mut Vec<u8>) -> Option<Peer> {
        loop {
            let descriptor = self.rx.consume()?;
            self.frame.clear();
            let fits = descriptor.len <= FRAME_BYTES;
            let read =
                fits && self.umem.read(descriptor.addr as usize, descriptor.len as usize, &mut self.frame);
            // Return the aligned address of the frame: the kernel reports the address of the data, after the headroom.
            self.fill.produce(descriptor.addr / u64::from(FRAME_BYTES) * u64::from(FRAME_BYTES));
            if !read {
                continue;
            }
            let Some((header, payload)) = self.frame.split_at_checked(ETHERNET_HEADER) else { continue };
            let from: [u8; 6] = std::array::from_fn(|byte| header[6 + byte]);
            let to_us = header[..6] == self.mac_address || header[..6] == BROADCAST;
            if to_us && header[12..] == ETHER_TYPE.to_be_bytes() {
                datagram.clear();
                datagram.extend_from_slice(payload);
                return Some(Peer::Hardware(from));
            }
        }
    }

    fn readable(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    fn max_datagram(&self, _peer: Peer) -> u16 {
        self.mtu
    }

    fn send_capacity(&self) -> usize {
        FRAMES as usize / 4 * usize::from(self.mtu)
    }

    fn resolve(&self) -> Resolve {
        |host| {
            let text = String::from_utf8_lossy(host);
            let why = || format!("\"{text}\" is not a hardware address such as 02:00:00:00:00:07");
            hardware_address(&text).map(Peer::Hardware).ok_or_else(|| Error::NotReachable(why()))
        }
    }

    fn host(&self, peer: Peer) -> Vec<u8> {
        let Peer::Hardware(address) = peer else { return Vec::new() };
        let bytes: Vec<_> = address.iter().map(|byte| format!("{byte:02x}")).collect();
        bytes.join(":").into_bytes()
    }
}

impl OverDatagrams for AfXdp {
    fn nic(&self) -> &DatagramNic {
        &self.nic
    }
}
