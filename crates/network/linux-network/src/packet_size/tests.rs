//! Tests of `packet_size`.

use super::*;

#[test]
fn the_loopback_interface_takes_packets_of_any_size_and_no_other_name_has_one() {
    assert_eq!(range("lo").unwrap(), 0..=u64::from(u32::MAX));
    assert_eq!(range("nosuch0").unwrap_err().raw_os_error(), Some(libc::ENODEV));
}

#[test]
fn a_truncated_or_empty_answer_gives_no_range() {
    let mut link = LinkMessage::default();
    let bytes_of = |message| bytes_of(message, NLM_F_REQUEST);
    let range = |answer: &[u8]| of_attributes(&of_answer(answer)?);
    assert!(range(&bytes_of(RouteNetlinkMessage::NewLink(link.clone()))).is_err());
    link.attributes.extend([LinkAttribute::MinMtu(68), LinkAttribute::MaxMtu(9600)]);
    let answer = bytes_of(RouteNetlinkMessage::NewLink(link));
    assert_eq!(range(&answer).unwrap(), 68..=9600);
    for length in 0..answer.len() {
        assert!(range(&answer[..length]).is_err(), "{length}");
        assert!(is_acknowledged(&answer[..length]).is_err(), "{length}");
    }
}
