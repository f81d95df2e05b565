//! Enumerates the points of an experiment: every combination of machines and swept values, each with its key.

use crate::experiment::{Axis, Combinations, Experiment, combinations, in_file_order, requirements};
use crate::failure::Failure;
use crate::key::{Key, digest};
use crate::machines::{edit_machine, is_of_machine, machine_edits, machine_file, resolve_modules};
use crate::parameters::{Parameters, Varied};
use crate::point::{Point, PointMachine};
use crate::setting::Setting;
use crate::workload::{Registry, Workload};
use longma_topology::{Machine, OpenError};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Why the points of an experiment cannot be enumerated.
#[derive(Debug, thiserror::Error)]
pub enum PointError {
    /// The workload is not registered.
    #[error("there is no workload `{0}`")]
    Workload(String),
    /// A machine is invalid.
    #[error("machine {name}: {message}")]
    Machine {
        /// Its name in the experiment.
        name: String,
        /// The error.
        message: String,
    },
    /// An input of a point is missing.
    #[error("{0}")]
    Input(Failure),
}

/// Finds the value of a varying parameter.
type Lookup<'a, 'b> = &'b dyn Fn(&str) -> Option<&'a Setting>;

/// What the points of an experiment have in common.
struct Common {
    fixed: Arc<BTreeMap<String, Setting>>,
    workload: Arc<str>,
    folder: Arc<Path>,
}

impl Common {
    fn of(experiment: &Experiment, fixed: BTreeMap<String, Setting>, workload: &dyn Workload) -> Self {
        let folder = experiment.folder().into();
        Self { fixed: Arc::new(fixed), workload: workload.name().into(), folder }
    }
}

/// What a key is the digest of. The fields are in the order of their names: the order of the keys of existing results.
#[derive(serde::Serialize)]
struct KeyContent<'a> {
    inputs: &'a BTreeMap<String, String>,
    machine: Option<&'a str>,
    parameters: ResultParameters<'a>,
    revision: u32,
    version: &'a str,
    workload: &'a str,
}

/// The parameters of a point that determine its result, as an object.
struct ResultParameters<'a>(&'a Point);

impl serde::Serialize for ResultParameters<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.each_result_parameter())
    }
}

/// The last value of the parameter called `name`.
fn last<'a>(
    mut varied: impl DoubleEndedIterator<Item = &'a (String, Setting)>,
    name: &str,
) -> Option<&'a Setting> {
    varied.rfind(|(known, _)| known == name).map(|(_, value)| value)
}

impl Experiment {
    /// All points in the order of the file: machines in the outer loop, the last parameter in the innermost. `version`
    /// is the version of the models.
    ///
    /// # Errors
    /// If the workload, a machine or an input of a point is missing.
    pub fn points(&self, quick: bool, registry: &Registry, version: &str) -> Result<Vec<Point>, PointError> {
        let mut points = Vec::new();
        self.each_point(quick, registry, version, &mut |point| points.push(point))?;
        points.shrink_to_fit();
        Ok(points)
    }

    /// Calls `take` for each of the points, without keeping them.
    ///
    /// # Errors
    /// Like [`Self::points`].
    fn each_point(
        &self,
        quick: bool,
        registry: &Registry,
        version: &str,
        take: &mut dyn FnMut(Point),
    ) -> Result<(), PointError> {
        let name = &*self.parts().workload;
        let workload = registry.get(name).ok_or_else(|| PointError::Workload(name.into()))?;
        let fixed = Common::of(self, self.fixed(quick, workload), workload);
        let axes = self.axes(quick);
        let combinations = Combinations::of(&axes);
        let machines = self.machines(quick);
        let meets = self.meets_requirements(quick);
        let mut known = BTreeMap::new();
        for machine in machines {
            let all = (0..combinations.count()).map(|index| combinations.get(index));
            for varied in all.filter(|varied| meets(machine, &|name| last(varied.iter(), name))) {
                let machine =
                    machine.map(|name| self.point_machine(name, quick, &varied, &mut known)).transpose()?;
                take(self.point(workload, version, &fixed, machine, &varied)?);
            }
        }
        Ok(())
    }

    /// The number of points. Of a large experiment, only points with the first values of each axis are set up, to find
    /// missing inputs.
    ///
    /// # Errors
    /// Like [`Self::points`].
    pub fn count_points(&self, quick: bool, registry: &Registry, version: &str) -> Result<usize, PointError> {
        /// Maximum number of points to set up. It takes a few hundredths of a second.
        const MAX_SET_UP: usize = 10_000;
        let (axes, machines) = (self.axes(quick), self.machines(quick));
        let combinations = Combinations::of(&axes);
        if combinations.count() * machines.len() <= MAX_SET_UP {
            let mut count = 0;
            return self.each_point(quick, registry, version, &mut |_| count += 1).map(|()| count);
        }
        let name = &*self.parts().workload;
        let workload = registry.get(name).ok_or_else(|| PointError::Workload(name.into()))?;
        let common = Common::of(self, self.fixed(quick, workload), workload);
        let meets = self.meets_requirements(quick);
        let (mut count, mut known) = (0, BTreeMap::new());
        for machine in machines {
            let is_point = |varied: &Varied| meets(machine, &|name| last(varied.iter(), name));
            for varied in combinations.each_value(MAX_SET_UP).filter(is_point) {
                let machine =
                    machine.map(|name| self.point_machine(name, quick, &varied, &mut known)).transpose()?;
                self.point(workload, version, &common, machine, &varied)?;
            }
            count += match requirements(self.parts()).is_empty() {
                true => combinations.count(),
                false => {
                    (0..combinations.count()).filter(|index| is_point(&combinations.get(*index))).count()
                }
            };
        }
        Ok(count)
    }

    fn point(
        &self,
        workload: &dyn Workload,
        version: &str,
        common: &Common,
        machine: Option<Arc<PointMachine>>,
        varied: &Varied,
    ) -> Result<Point, PointError> {
        let mut parameters = Parameters::shared(common.fixed.clone());
        let of_workload = varied.pairs().iter().filter(|pair| !is_of_machine(&pair.0));
        of_workload.for_each(|pair| parameters.assign(pair));
        let several = self.parts().machines.len() > 1;
        let with_machine = machine.iter().filter(|_| several);
        let with_machine =
            with_machine.map(|m| Arc::new(("machine".to_string(), Setting::Text(m.name.clone()))));
        let varied = with_machine.chain(varied.pairs().iter().cloned()).collect();
        let time_limit = self.parts().time_limit.map(|limit| Duration::from_nanos(limit.ps() / 1000));
        let refused = machine.as_ref().and_then(|m| m.refused.as_ref()).map(Failure::refused);
        let mut point = Point {
            key: Key(String::new()),
            workload: common.workload.clone(),
            machine,
            refused,
            parameters,
            location_parameters: workload.location_parameters(),
            varied,
            folder: common.folder.clone(),
            time_limit,
        };
        let inputs = workload.inputs(&point).map_err(PointError::Input)?;
        point.key = Key::of(&KeyContent {
            inputs: &inputs,
            machine: point.machine.as_ref().map(|m| &*m.digest),
            parameters: ResultParameters(&point),
            revision: workload.revision(),
            version,
            workload: &point.workload,
        });
        Ok(point)
    }

    /// Fixed parameters, including defaults.
    fn fixed(&self, quick: bool, workload: &dyn Workload) -> BTreeMap<String, Setting> {
        let defaults = workload.parameters().iter();
        let mut fixed: BTreeMap<_, _> =
            defaults.filter_map(|p| Some((p.name.to_string(), p.default.clone()?))).collect();
        let of_quick = self.parts().quick.as_ref().filter(|_| quick).map(|form| &form.parameters);
        // Names are sorted, so a table precedes its entries, which are called `TABLE.NAME`.
        let given = self.parts().parameters.iter().chain(of_quick.into_iter().flatten());
        given
            .filter(|(name, _)| !is_of_machine(name))
            .for_each(|(name, value)| assign(&mut fixed, name, value));
        fixed
    }

    /// Creates the point with the values `varied`, which need not belong to the experiment. An entry `machine` in
    /// `varied` selects the machine.
    pub(crate) fn point_at(
        &self,
        quick: bool,
        registry: &Registry,
        version: &str,
        varied: &[(String, Setting)],
    ) -> Result<Point, PointError> {
        let name = &*self.parts().workload;
        let workload = registry.get(name).ok_or_else(|| PointError::Workload(name.into()))?;
        let varied: Varied = varied.iter().cloned().collect();
        let given = last(varied.iter(), "machine").and_then(Setting::text);
        let machine = given.or(self.machines(quick).first().copied().flatten());
        let machine =
            machine.map(|name| self.point_machine(name, quick, &varied, &mut BTreeMap::new())).transpose()?;
        let common = Common::of(self, self.fixed(quick, workload), workload);
        self.point(workload, version, &common, machine, &varied)
    }

    /// All combinations of the varying parameters, including the machine. Omits each axis with a parameter for which
    /// `leave_out` returns true.
    pub(crate) fn combinations_except(
        &self,
        quick: bool,
        leave_out: &dyn Fn(&str) -> bool,
    ) -> Vec<Vec<(String, Setting)>> {
        let machines: Vec<_> =
            self.machines(quick).into_iter().flatten().filter(|_| !leave_out("machine")).collect();
        let axes = self.axes(quick).into_iter();
        let kept: Vec<_> = axes.filter(|axis| !axis.iter().any(|(name, _)| leave_out(name))).collect();
        let meets = self.meets_requirements(quick);
        let mut all = combinations(&kept);
        all.retain(|settings| meets(None, &|name| last(settings.iter(), name)));
        if machines.len() < 2 {
            return all;
        }
        let on = |name: &str, settings: &Vec<(String, Setting)>| {
            let machine = [("machine".to_string(), Setting::from(name))];
            machine.into_iter().chain(settings.iter().cloned()).collect()
        };
        machines.iter().flat_map(|name| all.iter().map(|settings| on(name, settings))).collect()
    }

    /// The values of a swept parameter, or the machines.
    pub(crate) fn values_of(&self, quick: bool, name: &str) -> Vec<Setting> {
        if name == "machine" {
            return self.machines(quick).into_iter().flatten().map(Setting::from).collect();
        }
        let axes = self.axes(quick).into_iter().flatten();
        axes.filter(|(known, _)| *known == name).flat_map(|(_, axis)| axis.values.clone()).collect()
    }

    /// A function that returns whether a machine and the values of varying parameters meet the file's conditions.
    fn meets_requirements(&self, quick: bool) -> impl for<'a, 'b> Fn(Option<&str>, Lookup<'a, 'b>) -> bool {
        let requirements = requirements(self.parts());
        let fixed: BTreeMap<String, Setting> =
            self.file_parts(quick).into_iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        move |machine, varied| {
            let setting = |name: &str| {
                let machine = || machine.filter(|_| name == "machine").map(Setting::from);
                varied(name).or_else(|| fixed.get(name)).cloned().or_else(machine)
            };
            requirements.iter().all(|one| one.holds(&setting))
        }
    }

    /// Names of the machines; a single `None` if there are none.
    fn machines(&self, quick: bool) -> Vec<Option<&str>> {
        let of_quick = self.parts().quick.as_ref().filter(|form| quick && !form.machines.is_empty());
        let machines = of_quick.map_or(&self.parts().machines, |form| &form.machines);
        if machines.is_empty() { vec![None] } else { machines.iter().map(|name| Some(&**name)).collect() }
    }

    /// The names of the parameters of each axis.
    pub(crate) fn axes_of(&self, quick: bool) -> Vec<Vec<String>> {
        let names = |axis: Vec<(&str, &Axis)>| axis.into_iter().map(|(name, _)| name.to_string()).collect();
        self.axes(quick).into_iter().map(names).collect()
    }

    /// The axes in the order of the file, each with the parameters that vary along it.
    fn axes(&self, quick: bool) -> Vec<Vec<(&str, &Axis)>> {
        let form = self.parts().quick.as_ref().filter(|_| quick);
        let swept = in_file_order(&self.parts().sweep, Axis::at);
        let swept = swept
            .into_iter()
            .map(|(name, axis)| vec![(name, form.and_then(|form| form.sweep.get(name)).unwrap_or(axis))]);
        let zip = form.map(|form| &form.zip).filter(|zip| !zip.is_empty()).unwrap_or(&self.parts().zip);
        let zipped = zip.iter().map(|columns| in_file_order(columns, Axis::at));
        swept.chain(zipped).filter(|columns| !columns.is_empty()).collect()
    }

    /// The machine called `name`, with the changes made by the experiment and the point. `known` caches the machines
    /// created so far.
    ///
    /// # Errors
    /// If there is no such machine. If the changes are inconsistent, the result contains the reason, and only the point
    /// fails.
    fn point_machine(
        &self,
        name: &str,
        quick: bool,
        varied: &Varied,
        known: &mut BTreeMap<String, Arc<PointMachine>>,
    ) -> Result<Arc<PointMachine>, PointError> {
        // The fixed parameters are the same at all points.
        let own: Vec<_> = varied.iter().filter(|(key, _)| is_of_machine(key)).collect();
        let known_as = format!("{name}\n{}", serde_json::json!(own));
        if let Some(machine) = known.get(&known_as) {
            return Ok(machine.clone());
        }
        let mut edits = machine_edits(&self.file_parts(quick), varied.iter());
        resolve_modules(&mut edits, self.folder());
        let inputs = format!("{name}\n{}", serde_json::json!(edits));
        let refuse = |error: OpenError| PointError::Machine { name: name.into(), message: error.to_string() };
        let machine = Machine::open(&machine_file(name, self.folder())).map_err(refuse)?;
        let (text, refused) = match edit_machine(&machine, &edits) {
            Ok(edited) => (edited.to_toml(), None),
            Err(message) => {
                (format!("{}\n{inputs}", machine.to_toml()), Some(format!("machine {name} {message}")))
            }
        };
        let digest = digest(text.as_bytes()).into();
        let point_machine = Arc::new(PointMachine {
            name: name.into(),
            text: text.into(),
            digest,
            changes: edits.keys().cloned().collect(),
            refused,
        });
        known.insert(known_as, point_machine.clone());
        Ok(point_machine)
    }

    /// Fixed parameters as in the file, those of the quick form last.
    fn file_parts(&self, quick: bool) -> Vec<(&String, &Setting)> {
        let of_quick = self.parts().quick.iter().filter(|_| quick).flat_map(|form| &form.parameters);
        self.parts().parameters.iter().chain(of_quick).collect()
    }
}

/// Sets the parameter called `name`. `TABLE.NAME` sets an entry of a table.
fn assign(parameters: &mut BTreeMap<String, Setting>, name: &str, value: &Setting) {
    if let Some((table, entry)) = name.split_once('.')
        && let Some(Setting::Named(texts)) = parameters.get_mut(table)
    {
        texts.insert(entry.into(), value.to_string());
        return;
    }
    parameters.insert(name.into(), value.clone());
}
