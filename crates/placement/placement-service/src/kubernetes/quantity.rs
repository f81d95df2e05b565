//! Quantities of Kubernetes' resources, such as `1500m`, `2`, `64Gi` and `1e3`.
//!
//! Source: Kubernetes, k8s.io/apimachinery/pkg/api/resource, `Quantity`.

/// Binary and decimal suffixes with the power of their base.
const BINARY: [(&str, u32); 6] = [("Ki", 1), ("Mi", 2), ("Gi", 3), ("Ti", 4), ("Pi", 5), ("Ei", 6)];
const DECIMAL: [(&str, u32); 6] = [("k", 1), ("M", 2), ("G", 3), ("T", 4), ("P", 5), ("E", 6)];

/// Longest text that is parsed.
const MAX_CHARS: usize = 64;

/// Parses a quantity and returns it in thousandths, rounded up; `None` if it is malformed, negative or too large.
pub(super) fn thousandths(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    if text.len() > MAX_CHARS {
        return None;
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    // The value is digits * 10^exponent * 1024^binary.
    let digits: u128 = format!("0{whole}{fraction}").parse().ok()?;
    let (mut exponent, mut binary) = (3 - i32::try_from(fraction.len()).ok()?, 0);
    match suffix {
        "" => {}
        "n" => exponent -= 9,
        "u" => exponent -= 6,
        "m" => exponent -= 3,
        _ => {
            let power = |all: &[(&str, u32)]| all.iter().find(|s| s.0 == suffix).map(|s| s.1);
            match (power(&BINARY), power(&DECIMAL), suffix.strip_prefix(['e', 'E'])) {
                (Some(power), _, _) => binary = power,
                (_, Some(power), _) => exponent += 3 * power as i32,
                (_, _, Some(power)) => exponent += power.parse::<i32>().ok().filter(|p| p.abs() <= 30)?,
                _ => return None,
            }
        }
    }
    let scaled = digits.checked_mul(1024_u128.checked_pow(binary)?)?;
    let value = match u32::try_from(exponent) {
        Ok(exponent) => scaled.checked_mul(10_u128.checked_pow(exponent)?)?,
        Err(_) => scaled.div_ceil(10_u128.checked_pow(exponent.unsigned_abs()).unwrap_or(u128::MAX)),
    };
    u64::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, expected) in [
            ("0", 0),
            ("2", 2000),
            ("1500m", 1500),
            ("0.5", 500),
            (".5", 500),
            ("5.", 5000),
            ("1u", 1),
            ("2000000n", 2),
            ("1Ki", 1_024_000),
            ("1.5Gi", 1_610_612_736_000),
            ("128M", 128_000_000_000),
            ("1e3", 1_000_000),
            ("1E3", 1_000_000),
            ("5e-1", 500),
            ("+1", 1000),
            ("16Ti", 17_592_186_044_416_000),
        ] {
            assert_eq!(thousandths(text), Some(expected), "{text}");
        }
        for wrong in
            ["", ".", "-1", "1.2.3", "1x", "1 Gi", "Gi", "1e", "1e99", "1EiB", "99999999999Ei", "0x10", "１"]
        {
            assert_eq!(thousandths(wrong), None, "{wrong}");
        }
        assert_eq!(thousandths(&"9".repeat(10_000)), None);
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in "[0-9.eE+kmnuKMGTPi-]{0,40}") {
            let _ = thousandths(&text);
        }

        #[test]
        fn whole_numbers_of_thousandths_are_exact(value in 0..u64::MAX / 1000) {
            prop_assert_eq!(thousandths(&format!("{value}m")), Some(value));
            prop_assert_eq!(thousandths(&value.to_string()), Some(value * 1000));
        }
    }
}
