//! The machines that come with the library, so that an installed command finds them anywhere.
//! Not a search path: a file is opened by its path.
//! Source: each file under `machines/` cites its own.

/// A machine that comes with the library.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// The name it is opened by.
    pub name: &'static str,
    /// The text of its machine file.
    pub text: &'static str,
}

macro_rules! builtin {
    ($($name:literal),* $(,)?) => {
        /// Every machine that comes with the library, by name.
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
    fn every_machine_that_comes_along_is_without_errors_and_warnings() {
        for builtin in BUILTIN {
            let checked = check(builtin.name, builtin.text);
            assert!(checked.report.problems().is_empty(), "{}", checked.report.render(100, false));
            assert_eq!(checked.machine.unwrap().name, builtin.name);
        }
    }

    #[test]
    fn every_file_in_the_machines_folder_comes_along() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/machines");
        let files = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = files.filter_map(|f| f.strip_suffix(".toml").map(String::from)).collect();
        names.sort();
        assert_eq!(names, BUILTIN.iter().map(|b| b.name).collect::<Vec<_>>());
    }

    #[test]
    fn a_machine_written_out_reads_back_as_the_same_machine() {
        for builtin in BUILTIN {
            let machine = Machine::parse(builtin.name, builtin.text).unwrap();
            let again = Machine::parse("again", &machine.to_toml());
            let again = again.unwrap_or_else(|report| panic!("{}", report.render(100, false)));
            assert_eq!(machine.parts(), again.parts());
        }
    }
}
