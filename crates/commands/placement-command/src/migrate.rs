//! `longma placement migrate`, and the wait of `drain --empty`.

use super::Outcome;
use super::connection::with_advice;
use super::print::{self, location, print_line};
use super::vms::VmArguments;
use longma_placement::inventory::HostStatus;
use longma_placement::store::{Vm, VmState};
use longma_placement_service::Client;
use longma_placement_service::client::{ClientError, part};
use longma_placement_service::wire::{HostView, Migrate, ProblemKind, VmPage};
use longma_text::sanitize;
use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Arguments of `longma placement migrate`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    one: VmArguments,
    /// The host to migrate to [default: the best one].
    #[arg(long, value_name = "HOST")]
    to: Option<String>,
}

/// Waits until a virtual machine no longer migrates.
fn wait(client: &Client, id: i64, patience: u64) -> Result<Vm, Box<dyn Error>> {
    let end = Instant::now() + Duration::from_secs(patience);
    loop {
        let vm: Vm = client.get(&format!("/v1/vms/{id}")).map_err(with_advice)?;
        if vm.state != VmState::Migrating {
            return Ok(vm);
        }
        if Instant::now() > end {
            return Err(
                "the virtual machine is still being migrated; see its state with: longma placement show"
                    .into(),
            );
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Runs `longma placement migrate`.
pub fn run(arguments: &Arguments) -> Outcome {
    let one = &arguments.one;
    let client = one.connection.client()?;
    let before: Vm = client.get(&one.path("")).map_err(with_advice)?;
    let body = Migrate { to: arguments.to.clone() };
    let vm = match client.post::<Vm>(&one.path("/migrate"), None, &body) {
        Err(ClientError::Refused(problem)) if problem.kind == ProblemKind::NoAnswer => {
            let vm = wait(&client, before.id, one.patience)?;
            if location(&vm).0 == location(&before).0 {
                return Err(sanitize(
                    &vm.problem.unwrap_or_else(|| "the virtual machine has stayed on its host".into()),
                )
                .into());
            }
            vm
        }
        // `explain` knows neither its host nor its options.
        Err(ClientError::Refused(problem)) if problem.kind == ProblemKind::NoRoom => {
            return Err(ClientError::Refused(problem).to_string().into());
        }
        answer => answer.map_err(with_advice)?,
    };
    if one.format.json {
        return print::json(&vm);
    }
    let (host, nodes) = location(&vm);
    print_line(&format!("virtual machine {} ({}) migrated: {host}, node {nodes}", vm.id, vm.request.name))
}

/// Waits until a host is empty, and prints each virtual machine that leaves it. Exits with status 1 if some stay.
pub fn wait_until_empty(client: &Client, host: &str, patience: u64) -> Outcome {
    let end = Instant::now() + Duration::from_secs(patience);
    let mut left: BTreeMap<i64, String> = BTreeMap::new();
    loop {
        let page: VmPage =
            client.get(&format!("/v1/vms?limit=1000&host={}", part(host))).map_err(with_advice)?;
        let here = |vm: &Vm| vm.placement.as_ref().is_some_and(|place| place.host == host);
        let now: BTreeMap<i64, String> =
            page.items.iter().filter(|vm| here(vm)).map(|vm| (vm.id, vm.request.name.clone())).collect();
        for (id, name) in left.iter().filter(|(id, _)| !now.contains_key(id)) {
            let vm: Vm = client.get(&format!("/v1/vms/{id}")).map_err(with_advice)?;
            print_line(&format!("virtual machine {id} ({name}) is on {}", location(&vm).0))?;
        }
        left = now;
        if left.is_empty() {
            return print_line(&format!("{host} is empty"));
        }
        let view: HostView = client.get(&format!("/v1/hosts/{}", part(host))).map_err(with_advice)?;
        let stays =
            |id: &i64| view.problems.iter().any(|p| p.starts_with(&format!("virtual machine {id} (")));
        let is_emptying = view.status == HostStatus::Emptying;
        if !is_emptying || left.keys().all(stays) || Instant::now() > end {
            view.problems.iter().try_for_each(|problem| print_line(problem).map(drop))?;
            let count = left.len();
            print_line(&match is_emptying {
                true => format!("{count} virtual machines are still on {host}; the service keeps trying"),
                false => {
                    format!(
                        "{count} virtual machines are still on {host}, and the service no longer moves them"
                    )
                }
            })?;
            return Ok(ExitCode::FAILURE);
        }
        std::thread::sleep(Duration::from_millis(300));
    }
}
