//! Drawings fit the width, show every part, and match their snapshots.

use longma_topology::{BUILTIN, Detail, Machine, draw_svg, draw_text};
use unicode_width::UnicodeWidthStr;

#[test]
fn no_line_of_a_drawing_exceeds_the_width() {
    for builtin in BUILTIN {
        let machine = Machine::open(builtin.name).unwrap();
        for width in [40, 57, 80, 100, 133, 200] {
            for detail in [Detail::Fitting, Detail::Every] {
                let text = draw_text(&machine, width, detail, false);
                let widest = text.lines().map(|l| l.width()).max().unwrap();
                assert!(widest <= width, "{} at {width}: {widest}", builtin.name);
            }
        }
    }
}

#[test]
fn every_core_and_node_is_drawn_on_request() {
    for builtin in BUILTIN {
        let machine = Machine::open(builtin.name).unwrap();
        let text = draw_text(&machine, 160, Detail::Every, false);
        for host in &machine.layout().hosts {
            assert!(text.contains(&format!("core {}", host.cores.len() - 1)), "{}", builtin.name);
            assert!(text.contains(&format!("NUMA node {}", host.nodes.len() - 1)), "{}", builtin.name);
        }
    }
}

#[test]
fn a_tall_machine_is_collapsed_to_fit() {
    let machine = Machine::open("hygon-8node").unwrap();
    let rows = |detail| draw_text(&machine, 100, detail, false).lines().count();
    assert!(rows(Detail::Fitting) < rows(Detail::Every) / 2);
}

#[test]
fn colour_adds_only_escape_sequences() {
    let machine = Machine::open("piii-myrinet").unwrap();
    let coloured = draw_text(&machine, 100, Detail::Fitting, true);
    assert!(coloured.contains("\x1b["));
    let mut plain = String::new();
    let mut rest = coloured.as_str();
    while let Some(at) = rest.find("\x1b[") {
        plain.push_str(&rest[..at]);
        rest = &rest[at + rest[at..].find('m').unwrap() + 1..];
    }
    plain.push_str(rest);
    assert_eq!(plain, draw_text(&machine, 100, Detail::Fitting, false));
}

#[test]
fn the_svg_is_balanced_and_escapes_text() {
    let text = BUILTIN[0].text.replacen("title = \"", "title = \"<a> & <b> ", 10);
    let machine = Machine::parse("t", &text).unwrap();
    let svg = draw_svg(&machine, 120, Detail::Fitting);
    assert!(svg.contains("&lt;a&gt; &amp; &lt;b&gt;") && !svg.contains("<a>"));
    assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
}

#[test]
fn drawings_of_four_machines() {
    for name in ["godson3", "hygon-8node", "loongson-3a5000", "piii-myrinet"] {
        let machine = Machine::open(name).unwrap();
        insta::assert_snapshot!(name, draw_text(&machine, 100, Detail::Fitting, false));
    }
}
