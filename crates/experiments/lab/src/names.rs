//! Display names of varying parameters and their values, from the experiment file. Result files use the original names.

use crate::experiment::{Experiment, SweepColumn};
use crate::setting::Setting;
use std::collections::{BTreeMap, BTreeSet};

/// Display names of an experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    titles: BTreeMap<String, String>,
    values: BTreeMap<String, BTreeMap<String, String>>,
    /// Columns of a `[[zip]]` that tables and labels omit, because another column represents them.
    represented: BTreeSet<String>,
}

impl Names {
    /// Collects the names of `experiment`.
    pub fn of(experiment: &Experiment) -> Self {
        let file = experiment.parts();
        let mut names = Self::default();
        for (name, shown) in &file.shown {
            names.titles.extend(shown.title.iter().map(|title| (name.clone(), title.clone())));
            names.values.insert(name.clone(), shown.values.clone().into_iter().collect());
        }
        let quick = file.quick.iter().flat_map(|quick| &quick.zip);
        let mut needed = BTreeSet::new();
        for columns in file.zip.iter().chain(quick) {
            let (represented, others) = names.split(&columns.iter().collect::<Vec<_>>());
            names.represented.extend(represented);
            needed.extend(others);
        }
        // The two forms of an experiment have the same columns.
        names.represented.retain(|name| !needed.contains(name));
        names
    }

    /// Splits columns into those that other columns represent, and the rest. A column with a display name is never
    /// represented. If some columns have display names, a column is represented if its values follow from the values of
    /// these columns; otherwise if an earlier column has the same values.
    fn split(&self, columns: &[(&String, &SweepColumn)]) -> (Vec<String>, Vec<String>) {
        let named = |name: &str| self.values.contains_key(name);
        let any = columns.iter().any(|(name, _)| named(name));
        let repeated =
            |at: usize| columns[..at].iter().any(|(_, other)| other.values == columns[at].1.values);
        let titled: Vec<_> = columns.iter().filter(|(name, _)| named(name)).map(|(_, axis)| axis).collect();
        let follows = |column: &SweepColumn| {
            let mut known: BTreeMap<Vec<String>, &Setting> = BTreeMap::new();
            column.values.iter().enumerate().all(|(row, value)| {
                let titled_values =
                    titled.iter().filter_map(|axis| axis.values.get(row)).map(ToString::to_string);
                *known.entry(titled_values.collect()).or_insert(value) == value
            })
        };
        let is_represented = |(at, (name, column)): (usize, &(&String, &SweepColumn))| {
            !named(name) && (any && follows(column) || repeated(at))
        };
        let all =
            columns.iter().enumerate().map(|(at, column)| (column.0.clone(), is_represented((at, column))));
        let (represented, others): (Vec<_>, Vec<_>) = all.partition(|(_, represented)| *represented);
        let only_names = |columns: Vec<(String, bool)>| columns.into_iter().map(|(name, _)| name).collect();
        (only_names(represented), only_names(others))
    }

    /// Returns whether another parameter represents this one.
    pub fn is_represented(&self, parameter: &str) -> bool {
        self.represented.contains(parameter)
    }

    /// Title of a parameter.
    pub fn title<'a>(&'a self, parameter: &'a str) -> &'a str {
        self.titles.get(parameter).map_or(parameter, String::as_str)
    }

    /// Name of a value, if the file defines one.
    fn named(&self, parameter: &str, value: &Setting) -> Option<&str> {
        self.values.get(parameter)?.get(&value.to_string()).map(String::as_str)
    }

    /// A value as shown in tables.
    pub fn value(&self, parameter: &str, value: &Setting) -> String {
        let plain = || if value.text() == Some("") { "none".into() } else { value.to_string() };
        self.named(parameter, value).map_or_else(plain, String::from)
    }

    /// A value as shown without context: its name, or the parameter's title and the value.
    pub fn titled_value(&self, parameter: &str, value: &Setting) -> String {
        match self.named(parameter, value) {
            Some(name) => name.into(),
            None if parameter == "machine" => value.to_string(),
            None => format!("{} {}", self.title(parameter), self.value(parameter, value)),
        }
    }

    /// Label of a point.
    pub fn label<'a>(&self, varied: impl Iterator<Item = (&'a String, &'a Setting)>) -> String {
        let titled_value = varied
            .filter(|(name, _)| !self.is_represented(name))
            .map(|(name, value)| self.titled_value(name, value));
        titled_value.collect::<Vec<_>>().join(", ")
    }
}
