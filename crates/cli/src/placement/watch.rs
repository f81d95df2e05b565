//! `longma placement events` and `watch`.
//! Not what is seen: the service's events, and libvirt's domains.

use super::Outcome;
use super::print::{self, fitting, heading, mib, percent};
use super::reach::{Form, Reach, explained};
use crate::machine::print as print_out;
use longma_placement_service::libvirt::look;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `longma placement events`.
#[derive(clap::Args)]
pub struct EventsArguments {
    /// Begin after this event: 0 for all that are known [default: from now on].
    #[arg(long, value_name = "NUMBER")]
    after: Option<i64>,
    /// End after so many.
    #[arg(long, value_name = "COUNT")]
    count: Option<usize>,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    form: Form,
}

/// Runs `longma placement events`.
pub fn events(arguments: &EventsArguments) -> Outcome {
    let mut left = arguments.count.unwrap_or(usize::MAX);
    let mut printed = Ok(ExitCode::SUCCESS);
    let watched = arguments.reach.client()?.watch(arguments.after, |event| {
        let line = match arguments.form.json {
            true => serde_json::to_string(&event).unwrap_or_default(),
            false => {
                let vm = event.vm.map(|id| format!(" virtual machine {id}")).unwrap_or_default();
                let host = event.host.map(|host| format!(" on {host}")).unwrap_or_default();
                let text = if event.text.is_empty() { String::new() } else { format!(": {}", event.text) };
                format!("{:>6} {}{vm}{host}{text}", event.number, event.kind)
            }
        };
        printed = print_out(&format!("{line}\n"));
        left -= 1;
        left > 0 && printed.is_ok()
    });
    watched.map_err(explained)?;
    printed
}

/// Arguments of `longma placement watch`.
#[derive(clap::Args)]
pub struct WatchArguments {
    /// libvirt's address.
    #[arg(long, value_name = "URI", default_value = "qemu:///system")]
    libvirt: String,
    /// How long to look each time.
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Look this often.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    times: u64,
    #[command(flatten)]
    form: Form,
}

/// Runs `longma placement watch`; nothing is changed on the host.
pub fn watch(arguments: &WatchArguments) -> Outcome {
    for _ in 0..arguments.times {
        let looks = look(&arguments.libvirt, Path::new("/"), Duration::from_secs(arguments.interval)).map_err(|error| {
            format!("{error}\n  is libvirtd running, and may you use it? --libvirt qemu:///session is your own")
        })?;
        if arguments.form.json {
            print::json(&looks)?;
            continue;
        }
        if looks.is_empty() {
            print_out("no virtual machine runs here\n")?;
            continue;
        }
        let mut rows = vec![heading(["DOMAIN", "VCPUS", "RUNS ON", "MEMORY ON", "REMOTE", "COST"])];
        rows.extend(looks.iter().map(|look| {
            let runs = look.runs_on.iter().map(|(node, part)| format!("{node}: {}", percent(*part)));
            let memory = look.memory_mib.iter().map(|(node, amount)| format!("{node}: {}", mib(*amount)));
            vec![
                look.domain.clone(),
                look.vcpus.to_string(),
                runs.collect::<Vec<_>>().join(", "),
                memory.collect::<Vec<_>>().join(", "),
                percent(look.remote),
                format!("{:.2}", look.cost),
            ]
        }));
        let mut text = fitting(&rows);
        for look in &looks {
            text += &format!("{}: {}\n", look.domain, look.why);
            look.mend.iter().for_each(|command| text += &format!("  {command}\n"));
        }
        print_out(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}
