//! Formats numbers for people: about four significant digits, integers without a fraction. Machine-readable files
//! contain all digits.
//!
//! Source: digits are grouped with thin spaces as in the SI brochure, section 5.4.4.

/// Formats a number with about four significant digits, or as an integer if it is one.
pub fn number(value: f64) -> String {
    let magnitude = value.abs();
    if value.fract() == 0.0 && magnitude < 1e15 {
        let digits = format!("{}", value as i64);
        return grouped(&digits);
    }
    match magnitude {
        m if m >= 10_000.0 => grouped(&format!("{value:.0}")),
        m if m >= 100.0 => format!("{value:.1}"),
        m if m >= 10.0 => format!("{value:.2}"),
        m if m >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.3e}"),
    }
}

/// Groups digits by three.
fn grouped(digits: &str) -> String {
    let (sign, digits) = digits.strip_prefix('-').map_or(("", digits), |rest| ("-", rest));
    let mut out = String::from(sign);
    for (index, digit) in digits.chars().enumerate() {
        // Four digits need no group.
        if digits.len() > 4 && index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_integers_exact() {
        let cases = [
            (9467.0, "9467"),
            (1234567.0, "1 234 567"),
            (0.98765, "0.988"),
            (12.3456, "12.35"),
            (1e-7, "1.000e-7"),
            (-3.0, "-3"),
            (10061.25, "10 061"),
        ];
        for (value, wanted) in cases {
            assert_eq!(number(value), wanted);
        }
    }
}
