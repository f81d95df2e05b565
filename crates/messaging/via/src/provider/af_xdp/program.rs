//! The XDP program that redirects our frames to our socket and passes all others to the kernel.
//!
//! Source: bpf(2); RFC 9669 (instruction set); Linux, Documentation/networking/af_xdp.rst (XSKMAP).

use crate::error::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The IEEE 802 local experimental EtherType.
pub const ETHER_TYPE: u16 = 0x88b5;

const MAP_CREATE: i64 = 0;
const MAP_UPDATE: i64 = 2;
const PROG_LOAD: i64 = 5;
const LINK_CREATE: i64 = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
const XDP_PASS: i32 = 2;
const REDIRECT_MAP: i32 = 51;

/// The program, attached to an interface. Dropping it detaches the program.
pub struct Program {
    map: OwnedFd,
    _program: OwnedFd,
    _link: OwnedFd,
}

/// Calls bpf(2). `attributes` is the beginning of the kernel's union for the command.
fn bpf(what: &'static str, command: i64, attributes: &[u32]) -> Result<RawFd, Error> {
    // SAFETY: the kernel reads the given number of bytes from the array; the addresses in it refer to buffers of the
    // caller that live through the call.
    let outcome =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) };
    if outcome < 0 { Err(Error::last_system(what)) } else { Ok(outcome as RawFd) }
}

fn owned(fd: RawFd) -> OwnedFd {
    // SAFETY: the descriptor was just opened by bpf(2) and has no other owner.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn halves(address: u64) -> [u32; 2] {
    let bytes = address.to_ne_bytes();
    let half = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    [half(0), half(4)]
}

/// Encodes an instruction: operation, registers, offset, immediate.
const fn op(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> u64 {
    let registers = (to | from << 4) as u64;
    code as u64 | registers << 8 | (offset as u16 as u64) << 16 | (immediate as u32 as u64) << 32
}

/// The first part of the program, for the given map.
fn instructions(map: RawFd) -> [u64; 13] {
    [
        op(0xbf, 6, 1, 0, 0),                             // r6 = context
        op(0x61, 2, 6, 0, 0),                             // r2 = data
        op(0x61, 3, 6, 4, 0),                             // r3 = end of data
        op(0xbf, 4, 2, 0, 0),                             // r4 = r2
        op(0x07, 4, 0, 0, 14),                            // r4 += 14
        op(0x2d, 4, 3, 4, 0),                             // shorter than an Ethernet header: pass
        op(0x69, 5, 2, 12, 0),                            // r5 = EtherType
        op(0x55, 5, 0, 2, i32::from(ETHER_TYPE.to_be())), // not ours: pass
        op(0x61, 2, 6, 16, 0),                            // r2 = receive queue
        op(0x05, 0, 0, 2, 0),                             // to the redirection
        op(0xb7, 0, 0, 0, XDP_PASS),                      // pass:
        op(0x95, 0, 0, 0, 0),                             //   exit
        op(0x18, 1, 1, 0, map),                           // redirection: r1 = map, first half
    ]
}

/// The rest: the upper half of the map's address, the flags, the call, the exit.
const REST: [u64; 4] =
    [op(0, 0, 0, 0, 0), op(0xb7, 3, 0, 0, XDP_PASS), op(0x85, 0, 0, 0, REDIRECT_MAP), op(0x95, 0, 0, 0, 0)];

impl Program {
    /// Loads the program and attaches it to the interface with index `interface`.
    ///
    /// # Errors
    /// If the system does not permit it, or another program is attached.
    pub fn attach(interface: u32) -> Result<Self, Error> {
        let map = [MAP_TYPE_XSKMAP, 4, 4, 64];
        let map = owned(bpf("creating the BPF map for AF_XDP", MAP_CREATE, &map)?);
        let code: Vec<u64> = instructions(map.as_raw_fd()).into_iter().chain(REST).collect();
        let (code_at, license_at) = (halves(code.as_ptr() as u64), halves(c"Dual MIT/GPL".as_ptr() as u64));
        let load = [PROG_TYPE_XDP, code.len() as u32, code_at[0], code_at[1], license_at[0], license_at[1]];
        let program = owned(bpf("loading the XDP program", PROG_LOAD, &load)?);
        let link = [program.as_raw_fd() as u32, interface, ATTACH_XDP, 0];
        let link = owned(bpf("attaching the XDP program to the interface", LINK_CREATE, &link)?);
        Ok(Self { map, _program: program, _link: link })
    }

    /// Redirects frames of receive queue `queue` to `socket`.
    ///
    /// # Errors
    /// If the socket is not bound to that queue.
    pub fn redirect(&self, queue: u32, socket: RawFd) -> Result<(), Error> {
        let value = socket as u32;
        let (key_at, value_at) = (halves(&raw const queue as u64), halves(&raw const value as u64));
        let update = [self.map.as_raw_fd() as u32, 0, key_at[0], key_at[1], value_at[0], value_at[1], 0, 0];
        bpf("putting the socket into the BPF map", MAP_UPDATE, &update).map(|_| ())
    }
}
