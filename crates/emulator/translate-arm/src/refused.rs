//! The names of A64 instructions that the front end does not translate. Source: `refused.tsv`.

use std::sync::LazyLock;

/// A row of the table.
struct Class {
    matched: u32,
    mask: u32,
    name: &'static str,
    feature: &'static str,
}

static CLASSES: LazyLock<Vec<Class>> = LazyLock::new(|| {
    let lines = include_str!("refused.tsv").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(class).collect()
});

fn class(line: &'static str) -> Option<Class> {
    let [pattern, name, feature] = line.split('\t').collect::<Vec<_>>()[..] else { return None };
    let bits = |of: fn(char) -> bool| pattern.chars().fold(0, |word, bit| word << 1 | u32::from(of(bit)));
    let (matched, mask) = (bits(|bit| bit == '1'), bits(|bit| matches!(bit, '0' | '1')));
    Some(Class { matched, mask, name, feature })
}

/// The mnemonics of the encoding class of a word that is not decoded, and the feature that it belongs to or the reason
/// why programs cannot use it. `None` if Armv8.2 and later versions do not allocate the word.
pub fn refused(word: u32) -> Option<(&'static str, &'static str)> {
    let class = CLASSES.iter().find(|class| word & class.mask == class.matched)?;
    Some((class.name, class.feature))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instruction::decode;

    #[test]
    fn refused_instructions_are_named_with_their_feature() {
        for (word, name, feature) in [
            (0x0000_0000, "udf", "permanently undefined"),
            (0x1e7e_0000, "fjcvtzs", "FEAT_JSCVT"),
            (0x6e40_c400, "fcmla", "FEAT_FCMA"),
            (0x0420_0000, "SVE instruction", "FEAT_SVE"),
            (0xdac1_0000, "pac or aut", "FEAT_PAuth"),
            (0xd538_1000, "mrs", "a system register that programs cannot read"),
        ] {
            assert_eq!(decode(word), None, "{word:#010x}");
            assert_eq!(refused(word), Some((name, feature)), "{word:#010x}");
        }
        assert_eq!(
            CLASSES.len(),
            include_str!("refused.tsv").lines().filter(|l| !l.starts_with('#')).count()
        );
    }
}
