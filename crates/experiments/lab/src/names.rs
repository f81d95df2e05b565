//! What tables, charts and labels call the parameters that vary and their values: as the experiment file says.
//! Not the names in files of results: those are the parameters' own.

use crate::experiment::{Experiment, SweepColumn};
use crate::setting::Setting;
use std::collections::{BTreeMap, BTreeSet};

/// The names of one experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Names {
    titles: BTreeMap<String, String>,
    values: BTreeMap<String, BTreeMap<String, String>>,
    /// Parameters that another one of their `[[zip]]` tells.
    told: BTreeSet<String>,
}

impl Names {
    /// The names that `experiment` gives.
    pub fn of(experiment: &Experiment) -> Self {
        let file = experiment.parts();
        let mut names = Self::default();
        for (name, shown) in &file.shown {
            names.titles.extend(shown.title.iter().map(|title| (name.clone(), title.clone())));
            names.values.insert(name.clone(), shown.values.clone().into_iter().collect());
        }
        let quick = file.quick.iter().flat_map(|quick| &quick.zip);
        for columns in file.zip.iter().chain(quick) {
            names.tell(&columns.iter().collect::<Vec<_>>());
        }
        names
    }

    /// Finds out which columns of a `[[zip]]` others tell: all but those with a name, if any has one, and the second of two that are equal.
    fn tell(&mut self, columns: &[(&String, &SweepColumn)]) {
        let named = |name: &str| self.values.contains_key(name);
        let any = columns.iter().any(|(name, _)| named(name));
        let repeated =
            |at: usize| columns[..at].iter().any(|(_, other)| other.values == columns[at].1.values);
        let told = columns.iter().enumerate().filter(|(at, (name, _))| {
            let (named, repeated) = (named(name), repeated(*at));
            !named && (any || repeated)
        });
        let told: Vec<String> = told.map(|(_, (name, _))| (*name).clone()).collect();
        self.told.extend(told);
    }

    /// Whether a parameter says nothing that another one does not say.
    pub fn is_told(&self, parameter: &str) -> bool {
        self.told.contains(parameter)
    }

    /// What a parameter is called.
    pub fn title<'a>(&'a self, parameter: &'a str) -> &'a str {
        self.titles.get(parameter).map_or(parameter, String::as_str)
    }

    /// What a value of a parameter is called, if the file says.
    fn named(&self, parameter: &str, value: &Setting) -> Option<&str> {
        self.values.get(parameter)?.get(&value.to_string()).map(String::as_str)
    }

    /// A value as tables have it.
    pub fn value(&self, parameter: &str, value: &Setting) -> String {
        let plain = || if value.text() == Some("") { "none".into() } else { value.to_string() };
        self.named(parameter, value).map_or_else(plain, String::from)
    }

    /// A value where nothing else says of what it is: its name, or the parameter's name and the value.
    pub fn words(&self, parameter: &str, value: &Setting) -> String {
        match self.named(parameter, value) {
            Some(name) => name.into(),
            None if parameter == "machine" => value.to_string(),
            None => format!("{} {}", self.title(parameter), self.value(parameter, value)),
        }
    }

    /// What tells a point from others, in words.
    pub fn label<'a>(&self, varied: impl Iterator<Item = (&'a String, &'a Setting)>) -> String {
        let words =
            varied.filter(|(name, _)| !self.is_told(name)).map(|(name, value)| self.words(name, value));
        words.collect::<Vec<_>>().join(", ")
    }
}
