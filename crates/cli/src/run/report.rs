//! Prints the cost of a run when the program has ended. `longma-runner` counts it.
//! Source: getrusage(2).

use std::{path::PathBuf, sync::atomic::Ordering, time::Instant};

use longma_runner::{Ending, Executed, Report, profile, profile::FunctionShare};
use serde_json::{Value, json};

use super::{
    arguments::{Arguments, Format},
    descriptors::Messages,
    listing::Options,
};

/// Number of functions in the printed table; the file has all of them.
const SHOWN: usize = 20;

/// The requested reports.
pub struct Reports {
    stats: bool,
    profile: bool,
    profile_out: Option<PathBuf>,
    format: Format,
    listing: Option<Options>,
    program: PathBuf,
    started: Instant,
    /// The process that prints; its forked children do not.
    process: u32,
}

/// The cost of a run.
struct Costs {
    instructions: u64,
    /// For programs of another architecture: its name and the number of source instructions.
    source: Option<(&'static str, u64)>,
    blocks: u64,
    translated_blocks: u64,
    regions: u64,
    wall_s: f64,
    user_s: f64,
    system_s: f64,
}

impl Reports {
    /// The reports that the command line requests.
    pub fn wanted(arguments: &Arguments, started: Instant) -> Self {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Self {
            stats: arguments.stats,
            profile: arguments.profile,
            profile_out: arguments.profile_out.as_ref().map(absolute),
            format: arguments.format,
            listing: arguments.listing.clone(),
            program: arguments.program[0].clone().into(),
            started,
            process: arguments.reporting_process.unwrap_or_else(std::process::id),
        }
    }

    /// Whether any report is requested.
    pub fn any(&self) -> bool {
        self.stats || self.listing.is_some() || self.profiles()
    }

    fn profiles(&self) -> bool {
        self.profile || self.profile_out.is_some()
    }

    /// Prints the requested reports.
    pub fn print(&self, ending: Ending, report: &Report, messages: &Messages) {
        if !self.any() || std::process::id() != self.process {
            return;
        }
        let executed = report.code().executed();
        let costs = self.costs(report, &executed);
        let functions = if self.profiles() {
            profile::by_function(&report.at_source(&executed), &report.symbols())
        } else {
            Vec::new()
        };
        let total = costs.instructions;
        if self.format == Format::Json {
            messages.line(&self.object(ending, &costs, &functions).to_string());
        } else {
            if self.stats {
                messages.line(&table(ending, &costs));
            }
            if self.profile {
                messages.line(&profile_table(&functions, total));
            }
        }
        if let Some(options) = &self.listing {
            list(options, report, &executed, messages);
        }
        if let Some(path) = &self.profile_out {
            let whole = json!({
                "program": self.program.to_string_lossy(),
                "instructions": total,
                "functions": objects(&functions),
            });
            if let Err(error) = std::fs::write(path, format!("{whole}\n")) {
                messages.line(&format!("longma: cannot write the profile to {}: {error}", path.display()));
            }
        }
    }

    fn costs(&self, report: &Report, executed: &[Executed]) -> Costs {
        let counts = report.code().counts();
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (user_s, system_s) = processor_times();
        Costs {
            instructions: profile::instructions(executed),
            source: report.source(executed),
            blocks: read(&counts.blocks),
            translated_blocks: report.code().translated_blocks(),
            regions: read(&counts.regions),
            wall_s: self.started.elapsed().as_secs_f64(),
            user_s,
            system_s,
        }
    }

    fn object(&self, ending: Ending, costs: &Costs, functions: &[FunctionShare]) -> Value {
        let mut object = json!({
            "program": self.program.to_string_lossy(),
            "ending": match ending {
                Ending::Exit(status) => json!({ "exit": status }),
                Ending::Signal(signal) => json!({ "signal": signal }),
            },
        });
        if self.stats {
            object["instructions"] = costs.instructions.into();
            if let Some((name, source)) = costs.source {
                object["source"] = name.into();
                object["source_instructions"] = source.into();
            }
            object["blocks_decoded"] = costs.blocks.into();
            object["blocks_translated"] = costs.translated_blocks.into();
            object["regions_translated"] = costs.regions.into();
            object["wall_s"] = costs.wall_s.into();
            object["user_s"] = costs.user_s.into();
            object["system_s"] = costs.system_s.into();
            object["mips"] = costs.mips().into();
        }
        if self.profile {
            object["functions"] = objects(functions);
        }
        object
    }
}

impl Costs {
    /// Millions of instructions per second of wall time.
    fn mips(&self) -> f64 {
        self.instructions as f64 / self.wall_s.max(1e-9) / 1e6
    }
}

fn list(options: &Options, report: &Report, executed: &[Executed], messages: &Messages) {
    let text = options.text(&report.listing(executed));
    let text =
        text.unwrap_or_else(|| "longma: nothing was translated, because the program is for LoongArch".into());
    match options.file() {
        None => messages.line(&text),
        Some(path) => {
            if let Err(error) = std::fs::write(path, format!("{text}\n")) {
                messages.line(&format!("longma: cannot write to {}: {error}", path.display()));
            }
        }
    }
}

fn objects(functions: &[FunctionShare]) -> Value {
    let object = |share: &FunctionShare| {
        json!({
            "function": share.place.function,
            "object": share.place.object,
            "start": share.place.start,
            "instructions": share.instructions,
        })
    };
    functions.iter().map(object).collect()
}

/// User and system time of this process in seconds.
fn processor_times() -> (f64, f64) {
    // SAFETY: all zeros is a valid rusage, and getrusage fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    (seconds(usage.ru_utime), seconds(usage.ru_stime))
}

fn table(ending: Ending, costs: &Costs) -> String {
    let ending = match ending {
        Ending::Exit(status) => format!("exit status {status}"),
        Ending::Signal(signal) => format!("killed by signal {signal}"),
    };
    let instructions = match costs.source {
        Some((name, source)) => format!(
            "{} for {} of {name} (ratio {:.3})",
            grouped(costs.instructions),
            grouped(source),
            costs.instructions as f64 / source.max(1) as f64
        ),
        None => grouped(costs.instructions),
    };
    let rows = [
        ("ending", ending),
        ("instructions", instructions),
        ("blocks decoded", grouped(costs.blocks)),
        ("blocks translated", grouped(costs.translated_blocks)),
        ("regions translated", grouped(costs.regions)),
        ("wall time", format!("{:.3} s", costs.wall_s)),
        ("user time", format!("{:.3} s", costs.user_s)),
        ("system time", format!("{:.3} s", costs.system_s)),
        ("speed", format!("{:.1} million instructions a second", costs.mips())),
    ];
    let lines: Vec<_> = rows.iter().map(|(name, value)| format!("{name:<20}{value}")).collect();
    lines.join("\n")
}

fn profile_table(functions: &[FunctionShare], total: u64) -> String {
    let mut lines = vec![format!("{:>7} {:>18}  {}", "share", "instructions", "function (object)")];
    let percent = |part: u64| 100.0 * part as f64 / total.max(1) as f64;
    lines.extend(functions.iter().take(SHOWN).map(|share| {
        let (instructions, place) = (share.instructions, &share.place);
        format!(
            "{:>6.2}% {:>18}  {} ({})",
            percent(instructions),
            grouped(instructions),
            place.function,
            place.object
        )
    }));
    if functions.len() > SHOWN {
        let rest: u64 = functions[SHOWN..].iter().map(|share| share.instructions).sum();
        let others = functions.len() - SHOWN;
        lines.push(format!("{:>6.2}% {:>18}  {others} others", percent(rest), grouped(rest)));
    }
    lines.join("\n")
}

/// Formats a number with a space between groups of three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let (head, rest) = digits.split_at(first);
    let groups = rest.as_bytes().chunks(3).map(|group| String::from_utf8_lossy(group).into_owned());
    let groups = (!head.is_empty()).then(|| head.to_owned()).into_iter().chain(groups);
    groups.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_runner::symbols::CodeLocation;

    #[test]
    fn large_numbers_are_grouped_by_three_digits() {
        let texts = [0, 12, 999, 1000, 123_456, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "12", "999", "1 000", "123 456", "1 234 567"]);
    }

    #[test]
    fn the_profile_shows_the_hottest_functions_and_sums_up_the_rest() {
        let share = |number: u64| FunctionShare {
            place: CodeLocation { function: format!("f{number}"), object: "program".into(), start: number },
            instructions: 100 - number,
        };
        let functions: Vec<_> = (0..22).map(share).collect();
        let total = functions.iter().map(|share| share.instructions).sum();
        insta::assert_snapshot!(profile_table(&functions, total));
    }
}
