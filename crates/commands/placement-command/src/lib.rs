//! `longma placement`: runs the service and its agents (`longma-placement-service`), and is the service's command-line
//! client.

mod access;
mod advise;
mod backup;
mod connection;
mod explain;
mod hosts;
mod import;
mod kubernetes;
mod migrate;
mod print;
mod replay;
mod request;
mod serve;
mod vms;
mod watch;

use clap::Subcommand;
use longma_command_line::output::print as print_text;
use std::error::Error;
use std::process::ExitCode;

type Outcome = Result<ExitCode, Box<dyn Error>>;

/// `longma placement ...`
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: PlacementCommand,
}

#[derive(Subcommand)]
enum PlacementCommand {
    /// Run the placement service: API, scheduler, monitor and switcher.
    ///
    /// With --all-in-one, also run the agent of this machine.
    Serve(serve::ServeArguments),
    /// Run the agent of this host, for a service on another machine.
    Agent(serve::AgentArguments),
    /// Request a virtual machine.
    Request(request::Arguments),
    /// List virtual machines.
    List(vms::ListArguments),
    /// Show one virtual machine.
    Show(vms::VmArguments),
    /// Start a stopped or failed virtual machine.
    Start(vms::VmArguments),
    /// Stop a virtual machine. It keeps its placement.
    Stop(vms::VmArguments),
    /// Delete a virtual machine.
    Delete(vms::DeleteArguments),
    /// Change the size of a stopped virtual machine, on the same host.
    Resize(vms::ResizeArguments),
    /// Move a running virtual machine to other NUMA nodes of its host, live.
    Rebind(vms::RebindArguments),
    /// Migrate a running virtual machine to another host, live.
    Migrate(migrate::Arguments),
    /// Explain where a request would be placed, host by host and node by node.
    Explain(explain::Arguments),
    /// List hosts with the allocation and load of their nodes.
    Hosts(hosts::HostsArguments),
    /// Stop placing virtual machines on a host, or resume. With --empty, also move its virtual machines to other hosts.
    Drain(hosts::DrainArguments),
    /// Declare a host dead, so that its virtual machines can be evacuated or deleted by force.
    ///
    /// Refused while the host's agent reports. `drain --undo` reverts it.
    ForceDown(hosts::HostArguments),
    /// Start the virtual machines of a dead host on other hosts.
    ///
    /// The host must have been declared dead (see force-down) and be off or cut off from its virtual machines' disks.
    Evacuate(hosts::EvacuateArguments),
    /// Remove a host without virtual machines, and the tokens of its agents.
    RemoveHost(hosts::HostArguments),
    /// List alarms.
    Alarms(hosts::AlarmsArguments),
    /// Report differences between the intended and the actual state: threads, memory, domains, totals.
    Audit(hosts::AuditArguments),
    /// Plan moves that make fragmented free memory of hosts usable. Does not move virtual machines.
    Defragment(hosts::DefragmentArguments),
    /// Print events as they happen.
    Events(watch::EventsArguments),
    /// Observe all virtual machines of this libvirt host and report remote memory accesses.
    ///
    /// Reports which virtual machines access remote memory, the cost, and the commands that fix it. Also covers virtual
    /// machines that longma did not create.
    Watch(watch::WatchArguments),
    /// Turn a libvirt domain of this host into a virtual machine; it must be shut off and not created by longma.
    ///
    /// The scheduler chooses its host, on which the domain's disks must exist.
    Import(import::Arguments),
    /// Compare placement policies on a modelled fleet and a trace of requests.
    Replay(replay::Arguments),
    /// Advise where the virtual machines of Proxmox or OpenStack should be, from their inventory. Changes nothing.
    Advise(advise::Arguments),
    /// Copy the database of a service on this machine, also while the service runs.
    Backup(backup::Arguments),
    /// Put a backup into a state directory that has no database. The service must not run.
    Restore(backup::Arguments),
    /// Manage access tokens.
    Token(access::TokenArguments),
    /// Show or set the quotas of tenants.
    Quota(access::QuotaArguments),
    /// Print labels with the free CPUs and memory of each NUMA node of this Kubernetes node. Changes nothing.
    KubernetesLabels(kubernetes::Arguments),
    /// Print a Grafana dashboard of the service's metrics, as JSON.
    Dashboard,
    /// List the audit log: each change with its user, client address and result, and refused requests.
    AuditLog(access::AuditLogArguments),
}

/// Runs `longma placement`.
pub fn run(args: Args) -> Outcome {
    match args.command {
        PlacementCommand::Serve(arguments) => serve::serve(arguments),
        PlacementCommand::Agent(arguments) => serve::agent(arguments),
        PlacementCommand::Request(arguments) => request::run(&arguments),
        PlacementCommand::List(arguments) => vms::list(&arguments),
        PlacementCommand::Show(one) => vms::show(&one),
        PlacementCommand::Start(one) => vms::start(&one),
        PlacementCommand::Stop(one) => vms::stop(&one),
        PlacementCommand::Delete(one) => vms::delete(&one),
        PlacementCommand::Resize(arguments) => vms::resize(&arguments),
        PlacementCommand::Rebind(arguments) => vms::rebind(&arguments),
        PlacementCommand::Migrate(arguments) => migrate::run(&arguments),
        PlacementCommand::Explain(arguments) => explain::run(&arguments),
        PlacementCommand::Hosts(arguments) => hosts::hosts(&arguments),
        PlacementCommand::Drain(arguments) => hosts::drain(&arguments),
        PlacementCommand::ForceDown(arguments) => hosts::force_down(&arguments),
        PlacementCommand::Evacuate(arguments) => hosts::evacuate(&arguments),
        PlacementCommand::RemoveHost(arguments) => hosts::remove(&arguments),
        PlacementCommand::Alarms(arguments) => hosts::alarms(&arguments),
        PlacementCommand::Audit(arguments) => hosts::audit(&arguments),
        PlacementCommand::Defragment(arguments) => hosts::defragment(&arguments),
        PlacementCommand::Import(arguments) => import::run(&arguments),
        PlacementCommand::Replay(arguments) => replay::run(&arguments),
        PlacementCommand::Events(arguments) => watch::events(&arguments),
        PlacementCommand::Watch(arguments) => watch::watch(&arguments),
        PlacementCommand::Advise(arguments) => advise::run(&arguments),
        PlacementCommand::Backup(arguments) => backup::backup(&arguments),
        PlacementCommand::Restore(arguments) => backup::restore(&arguments),
        PlacementCommand::Token(arguments) => access::token(&arguments),
        PlacementCommand::Quota(arguments) => access::quota(&arguments),
        PlacementCommand::KubernetesLabels(arguments) => kubernetes::run(arguments),
        PlacementCommand::Dashboard => print_text(longma_placement_service::GRAFANA_DASHBOARD),
        PlacementCommand::AuditLog(arguments) => access::audit_log(&arguments),
    }
}
