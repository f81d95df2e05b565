//! The bytes of a packet that an interface takes, from the least to the most.
//! Not what they are now: that is `interface`.
//! Source: rtnetlink(7); Linux include/uapi/linux/if_link.h (IFLA_MIN_MTU, IFLA_MAX_MTU, 4.19), net/core/dev.c (dev_validate_mtu).

use netlink_packet_core::{NLM_F_REQUEST, NlasIterator};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use std::io;
use std::ops::RangeInclusive;

const GET_LINK: u16 = 18;
const NEW_LINK: u16 = 16;
/// Attributes of an interface.
const NAME: u16 = 3;
const LEAST_MTU: u16 = 50;
const MOST_MTU: u16 = 51;
/// Bytes of struct nlmsghdr and of struct ifinfomsg, which stand before the attributes, and of an attribute's own head.
const HEADER: usize = 16;
const ABOUT: usize = 16;
const ATTRIBUTE: usize = 4;

/// Asks the kernel, in the network namespace of the calling thread.
///
/// # Errors
/// What it said; `Unsupported` from one that does not tell.
pub fn range(interface: &str) -> io::Result<RangeInclusive<u64>> {
    let netlink = Socket::new(NETLINK_ROUTE)?;
    netlink.send(&request(interface), 0)?;
    let (answer, _) = netlink.recv_from_full()?;
    of_answer(&answer)
}

fn request(interface: &str) -> Vec<u8> {
    let name = interface.len() + 1;
    let all = HEADER + ABOUT + ATTRIBUTE + name.next_multiple_of(4);
    let mut bytes = Vec::with_capacity(all);
    bytes.extend((all as u32).to_ne_bytes());
    bytes.extend(GET_LINK.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.resize(HEADER + ABOUT, 0);
    bytes.extend(((ATTRIBUTE + name) as u16).to_ne_bytes());
    bytes.extend(NAME.to_ne_bytes());
    bytes.extend(interface.as_bytes());
    bytes.resize(all, 0);
    bytes
}

fn of_answer(answer: &[u8]) -> io::Result<RangeInclusive<u64>> {
    let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
    if kind != Some(NEW_LINK) {
        // An error's number is negative.
        let number = answer.get(HEADER..HEADER + 4).and_then(|number| number.try_into().ok());
        return Err(number.map_or_else(unsupported, |number| {
            io::Error::from_raw_os_error(i32::from_ne_bytes(number).saturating_neg())
        }));
    }
    let attributes = NlasIterator::new(answer.get(HEADER + ABOUT..).unwrap_or_default());
    let (mut least, mut most) = (None, None);
    for attribute in attributes.map_while(Result::ok) {
        let number = attribute.value().try_into().ok().map(u32::from_ne_bytes);
        match attribute.kind() {
            LEAST_MTU => least = number,
            MOST_MTU => most = number,
            _ => {}
        }
    }
    // No most is written as 0.
    let (least, most) = least.zip(most).ok_or_else(unsupported)?;
    Ok(u64::from(least)..=u64::from(if most == 0 { u32::MAX } else { most }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_takes_packets_of_any_size_and_no_other_name_has_one() {
        assert_eq!(range("lo").unwrap(), 0..=u64::from(u32::MAX));
        assert_eq!(range("nosuch0").unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn an_answer_that_is_cut_or_says_nothing_is_no_range() {
        let mut answer = request("eth0");
        answer[4..6].copy_from_slice(&NEW_LINK.to_ne_bytes());
        assert!(of_answer(&answer).is_err());
        for (kind, value) in [(LEAST_MTU, 68u32), (MOST_MTU, 9600)] {
            answer.extend(8u16.to_ne_bytes());
            answer.extend(kind.to_ne_bytes());
            answer.extend(value.to_ne_bytes());
        }
        assert_eq!(of_answer(&answer).unwrap(), 68..=9600);
        for length in 0..answer.len() {
            assert!(of_answer(&answer[..length]).is_err(), "{length}");
        }
    }
}
