//! `longma placement events` (events of the service) and `longma placement watch` (libvirt domains of this host).

use super::Outcome;
use super::connection::{ConnectionOptions, FormatOptions, with_advice};
use super::print::{self, Page, heading, mib, percent, print_line};
use longma_placement_service::libvirt::{Locality, survey};
use longma_text::sanitize;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `longma placement events`.
#[derive(clap::Args)]
pub struct EventsArguments {
    /// Start after this event number; 0 prints all recorded events [default: only new events].
    #[arg(long, value_name = "NUMBER")]
    after: Option<i64>,
    /// Exit after this many events.
    #[arg(long, value_name = "COUNT")]
    count: Option<NonZeroUsize>,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

/// Runs `longma placement events`.
pub fn events(arguments: &EventsArguments) -> Outcome {
    let mut left = arguments.count.map_or(usize::MAX, NonZeroUsize::get);
    let mut printed = Ok(ExitCode::SUCCESS);
    let watched = arguments.connection.client()?.watch(arguments.after, |event| {
        printed = match arguments.format.json {
            true => print::json_line(&event),
            false => {
                let vm = event.vm.map(|id| format!(" virtual machine {id}")).unwrap_or_default();
                let host = event.host.map(|host| format!(" on {host}")).unwrap_or_default();
                let text = if event.text.is_empty() { String::new() } else { format!(": {}", event.text) };
                let actor = event.actor.map(|actor| format!(" by {actor}")).unwrap_or_default();
                print_line(&format!("{:>6} {}{vm}{host}{actor}{text}", event.number, event.kind))
            }
        };
        left -= 1;
        left > 0 && printed.is_ok()
    });
    watched.map_err(with_advice)?;
    printed
}

/// Arguments of `longma placement watch`.
#[derive(clap::Args)]
pub struct WatchArguments {
    /// Connection URI of libvirt.
    #[arg(long, value_name = "URI", default_value = "qemu:///system")]
    libvirt: String,
    /// Length of one observation.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Number of observations.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    times: u64,
    #[command(flatten)]
    format: FormatOptions,
}

/// Runs `longma placement watch`; changes nothing on the host.
pub fn watch(arguments: &WatchArguments) -> Outcome {
    for _ in 0..arguments.times {
        let observations = survey(&arguments.libvirt, Path::new("/"), Duration::from_secs(arguments.interval)).map_err(|error| {
            let error = sanitize(&error.to_string());
            format!("{error}\n  check that libvirtd runs and that you may use it; --libvirt qemu:///session is your own instance")
        })?;
        if arguments.format.json {
            print::json(&observations)?;
            continue;
        }
        if observations.is_empty() {
            print_line("no virtual machine runs on this host")?;
            continue;
        }
        observation_page(&observations).print()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn observation_page(observations: &[Locality]) -> Page {
    let mut rows = vec![heading(["DOMAIN", "VCPUS", "RUNS ON", "MEMORY ON", "REMOTE", "COST"])];
    rows.extend(observations.iter().map(|observation| {
        let runs = observation.runs_on.iter().map(|(node, part)| format!("{node}: {}", percent(*part)));
        let memory = observation.memory_mib.iter().map(|(node, amount)| format!("{node}: {}", mib(*amount)));
        vec![
            observation.domain.clone(),
            observation.vcpus.to_string(),
            runs.collect::<Vec<_>>().join(", "),
            memory.collect::<Vec<_>>().join(", "),
            percent(observation.remote),
            format!("{:.2}", observation.cost),
        ]
    }));
    let mut page = Page::new();
    page.table(&rows);
    for observation in observations {
        page.line(&format!("{}: {}", observation.domain, observation.why));
        observation.mend.iter().for_each(|command| page.command(&format!("  {command}")));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_names_cannot_control_the_terminal() {
        let domain = "\u{1b}]0;owned\u{7}\u{1b}[2Jweb".to_string();
        let mend = vec![format!("virsh numatune {domain}")];
        let why = format!("{domain} is remote");
        let (runs_on, memory_mib) = ([(0, 1.0)].into(), [(1, 64)].into());
        let observation = Locality {
            domain,
            pid: 1,
            vcpus: 1,
            runs_on,
            memory_mib,
            remote: 1.0,
            cost: 2.1,
            may_drift: true,
            mend,
            why,
        };
        let text = observation_page(&[observation]).text().to_string();
        assert!(!text.contains(['\u{1b}', '\u{7}']), "{text:?}");
        assert_eq!(text.matches("[2Jweb").count(), 4, "the rest is shown: {text}");
    }
}
