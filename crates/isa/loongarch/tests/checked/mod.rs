//! Lists of the instructions that oracle tests compare, from which the coverage page is generated. A test fails if the
//! instructions it compares differ from its list. `LONGMA_UPDATE=1 cargo test -p longma-loongarch` rewrites the lists.

use std::{collections::BTreeSet, path::PathBuf};

use longma_loongarch::Op;

const WIDTH: usize = 110;

/// Asserts that `compared` equals the list `tests/checked/ORACLE.txt`.
pub fn assert_listed(oracle: &str, compared: impl IntoIterator<Item = Op>) {
    let names: BTreeSet<&str> = compared.into_iter().map(Op::mnemonic).collect();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/checked/{oracle}.txt"));
    if std::env::var_os("LONGMA_UPDATE").is_some_and(|value| value == "1") {
        std::fs::write(&path, wrapped(&names)).expect("the source tree is writable");
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let listed: BTreeSet<&str> = text.split_whitespace().collect();
    let missing: Vec<_> = names.difference(&listed).collect();
    let untrue: Vec<_> = listed.difference(&names).collect();
    assert!(
        missing.is_empty() && untrue.is_empty(),
        "{}: compared but not listed: {missing:?}; listed but not compared: {untrue:?}; LONGMA_UPDATE=1 rewrites the list",
        path.display(),
    );
}

/// Wraps the names in lines of at most [`WIDTH`] characters.
fn wrapped(names: &BTreeSet<&str>) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for name in names {
        if column > 0 && column + 1 + name.len() > WIDTH {
            text.push('\n');
            column = 0;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(name);
        column += name.len();
    }
    text.push('\n');
    text
}
