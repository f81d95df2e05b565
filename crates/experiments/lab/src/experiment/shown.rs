//! Display names of varying parameters and their values. Points and files keep the original names.

use super::ExperimentFile;
use crate::read::{Map, Problems, part, suggestion};
use std::collections::BTreeSet;

part! {
    /// Display names of a varying parameter.
    pub struct Shown = "shown parameter" {
        /// Title; the parameter's name if left out.
        title: Option<String>,
        /// Names of its values (for a list, its entries separated by spaces).
        values: Map<String>,
    }
}

/// Checks that the names refer to varying parameters and values that occur.
pub(super) fn check(file: &ExperimentFile, problems: &mut Problems) {
    let quick = file.quick.iter().flat_map(|quick| quick.sweep.iter().chain(quick.zip.iter().flatten()));
    let axes: Vec<_> = file.sweep.iter().chain(file.zip.iter().flatten()).chain(quick).collect();
    for (name, shown) in &file.shown {
        let known: Vec<_> = axes.iter().filter(|(axis, _)| *axis == name).map(|(_, axis)| axis).collect();
        if known.is_empty() {
            let names: BTreeSet<_> = axes.iter().map(|(name, _)| name.as_str()).collect();
            let help = suggestion(name, names, "varying parameter");
            problems.error(shown.marks.at(), format!("`{name}` does not vary"), "named here", help);
            continue;
        }
        let values: BTreeSet<_> =
            known.iter().flat_map(|axis| &axis.values).map(std::string::ToString::to_string).collect();
        for value in shown.values.keys().filter(|value| !values.contains(*value)) {
            let help = suggestion(value, values.iter().map(String::as_str), "value");
            let message = format!("`{name}` is never {value}");
            problems.error(shown.marks.at(), message, "named here", help);
        }
    }
}
