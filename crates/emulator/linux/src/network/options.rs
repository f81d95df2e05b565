//! Socket options. Values are forwarded, except for options with pointers, which must be translated or refused. Source:
//! socket(7), ip(7), tcp(7); Linux include/uapi/linux/{filter,tcp,if_packet}.h.

use longma_guest::Errno;
use longma_guest::host::host_call;

use super::calls::check_socket;
use crate::Thread;
use crate::arguments::{Arguments, Returned, buffer, with_results};

const SOL_NETLINK: i32 = 270;
const SOL_ALG: i32 = 279;
const SOL_TLS: i32 = 282;
const SOL_PACKET: i32 = 263;
const SO_ATTACH_REUSEPORT_CBPF: i32 = 51;
const TCP_ZEROCOPY_RECEIVE: i32 = 35;
const PACKET_FANOUT_DATA: i32 = 22;
/// BPF_MAXINSNS.
const MAX_FILTER_INSTRUCTIONS: u64 = 4096;
/// sizeof(struct sock_filter).
const FILTER_INSTRUCTION_BYTES: u64 = 8;

/// Levels whose options contain no pointers, with the exceptions below.
const LEVELS: &[i32] = &[
    libc::SOL_SOCKET,
    libc::IPPROTO_IP,
    libc::IPPROTO_ICMP,
    libc::IPPROTO_TCP,
    libc::IPPROTO_UDP,
    libc::IPPROTO_IPV6,
    libc::IPPROTO_ICMPV6,
    libc::IPPROTO_UDPLITE,
    libc::IPPROTO_RAW,
    libc::AF_VSOCK,
    SOL_NETLINK,
    SOL_ALG,
    SOL_TLS,
    SOL_PACKET,
];

/// Whether the value of an option may contain a pointer that the host would follow.
fn is_opaque(level: i32, name: i32) -> bool {
    match level {
        // Packet filter tables (ip_tables.h, ip6_tables.h, arp_tables.h, ebtables.h).
        libc::IPPROTO_IP | libc::IPPROTO_IPV6 => (64..=68).contains(&name) || (80..=139).contains(&name),
        libc::IPPROTO_TCP => name == TCP_ZEROCOPY_RECEIVE,
        SOL_PACKET => name == PACKET_FANOUT_DATA,
        _ => !LEVELS.contains(&level),
    }
}

pub(crate) fn setsockopt(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [socket, level, name, value, length, _] = arguments;
    let (level, name) = (level as i32, name as i32);
    if is_opaque(level, name) {
        check_socket(socket)?;
        return Err(Errno(if LEVELS.contains(&level) { libc::ENOPROTOOPT } else { libc::EOPNOTSUPP }));
    }
    let length = u64::try_from(length as i32).map_err(|_| Errno(libc::EINVAL))?;
    let is_filter =
        level == libc::SOL_SOCKET && matches!(name, libc::SO_ATTACH_FILTER | SO_ATTACH_REUSEPORT_CBPF);
    let memory = thread.process.memory();
    let filter: [u64; 2];
    let host = if is_filter && length == 16 {
        // struct sock_fprog: the number of instructions and their address.
        let instructions = u64::from(memory.load::<u16>(value)?);
        if instructions > MAX_FILTER_INSTRUCTIONS {
            return Err(Errno(libc::EINVAL));
        }
        filter = [
            instructions,
            buffer(memory, memory.load(value.wrapping_add(8))?, instructions * FILTER_INSTRUCTION_BYTES)?,
        ];
        filter.as_ptr() as u64
    } else if is_filter {
        return Err(Errno(libc::EINVAL));
    } else {
        buffer(memory, value, length)?
    };
    // SAFETY: the value is local or in guest memory and contains no guest pointers.
    unsafe { host_call(libc::SYS_setsockopt, [socket, level as u64, name as u64, host, length, 0]) }
}

pub(crate) fn getsockopt(thread: &mut Thread, arguments: Arguments) -> Returned {
    let [socket, level, name, value, length_address, _] = arguments;
    let (level, name) = (level as i32, name as i32);
    if is_opaque(level, name) {
        check_socket(socket)?;
        return Err(Errno(if LEVELS.contains(&level) { libc::ENOPROTOOPT } else { libc::EOPNOTSUPP }));
    }
    let memory = thread.process.memory();
    let buffer_bytes: u32 = memory.load(length_address)?;
    if (buffer_bytes as i32) < 0 {
        return Err(Errno(libc::EINVAL));
    }
    let mut length = buffer_bytes;
    let returned = with_results(memory, |results| {
        length = buffer_bytes;
        let host = results.structure(value, buffer_bytes.into())?;
        let arguments = [socket, level as u64, name as u64, host, &raw mut length as u64, 0];
        // SAFETY: the value is in guest memory or `results`; the length is local.
        unsafe { host_call(libc::SYS_getsockopt, arguments) }
    })?;
    memory.store(length_address, length)?;
    Ok(returned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_with_pointers_and_unknown_levels_do_not_reach_the_host() {
        assert!(is_opaque(libc::IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE));
        assert!(is_opaque(libc::IPPROTO_IP, 64));
        assert!(is_opaque(283, 4));
        assert!(!is_opaque(libc::SOL_SOCKET, libc::SO_REUSEADDR));
        assert!(!is_opaque(libc::IPPROTO_TCP, libc::TCP_NODELAY));
        assert!(!is_opaque(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY));
    }
}
