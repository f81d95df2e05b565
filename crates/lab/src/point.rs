//! The points of an experiment: every combination of its machines and swept values, each with its key.
//! Not their results: those are in the store, under the key.
//! Source: keys are SHA-256 (FIPS 180-4) over canonical JSON, cut to 128 bits.

use crate::experiment::{Axis, Experiment, in_order};
use crate::setting::Setting;
use crate::workload::{Failure, Registry, Workload};
use longma_topology::{Machine, OpenError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// What a point's result is stored under: equal for equal machine, workload, parameters, inputs and version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Key(String);

impl Key {
    pub(crate) fn of(content: &serde_json::Value) -> Self {
        Self(digest(content.to_string().as_bytes())[..32].into())
    }

    /// 32 hexadecimal digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// The SHA-256 of `bytes` in hexadecimal digits.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One run of an experiment: a machine and a value for every parameter.
#[derive(Clone, Debug)]
pub struct Point {
    /// What its result is stored under.
    pub key: Key,
    /// The workload it runs.
    pub workload: String,
    /// The machine it runs on, if the experiment names any.
    pub machine: Option<Modelled>,
    /// Why it cannot be run as it is given: its machine does not fit together.
    pub refused: Option<Failure>,
    /// Every parameter of the workload, defaults included.
    pub parameters: BTreeMap<String, Setting>,
    /// Those of them that only say where something is.
    pub places: &'static [&'static str],
    /// What tells it from the experiment's other points, in the order of the file: swept parameters, and the machine as `machine`.
    pub varied: Vec<(String, Setting)>,
    /// The folder at which relative paths among the parameters begin.
    pub folder: PathBuf,
    /// How long it may take.
    pub time_limit: Option<Duration>,
}

/// A machine as a point sees it.
#[derive(Clone, Debug)]
pub struct Modelled {
    /// What the experiment calls it.
    pub name: String,
    /// The machine file with every default written out and the point's changes made, under a name of its own if there are any.
    pub text: Arc<str>,
    /// Why the changes cannot be made; the text is then what was to be changed, and the changes.
    pub refused: Option<String>,
}

/// Why the points of an experiment cannot be counted out.
#[derive(Debug, thiserror::Error)]
pub enum PointError {
    /// The workload is not registered.
    #[error("there is no workload `{0}`")]
    Workload(String),
    /// A machine cannot be used.
    #[error("machine {name}: {message}")]
    Machine {
        /// What the experiment calls it.
        name: String,
        /// What is wrong with it.
        message: String,
    },
    /// Something that a point needs is not there.
    #[error("{0}")]
    Input(Failure),
}

impl Point {
    /// The parameter called `name`, if the workload has it.
    pub fn parameter(&self, name: &str) -> Option<&Setting> {
        self.parameters.get(name)
    }

    /// The text of the parameter called `name`; empty if it is none.
    pub fn text(&self, name: &str) -> &str {
        self.parameter(name).and_then(Setting::text).unwrap_or_default()
    }

    /// The path that the parameter called `name` means.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(self.text(name))
    }

    /// The parameters that are part of the result: all but those that only say where something is, which may differ between two runs of
    /// the same point.
    pub fn told(&self) -> BTreeMap<String, Setting> {
        let told = self.parameters.iter().filter(|(name, _)| !self.places.contains(&name.as_str()));
        told.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// What tells the point from others, in words.
    pub fn label(&self) -> String {
        let words: Vec<_> = self.varied.iter().map(|(name, value)| format!("{name} {value}")).collect();
        words.join(", ")
    }
}

impl Experiment {
    /// Every point, in the order of the file: machines outermost, the last parameter innermost. `version` is that of the models.
    ///
    /// # Errors
    /// If the workload, a machine or an input of a point is missing.
    pub fn points(&self, quick: bool, registry: &Registry, version: &str) -> Result<Vec<Point>, PointError> {
        let name = &*self.parts().workload;
        let workload = registry.get(name).ok_or_else(|| PointError::Workload(name.into()))?;
        let fixed = self.fixed(quick, workload);
        let combinations = combinations(&self.axes(quick));
        let machines = self.machines(quick);
        let mut known = BTreeMap::new();
        let mut points = Vec::with_capacity(combinations.len() * machines.len());
        for machine in machines {
            for varied in &combinations {
                let modelled =
                    machine.map(|name| self.modelled(name, quick, varied, &mut known)).transpose()?;
                points.push(self.point(workload, version, &fixed, modelled, varied)?);
            }
        }
        Ok(points)
    }

    fn point(
        &self,
        workload: &dyn Workload,
        version: &str,
        fixed: &BTreeMap<String, Setting>,
        machine: Option<Modelled>,
        varied: &[(String, Setting)],
    ) -> Result<Point, PointError> {
        let mut parameters = fixed.clone();
        let of_workload = varied.iter().filter(|(name, _)| !is_of_machine(name));
        of_workload.for_each(|(name, value)| assign(&mut parameters, name, value));
        let several = self.parts().machines.len() > 1;
        let with_machine =
            machine.iter().filter(|_| several).map(|m| ("machine".into(), Setting::Text(m.name.clone())));
        let varied = with_machine.chain(varied.iter().cloned()).collect();
        let time_limit = self.parts().time_limit.map(|limit| Duration::from_nanos(limit.ps() / 1000));
        let refused = machine.as_ref().and_then(|m| m.refused.as_ref()).map(Failure::refused);
        let mut point = Point {
            key: Key(String::new()),
            workload: workload.name().to_string(),
            machine,
            refused,
            parameters,
            places: workload.places(),
            varied,
            folder: self.folder().to_path_buf(),
            time_limit,
        };
        let inputs = workload.inputs(&point).map_err(PointError::Input)?;
        point.key = Key::of(&serde_json::json!({
            "workload": point.workload,
            "revision": workload.revision(),
            "machine": point.machine.as_ref().map(|m| digest(m.text.as_bytes())),
            "parameters": point.told(),
            "inputs": inputs,
            "version": version,
        }));
        Ok(point)
    }

    /// The parameters that do not vary, defaults included.
    fn fixed(&self, quick: bool, workload: &dyn Workload) -> BTreeMap<String, Setting> {
        let defaults = workload.parameters().iter();
        let mut fixed: BTreeMap<_, _> =
            defaults.filter_map(|p| Some((p.name.to_string(), p.default.clone()?))).collect();
        let of_quick = self.parts().quick.as_ref().filter(|_| quick).map(|form| &form.parameters);
        // Whole tables come before their single entries, in the order of names.
        let given = self.parts().parameters.iter().chain(of_quick.into_iter().flatten());
        given
            .filter(|(name, _)| !is_of_machine(name))
            .for_each(|(name, value)| assign(&mut fixed, name, value));
        fixed
    }

    /// The point at which `varied` holds, whether or not it is one of the experiment's. `machine` among them is the machine.
    pub(crate) fn point_at(
        &self,
        quick: bool,
        registry: &Registry,
        version: &str,
        varied: &[(String, Setting)],
    ) -> Result<Point, PointError> {
        let name = &*self.parts().workload;
        let workload = registry.get(name).ok_or_else(|| PointError::Workload(name.into()))?;
        let given = varied.iter().rev().find(|(name, _)| name == "machine").and_then(|(_, m)| m.text());
        let machine = given.or(self.machines(quick).first().copied().flatten());
        let modelled =
            machine.map(|name| self.modelled(name, quick, varied, &mut BTreeMap::new())).transpose()?;
        self.point(workload, version, &self.fixed(quick, workload), modelled, varied)
    }

    /// Every combination of what varies, the machine included, along axes of which no parameter is to be left out.
    pub(crate) fn combinations_except(
        &self,
        quick: bool,
        leave_out: &dyn Fn(&str) -> bool,
    ) -> Vec<Vec<(String, Setting)>> {
        let machines: Vec<_> =
            self.machines(quick).into_iter().flatten().filter(|_| !leave_out("machine")).collect();
        let axes = self.axes(quick).into_iter();
        let kept: Vec<_> = axes.filter(|axis| !axis.iter().any(|(name, _)| leave_out(name))).collect();
        let all = combinations(&kept);
        if machines.len() < 2 {
            return all;
        }
        let on = |name: &str, settings: &Vec<(String, Setting)>| {
            let machine = [("machine".to_string(), Setting::from(name))];
            machine.into_iter().chain(settings.iter().cloned()).collect()
        };
        machines.iter().flat_map(|name| all.iter().map(|settings| on(name, settings))).collect()
    }

    /// The values that a swept parameter, or the machine, takes.
    pub(crate) fn values_of(&self, quick: bool, name: &str) -> Vec<Setting> {
        if name == "machine" {
            return self.machines(quick).into_iter().flatten().map(Setting::from).collect();
        }
        let axes = self.axes(quick).into_iter().flatten();
        axes.filter(|(known, _)| *known == name).flat_map(|(_, axis)| axis.values.clone()).collect()
    }

    /// Machines by the names of the experiment; one `None` if it has none.
    fn machines(&self, quick: bool) -> Vec<Option<&str>> {
        let of_quick = self.parts().quick.as_ref().filter(|form| quick && !form.machines.is_empty());
        let machines = of_quick.map_or(&self.parts().machines, |form| &form.machines);
        if machines.is_empty() { vec![None] } else { machines.iter().map(|name| Some(&**name)).collect() }
    }

    /// The axes in the order of the file, each with the parameters that vary along it.
    fn axes(&self, quick: bool) -> Vec<Vec<(&str, &Axis)>> {
        let form = self.parts().quick.as_ref().filter(|_| quick);
        let swept = in_order(&self.parts().sweep, Axis::at);
        let swept = swept
            .into_iter()
            .map(|(name, axis)| vec![(name, form.and_then(|form| form.sweep.get(name)).unwrap_or(axis))]);
        let zip = form.map(|form| &form.zip).filter(|zip| !zip.is_empty()).unwrap_or(&self.parts().zip);
        let zipped = zip.iter().map(|columns| in_order(columns, Axis::at));
        swept.chain(zipped).filter(|columns| !columns.is_empty()).collect()
    }

    /// The machine called `name` with all that the experiment and the point change in it. `known` keeps those made before.
    ///
    /// # Errors
    /// There is no such machine. Changes that do not fit together are the point's failure alone.
    fn modelled(
        &self,
        name: &str,
        quick: bool,
        varied: &[(String, Setting)],
        known: &mut BTreeMap<String, Modelled>,
    ) -> Result<Modelled, PointError> {
        let edits = machine_edits(&self.file_parts(quick), varied);
        let made_of = format!("{name}\n{}", serde_json::json!(edits));
        if let Some(modelled) = known.get(&made_of) {
            return Ok(modelled.clone());
        }
        let refuse = |error: OpenError| PointError::Machine { name: name.into(), message: error.to_string() };
        let machine = Machine::open(&machine_file(name, self.folder())).map_err(refuse)?;
        let (text, refused) = match edit_machine(&machine, &edits) {
            Ok(edited) => (edited.to_toml(), None),
            Err(message) => {
                (format!("{}\n{made_of}", machine.to_toml()), Some(format!("machine {name} {message}")))
            }
        };
        let modelled = Modelled { name: name.into(), text: text.into(), refused };
        known.insert(made_of, modelled.clone());
        Ok(modelled)
    }

    /// The fixed parameters as the file gives them, those of the quick form last.
    fn file_parts(&self, quick: bool) -> Vec<(&String, &Setting)> {
        let of_quick = self.parts().quick.iter().filter(|_| quick).flat_map(|form| &form.parameters);
        self.parts().parameters.iter().chain(of_quick).collect()
    }
}

/// What is changed in a machine: keys among the fixed parameters, and above them those among what varies.
pub(crate) fn machine_edits<'a>(
    fixed: &[(&'a String, &'a Setting)],
    varied: &'a [(String, Setting)],
) -> BTreeMap<String, Setting> {
    let all = fixed.iter().copied().chain(varied.iter().map(|(name, value)| (name, value)));
    all.filter_map(|(name, value)| Some((name.strip_prefix("machine.")?.into(), value.clone()))).collect()
}

/// Whether `name` is the machine or a key of it.
pub(crate) fn is_of_machine(name: &str) -> bool {
    name == "machine" || name.starts_with("machine.")
}

/// Gives the parameter called `name` a value; `TABLE.NAME` is an entry of a parameter that holds texts by name.
fn assign(parameters: &mut BTreeMap<String, Setting>, name: &str, value: &Setting) {
    if let Some((table, entry)) = name.split_once('.')
        && let Some(Setting::Named(texts)) = parameters.get_mut(table)
    {
        texts.insert(entry.into(), value.to_string());
        return;
    }
    parameters.insert(name.into(), value.clone());
}

/// Every combination of one row of each axis; the last axis varies fastest.
pub(crate) fn combinations(axes: &[Vec<(&str, &Axis)>]) -> Vec<Vec<(String, Setting)>> {
    let mut all = vec![Vec::new()];
    for columns in axes {
        let rows = columns.iter().map(|(_, axis)| axis.values.len()).min().unwrap_or(0);
        let row = |index: usize| {
            columns.iter().map(move |(name, axis)| (name.to_string(), axis.values[index].clone()))
        };
        all = all
            .iter()
            .flat_map(|before| (0..rows).map(|r| before.iter().cloned().chain(row(r)).collect()))
            .collect();
    }
    all
}

/// What `Machine::open` calls the machine that an experiment in `folder` names.
pub(crate) fn machine_file(name: &str, folder: &Path) -> String {
    let is_path = name.contains(['/', '.']);
    if is_path { folder.join(name).display().to_string() } else { name.into() }
}

/// The machine with other values under some of its keys, each a path such as `caches.l3.size` or `hosts.0.count`.
///
/// # Errors
/// If there is no such key, or the machine no longer fits together.
pub(crate) fn edit_machine(machine: &Machine, edits: &BTreeMap<String, Setting>) -> Result<Machine, String> {
    if edits.is_empty() {
        return Ok(machine.clone());
    }
    let mut root = toml::Value::try_from(machine.parts()).map_err(|error| error.to_string())?;
    for (path, setting) in edits {
        let value = toml::Value::try_from(setting).map_err(|error| error.to_string())?;
        set(&mut root, path, value)?;
    }
    let check = |root: &toml::Value| {
        let text = toml::to_string(root).map_err(|error| error.to_string())?;
        Ok::<_, String>(longma_topology::check("the changed machine", &text))
    };
    let mut checked = check(&root)?;
    let changed = checked.machine.as_ref().map(Machine::to_toml).filter(|text| *text != machine.to_toml());
    if let Some(changed) = changed {
        // What is measured on it must not be taken for the machine's own.
        let own = format!("{}-{}", machine.name, &digest(changed.as_bytes())[..8]);
        set(&mut root, "name", own.into())?;
        checked = check(&root)?;
    }
    checked.machine.ok_or_else(|| {
        let first = checked.report.located().into_iter().find(|p| p.level == longma_topology::Level::Error);
        let message = first.map_or(String::new(), |p| format!("{}; {}", p.message, p.help));
        let changes: Vec<_> = edits.iter().map(|(path, value)| format!("{path} = {value}")).collect();
        format!("with {}: {message}", changes.join(", "))
    })
}

/// Puts `value` under the key at `path`; the part that has the key must be there.
fn set(root: &mut toml::Value, path: &str, value: toml::Value) -> Result<(), String> {
    let words: Vec<_> = path.split('.').collect();
    let mut place = root;
    for word in &words[..words.len() - 1] {
        place = match place {
            toml::Value::Table(table) => table.get_mut(*word),
            toml::Value::Array(array) => word.parse().ok().and_then(|index: usize| array.get_mut(index)),
            _ => None,
        }
        .ok_or_else(|| format!("the machine has no `{word}` (in `{path}`)"))?;
    }
    match place {
        toml::Value::Table(table) => {
            table.insert(words[words.len() - 1].into(), value);
            Ok(())
        }
        _ => Err(format!("`{path}` is no key of the machine")),
    }
}
