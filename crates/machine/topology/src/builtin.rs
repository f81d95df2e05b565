//! The built-in machines: the files under `machines/`, compiled into the library. Each cites its own sources.

/// A built-in machine.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// The name to open it by.
    pub name: &'static str,
    /// The text of its machine file.
    pub text: &'static str,
}

macro_rules! builtin {
    ($($name:literal),* $(,)?) => {
        /// Every built-in machine, sorted by name.
        pub const BUILTIN: &[Builtin] = &[$(Builtin {
            name: $name,
            text: include_str!(concat!("../machines/", $name, ".toml")),
        }),*];
    };
}

builtin!(
    "godson3",
    "godson3-conventional",
    "godson3-two-chips",
    "hygon-8node",
    "loongson-3a4000",
    "loongson-3a5000",
    "piii-lanai9",
    "piii-myrinet",
    "sandybridge-2x6",
    "zns-host",
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Machine, check};

    #[test]
    fn every_builtin_machine_has_no_errors_and_warnings() {
        for builtin in BUILTIN {
            let checked = check(builtin.name, builtin.text);
            assert!(checked.report.problems().is_empty(), "{}", checked.report.render(100, false));
            assert_eq!(checked.machine.unwrap().name, builtin.name);
        }
    }

    #[test]
    fn every_machine_file_is_built_in() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/machines");
        let files = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = files.filter_map(|f| f.strip_suffix(".toml").map(String::from)).collect();
        names.sort();
        assert_eq!(names, BUILTIN.iter().map(|b| b.name).collect::<Vec<_>>());
    }

    #[test]
    fn a_machine_written_as_toml_is_read_back() {
        for builtin in BUILTIN {
            let machine = Machine::parse(builtin.name, builtin.text).unwrap();
            let reparsed = Machine::parse("again", &machine.to_toml());
            let reparsed = reparsed.unwrap_or_else(|report| panic!("{}", report.render(100, false)));
            assert_eq!(machine.parts(), reparsed.parts());
        }
    }
}
