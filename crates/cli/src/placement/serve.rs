//! `longma placement serve` and `agent`.
//! Not the service.

use super::Outcome;
use super::reach::token_in;
use clap::ValueEnum;
use longma_placement::fake::FakeHypervisor;
use longma_placement::{CpuSet, Host, Hypervisor, Policy};
use longma_placement_service::agent::{Agent, Description};
use longma_placement_service::libvirt::{Libvirt, Virtualization};
use longma_placement_service::wire::sanitize;
use longma_placement_service::{
    Access, AllInOne, Client, Log, Options, default_data_dir, serve as run_service,
};
use longma_topology::Machine;
use std::error::Error;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// What drives virtual machines.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// libvirt with QEMU, on this machine.
    Libvirt,
    /// Nothing: virtual machines are made up, in memory. For trying it out.
    Fake,
}

/// What a virtual CPU is.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Virtual {
    /// KVM if /dev/kvm can be opened, else software.
    Auto,
    /// KVM.
    Kvm,
    /// QEMU's emulation.
    Software,
}

/// The host and its hypervisor.
#[derive(clap::Args)]
struct HostArguments {
    /// What drives virtual machines [default: libvirt].
    #[arg(long, value_enum)]
    hypervisor: Option<Kind>,
    /// What libvirt's virtual machines run on [default: auto].
    #[arg(long, value_enum)]
    virtualization: Option<Virtual>,
    /// libvirt's address [default: qemu:///system].
    #[arg(long, value_name = "URI")]
    libvirt: Option<String>,
    /// With the fake hypervisor, a machine to take for the host (see `longma machine list`) instead of this one.
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// With the fake hypervisor, a folder that keeps the virtual machines that it makes up, so that they outlive this command.
    #[arg(long, value_name = "FOLDER")]
    domains: Option<PathBuf>,
    /// The host's name [default: this machine's].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// CPUs that the host keeps for itself: 0,64 [default: none].
    #[arg(long, value_name = "LIST")]
    reserved: Option<CpuSet>,
}

/// Arguments of `longma placement serve`.
#[derive(clap::Args)]
pub struct ServeArguments {
    /// Also run this machine's agent.
    #[arg(long)]
    all_in_one: bool,
    #[command(flatten)]
    host: HostArguments,
    /// With the fake hypervisor, so many hosts [default: 1].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    hosts: Option<u32>,
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7420")]
    listen: SocketAddr,
    /// File with the certificate and those that vouch for it (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// File with its key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Listen to other machines without TLS: tokens are sent in the clear unless something else encrypts.
    #[arg(long)]
    plain: bool,
    /// Folder for the database and the first token [default: /var/lib/longma/placement for root, else ~/.local/state/longma/placement].
    #[arg(long, value_name = "FOLDER", env = "LONGMA_PLACEMENT_STATE")]
    state: Option<PathBuf>,
    /// URL of a PostgreSQL database, which several services may share: postgresql://USER:PASSWORD@HOST/NAME [default: a SQLite file in the folder].
    #[arg(long, value_name = "URL", env = "LONGMA_PLACEMENT_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Folder of images: a tenant may start from those in the folder of its name there.
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/libvirt/images")]
    images: PathBuf,
    /// Virtual CPUs of the policies range and none on a hundred CPUs.
    #[arg(long, value_name = "PERCENT", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    overcommit: u32,
}

/// Arguments of `longma placement agent`.
#[derive(clap::Args)]
pub struct AgentArguments {
    /// Address of the service.
    #[arg(long, value_name = "URL", env = "LONGMA_PLACEMENT_URL")]
    server: String,
    /// File with the agent's token: longma placement token add NAME --role agent --host HOST.
    #[arg(long, value_name = "FILE", env = "LONGMA_PLACEMENT_TOKEN_FILE")]
    token_file: PathBuf,
    /// File with the certificate (PEM) to trust [default: the system's].
    #[arg(long, value_name = "FILE", env = "LONGMA_PLACEMENT_CERTIFICATE")]
    certificate: Option<PathBuf>,
    #[command(flatten)]
    host: HostArguments,
}

/// Says something on standard error; whether anybody can read it must change nothing of what the service does.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "longma placement: {}", sanitize(line));
}

/// The service's words.
fn log() -> Log {
    Arc::new(say)
}

impl HostArguments {
    fn own_name(&self) -> String {
        let node = rustix::system::uname();
        self.name.clone().unwrap_or_else(|| node.nodename().to_string_lossy().into_owned())
    }

    fn kind(&self) -> Kind {
        self.hypervisor.unwrap_or(Kind::Libvirt)
    }

    /// Options that were given, which say something of this machine's agent.
    fn given(&self) -> Vec<&'static str> {
        let all = [
            ("--hypervisor", self.hypervisor.is_some()),
            ("--virtualization", self.virtualization.is_some()),
            ("--libvirt", self.libvirt.is_some()),
            ("--machine", self.machine.is_some()),
            ("--domains", self.domains.is_some()),
            ("--name", self.name.is_some()),
            ("--reserved", self.reserved.is_some()),
        ];
        all.into_iter().filter(|option| option.1).map(|option| option.0).collect()
    }

    /// Refuses what would say nothing beside the rest.
    fn check(&self) -> Result<(), Box<dyn Error>> {
        let of_libvirt =
            [("--libvirt", self.libvirt.is_some()), ("--virtualization", self.virtualization.is_some())];
        match of_libvirt.into_iter().find(|option| option.1) {
            Some((option, _)) if self.kind() == Kind::Fake => Err(format!(
                "{option} says how libvirt is used, and --hypervisor fake uses none: leave one of them out"
            )
            .into()),
            _ => Ok(()),
        }
    }

    fn description(&self, name: String) -> Result<Description, Box<dyn Error>> {
        let reserved = self.reserved.clone().unwrap_or_default();
        let Some(machine) = &self.machine else {
            return Ok(Description::Read { root: "/".into(), name, reserved });
        };
        if self.kind() != Kind::Fake {
            return Err("--machine takes a machine file for the host, which needs --hypervisor fake".into());
        }
        let mut host = Host::of_machine(&Machine::open(machine)?, &name)?;
        host.reserved = reserved;
        host.check()?;
        Ok(Description::Fixed(Box::new(host)))
    }

    /// The hypervisor of the host called `name`.
    fn hypervisor(&self, name: &str) -> Result<Box<dyn Hypervisor>, Box<dyn Error>> {
        match (&self.domains, self.kind()) {
            (None, Kind::Fake) => return Ok(Box::new(FakeHypervisor::new())),
            (Some(folder), Kind::Fake) => {
                let file = folder.join(format!("{name}.json"));
                let kept = std::fs::create_dir_all(folder).and_then(|()| FakeHypervisor::kept_in(&file));
                return Ok(Box::new(kept.map_err(|error| format!("{}: {error}", file.display()))?));
            }
            (Some(_), Kind::Libvirt) => {
                return Err("--domains is for --hypervisor fake: libvirt keeps its own".into());
            }
            (None, Kind::Libvirt) => {}
        }
        let virtualization = match self.virtualization {
            None | Some(Virtual::Auto) => Virtualization::found(),
            Some(Virtual::Kvm) => Virtualization::Kvm,
            Some(Virtual::Software) => Virtualization::Software,
        };
        let address = self.libvirt.as_deref().unwrap_or("qemu:///system");
        let libvirt = Libvirt::connect(address, virtualization).map_err(|error| {
            format!(
                "{error}\n  install libvirt and start libvirtd (Debian: apt-get install libvirt-daemon-system qemu-system-x86), \
                 or try it out with --hypervisor fake"
            )
        })?;
        Ok(Box::new(libvirt))
    }
}

impl ServeArguments {
    /// Refuses what would say nothing beside the rest.
    fn check(&self) -> Result<(), Box<dyn Error>> {
        let given = self.host.given().into_iter().chain(self.hosts.map(|_| "--hosts"));
        if let Some(option) = given.into_iter().next().filter(|_| !self.all_in_one) {
            let why = "this machine's agent, and none runs without --all-in-one";
            return Err(
                format!("{option} is for {why}: give it to `longma placement agent` on the host").into()
            );
        }
        if !self.images.is_absolute() {
            let given = self.images.display();
            return Err(format!(
                "--images {given}: images are named by their whole paths: name the folder so, from / on"
            )
            .into());
        }
        if self.hosts.is_some_and(|hosts| hosts > 1) && self.host.kind() != Kind::Fake {
            return Err("--hosts makes hosts up, which needs --hypervisor fake".into());
        }
        self.host.check()
    }

    /// The hosts whose agents run here.
    fn own_hosts(&self) -> Result<Vec<AllInOne>, Box<dyn Error>> {
        let (of, count) = (&self.host, self.hosts.unwrap_or(1));
        let host = |number: u32| {
            let name = match count {
                1 => of.own_name(),
                _ => format!("{}-{number}", of.own_name()),
            };
            let hypervisor = of.hypervisor(&name)?;
            let description = of.description(name)?;
            description.host()?;
            Ok(AllInOne { description, hypervisor })
        };
        (1..=count).filter(|_| self.all_in_one).map(host).collect()
    }
}

/// Runs `longma placement serve`.
pub fn serve(arguments: ServeArguments) -> Outcome {
    arguments.check()?;
    let hosts = arguments.own_hosts()?;
    let options = Options {
        data_dir: arguments.state.unwrap_or_else(default_data_dir),
        database: arguments.database,
        address: arguments.listen,
        tls: arguments.tls_cert.zip(arguments.tls_key),
        plain: arguments.plain,
        images: arguments.images,
        policy: Policy { overcommit_percent: arguments.overcommit, ..Policy::default() },
        hosts,
        log: log(),
    };
    let alone = options.hosts.is_empty();
    run_service(options, |url, home| {
        say(&format!("serving {url}; how to reach it is in {}", Access::file(home).display()));
        if alone {
            say("no agent runs here: start one on each host, or use --all-in-one");
        }
    })
    .map_err(|error| match error {
        longma_placement_service::ServeError::Address(..) => {
            format!("{error}\n  --listen 127.0.0.1:0 takes a free port")
        }
        error => error.to_string(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `longma placement agent`.
pub fn agent(arguments: AgentArguments) -> Outcome {
    let token = token_in(&arguments.token_file)?;
    let access = Access { url: arguments.server, address: None, token, certificate: arguments.certificate };
    arguments.host.check()?;
    let name = arguments.host.own_name();
    let description = arguments.host.description(name.clone())?;
    description.host()?;
    let hypervisor = arguments.host.hypervisor(&name)?;
    say(&format!("agent of {name}, for {}", access.url));
    Agent::remote(Client::new(&access)?, &name, description, hypervisor, log()).run();
    Ok(ExitCode::SUCCESS)
}
