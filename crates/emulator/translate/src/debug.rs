//! GDB target descriptions: names, numbers, sizes and types of an architecture's registers. Source: GDB manual,
//! appendix G (target descriptions: features, types, registers).

use std::fmt::Write;

/// Consecutive registers of one kind.
#[derive(Debug)]
pub struct Row<K: 'static> {
    /// The feature's name after `org.gnu.gdb.`.
    pub feature: &'static str,
    /// The kind of the registers.
    pub kind: K,
    /// The number of registers.
    pub count: u16,
    /// The size of each register in bits, a multiple of 8.
    pub bits: u16,
    /// The names, separated by spaces, or one name with `#` in place of the index.
    pub names: &'static str,
    /// The registers' type: one that GDB predefines or that the feature defines.
    pub of: &'static str,
    /// The GDB register group.
    pub group: &'static str,
}

impl<K> Row<K> {
    /// Creates a row; the arguments are in the order of the fields.
    pub const fn new(
        feature: &'static str,
        kind: K,
        count: u16,
        bits: u16,
        names: &'static str,
        of: &'static str,
        group: &'static str,
    ) -> Self {
        Self { feature, kind, count, bits, names, of, group }
    }

    fn name(&self, index: u16) -> String {
        if self.names.contains('#') {
            return self.names.replace('#', &index.to_string());
        }
        self.names.split(' ').nth(index.into()).unwrap_or_default().into()
    }
}

/// All registers of an architecture, in GDB's order.
#[derive(Debug)]
pub struct Description<K: 'static> {
    /// GDB's name of the architecture.
    pub architecture: &'static str,
    /// The registers. A register's number is its index among all of them.
    pub rows: &'static [Row<K>],
    /// Returns the type definitions of a feature.
    pub types: fn(&str) -> String,
}

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register<K> {
    /// The kind of the register.
    pub kind: K,
    /// The index among the registers of this kind.
    pub index: usize,
    /// The size in bytes.
    pub bytes: usize,
}

/// The value of a register, little-endian and padded with zeros.
pub type Value = [u8; 32];

/// The value of four 64-bit words, least significant first.
pub fn value(words: [u64; 4]) -> Value {
    std::array::from_fn(|byte| words[byte / 8].to_le_bytes()[byte % 8])
}

/// The value of one 64-bit word.
pub fn of_word(word: u64) -> Value {
    value([word, 0, 0, 0])
}

/// The four 64-bit words of a value, least significant first.
pub fn words(value: &Value) -> [u64; 4] {
    std::array::from_fn(|word| u64::from_le_bytes(std::array::from_fn(|byte| value[8 * word + byte])))
}

impl<K: Copy> Description<K> {
    /// All registers, in the order of their numbers.
    pub fn registers(&self) -> impl Iterator<Item = Register<K>> {
        self.rows.iter().flat_map(|row| {
            let bytes = usize::from(row.bits / 8);
            (0..usize::from(row.count)).map(move |index| Register { kind: row.kind, index, bytes })
        })
    }

    /// The register with this number; `None` if there is none.
    pub fn register(&self, number: usize) -> Option<Register<K>> {
        let mut first = 0;
        for row in self.rows {
            let count = usize::from(row.count);
            if number < first + count {
                let bytes = usize::from(row.bits / 8);
                return Some(Register { kind: row.kind, index: number - first, bytes });
            }
            first += count;
        }
        None
    }

    /// The XML target description.
    pub fn xml(&self) -> String {
        let mut xml = format!(
            "<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\"><target version=\"1.0\">\
             <architecture>{}</architecture><osabi>GNU/Linux</osabi>",
            self.architecture
        );
        let mut features: Vec<&str> = Vec::new();
        for Row { feature, .. } in self.rows {
            if !features.contains(feature) {
                features.push(feature);
                self.write_feature(feature, &mut xml);
            }
        }
        xml + "</target>"
    }

    fn write_feature(&self, feature: &str, xml: &mut String) {
        const INFALLIBLE: &str = "writing to a String cannot fail";
        write!(xml, "<feature name=\"org.gnu.gdb.{feature}\">{}", (self.types)(feature)).expect(INFALLIBLE);
        let mut first = 0;
        for row in self.rows {
            for index in (0..row.count).filter(|_| row.feature == feature) {
                let (name, number) = (row.name(index), first + index);
                let Row { bits, of, group, .. } = row;
                write!(
                    xml,
                    "<reg name=\"{name}\" bitsize=\"{bits}\" regnum=\"{number}\" type=\"{of}\" group=\"{group}\"/>"
                )
                .expect(INFALLIBLE);
            }
            first += row.count;
        }
        xml.push_str("</feature>");
    }
}

/// The union type of a vector of `bits` bits with fields for all lane sizes, and one for the whole value if `whole`.
pub fn vector(id: &str, bits: u16, with_whole: bool) -> String {
    let lanes = [
        ("f", "ieee_single", "float", 32),
        ("d", "ieee_double", "double", 64),
        ("b", "int8", "int8", 8),
        ("h", "int16", "int16", 16),
        ("w", "int32", "int32", 32),
        ("l", "int64", "int64", 64),
    ];
    let vectors: String = lanes
        .iter()
        .map(|(end, of, _, size)| {
            format!("<vector id=\"{id}{end}\" type=\"{of}\" count=\"{}\"/>", bits / size)
        })
        .collect();
    let fields: String = lanes
        .iter()
        .map(|(end, _, name, size)| format!("<field name=\"v{}_{name}\" type=\"{id}{end}\"/>", bits / size))
        .collect();
    let with_whole = if with_whole { "<field name=\"uint128\" type=\"uint128\"/>" } else { "" };
    format!("{vectors}<union id=\"{id}\">{fields}{with_whole}</union>")
}

/// The type of a flags register with single-bit fields.
pub fn flags(id: &str, bytes: usize, bits: &[(&str, u8)]) -> String {
    let fields: String = bits
        .iter()
        .map(|(name, bit)| format!("<field name=\"{name}\" start=\"{bit}\" end=\"{bit}\"/>"))
        .collect();
    format!("<flags id=\"{id}\" size=\"{bytes}\">{fields}</flags>")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESCRIPTION: Description<char> = Description {
        architecture: "none",
        rows: &[
            Row { feature: "a", kind: 'x', count: 2, bits: 64, names: "x#", of: "int64", group: "general" },
            Row { feature: "b", kind: 's', count: 1, bits: 32, names: "state", of: "int", group: "system" },
            Row {
                feature: "a",
                kind: 'y',
                count: 2,
                bits: 128,
                names: "lo hi",
                of: "uint128",
                group: "general",
            },
        ],
        types: |feature| if feature == "b" { flags("bits", 4, &[("Z", 3)]) } else { String::new() },
    };

    #[test]
    fn register_numbers_follow_the_row_order_across_features() {
        let xml = DESCRIPTION.xml();
        let feature = |name: &str| {
            let start = format!("<feature name=\"org.gnu.gdb.{name}\">");
            let (_, rest) = xml.split_once(&start).unwrap();
            rest.split_once("</feature>").unwrap().0.to_owned()
        };
        for (of, text) in [
            ("a", "name=\"x1\" bitsize=\"64\" regnum=\"1\""),
            ("b", "name=\"state\" bitsize=\"32\" regnum=\"2\""),
            ("b", "<flags id=\"bits\" size=\"4\"><field name=\"Z\" start=\"3\" end=\"3\"/></flags>"),
            ("a", "name=\"hi\" bitsize=\"128\" regnum=\"4\""),
        ] {
            assert!(feature(of).contains(text), "{text} in {xml}");
        }
        let all: Vec<_> = DESCRIPTION.registers().collect();
        assert_eq!(all.len(), 5);
        assert!((0..6).all(|number| DESCRIPTION.register(number) == all.get(number).copied()));
        assert_eq!(DESCRIPTION.register(4), Some(Register { kind: 'y', index: 1, bytes: 16 }));
    }
}
