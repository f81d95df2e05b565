//! `longma placement serve` and `longma placement agent`.

use super::Outcome;
use super::connection::{read_token, warn_if_token_is_visible};
use clap::ValueEnum;
use longma_command_line::size;
use longma_placement::fake::{FakeHypervisor, FakeNetwork};
use longma_placement::scheduler::{Overhead, Weights};
use longma_placement::{CpuSet, Host, Hypervisor, Policy};
use longma_placement_service::agent::{Agent, Description, MemoryReserve};
use longma_placement_service::libvirt::{Libvirt, Virtualization, check_migration_uri};
use longma_placement_service::{
    Access, AllInOne, Client, Log, OidcOptions, Options, default_data_dir, fleet_file, serve as run_service,
};
use longma_text::sanitize;
use std::error::Error;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// The hypervisor.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// libvirt with QEMU on this machine.
    Libvirt,
    /// Simulated virtual machines, in memory; for trying the service out.
    Fake,
}

/// The hypervisor's way to execute virtual CPUs.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Virtual {
    /// KVM if /dev/kvm can be opened and a guest runs on it, otherwise QEMU's software emulation.
    Auto,
    /// KVM.
    Kvm,
    /// QEMU's software emulation.
    Software,
}

/// Options that describe the host and its hypervisor.
#[derive(clap::Args)]
struct HostArguments {
    /// The hypervisor [default: libvirt].
    #[arg(long, value_enum)]
    hypervisor: Option<Kind>,
    /// How libvirt executes virtual CPUs [default: auto].
    #[arg(long, value_enum)]
    virtualization: Option<Virtual>,
    /// Connection URI of libvirt [default: qemu:///system].
    #[arg(long, value_name = "URI")]
    libvirt: Option<String>,
    /// URI under which the libvirt of other hosts reaches this one, for migrations, for example qemu+tls://host1/system
    /// [default: none; the host takes part in no migrations].
    #[arg(long, value_name = "URI", value_parser = migration_uri)]
    migration_uri: Option<String>,
    /// Take the host's topology from this machine instead (see `longma machine list`). Needs --hypervisor fake.
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
    /// Give a key of the machine another value, such as chips.cpu.count=2. May be repeated.
    #[arg(long, value_name = "KEY=VALUE", requires = "machine")]
    set: Vec<longma_lab::MachineEdit>,
    /// Keep simulated virtual machines in this directory across restarts. Needs --hypervisor fake.
    #[arg(long, value_name = "FOLDER")]
    domains: Option<PathBuf>,
    /// The host's name [default: this machine's].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// CPUs reserved for the host, for example 0,64 [default: none].
    #[arg(long, value_name = "LIST")]
    reserved: Option<CpuSet>,
    /// Memory reserved for the host: a size, divided among its nodes, or a size for single nodes, for example
    /// 0=4GiB,1=512MiB [default: an eighth of each node, at most 2 GiB].
    #[arg(long, value_name = "SIZE|LIST", value_parser = memory_reserve)]
    reserved_memory: Option<MemoryReserve>,
}

/// Memory that a virtual machine uses on libvirt hosts in addition to its guest memory. QEMU 7.2 without a guest uses 21 MiB
/// of private memory, 12 MiB of program files and 0.5 MiB per virtual CPU; disks, network and a running guest use more.
const LIBVIRT_OVERHEAD: Overhead = Overhead { fixed_mib: 48, vcpu_mib: 4 };

fn migration_uri(text: &str) -> Result<String, String> {
    check_migration_uri(text).map(|()| text.into())
}

fn whole_mib(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes % (1 << 20) == 0 => Ok(bytes >> 20),
        _ => Err("give a whole number of MiB".into()),
    }
}

fn overhead_mib(text: &str) -> Result<u32, String> {
    u32::try_from(whole_mib(text)?).ok().filter(|mib| *mib <= 1 << 20).ok_or_else(|| "at most 1 TiB".into())
}

/// Parses the value of `--reserved-memory`.
pub fn memory_reserve(text: &str) -> Result<MemoryReserve, String> {
    if !text.contains('=') {
        return whole_mib(text).map(MemoryReserve::Host);
    }
    let mut nodes = std::collections::BTreeMap::new();
    for part in text.split(',') {
        let (node, mib) = part.split_once('=').ok_or_else(|| format!("{part:?} is not NODE=SIZE"))?;
        let node = node.parse().map_err(|_| format!("{node:?} is not the number of a node"))?;
        if nodes.insert(node, whole_mib(mib)?).is_some() {
            return Err(format!("node {node} is named twice"));
        }
    }
    Ok(MemoryReserve::Nodes(nodes))
}

/// Maximum number of simulated hosts, each with an agent in this process.
const MAX_SIMULATED: usize = 1000;

/// Arguments of `longma placement serve`.
#[derive(clap::Args)]
pub struct ServeArguments {
    /// Also run the agent of this machine.
    #[arg(long)]
    all_in_one: bool,
    #[command(flatten)]
    host: HostArguments,
    /// Number of simulated hosts [default: 1]. Needs --hypervisor fake.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    hosts: Option<u32>,
    /// Simulate the hosts that this TOML file lists, up to 1000, and their virtual machines.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["hosts", "machine", "name", "reserved", "reserved_memory", "libvirt", "migration_uri", "virtualization"])]
    fleet: Option<PathBuf>,
    /// Address to listen on; port 0 picks a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7420")]
    listen: SocketAddr,
    /// PEM file with the certificate chain.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Accept connections from other machines without TLS.
    ///
    /// Tokens are then sent unencrypted, unless a proxy or tunnel encrypts the connection.
    #[arg(long)]
    plain: bool,
    /// Directory for the database and the first token [default: /var/lib/longma/placement for root, else
    /// ~/.local/state/longma/placement].
    #[arg(long, value_name = "FOLDER", env = "LONGMA_PLACEMENT_STATE")]
    state: Option<PathBuf>,
    /// PostgreSQL database, as postgresql://USER:PASSWORD@HOST/NAME [default: a SQLite file in the state directory].
    ///
    /// Several services may share a database.
    #[arg(long, value_name = "URL", env = "LONGMA_PLACEMENT_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// Directory of disk images. A tenant may boot images in the subdirectory that has the tenant's name.
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/libvirt/images")]
    images: PathBuf,
    /// Virtual CPUs with policy `range` or `none` per 100 physical CPUs.
    #[arg(long, value_name = "PERCENT", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    overcommit: u32,
    /// Prefer nodes on which other virtual machines stay as long, for requests with an expected lifetime.
    #[arg(long)]
    weigh_lifetimes: bool,
    /// Memory that each virtual machine uses in addition to its guest memory [default: 48MiB; 0 with --hypervisor fake].
    #[arg(long, value_name = "SIZE", value_parser = overhead_mib)]
    vm_overhead: Option<u32>,
    /// Memory that each virtual machine uses in addition for each of its virtual CPUs [default: 4MiB; 0 with --hypervisor fake].
    #[arg(long, value_name = "SIZE", value_parser = overhead_mib)]
    vcpu_overhead: Option<u32>,
    /// TOML file that names an OpenID Connect provider whose tokens are accepted, and which roles they get.
    #[arg(long, value_name = "FILE")]
    oidc: Option<PathBuf>,
    /// How long to keep deleted virtual machines, events, cleared alarms, the audit log and expired tokens; 0 keeps them forever.
    #[arg(long, value_name = "DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(0..=36_500))]
    retention: u32,
}

/// Arguments of `longma placement agent`.
#[derive(clap::Args)]
pub struct AgentArguments {
    /// Address of the service.
    #[arg(long, value_name = "URL", env = "LONGMA_PLACEMENT_URL")]
    server: String,
    /// File with the agent's token, made with `longma placement token add NAME --role agent --host HOST`.
    #[arg(long, value_name = "FILE", env = "LONGMA_PLACEMENT_TOKEN_FILE")]
    token_file: PathBuf,
    /// PEM file with the certificate to trust [default: the system's certificates].
    #[arg(long, value_name = "FILE", env = "LONGMA_PLACEMENT_CERTIFICATE")]
    certificate: Option<PathBuf>,
    #[command(flatten)]
    host: HostArguments,
}

/// Writes a line to standard error. Write errors are ignored, so that a closed standard error does not stop the
/// service.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "longma placement: {}", sanitize(line));
}

/// The service's log: standard error.
fn log() -> Log {
    Arc::new(print_line)
}

impl HostArguments {
    fn host_name(&self) -> String {
        let node = rustix::system::uname();
        self.name.clone().unwrap_or_else(|| node.nodename().to_string_lossy().into_owned())
    }

    fn kind(&self) -> Kind {
        self.hypervisor.unwrap_or(Kind::Libvirt)
    }

    /// The host options present on the command line.
    fn given_options(&self) -> Vec<&'static str> {
        let all = [
            ("--hypervisor", self.hypervisor.is_some()),
            ("--virtualization", self.virtualization.is_some()),
            ("--libvirt", self.libvirt.is_some()),
            ("--migration-uri", self.migration_uri.is_some()),
            ("--machine", self.machine.is_some()),
            ("--domains", self.domains.is_some()),
            ("--name", self.name.is_some()),
            ("--reserved", self.reserved.is_some()),
            ("--reserved-memory", self.reserved_memory.is_some()),
        ];
        all.into_iter().filter(|option| option.1).map(|option| option.0).collect()
    }

    /// Rejects options that have no effect together with the others.
    fn check(&self) -> Result<(), Box<dyn Error>> {
        let of_libvirt = [
            ("--libvirt", self.libvirt.is_some()),
            ("--migration-uri", self.migration_uri.is_some()),
            ("--virtualization", self.virtualization.is_some()),
        ];
        match of_libvirt.into_iter().find(|option| option.1) {
            Some((option, _)) if self.kind() == Kind::Fake => {
                Err(format!("{option} has no effect with --hypervisor fake: leave one of them out").into())
            }
            _ => Ok(()),
        }
    }

    fn description(&self, name: String) -> Result<Description, Box<dyn Error>> {
        let reserved = self.reserved.clone().unwrap_or_default();
        let Some(machine) = &self.machine else {
            let reserved_memory = self.reserved_memory.clone().unwrap_or_default();
            return Ok(Description::Read { root: "/".into(), name, reserved, reserved_memory });
        };
        if self.kind() != Kind::Fake {
            return Err("--machine replaces the host's topology, which needs --hypervisor fake".into());
        }
        let mut host = Host::of_machine(&longma_lab::open_machine(machine, &self.set)?, &name)?;
        host.reserved = reserved;
        if let Some(reserve) = &self.reserved_memory {
            reserve.apply(&mut host)?;
        }
        host.check()?;
        Ok(Description::Fixed(Box::new(host)))
    }

    /// The simulated hypervisor of the host `name`.
    fn fake(&self, name: &str, network: &FakeNetwork) -> Result<Box<dyn Hypervisor>, Box<dyn Error>> {
        let Some(folder) = &self.domains else {
            return Ok(Box::new(network.connect(name, FakeHypervisor::new())));
        };
        let file = folder.join(format!("{name}.json"));
        let kept = std::fs::create_dir_all(folder).and_then(|()| FakeHypervisor::with_file(&file));
        let kept = kept.map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(Box::new(network.connect(name, kept)))
    }

    /// Connects to the hypervisor of the host `name`. Simulated ones are on `network`.
    fn hypervisor(&self, name: &str, network: &FakeNetwork) -> Result<Box<dyn Hypervisor>, Box<dyn Error>> {
        match (&self.domains, self.kind()) {
            (_, Kind::Fake) => return self.fake(name, network),
            (Some(_), Kind::Libvirt) => {
                return Err("--domains is for --hypervisor fake: libvirt stores its domains itself".into());
            }
            (None, Kind::Libvirt) => {}
        }
        let virtualization = match self.virtualization {
            None | Some(Virtual::Auto) => {
                let (found, why) = Virtualization::detect();
                if let Some(why) = why {
                    print_line(&format!(
                        "/dev/kvm opens, but {why}: QEMU's software emulation is used, which is slow; enable \
                         virtualization in the firmware, or nested virtualization on the outer host, or insist \
                         with --virtualization kvm"
                    ));
                }
                found
            }
            Some(Virtual::Kvm) => Virtualization::Kvm,
            Some(Virtual::Software) => Virtualization::Software,
        };
        let address = self.libvirt.as_deref().unwrap_or("qemu:///system");
        let libvirt = Libvirt::connect(address, virtualization).map_err(|error| {
            format!(
                "{error}\n  install libvirt and start libvirtd (Debian: apt-get install libvirt-daemon-system qemu-system-x86), \
                 or try the service with --hypervisor fake"
            )
        })?;
        Ok(Box::new(libvirt.with_migration_uri(self.migration_uri.clone())))
    }
}

impl ServeArguments {
    /// Rejects options that have no effect together with the others.
    fn check(&self) -> Result<(), Box<dyn Error>> {
        if self.fleet.is_some() && self.host.hypervisor == Some(Kind::Libvirt) {
            return Err("--fleet simulates hosts and virtual machines: leave out --hypervisor libvirt".into());
        }
        let given_options = self.host.given_options().into_iter().chain(self.hosts.map(|_| "--hosts"));
        if let Some(option) =
            given_options.into_iter().next().filter(|_| !self.all_in_one && self.fleet.is_none())
        {
            let why = "the agent of this machine, which runs only with --all-in-one";
            return Err(
                format!("{option} is for {why}: give it to `longma placement agent` on the host").into()
            );
        }
        if !self.images.is_absolute() {
            let images = self.images.display();
            return Err(format!("--images {images}: give an absolute path").into());
        }
        if self.hosts.is_some_and(|hosts| hosts > 1) && self.host.kind() != Kind::Fake {
            return Err("--hosts simulates hosts, which needs --hypervisor fake".into());
        }
        self.host.check()
    }

    fn policy(&self) -> Policy {
        // Simulated virtual machines use no memory.
        let is_simulated = self.fleet.is_some() || self.all_in_one && self.host.kind() == Kind::Fake;
        let default_overhead = match is_simulated {
            true => Overhead::default(),
            false => LIBVIRT_OVERHEAD,
        };
        let overhead = Overhead {
            fixed_mib: self.vm_overhead.unwrap_or(default_overhead.fixed_mib),
            vcpu_mib: self.vcpu_overhead.unwrap_or(default_overhead.vcpu_mib),
        };
        let weights = if self.weigh_lifetimes { Weights::with_lifetimes() } else { Weights::default() };
        Policy { overcommit_percent: self.overcommit, overhead, weights, ..Policy::default() }
    }

    /// The hosts whose agents run in this process.
    fn local_hosts(&self) -> Result<Vec<AllInOne>, Box<dyn Error>> {
        let (host_arguments, count) = (&self.host, self.hosts.unwrap_or(1));
        let network = FakeNetwork::default();
        if let Some(file) = &self.fleet {
            let hosts = fleet_file::open(file)?.hosts;
            if hosts.len() > MAX_SIMULATED {
                return Err(format!(
                    "{}: has {} hosts; at most {MAX_SIMULATED} can be simulated",
                    file.display(),
                    hosts.len()
                )
                .into());
            }
            let simulated = |host: Host| {
                let hypervisor = host_arguments.fake(&host.name, &network)?;
                Ok(AllInOne { description: Description::Fixed(Box::new(host)), hypervisor })
            };
            return hosts.into_iter().map(simulated).collect();
        }
        let host = |number: u32| {
            let name = match count {
                1 => host_arguments.host_name(),
                _ => format!("{}-{number}", host_arguments.host_name()),
            };
            let hypervisor = host_arguments.hypervisor(&name, &network)?;
            let description = host_arguments.description(name)?;
            description.host()?;
            Ok(AllInOne { description, hypervisor })
        };
        (1..=count).filter(|_| self.all_in_one).map(host).collect()
    }
}

/// Runs `longma placement serve`.
pub fn serve(arguments: ServeArguments) -> Outcome {
    arguments.check()?;
    let (hosts, policy) = (arguments.local_hosts()?, arguments.policy());
    let oidc = arguments.oidc.as_deref().map(OidcOptions::open).transpose()?;
    let options = Options {
        data_dir: arguments.state.unwrap_or_else(default_data_dir),
        database: arguments.database,
        address: arguments.listen,
        tls: arguments.tls_cert.zip(arguments.tls_key),
        plain: arguments.plain,
        images: arguments.images,
        policy,
        retention: (arguments.retention > 0).then(|| Duration::from_secs(24 * 3600) * arguments.retention),
        oidc,
        hosts,
        log: log(),
    };
    let has_no_agent = options.hosts.is_empty();
    run_service(options, |url, home| {
        print_line(&format!(
            "serving {url}; clients on this machine find it through {}",
            Access::file(home).display()
        ));
        if has_no_agent {
            print_line("no agent runs in this process: start one on each host, or use --all-in-one");
        }
    })
    .map_err(|error| match error {
        longma_placement_service::ServeError::Address(..) => {
            format!("{error}\n  --listen 127.0.0.1:0 picks a free port")
        }
        error => error.to_string(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `longma placement agent`.
pub fn agent(arguments: AgentArguments) -> Outcome {
    let token = read_token(&arguments.token_file)?;
    let access = Access { url: arguments.server, address: None, token, certificate: arguments.certificate };
    arguments.host.check()?;
    let name = arguments.host.host_name();
    let description = arguments.host.description(name.clone())?;
    description.host()?;
    let hypervisor = arguments.host.hypervisor(&name, &FakeNetwork::default())?;
    print_line(&format!("agent of {name}, for {}", access.url));
    let client = Client::new(&access)?;
    warn_if_token_is_visible(&client);
    Agent::remote(client, &name, description, hypervisor, log()).run();
    Ok(ExitCode::SUCCESS)
}
