//! Checks that the book's chapter and the C headers match the register tables in the code.

use longma_devices::REGISTER_MAPS;
use std::path::Path;

const START: &str = "<!-- registers: generated -->\n";
const END: &str = "<!-- /registers -->\n";

/// Compares a file with the generated text. Set `LONGMA_UPDATE_BOOK=1` to write the file instead.
fn same(path: &str, generate: impl Fn(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path);
    let present = std::fs::read_to_string(&path).unwrap_or_default();
    let current = generate(&present);
    if std::env::var_os("LONGMA_UPDATE_BOOK").is_some_and(|value| value == "1") {
        std::fs::write(&path, current).unwrap();
        return;
    }
    assert!(present == current, "run the test with LONGMA_UPDATE_BOOK=1 and read the difference of {path:?}");
}

#[test]
fn the_chapter_matches_the_register_tables() {
    same("docs/src/reference/devices.md", |chapter| {
        let (before, rest) = chapter.split_once(START).expect("the chapter marks where the tables start");
        let (_, after) = rest.split_once(END).expect("the chapter marks where the tables end");
        let tables: String = REGISTER_MAPS
            .iter()
            .map(|map| format!("\n## Registers: {}\n\n{}", map.title, map.markdown()))
            .collect();
        format!("{before}{START}{tables}{END}{after}")
    });
}

#[test]
fn the_header_matches_the_register_tables() {
    same("guests/include/longma_registers.h", |_| {
        let head = "/*\n * longma_registers.h: offsets and fields of the modelled devices' registers. Written by the test that compares it with the\n \
                    * device models; not to be edited.\n */\n#ifndef LONGMA_REGISTERS_H\n#define LONGMA_REGISTERS_H\n";
        let maps: String =
            REGISTER_MAPS.iter().map(|map| format!("\n/* {} */\n{}", map.title, map.c_header())).collect();
        format!("{head}{maps}\n#endif\n")
    });
}

#[test]
fn registers_do_not_overlap_and_fields_fit() {
    for map in REGISTER_MAPS {
        for block in map.blocks {
            assert!(
                block.base + block.stride * block.count <= map.bytes.max(block.base + block.stride),
                "{}",
                block.title
            );
            for register in block.registers {
                assert!(register.offset + register.width <= block.stride, "{}", register.name);
                assert!(!register.about.trim().is_empty(), "{}", register.name);
                let mut used_bits = 0u64;
                for field in register.fields {
                    assert_eq!(used_bits & field.mask(), 0, "{}.{}", register.name, field.name);
                    assert!(field.low + field.bits <= register.width * 8, "{}.{}", register.name, field.name);
                    used_bits |= field.mask();
                }
            }
        }
    }
}
