//! `longma placement advise`: recommends locations for the virtual machines of another system.

use super::Outcome;
use super::print::{self, Page, heading, list, mib};
use longma_command_line::size;
use longma_placement::Policy;
use longma_placement::scheduler::Overhead;
use longma_placement_service::{advise, fleet_file};
use std::path::PathBuf;

/// Arguments of `longma placement advise`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Fleet file that describes each host by its name.
    #[arg(long, value_name = "FILE")]
    fleet: PathBuf,
    /// Output of `pvesh get /cluster/resources --output-format json` (Proxmox), or with --flavors of `openstack server list
    /// --all-projects --long -f json`.
    #[arg(long, value_name = "FILE")]
    inventory: PathBuf,
    /// Output of `openstack flavor list --all -f json`.
    #[arg(long, value_name = "FILE")]
    flavors: Option<PathBuf>,
    /// Virtual CPUs per 100 shared CPUs.
    #[arg(long, value_name = "PERCENT", default_value_t = 200, value_parser = clap::value_parser!(u32).range(100..=10_000))]
    overcommit: u32,
    /// Memory that each virtual machine uses in addition to its guest memory.
    #[arg(long, value_name = "SIZE", default_value = "48MiB", value_parser = size)]
    vm_overhead: u64,
    #[command(flatten)]
    format: super::connection::FormatOptions,
}

/// Runs `longma placement advise`; changes nothing.
pub fn run(arguments: &Arguments) -> Outcome {
    let flavors = arguments.flavors.as_deref().map(advise::read).transpose()?;
    let inventory = advise::parse(&advise::read(&arguments.inventory)?, flavors.as_deref())?;
    let fleet = fleet_file::open(&arguments.fleet)?;
    let fixed_mib = u32::try_from(arguments.vm_overhead >> 20)?;
    let overhead = Overhead { fixed_mib, ..Overhead::default() };
    let policy = Policy { overcommit_percent: arguments.overcommit, overhead, ..Policy::default() };
    let advice = advise::advise(&inventory, &fleet, policy)?;
    if arguments.format.json {
        return print::json(&advice);
    }
    let mut rows = vec![heading(["ID", "NAME", "VCPUS", "MEMORY", "NOW ON", "HOST", "NODES", "CPUS"])];
    rows.extend(advice.iter().map(|a| {
        let (now, host) = (a.vm.host.clone(), a.host.clone());
        let (id, name, vcpus) = (a.vm.id.clone(), a.vm.name.clone(), a.vm.vcpus.to_string());
        let now = now.unwrap_or_else(|| "-".into());
        let host = host.unwrap_or_else(|| "fits nowhere".into());
        vec![id, name, vcpus, mib(a.vm.memory_mib), now, host, list(&a.nodes), a.cpus.to_string()]
    }));
    let mut page = Page::new();
    page.table(&rows);
    page.line("");
    advice.iter().flat_map(|a| &a.commands).for_each(|command| page.command(command));
    page.print()
}
