//! Tests of `suspension`.

use super::*;

fn datagram(attributes: Vec<DefaultNla>) -> Vec<u8> {
    let generic = Generic { family: 30, command: NAPI_GET, attributes };
    let mut message = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(generic));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

#[test]
fn an_instance_has_a_number_and_a_timeout_of_either_width() {
    let long = DefaultNla::new(NAPI_SUSPEND, 20_000_000_000u64.to_ne_bytes().into());
    for (timeout, expected) in [(number(NAPI_SUSPEND, 5), 5), (long, 20_000_000_000)] {
        let mut answers = Vec::new();
        let bytes = datagram(vec![number(NAPI_INTERFACE, 2), number(NAPI_ID, 8193), timeout]);
        assert!(!collect(&bytes, &mut answers).unwrap());
        assert_eq!(instance(&answers[0], 2), Some((8193, expected)));
        assert_eq!(instance(&answers[0], 3), None, "another interface");
    }
    let mut answers = Vec::new();
    collect(&datagram(vec![number(NAPI_INTERFACE, 2), number(NAPI_ID, 1)]), &mut answers).unwrap();
    assert_eq!(instance(&answers[0], 2), None, "Linux before 6.13");
}

#[test]
fn truncated_answers_are_errors_or_lack_attributes() {
    let bytes = datagram(vec![number(NAPI_INTERFACE, 2), number(NAPI_ID, 8193), number(NAPI_SUSPEND, 5)]);
    for length in 1..bytes.len() {
        let mut answers = Vec::new();
        assert!(collect(&bytes[..length], &mut answers).is_err(), "{length}");
    }
    assert!(collect(&[], &mut Vec::new()).unwrap());
}

#[test]
fn interfaces_without_instances_have_no_timeout() {
    assert!(get("lo").is_err());
    assert!(get("nosuch0").is_err() && set("nosuch0", 1).is_err());
}
