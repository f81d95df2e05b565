//! Numbers with digits in groups.

/// Formats a number with a space between groups of three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let (head, rest) = digits.split_at(first);
    let groups = rest.as_bytes().chunks(3).map(|group| String::from_utf8_lossy(group).into_owned());
    let groups = (!head.is_empty()).then(|| head.to_owned()).into_iter().chain(groups);
    groups.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_are_grouped_by_three_digits() {
        let texts = [0, 12, 999, 1000, 123_456, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "12", "999", "1 000", "123 456", "1 234 567"]);
    }
}
