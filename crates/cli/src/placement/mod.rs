//! `longma placement`: the service, its agents, and its client.
//! Not the service: that is `longma-placement-service`; here words are read and answers printed.

mod access;
mod explain;
mod hosts;
mod print;
mod reach;
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
    /// Run the service: API, scheduler, monitor and switcher; with --all-in-one this machine's agent too.
    Serve(serve::ServeArguments),
    /// Run the agent of this host for a service on another machine.
    Agent(serve::AgentArguments),
    /// Ask for a virtual machine.
    Request(request::Arguments),
    /// List virtual machines.
    List(vms::ListArguments),
    /// Show one virtual machine.
    Show(vms::One),
    /// Start a virtual machine that was stopped or has failed.
    Start(vms::One),
    /// Stop a virtual machine; it keeps its place.
    Stop(vms::One),
    /// Delete a virtual machine.
    Delete(vms::One),
    /// Give a stopped virtual machine another size, on its host.
    Resize(vms::ResizeArguments),
    /// Move a running virtual machine to other nodes of its host, live.
    Rebind(vms::RebindArguments),
    /// Say why a request would lie where, and why not elsewhere, host by host and node by node.
    Explain(explain::Arguments),
    /// List hosts: how full and how busy their nodes are.
    Hosts(hosts::HostsArguments),
    /// Let a host take no more virtual machines, or take them again.
    Drain(hosts::DrainArguments),
    /// List alarms.
    Alarms(hosts::AlarmsArguments),
    /// Say what is not as intended: threads, memory, domains, sums.
    Audit(hosts::AuditArguments),
    /// Plan moves that make a host's free memory usable; nothing is moved.
    Defragment(hosts::DefragmentArguments),
    /// Print what happens, as it happens.
    Events(watch::EventsArguments),
    /// Look at the virtual machines of this libvirt host, whoever made them: who runs remote, what it costs, what mends it.
    Watch(watch::WatchArguments),
    /// Tokens: who may call the service.
    Token(access::TokenArguments),
    /// Quotas: what each tenant has and may have.
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
