//! The settings of a point. A million points share names and values, so that each point needs little memory.

use crate::setting::Setting;
use serde::{Serialize, Serializer};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A parameter with its value.
pub(crate) type Pair = Arc<(String, Setting)>;

/// The values of parameters by name: those that all points share, and the point's own, which take precedence.
#[derive(Clone, Debug, Default)]
pub struct Parameters {
    shared: Arc<BTreeMap<String, Setting>>,
    own: Vec<Pair>,
}

impl Parameters {
    /// Shared parameters, without any of the point's own.
    pub(crate) fn shared(shared: Arc<BTreeMap<String, Setting>>) -> Self {
        Self { shared, own: Vec::new() }
    }

    /// The value of the parameter called `name`.
    pub fn get(&self, name: &str) -> Option<&Setting> {
        let own = self.own.iter().find(|pair| pair.0 == name);
        own.map(|pair| &pair.1).or_else(|| self.shared.get(name))
    }

    /// The value of a parameter, for changes.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Setting> {
        if !self.own.iter().any(|pair| pair.0 == name) {
            let value = self.shared.get(name)?.clone();
            self.own.push(Arc::new((name.into(), value)));
        }
        let own = self.own.iter_mut().find(|pair| pair.0 == name)?;
        Some(&mut Arc::make_mut(own).1)
    }

    /// Sets a parameter.
    pub fn insert(&mut self, name: String, value: Setting) {
        self.set(Arc::new((name, value)));
    }

    /// Sets a parameter to a value that other points may share.
    pub(crate) fn set(&mut self, pair: Pair) {
        self.own.retain(|known| known.0 != pair.0);
        self.own.push(pair);
    }

    /// Sets the parameter of `pair`. `TABLE.NAME` sets an entry of a table.
    pub(crate) fn assign(&mut self, pair: &Pair) {
        let (name, value) = &**pair;
        if let Some((table, entry)) = name.split_once('.')
            && let Some(Setting::Named(_)) = self.get(table)
            && let Some(Setting::Named(texts)) = self.get_mut(table)
        {
            texts.insert(entry.into(), value.to_string());
            return;
        }
        self.set(pair.clone());
    }

    /// Removes a parameter.
    pub fn remove(&mut self, name: &str) {
        self.own.retain(|known| known.0 != name);
        if self.shared.contains_key(name) {
            Arc::make_mut(&mut self.shared).remove(name);
        }
    }

    /// All parameters in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Setting)> {
        let mut own: Vec<_> = self.own.iter().map(|pair| (&pair.0, &pair.1)).collect();
        own.sort_unstable_by_key(|(name, _)| *name);
        let (mut own, mut shared) = (own.into_iter().peekable(), self.shared.iter().peekable());
        std::iter::from_fn(move || {
            let order = match (own.peek(), shared.peek()) {
                (Some((one, _)), Some((other, _))) => one.cmp(other),
                (Some(_), None) => Ordering::Less,
                (None, _) => Ordering::Greater,
            };
            match order {
                Ordering::Less => own.next(),
                Ordering::Equal => shared.next().and_then(|_| own.next()),
                Ordering::Greater => shared.next(),
            }
        })
    }
}

impl FromIterator<(String, Setting)> for Parameters {
    fn from_iter<I: IntoIterator<Item = (String, Setting)>>(all: I) -> Self {
        Self::shared(Arc::new(all.into_iter().collect()))
    }
}

impl Serialize for Parameters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// The varying parameters of a point with their values, in the order of the file.
#[derive(Clone, Debug, Default)]
pub struct Varied(Vec<Pair>);

impl Varied {
    /// The parameters with their values.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &(String, Setting)> {
        self.0.iter().map(|pair| &**pair)
    }

    pub(crate) fn pairs(&self) -> &[Pair] {
        &self.0
    }
}

impl FromIterator<Pair> for Varied {
    fn from_iter<I: IntoIterator<Item = Pair>>(pairs: I) -> Self {
        let mut pairs: Vec<_> = pairs.into_iter().collect();
        pairs.shrink_to_fit();
        Self(pairs)
    }
}

impl FromIterator<(String, Setting)> for Varied {
    fn from_iter<I: IntoIterator<Item = (String, Setting)>>(pairs: I) -> Self {
        pairs.into_iter().map(Arc::new).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_parameters_take_precedence_and_leave_shared_ones_unchanged() {
        let table = Setting::Named(BTreeMap::from([("seed".to_string(), "1".to_string())]));
        let shared = [("a".to_string(), Setting::Integer(1)), ("environment".to_string(), table)];
        let shared = Arc::new(BTreeMap::from(shared));
        let mut own = Parameters::shared(shared.clone());
        own.assign(&Arc::new(("environment.seed".into(), Setting::Integer(7))));
        own.assign(&Arc::new(("a".into(), Setting::Integer(2))));
        own.insert("b".into(), "x".into());
        let text = serde_json::to_string(&own).unwrap();
        assert_eq!(text, r#"{"a":2,"b":"x","environment":{"seed":"7"}}"#);
        own.remove("a");
        assert!(own.get("a").is_none() && own.get("b").is_some());
        let text = serde_json::to_string(&Parameters::shared(shared)).unwrap();
        assert_eq!(text, r#"{"a":1,"environment":{"seed":"1"}}"#);
    }
}
