//! Prints the cost of a run when the program has ended. `longma-runner` counts it.
//! Source: getrusage(2).

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, atomic::Ordering},
    time::Instant,
};

use longma_command_line::Format;
use longma_locks::IgnorePoison;
use longma_run_results::{function_name::abbreviate, grouped, process_costs::Costs};
use longma_runner::{Ending, Executed, NextProgram, Report, profile, profile::FunctionShare};
use longma_workloads::program::HOST_FAULT_STATUS;
use serde_json::{Value, json};

use super::{
    arguments::Arguments, descriptors::Messages, failure::Failure, listing::Options, restart,
    simulated::NotWritten,
};

/// Number of functions in the printed table; the file has all of them.
const SHOWN: usize = 20;
/// Maximum number of characters of a function's name in the table.
const NAME: usize = 80;

/// The requested reports.
pub struct Reports {
    stats: bool,
    profile: bool,
    profile_out: Option<PathBuf>,
    format: Format,
    listing: Option<Options>,
    program: PathBuf,
    /// The costs of earlier programs, and when the current one started.
    earlier: Mutex<(Costs, Instant)>,
    /// Whether this process also runs the programs that the program executes.
    continues: bool,
    /// The process that prints; its forked children do not.
    process: u32,
}

/// How the last counted program ended.
#[derive(Clone, Copy)]
enum Until<'a> {
    End(Ending),
    /// The host runs this program.
    Host(&'a Path),
}

impl Reports {
    /// The reports that the command line requests. With `continues`, this process runs the programs that the program
    /// executes; otherwise the host starts the command again.
    ///
    /// # Errors
    /// The costs of earlier programs cannot be read.
    pub fn wanted(arguments: &Arguments, started: Instant, continues: bool) -> Result<Self, Failure> {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Ok(Self {
            stats: arguments.stats,
            profile: arguments.profile,
            profile_out: arguments.profile_out.as_ref().map(absolute),
            format: arguments.format,
            listing: arguments.listing.clone(),
            program: arguments.program[0].clone().into(),
            earlier: Mutex::new((restart::earlier_programs(arguments.earlier_programs)?, started)),
            continues,
            process: arguments.reporting_process.unwrap_or_else(std::process::id),
        })
    }

    /// Whether any report is requested.
    pub fn any(&self) -> bool {
        self.stats || self.listing.is_some() || self.profiles()
    }

    fn profiles(&self) -> bool {
        self.profile || self.profile_out.is_some()
    }

    /// Prints the requested reports.
    ///
    /// # Errors
    /// The profile cannot be written. The text has been printed.
    pub fn print(&self, ending: Ending, report: &Report, messages: &Messages) -> Result<(), NotWritten> {
        self.print_until(Until::End(ending), report, messages)
    }

    /// Called when the process is about to execute `next`. Returns the costs for the next emulator, to be passed on by
    /// `--earlier-programs`.
    pub fn execute(&self, report: &Report, next: &NextProgram, messages: &Messages) -> Option<Vec<u8>> {
        if !self.any() || std::process::id() != self.process {
            return None;
        }
        if self.listing.is_some() {
            messages.line("longma: the listing has only the last program");
        }
        match next {
            NextProgram::OfHost(path) => {
                messages
                    .line(&format!("longma: the host runs {} itself, so it is not counted", path.display()));
                if let Err(failed) = self.print_until(Until::Host(path), report, messages) {
                    std::process::exit(failed.0.into());
                }
                None
            }
            NextProgram::OfEmulator(_) => {
                let costs = self.costs(report, &report.code().executed());
                let bytes = costs.to_bytes();
                if self.continues {
                    *self.earlier.lock().ignore_poison() = (costs, Instant::now());
                }
                Some(bytes)
            }
        }
    }

    fn print_until(&self, until: Until, report: &Report, messages: &Messages) -> Result<(), NotWritten> {
        if !self.any() || std::process::id() != self.process {
            return Ok(());
        }
        let executed = report.code().executed();
        let costs = self.costs(report, &executed);
        let functions = costs.functions();
        let total = costs.instructions;
        if self.format == Format::Json {
            messages.line(&self.object(until, &costs, &functions).to_string());
        } else {
            if self.stats {
                messages.line(&table(until, &costs));
            }
            if self.profile {
                messages.line(&profile_table(&functions, total));
            }
        }
        if let Some(options) = &self.listing {
            list(options, report, &executed, messages);
        }
        if let Some(path) = &self.profile_out {
            let mut whole = json!({
                "program": self.program.to_string_lossy(),
                "instructions": total,
                "functions": objects(&functions),
            });
            add_programs(&costs, &mut whole);
            if let Err(error) = std::fs::write(path, format!("{whole}\n")) {
                messages.line(&format!("longma: cannot write the profile to {}: {error}", path.display()));
                return Err(NotWritten(HOST_FAULT_STATUS));
            }
        }
        Ok(())
    }

    /// The costs of all programs so far; `report` describes the current one.
    fn costs(&self, report: &Report, executed: &[Executed]) -> Costs {
        let counts = report.code().counts();
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let instructions = profile::instructions(executed);
        let source = report.source(executed);
        let (earlier, started) = &*self.earlier.lock().ignore_poison();
        let mut current = Costs {
            programs: vec![report.program()],
            instructions,
            source: source.map(|(name, _)| name.into()),
            source_instructions: source.map_or(instructions, |(_, count)| count),
            blocks: read(&counts.blocks),
            translated_blocks: report.code().translated_blocks(),
            regions: read(&counts.regions),
            wall_s: started.elapsed().as_secs_f64(),
            ..Costs::default()
        };
        if self.profiles() {
            current.set_functions(profile::by_function(&report.at_source(executed), &report.symbols()));
        }
        earlier.followed_by(current)
    }

    fn object(&self, until: Until, costs: &Costs, functions: &[FunctionShare]) -> Value {
        let mut object = json!({
            "program": self.program.to_string_lossy(),
            "ending": match until {
                Until::End(Ending::Exit(status)) => json!({ "exit": status }),
                Until::End(Ending::Signal(signal)) => json!({ "signal": signal }),
                Until::Host(path) => json!({ "executed": path.to_string_lossy() }),
            },
        });
        add_programs(costs, &mut object);
        if self.stats {
            object["instructions"] = costs.instructions.into();
            if let Some(name) = &costs.source {
                object["source"] = name.as_str().into();
                object["source_instructions"] = costs.source_instructions.into();
            }
            object["blocks_decoded"] = costs.blocks.into();
            object["blocks_translated"] = costs.translated_blocks.into();
            object["regions_translated"] = costs.regions.into();
            object["wall_s"] = costs.wall_s.into();
            let (user_s, system_s) = processor_times();
            object["user_s"] = user_s.into();
            object["system_s"] = system_s.into();
            object["mips"] = mips(costs).into();
        }
        if self.profile {
            object["functions"] = objects(functions);
        }
        object
    }
}

/// Millions of instructions per second of wall time.
fn mips(costs: &Costs) -> f64 {
    costs.instructions as f64 / costs.wall_s.max(1e-9) / 1e6
}

/// Adds the names of the programs to a report, if there are several.
fn add_programs(costs: &Costs, to: &mut Value) {
    if costs.programs.len() > 1 {
        to["programs"] = costs.programs.as_slice().into();
    }
}

fn list(options: &Options, report: &Report, executed: &[Executed], messages: &Messages) {
    let text = options.text(&report.listing(executed));
    let text =
        text.unwrap_or_else(|| "longma: no code was translated, because the program is for LoongArch".into());
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

fn table(until: Until, costs: &Costs) -> String {
    let ending = match until {
        Until::End(Ending::Exit(status)) => format!("exit status {status}"),
        Until::End(Ending::Signal(signal)) => format!("killed by signal {signal}"),
        Until::Host(path) => format!("executed {}", path.display()),
    };
    let instructions = match &costs.source {
        Some(name) => format!(
            "{} for {} of {name} (ratio {:.3})",
            grouped(costs.instructions),
            grouped(costs.source_instructions),
            costs.instructions as f64 / costs.source_instructions.max(1) as f64
        ),
        None => grouped(costs.instructions),
    };
    let (user_s, system_s) = processor_times();
    let rows = [
        ("ending", ending),
        ("instructions", instructions),
        ("blocks decoded", grouped(costs.blocks)),
        ("blocks translated", grouped(costs.translated_blocks)),
        ("regions translated", grouped(costs.regions)),
        ("wall time", format!("{:.3} s", costs.wall_s)),
        ("user time", format!("{user_s:.3} s")),
        ("system time", format!("{system_s:.3} s")),
        ("speed", format!("{:.1} million instructions per second", mips(costs))),
    ];
    let programs = (costs.programs.len() > 1).then(|| ("programs", costs.programs.join(", ")));
    let rows = programs.into_iter().chain(rows);
    let lines: Vec<_> = rows.map(|(name, value)| format!("{name:<20}{value}")).collect();
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
            longma_text::sanitize(&abbreviate(&place.function, NAME)),
            longma_text::sanitize(&place.object)
        )
    }));
    if functions.len() > SHOWN {
        let rest: u64 = functions[SHOWN..].iter().map(|share| share.instructions).sum();
        let others = functions.len() - SHOWN;
        lines.push(format!("{:>6.2}% {:>18}  {others} others", percent(rest), grouped(rest)));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_runner::symbols::CodeLocation;

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
