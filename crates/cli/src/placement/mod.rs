//! `longma placement`: runs the service and its agents (`longma-placement-service`), and is the service's command-line
//! client.

mod access;
mod connection;
mod explain;
mod hosts;
mod print;
mod request;
mod serve;
mod vms;
mod watch;

use clap::Subcommand;
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
    Delete(vms::VmArguments),
    /// Change the size of a stopped virtual machine, on the same host.
    Resize(vms::ResizeArguments),
    /// Move a running virtual machine to other NUMA nodes of its host, live.
    Rebind(vms::RebindArguments),
    /// Explain where a request would be placed, host by host and node by node.
    Explain(explain::Arguments),
    /// List hosts with the allocation and load of their nodes.
    Hosts(hosts::HostsArguments),
    /// Stop placing virtual machines on a host, or resume.
    Drain(hosts::DrainArguments),
    /// List alarms.
    Alarms(hosts::AlarmsArguments),
    /// Report differences between the intended and the actual state: threads, memory, domains, totals.
    Audit(hosts::AuditArguments),
    /// Plan moves that make fragmented free memory of hosts usable. Moves nothing.
    Defragment(hosts::DefragmentArguments),
    /// Print events as they happen.
    Events(watch::EventsArguments),
    /// Observe all virtual machines of this libvirt host and report remote memory accesses.
    ///
    /// Reports which virtual machines access remote memory, the cost, and the commands that fix it. Also covers virtual
    /// machines that longma did not create.
    Watch(watch::WatchArguments),
    /// Manage access tokens.
    Token(access::TokenArguments),
    /// Show or set the quotas of tenants.
    Quota(access::QuotaArguments),
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
        PlacementCommand::Explain(arguments) => explain::run(&arguments),
        PlacementCommand::Hosts(arguments) => hosts::hosts(&arguments),
        PlacementCommand::Drain(arguments) => hosts::drain(&arguments),
        PlacementCommand::Alarms(arguments) => hosts::alarms(&arguments),
        PlacementCommand::Audit(arguments) => hosts::audit(&arguments),
        PlacementCommand::Defragment(arguments) => hosts::defragment(&arguments),
        PlacementCommand::Events(arguments) => watch::events(&arguments),
        PlacementCommand::Watch(arguments) => watch::watch(&arguments),
        PlacementCommand::Token(arguments) => access::token(&arguments),
        PlacementCommand::Quota(arguments) => access::quota(&arguments),
    }
}
