//! The workload `translation`: compares programs translated from another architecture with the same programs built for
//! LoongArch. Metrics are means over the programs. `program` runs them.
//!
//! Source: Hu Weiwu et al., "Loongson Instruction Set Architecture Technology" (2022), for the comparison.

use crate::program::Program;
use longma_lab::{
    Failure, InputFile, Kind, Measure, Metrics, Parameter, Point, Rehearsal, Setting, Stop, Workload,
};
use longma_translate::optimizations::{Optimization, Optimizations};
use std::collections::BTreeMap;

/// Architectures that can be translated. The folders of their programs have these names.
const ARCHITECTURES: &[&str] = &["mips64el", "x86_64", "aarch64"];
/// Folder of the native programs.
const NATIVE: &str = "loongarch64";
const LEVELS: &[&str] = &["functional", "timing"];
/// Parameters shared with `program`.
const FORWARDED: [&str; 3] = ["level", "core", "seed"];

/// Metrics at every level, each a geometric mean over the programs.
const COUNTED: [(&str, &str, &str); 3] = [
    ("expansion", "", "LoongArch instructions per instruction of the program's own architecture"),
    (
        "source_over_native",
        "",
        "instructions of the program per instruction of the same program built for LoongArch",
    ),
    (
        "translated_over_native",
        "",
        "instructions of the translation per instruction of the program built for LoongArch",
    ),
];
/// Further metrics at level timing.
const TIMED: [(&str, &str, &str); 2] = [
    ("cycles_over_native", "", "cycles of the translation per cycle of the program built for LoongArch"),
    ("speed", "%", "of the program built for LoongArch, by cycles"),
];

/// The workload for translated programs.
pub struct Translation {
    program: Program,
    parameters: Vec<Parameter>,
}

impl Translation {
    /// Creates the workload. `longma` is the path of the command.
    pub fn new(longma: impl Into<std::path::PathBuf>) -> Self {
        let parameter = |name, kind, default: Option<Setting>, description| Parameter {
            name,
            kind,
            default,
            description,
        };
        let parameters = vec![
            parameter(
                "folder",
                Kind::Text,
                Some("".into()),
                "parent of the program folders, relative to the experiment file's folder; not part of a result",
            ),
            parameter(
                "architecture",
                Kind::Word(ARCHITECTURES),
                None,
                "architecture of the programs: the name of their folder, next to `loongarch64`",
            ),
            parameter(
                "programs",
                Kind::Texts,
                None,
                "the programs, each as its name and arguments separated by spaces",
            ),
            parameter("level", Kind::Word(LEVELS), Some("timing".into()), "level of detail of the model"),
            parameter(
                "core",
                Kind::Text,
                Some("".into()),
                "timing model of the cores; the machine file's if empty",
            ),
            parameter(
                "parts",
                Kind::Named,
                Some(Setting::Named(BTreeMap::new())),
                "optimizations of translation to enable (`yes`) or disable (`no`), by their names in \
                    `longma run --translation`; the others keep their defaults",
            ),
            parameter(
                "seed",
                Kind::Integer,
                Some(Setting::Integer(1)),
                "seed of the simulation's random choices",
            ),
        ];
        Self { program: Program::new(longma), parameters }
    }

    /// The point for `program`. Parameters have their defaults, except those that this workload forwards or sets.
    fn of_program(&self, point: &Point, architecture: &str, program: &str) -> Result<Point, Failure> {
        let mut inner = self.program.point_of(point, &FORWARDED);
        let mut program = program.split_whitespace().map(String::from);
        let mut set = |name: &str, value: Setting| inner.parameters.insert(name.into(), value);
        set("program", program.next().unwrap_or_default().as_str().into());
        set("arguments", Setting::Texts(program.collect()));
        set("folder", format!("{}/{architecture}", point.text("folder")).as_str().into());
        if architecture != NATIVE {
            set("translation", parts(point)?.to_string().as_str().into());
        }
        Ok(inner)
    }

    /// Costs of a program, translated and native.
    fn measured(&self, point: &Point, program: &str, stop: &Stop) -> Result<Costs, Failure> {
        let run = |architecture| self.program.run(&self.of_program(point, architecture, program)?, stop);
        let (translated, native) = (run(point.text("architecture"))?, run(NATIVE)?);
        let of = |metrics: &Metrics, names: [&str; 2]| {
            let found = names.iter().find_map(|name| metrics.results.get(*name).copied());
            found
                .filter(|value| *value > 0.0)
                .ok_or_else(|| Failure::failed(format!("the run of `{program}` counted no {}", names[0])))
        };
        // The name depends on the level.
        let instructions = ["instructions", "run.instructions"];
        let is_timed = point.text("level") == "timing";
        let cycles = |metrics| if is_timed { of(metrics, ["run.cycles"; 2]).map(Some) } else { Ok(None) };
        Ok(Costs {
            source: of(&translated, ["source_instructions", "run.source_instructions"])?,
            translated: of(&translated, instructions)?,
            native: of(&native, instructions)?,
            cycles: cycles(&translated)?.zip(cycles(&native)?),
        })
    }
}

/// Costs of one program.
struct Costs {
    source: f64,
    translated: f64,
    native: f64,
    /// Cycles of the translated and of the native program.
    cycles: Option<(f64, f64)>,
}

impl Workload for Translation {
    fn name(&self) -> &str {
        "translation"
    }

    fn description(&self) -> &str {
        "programs for another architecture translated to LoongArch, compared with the same programs built for LoongArch"
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn location_parameters(&self) -> &'static [&'static str] {
        &["folder"]
    }

    fn inputs(&self, point: &Point) -> Result<BTreeMap<String, String>, Failure> {
        let mut inputs = BTreeMap::new();
        for program in programs(point)? {
            for architecture in [point.text("architecture"), NATIVE] {
                let inner = self.of_program(point, architecture, program)?;
                let digests = self.program.inputs(&inner)?.into_values();
                inputs.extend(
                    digests.map(|digest| (format!("{architecture}/{}", inner.text("program")), digest)),
                );
            }
        }
        Ok(inputs)
    }

    fn files(&self, point: &Point) -> Result<Vec<InputFile>, Failure> {
        let mut files = Vec::new();
        for program in programs(point)? {
            for architecture in [point.text("architecture"), NATIVE] {
                files.extend(self.program.files(&self.of_program(point, architecture, program)?)?);
            }
        }
        Ok(files)
    }

    fn rehearse(&self, point: &Point) -> Result<Rehearsal, Failure> {
        for program in programs(point)? {
            for architecture in [point.text("architecture"), NATIVE] {
                self.program.rehearse(&self.of_program(point, architecture, program)?)?;
            }
        }
        let timed = if point.text("level") == "timing" { &TIMED[..] } else { &[] };
        let measures = COUNTED.iter().chain(timed);
        let measures = measures.map(|(name, unit, about)| Measure::new(*name, *unit, *about)).collect();
        Ok(Rehearsal { measures: Some(measures), ..Rehearsal::default() })
    }

    fn run(&self, point: &Point, stop: &Stop) -> Result<Metrics, Failure> {
        let costs = programs(point)?
            .iter()
            .map(|program| self.measured(point, program, stop))
            .collect::<Result<Vec<_>, _>>()?;
        let mean = |ratio: &dyn Fn(&Costs) -> Option<f64>| {
            let ratios: Option<Vec<f64>> = costs.iter().map(ratio).collect();
            ratios.map(|ratios| geometric_mean(&ratios))
        };
        let mut metrics = Metrics::default();
        let mut add =
            |name: &str, value: Option<f64>| value.into_iter().for_each(|v| metrics.result(name, v));
        add("expansion", mean(&|c| Some(c.translated / c.source)));
        add("source_over_native", mean(&|c| Some(c.source / c.native)));
        add("translated_over_native", mean(&|c| Some(c.translated / c.native)));
        let cycles = mean(&|c| c.cycles.map(|(translated, native)| translated / native));
        add("cycles_over_native", cycles);
        add("speed", cycles.map(|ratio| 100.0 / ratio));
        Ok(metrics)
    }
}

/// The programs, at least one.
fn programs(point: &Point) -> Result<&[String], Failure> {
    match point.parameter("programs") {
        Some(Setting::Texts(programs)) if programs.iter().any(|program| program.trim().is_empty()) => {
            Err(Failure::refused("an entry of `programs` is empty: give each a program's name"))
        }
        Some(Setting::Texts(programs)) if !programs.is_empty() => Ok(programs),
        _ => Err(Failure::refused("`programs` is empty: give at least one")),
    }
}

/// The optimizations of the translation.
fn parts(point: &Point) -> Result<Optimizations, Failure> {
    let Some(Setting::Named(named)) = point.parameter("parts") else { return Ok(Optimizations::default()) };
    named.iter().try_fold(Optimizations::default(), |parts, (name, is_there)| {
        let is_there = match is_there.as_str() {
            "yes" => true,
            "no" => false,
            other => {
                return Err(Failure::refused(format!("`parts.{name}` is `{other}`: give `yes` or `no`")));
            }
        };
        let part: Optimization =
            name.parse().map_err(|error| Failure::refused(format!("`parts.{name}`: {error}")))?;
        Ok(parts.with(part, is_there))
    })
}

fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_enables_and_disables_parts_and_unknown_parts_are_refused() {
        let point = |named: &[(&str, &str)]| Point {
            key: longma_lab::Key::from("parts"),
            workload: "translation".into(),
            machine: None,
            parameters: [(
                "parts".into(),
                Setting::Named(
                    named.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
                ),
            )]
            .into_iter()
            .collect(),
            refused: None,
            location_parameters: &[],
            varied: longma_lab::Varied::default(),
            folder: std::path::Path::new("/").into(),
            time_limit: None,
        };
        let text = |named: &[(&str, &str)]| parts(&point(named)).map(|parts| parts.to_string());
        assert_eq!(text(&[]).unwrap(), "");
        assert_eq!(text(&[("fusion", "no"), ("lbt", "yes"), ("units", "yes")]).unwrap(), "no-fusion,lbt");
        assert!(text(&[("cam", "yes")]).unwrap_err().message.contains("flags-across"));
        assert!(text(&[("units", "off")]).unwrap_err().message.contains("`yes` or `no`"));
        // The native program is not translated.
        let workload = Translation::new("longma");
        let of = |architecture| {
            let mut point = point(&[("units", "no")]);
            point.parameters.insert("folder".into(), "".into());
            workload.of_program(&point, architecture, "queens 6").unwrap().text("translation").to_string()
        };
        assert_eq!((of("x86_64"), of(NATIVE)), ("no-units".into(), String::new()));
    }

    #[test]
    fn the_geometric_mean_of_inverse_ratios_is_the_inverse() {
        let values = [2.0, 0.5, 4.0];
        let turned = values.map(|value| 1.0 / value);
        assert!((geometric_mean(&values) * geometric_mean(&turned) - 1.0).abs() < 1e-12);
        assert!((geometric_mean(&values) - 4f64.cbrt()).abs() < 1e-12);
    }
}
