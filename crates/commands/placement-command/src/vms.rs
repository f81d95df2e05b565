//! `longma placement list`, `show`, `start`, `stop`, `delete`, `resize` and `rebind`.

use super::Outcome;
use super::connection::{ConnectionOptions, FormatOptions, with_advice};
use super::print::{self, heading, list as listed, location, mib, print_line, word};
use longma_command_line::size;
use longma_placement::store::{Intent, Vm, VmState};
use longma_placement_service::Client;
use longma_placement_service::client::{ClientError, part};
use longma_placement_service::wire::{ProblemKind, Rebind, Resize, VmPage};
use longma_text::sanitize;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Virtual machines per page when listing.
const PAGE: usize = 500;

/// Arguments of `longma placement list`.
#[derive(clap::Args)]
pub struct ListArguments {
    /// List virtual machines of this tenant only.
    #[arg(long)]
    tenant: Option<String>,
    /// List virtual machines on this host only.
    #[arg(long)]
    host: Option<String>,
    /// Also list deleted virtual machines.
    #[arg(long)]
    deleted: bool,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

/// Selects a virtual machine.
#[derive(clap::Args)]
pub struct VmArguments {
    /// Number or name of the virtual machine.
    vm: String,
    /// Tenant of the virtual machine, when it is selected by name.
    #[arg(long)]
    tenant: Option<String>,
    /// How long to wait for the new state.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub patience: u64,
    #[command(flatten)]
    pub connection: ConnectionOptions,
    #[command(flatten)]
    pub format: FormatOptions,
}

/// Arguments of `longma placement delete`.
#[derive(clap::Args)]
pub struct DeleteArguments {
    #[command(flatten)]
    one: VmArguments,
    /// Release its resources at once, without its host's agent. Its host must have been declared dead (see force-down):
    /// this assumes that the virtual machine no longer runs there.
    #[arg(long)]
    force: bool,
}

/// Arguments of `longma placement resize`.
#[derive(clap::Args)]
#[group(id = "size", required = true, multiple = true, args = ["vcpus", "memory"])]
pub struct ResizeArguments {
    #[command(flatten)]
    one: VmArguments,
    /// New number of virtual CPUs.
    #[arg(long, value_name = "COUNT")]
    vcpus: Option<u32>,
    /// New amount of memory, for example 4GiB or 512MiB.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
}

/// Arguments of `longma placement rebind`.
#[derive(clap::Args)]
pub struct RebindArguments {
    #[command(flatten)]
    one: VmArguments,
    /// Nodes that it may use, for example 2 or 2,3 [default: all except its current ones].
    #[arg(long, value_delimiter = ',')]
    nodes: Vec<u32>,
}

impl VmArguments {
    /// Path of the virtual machine in the API, with `rest` appended.
    pub fn path(&self, rest: &str) -> String {
        let query = self.tenant.as_ref().map(|t| format!("?tenant={}", part(t))).unwrap_or_default();
        format!("/v1/vms/{}{rest}{query}", part(&self.vm))
    }

    fn print(&self, vm: &Vm) -> Outcome {
        if self.format.json {
            return print::json(vm);
        }
        print::table(&describe(vm))
    }

    /// Waits until the virtual machine reaches the wanted state, or has failed and cannot reach it.
    fn wait_until(&self, client: &Client, id: i64, wanted: VmState) -> Outcome {
        let end = Instant::now() + Duration::from_secs(self.patience);
        loop {
            let vm: Vm = client.get(&format!("/v1/vms/{id}")).map_err(with_advice)?;
            // A failed virtual machine can still be stopped or deleted.
            let has_failed = vm.state == VmState::Failed && vm.intent == Intent::Run;
            if vm.state == wanted || has_failed || Instant::now() > end {
                if self.format.json {
                    print::json(&vm)?;
                } else {
                    print_line(&format!("virtual machine {id} ({}): {}", vm.request.name, vm.state))?;
                }
                if vm.state == wanted {
                    return Ok(ExitCode::SUCCESS);
                }
                let why = vm.problem.unwrap_or_else(|| "see the reason with: longma placement audit".into());
                return Err(format!("it is not {wanted} yet: {}", sanitize(&why)).into());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Runs `longma placement list`.
pub fn list(arguments: &ListArguments) -> Outcome {
    let client = arguments.connection.client()?;
    let mut all: Vec<Vm> = Vec::new();
    let mut after = 0;
    loop {
        let mut path = format!("/v1/vms?limit={PAGE}&after={after}&deleted={}", arguments.deleted);
        for (key, value) in [("tenant", &arguments.tenant), ("host", &arguments.host)] {
            path += &value.as_ref().map(|v| format!("&{key}={}", part(v))).unwrap_or_default();
        }
        let page: VmPage = client.get(&path).map_err(with_advice)?;
        all.extend(page.items);
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    if arguments.format.json {
        return print::json(&all);
    }
    if all.is_empty() {
        return print_line("no virtual machines; request one with: longma placement request");
    }
    let mut rows =
        vec![heading(["ID", "TENANT", "NAME", "STATE", "VCPUS", "MEMORY", "CPU", "HOST", "NODES"])];
    rows.extend(all.iter().map(|vm| {
        let (host, nodes) = location(vm);
        let request = &vm.request;
        vec![
            vm.id.to_string(),
            request.tenant.clone(),
            request.name.clone(),
            vm.state.to_string(),
            request.vcpus.to_string(),
            mib(request.memory_mib),
            word(&request.cpu),
            host,
            nodes,
        ]
    }));
    print::table(&rows)
}

/// Formats a virtual machine, one property per row.
fn describe(vm: &Vm) -> Vec<Vec<String>> {
    let request = &vm.request;
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| rows.push(vec![name.into(), value]);
    row("virtual machine", vm.id.to_string());
    row("name", format!("{} of tenant {}", request.name, request.tenant));
    row("state", format!("{}; wanted: {}", vm.state, vm.intent.name()));
    row("size", format!("{} virtual CPUs, {}", request.vcpus, mib(request.memory_mib)));
    row(
        "policies",
        format!(
            "CPUs {}, memory {}, emulator {}",
            word(&request.cpu),
            word(&request.memory),
            word(&request.emulator)
        ),
    );
    for (what, placement) in [("", &vm.placement), ("moving to ", &vm.target)] {
        let Some(placement) = placement else { continue };
        row(&format!("{what}host"), placement.host.clone());
        for (at, cell) in placement.cells.iter().enumerate() {
            let cpus =
                if cell.cpus.is_empty() { "any that is not exclusive".into() } else { listed(&cell.cpus) };
            let memory =
                cell.memory.iter().map(|s| format!("{} on node {}", mib(s.mib), s.node)).collect::<Vec<_>>();
            let text = format!(
                "node {}, {} virtual CPUs on CPUs {cpus}; {}",
                cell.node,
                cell.vcpus,
                memory.join(", ")
            );
            row(&format!("{what}virtual node {at}"), text);
        }
        row(&format!("{what}memory from nodes"), listed(&placement.bound));
        if !placement.devices.is_empty() {
            row(&format!("{what}devices"), placement.devices.join(", "));
        }
    }
    if let Some(problem) = &vm.problem {
        row("problem", problem.clone());
    }
    rows
}

/// Runs `longma placement show`.
pub fn show(one: &VmArguments) -> Outcome {
    let vm: Vm = one.connection.client()?.get(&one.path("")).map_err(with_advice)?;
    one.print(&vm)
}

/// Runs `longma placement start`.
pub fn start(one: &VmArguments) -> Outcome {
    let client = one.connection.client()?;
    let vm: Vm = client.post(&one.path("/start"), None, &()).map_err(with_advice)?;
    one.wait_until(&client, vm.id, VmState::Running)
}

/// Runs `longma placement stop`.
pub fn stop(one: &VmArguments) -> Outcome {
    let client = one.connection.client()?;
    let vm: Vm = client.post(&one.path("/stop"), None, &()).map_err(with_advice)?;
    one.wait_until(&client, vm.id, VmState::Stopped)
}

/// Runs `longma placement delete`.
pub fn delete(arguments: &DeleteArguments) -> Outcome {
    let one = &arguments.one;
    let client = one.connection.client()?;
    let mut path = one.path("");
    if arguments.force {
        path += if path.contains('?') { "&force=true" } else { "?force=true" };
    }
    let vm: Vm = client.delete(&path).map_err(with_advice)?;
    one.wait_until(&client, vm.id, VmState::Deleted)
}

/// Runs `longma placement resize`.
pub fn resize(arguments: &ResizeArguments) -> Outcome {
    let one = &arguments.one;
    if arguments.memory.is_some_and(|bytes| bytes % (1 << 20) != 0) {
        return Err("--memory: give a whole number of MiB".into());
    }
    let body = Resize { vcpus: arguments.vcpus, memory_mib: arguments.memory.map(|bytes| bytes >> 20) };
    let vm: Vm = one.connection.client()?.post(&one.path("/resize"), None, &body).map_err(with_advice)?;
    if one.format.json {
        return print::json(&vm);
    }
    let (host, nodes) = location(&vm);
    let (vcpus, mib) = (vm.request.vcpus, vm.request.memory_mib);
    print_line(&format!(
        "virtual machine {} ({}) has {vcpus} virtual CPUs and {mib} MiB from its next start: {host}, node {nodes}",
        vm.id, vm.request.name
    ))
}

/// Runs `longma placement rebind`.
pub fn rebind(arguments: &RebindArguments) -> Outcome {
    let one = &arguments.one;
    let body = Rebind { nodes: arguments.nodes.clone() };
    let moved = one.connection.client()?.post::<Vm>(&one.path("/rebind"), None, &body);
    let vm = moved.map_err(|error| match error {
        // Do not advise `longma placement explain`: the missing resource is on the VM's own host, and the options of
        // the request are unknown here.
        ClientError::Refused(problem) if problem.kind == ProblemKind::NoRoom => {
            format!("{}", ClientError::Refused(problem)).into()
        }
        error => with_advice(error),
    })?;
    if one.format.json {
        return print::json(&vm);
    }
    let (host, nodes) = location(&vm);
    print_line(&format!("virtual machine {} ({}) moved: {host}, node {nodes}", vm.id, vm.request.name))
}
