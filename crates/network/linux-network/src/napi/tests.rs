//! Tests of `napi`.

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
fn an_instance_has_a_number_and_values_of_either_width() {
    let long = DefaultNla::new(NAPI_SUSPEND, 20_000_000_000u64.to_ne_bytes().into());
    for (timeout, expected) in [(number(NAPI_SUSPEND, 5), 5), (long, 20_000_000_000)] {
        let mut answers = Vec::new();
        let pid = number(NAPI_PID, 77);
        let bytes = datagram(vec![number(NAPI_INTERFACE, 2), number(NAPI_ID, 8193), pid, timeout]);
        assert!(!collect(&bytes, &mut answers).unwrap());
        let values = NapiValues { irq_suspend_timeout: Some(expected), ..NapiValues::default() };
        assert_eq!(instance(&answers[0], 2), Some(NapiInstance { id: 8193, thread: Some(77), values }));
        assert_eq!(instance(&answers[0], 3), None, "another interface");
    }
    let mut answers = Vec::new();
    collect(&datagram(vec![number(NAPI_INTERFACE, 2), number(NAPI_ID, 1)]), &mut answers).unwrap();
    let plain = NapiInstance { id: 1, thread: None, values: NapiValues::default() };
    assert_eq!(instance(&answers[0], 2), Some(plain), "Linux before 6.13");
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
fn an_unknown_interface_or_instance_is_an_error_and_the_loopback_interface_has_none() {
    assert!(get("nosuch0").is_err() && set(u32::MAX, &NapiValues::default()).is_err());
    assert!(get("lo").is_ok_and(|instances| instances.is_empty()) || get("lo").is_err());
}
