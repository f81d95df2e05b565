//! Tests of `value`.

use super::*;
use proptest::prelude::*;

fn cpus(list: &str) -> Value {
    Value::of_cpus(list.parse().unwrap())
}

#[test]
fn masks_are_those_that_the_kernel_prints() {
    assert_eq!(masks("ff,0x10,a"), Some(vec![0xff.into(), 0x10.into(), 0xa.into()]));
    assert_eq!(masks("f,00000000"), Some(vec![cpus("32-35")]));
    assert_eq!(masks("1,00000000,00000000,3"), Some(vec![cpus("64"), cpus("0-1")]));
    assert_eq!(masks("00000000,00000000,00000001"), Some(vec![1.into()]));
    assert_eq!(masks("ffffffffffffffffffff"), Some(vec![cpus("0-79")]));
    for wrong in ["", "g", "+1", "1,,2", "0x", "1,0x", "-1"] {
        assert_eq!(masks(wrong), None, "{wrong}");
    }
}

#[test]
fn short_masks_are_numbers_in_files_and_long_ones_texts() {
    let json = |value: &Value| serde_json::to_string(value).unwrap();
    assert_eq!(json(&cpus("0-3")), "15");
    assert_eq!(json(&cpus("64")), r#""1,00000000,00000000""#);
    for wrong in [r#""f""#, r#""x""#, "-1", "1.5", "null", "[]"] {
        assert!(serde_json::from_str::<Value>(wrong).is_err(), "{wrong}");
    }
}

proptest! {
    #[test]
    fn a_printed_mask_is_read_as_the_same_value(cpus in prop::collection::btree_set(0..512u32, 0..40)) {
        let value = Value::of_cpus(cpus.into_iter().collect());
        prop_assert_eq!(masks(&value.mask()), Some(vec![value.clone()]));
        let json = serde_json::to_string(&value).unwrap();
        prop_assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value);
    }

    #[test]
    fn any_text_is_masks_or_is_rejected(text in "[0-9a-fx, ]{0,40}|.*") {
        let _ = masks(&text);
    }
}
