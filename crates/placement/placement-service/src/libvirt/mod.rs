//! A hypervisor implementation for libvirt. It runs the command `virsh`, because a child process that hangs can be
//! killed, and because the Rust bindings of the library would pin other crates to old versions.
//!
//! Source: libvirt's manuals: virsh(1), "Domain XML format". Which properties can be changed live was tested with
//! libvirt 9.0.

mod domain;
mod emulation;
mod image;
mod import;
mod locality;
mod migrate;
mod probe;
mod process;
mod tree;
mod virsh;

pub use import::{Imported, import};
pub use locality::{Locality, survey};
pub use migrate::check_migration_uri;

use longma_placement::hypervisor::{
    Destination, Domain, DomainEntry, DomainState, HypervisorError, Outgoing, ShutdownDeadline,
};
use longma_placement::placement::Share;
use longma_placement::request::Boot;
use longma_placement::{CpuSet, Hypervisor};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};
use virsh::{Fault, Virsh};

/// Returns why a text is not a valid domain template.
pub(crate) fn template_problem(xml: &str) -> Option<String> {
    domain::template(xml).err()
}

/// Number of domains described by one virsh call.
const DOMAINS_PER_CALL: usize = 100;
/// Timeout for starting, which allocates all memory of a virtual machine.
const START_TIMEOUT: Duration = Duration::from_secs(300);
/// Timeout for stopping. libvirt waits 15 s for QEMU to exit before it kills it.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval before another attempt after a guest did not release a virtual CPU. Each attempt blocks for 5 s.
const UNPLUG_RETRY_DELAY: Duration = Duration::from_secs(300);

/// How guest instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Virtualization {
    /// By the processor, with KVM.
    Kvm,
    /// By QEMU's emulator.
    Software,
}

/// libvirt on this machine.
#[derive(Debug)]
pub struct Libvirt {
    virsh: Virsh,
    virtualization: Virtualization,
    /// Domains whose number of virtual CPUs could not be changed, and the time of the attempt.
    uncounted: BTreeMap<String, Instant>,
    /// URI under which other hosts' libvirtd reaches this one.
    migration_uri: Option<String>,
    /// Domains whose migration this process has begun.
    sent: BTreeSet<String>,
    connected_at: Instant,
}

impl Libvirt {
    /// Connects to libvirt at a URI such as "qemu:///system".
    ///
    /// # Errors
    /// If virsh is not installed or libvirt does not answer.
    pub fn connect(uri: &str, virtualization: Virtualization) -> Result<Self, HypervisorError> {
        let virsh = Virsh::new(uri);
        virsh.run(&["version", "--daemon"]).map_err(|fault| HypervisorError::Unreachable(fault.text()))?;
        Ok(Self {
            virsh,
            virtualization,
            uncounted: BTreeMap::new(),
            migration_uri: None,
            sent: BTreeSet::new(),
            connected_at: Instant::now(),
        })
    }

    /// Runs virsh for a domain. An error for which `is_done_already` returns true is treated as success.
    fn call(
        &self,
        what: &str,
        arguments: &[&str],
        timeout: Duration,
        is_done_already: fn(&Fault) -> bool,
    ) -> Result<(), HypervisorError> {
        match self.virsh.run_for(arguments, None, timeout) {
            Ok(_) => Ok(()),
            Err(fault) if is_done_already(&fault) => Ok(()),
            Err(fault) => Err(fault.error(what)),
        }
    }

    /// All domains with their XML. They are addressed by UUID: a name may contain spaces and quotes, begin with a dash,
    /// or look like another domain's ID.
    fn found(&self) -> Result<(Vec<Found>, States), HypervisorError> {
        let call = ["list --all --uuid", LIST_STATES].join("; ");
        let text = self.virsh.run(&[&call]).map_err(|f| f.error("list domains"))?;
        let (all, states) = States::read(&text);
        let mut described = Vec::new();
        for some in uuids(all).chunks(DOMAINS_PER_CALL) {
            described.extend(self.xmls(some)?);
        }
        let found = |xml: tree::Element| {
            let listed = DomainEntry {
                name: domain::name_of(&xml).into(),
                vm: domain::vm_of(&xml),
                database: domain::database_of(&xml),
                created_at: domain::created_at_of(&xml),
            };
            (listed, xml)
        };
        Ok((described.into_iter().map(found).collect(), states))
    }

    /// Reads the XML of several domains with one call, because a call is slow on some hosts. Domains that have
    /// disappeared are left out.
    fn xmls(&self, uuids: &[String]) -> Result<Vec<tree::Element>, HypervisorError> {
        let commands: Vec<String> = uuids.iter().map(|uuid| format!("dumpxml --domain {uuid}")).collect();
        let together = match self.virsh.run(&[&commands.join("; ")]) {
            Ok(text) => domain::parse_domains(&text),
            Err(fault @ Fault::Unavailable(_)) => return Err(fault.error("describe domains")),
            Err(Fault::Message(_)) => Vec::new(),
        };
        let mut described: BTreeMap<String, tree::Element> =
            together.into_iter().map(|xml| (domain::uuid_of(&xml).to_string(), xml)).collect();
        let mut all = Vec::new();
        for uuid in uuids {
            // If a domain has disappeared or its XML is invalid, query it separately.
            all.extend(match described.remove(uuid) {
                Some(xml) => Some(xml),
                None => self.dump(uuid)?.filter(|xml| domain::uuid_of(xml) == uuid),
            });
        }
        Ok(all)
    }

    /// State of a domain from its XML, the kernel and libvirt's lists.
    fn actual(
        &self,
        name: &str,
        xml: &tree::Element,
        states: &States,
    ) -> Result<DomainState, HypervisorError> {
        let mut actual = actual(name, xml)?;
        let uuid = domain::uuid_of(xml);
        actual.transient = states.transient.iter().any(|one| one == uuid);
        if states.paused.iter().any(|one| one == uuid) {
            let state = self.virsh.run(&["domstate", "--domain", uuid, "--reason"]);
            // The domain may have been resumed or stopped in the meantime.
            actual.paused = state.ok().and_then(|state| {
                let reason = state.trim().strip_prefix("paused")?.trim();
                Some(reason.trim_start_matches('(').trim_end_matches(')').to_string())
            });
        }
        Ok(actual)
    }

    /// XML of the domain with this name, live if it runs; `None` if it does not exist.
    fn xml(&self, name: &str) -> Result<Option<tree::Element>, HypervisorError> {
        Ok(self.dump(name)?.filter(|xml| domain::name_of(xml) == name))
    }

    /// XML of the domain that virsh finds by this ID, UUID or name.
    fn dump(&self, domain: &str) -> Result<Option<tree::Element>, HypervisorError> {
        let what = format!("describe {domain}");
        match self.virsh.run(&["dumpxml", "--domain", domain]) {
            Ok(text) => match tree::parse(&text) {
                Ok(element) => Ok(Some(element)),
                Err(why) => Err(HypervisorError::Refused { what, why }),
            },
            Err(fault) if fault.is_no_domain() => Ok(None),
            Err(fault) => Err(fault.error(&what)),
        }
    }
}

/// A list entry with the domain's XML.
type Found = (DomainEntry, tree::Element);

/// Lists paused and transient domains, which the XML does not show. Appended to other commands.
const LIST_STATES: &str =
    "echo /paused; list --state-paused --uuid; echo /transient; list --transient --uuid; echo /end";

/// UUIDs that virsh printed, one per line. Strict, because they become part of a command line.
fn uuids(text: &str) -> Vec<String> {
    let digit = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    let lines = text.lines().map(str::trim).filter(|line| line.len() == 36 && line.bytes().all(digit));
    lines.map(str::to_string).collect()
}

/// UUIDs of paused and of transient domains.
#[derive(Debug, Default, PartialEq, Eq)]
struct States {
    paused: Vec<String>,
    transient: Vec<String>,
}

impl States {
    /// Parses the output of [`LIST_STATES`]. Also returns the text before it, and ignores the text after it.
    fn read(text: &str) -> (&str, Self) {
        let (before, rest) = text.split_once("/paused").unwrap_or((text, ""));
        let (paused, rest) = rest.split_once("/transient").unwrap_or((rest, ""));
        let transient = rest.split("/end").next().unwrap_or_default();
        (before, Self { paused: uuids(paused), transient: uuids(transient) })
    }
}

/// State of a domain from its XML and the kernel.
fn actual(name: &str, xml: &tree::Element) -> Result<DomainState, HypervisorError> {
    let mut actual = domain::actual(xml)
        .map_err(|why| HypervisorError::Refused { what: format!("describe {name}"), why })?;
    if actual.running
        && let Some(pid) = process::pid_of_domain(name)
    {
        let cells = domain::cell_bytes(xml);
        // If the process is not visible (libvirt on another machine, insufficient rights), skip the comparison.
        actual.memory_mib = process::guest_memory(pid, &cells).unwrap_or_default();
        actual.misplaced_vcpus = process::misplaced_vcpus(Path::new("/"), pid, &actual.pins.vcpus);
        let misplaced = process::misplaced_io_threads(Path::new("/"), pid, &actual.io_threads);
        actual.io_threads.extend(misplaced);
    }
    Ok(actual)
}

fn never(_: &Fault) -> bool {
    false
}

impl Hypervisor for Libvirt {
    fn set_shutdown_deadline(&mut self, shutdown_deadline: &ShutdownDeadline) {
        self.virsh.set_shutdown_deadline(shutdown_deadline);
    }

    fn list(&mut self) -> Result<Vec<DomainEntry>, HypervisorError> {
        Ok(self.found()?.0.into_iter().map(|(listed, _)| listed).collect())
    }

    fn survey(&mut self) -> Result<Vec<(DomainEntry, Option<DomainState>)>, HypervisorError> {
        let (found, states) = self.found()?;
        let mut all = Vec::new();
        for (listed, xml) in found {
            let actual = match (listed.vm, self.actual(&listed.name, &xml, &states)) {
                (Some(_), actual) => Some(actual?),
                // The XML of a foreign domain may contain elements that this driver cannot parse.
                (None, actual) => actual.ok(),
            };
            all.push((listed, actual));
        }
        Ok(all)
    }

    fn inspect(&mut self, name: &str) -> Result<Option<DomainState>, HypervisorError> {
        let Some(xml) = self.xml(name)? else { return Ok(None) };
        let states = self.virsh.run(&[LIST_STATES]).map_err(|f| f.error("list domains"))?;
        self.actual(name, &xml, &States::read(&states).1).map(Some)
    }

    fn cpu_seconds(&mut self, name: &str) -> Result<Option<f64>, HypervisorError> {
        Ok(process::pid_of_domain(name).and_then(process::cpu_seconds))
    }

    fn define(&mut self, wanted: &Domain) -> Result<(), HypervisorError> {
        let what = format!("define {}", wanted.name);
        let refused = |why: String| HypervisorError::Refused { what: what.clone(), why };
        // A redefined domain keeps its UUID, by which libvirt and the guest identify it.
        let uuid = match self.xml(&wanted.name)? {
            Some(xml) if domain::vm_of(&xml) != Some(wanted.vm) => {
                return Err(refused(
                    "a domain of this name exists that the service did not create: rename \
                    or undefine it"
                        .into(),
                ));
            }
            Some(xml) if domain::database_of(&xml).is_some_and(|other| other != wanted.database) => {
                return Err(refused(
                    "a domain of this name belongs to another database: undefine it there".into(),
                ));
            }
            Some(xml) if domain::created_at_of(&xml).is_some_and(|at| at != wanted.created_at) => {
                let why = "a domain of this name belongs to a virtual machine that the database has lost: \
                    undefine it if it is no longer needed";
                return Err(refused(why.into()));
            }
            found => found.map(|xml| domain::uuid_of(&xml).to_string()),
        };
        if let Boot::Disk { path, format } = &wanted.request.boot {
            image::check(Path::new(path), format).map_err(refused)?;
        }
        let xml = domain::write(wanted, self.virtualization, uuid.as_deref()).map_err(refused)?;
        let defined = self.virsh.run_for(
            &["define", "--file", "/dev/stdin", "--validate"],
            Some(&xml),
            virsh::CALL_TIMEOUT,
        );
        defined.map(drop).map_err(|fault| fault.error(&what))
    }

    fn start(&mut self, name: &str) -> Result<(), HypervisorError> {
        self.uncounted.remove(name);
        self.call(&format!("start {name}"), &["start", "--domain", name], START_TIMEOUT, Fault::is_running)
    }

    fn stop(&mut self, name: &str) -> Result<(), HypervisorError> {
        let so = |fault: &Fault| fault.is_not_running() || fault.is_no_domain();
        self.call(&format!("stop {name}"), &["destroy", "--domain", name], STOP_TIMEOUT, so)
    }

    fn undefine(&mut self, name: &str) -> Result<(), HypervisorError> {
        let arguments = [
            "undefine",
            "--domain",
            name,
            "--managed-save",
            "--snapshots-metadata",
            "--checkpoints-metadata",
            "--nvram",
        ];
        self.call(&format!("undefine {name}"), &arguments, virsh::CALL_TIMEOUT, Fault::is_no_domain)
    }

    fn resume(&mut self, name: &str) -> Result<(), HypervisorError> {
        let so = |fault: &Fault| fault.is_running();
        self.call(&format!("resume {name}"), &["resume", "--domain", name], virsh::CALL_TIMEOUT, so)
    }

    fn persist(&mut self, domain: &Domain) -> Result<(), HypervisorError> {
        // With the same UUID, libvirt redefines the domain without stopping it.
        self.define(domain)
    }

    fn remove_cpu_limits(&mut self, name: &str) -> Result<(), HypervisorError> {
        let cpu_limits = self.xml(name)?.map(|xml| domain::cpu_limits(&xml)).unwrap_or_default();
        for bound in cpu_limits.keys() {
            let free = match &**bound {
                "shares" => format!("cpu_shares={}", domain::default_shares()),
                "quota" => "vcpu_quota=-1".into(),
                other => format!("{other}=-1"),
            };
            let arguments = ["schedinfo", "--domain", name, "--live", "--set", &free];
            self.call(&format!("give CPU time to {name}"), &arguments, virsh::CALL_TIMEOUT, never)?;
        }
        Ok(())
    }

    fn pin_vcpu(&mut self, name: &str, vcpu: u32, cpus: &CpuSet) -> Result<(), HypervisorError> {
        let (number, list) = (vcpu.to_string(), cpus.to_string());
        let arguments = ["vcpupin", "--domain", name, "--vcpu", &number, "--cpulist", &list, "--live"];
        self.call(&format!("pin virtual CPU {vcpu} of {name}"), &arguments, virsh::CALL_TIMEOUT, never)
    }

    fn pin_emulator(&mut self, name: &str, cpus: &CpuSet) -> Result<(), HypervisorError> {
        let list = cpus.to_string();
        let arguments = ["emulatorpin", "--domain", name, "--cpulist", &list, "--live"];
        self.call(&format!("pin the emulator of {name}"), &arguments, virsh::CALL_TIMEOUT, never)
    }

    fn pin_io_thread(&mut self, name: &str, thread: u32, cpus: &CpuSet) -> Result<(), HypervisorError> {
        let (thread, list) = (thread.to_string(), cpus.to_string());
        let arguments =
            ["iothreadpin", "--domain", name, "--iothread", &thread, "--cpulist", &list, "--live"];
        let what = format!("pin I/O thread {thread} of {name}");
        self.call(&what, &arguments, virsh::CALL_TIMEOUT, never)
    }

    fn set_vcpus(&mut self, name: &str, count: u32) -> Result<(), HypervisorError> {
        let (what, number) = (format!("give {count} virtual CPUs to {name}"), count.to_string());
        if self.uncounted.get(name).is_some_and(|at| at.elapsed() < UNPLUG_RETRY_DELAY) {
            return Err(HypervisorError::Refused {
                what,
                why: "libvirt refused this call a moment ago".into(),
            });
        }
        let arguments = ["setvcpus", "--domain", name, "--count", &number, "--live"];
        let done = self.call(&what, &arguments, virsh::CALL_TIMEOUT, never);
        if matches!(done, Err(HypervisorError::Refused { .. })) {
            self.uncounted.insert(name.into(), Instant::now());
        }
        done
    }

    fn accept_migration(&mut self, domain: &Domain) -> Result<String, HypervisorError> {
        self.accept(domain)
    }

    fn migrate(&mut self, name: &str, to: &Destination) -> Result<(), HypervisorError> {
        self.send(name, to)
    }

    fn outgoing(&mut self, name: &str) -> Result<Outgoing, HypervisorError> {
        self.what_is_left(name)
    }

    fn abort_migration(&mut self, name: &str) -> Result<(), HypervisorError> {
        self.abort(name)
    }

    fn resume_at(&mut self, address: &str, name: &str) -> Result<(), HypervisorError> {
        self.resume_on(address, name)
    }

    fn bind_memory(&mut self, name: &str, nodes: &[u32]) -> Result<(), HypervisorError> {
        let set: CpuSet = nodes.iter().copied().collect();
        let list = set.to_string();
        // libvirt sets the cpuset, which makes the kernel migrate the pages during the call.
        let arguments = ["numatune", "--domain", name, "--nodeset", &list, "--live"];
        self.call(&format!("bind the memory of {name}"), &arguments, START_TIMEOUT, never)
    }

    fn move_memory(&mut self, name: &str, cell: usize, shares: &[Share]) -> Result<(), HypervisorError> {
        let what = format!("move the memory of {name}");
        let Some(pid) = process::pid_of_domain(name) else { return Ok(()) };
        let Some(xml) = self.xml(name)? else { return Ok(()) };
        // migrate_pages(2) acts on whole processes. With several virtual nodes, only the binding determines their
        // location.
        if domain::cell_bytes(&xml).len() != 1 || cell != 0 {
            return Ok(());
        }
        let to: Vec<u32> = shares.iter().map(|s| s.node).collect();
        process::migrate(pid, &to).map_err(|e| HypervisorError::Refused { what, why: e.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_domains_are_read_as_virsh_prints_them() {
        let [a, b] = ["5a4c1e0d-0000-4000-8000-00000000000a", "5a4c1e0d-0000-4000-8000-00000000000b"];
        let text = format!("{a}\n{b}\n\n/paused{b}\n\n/transient{a}\n\n/end<domain>");
        let (all, states) = States::read(&text);
        assert_eq!(uuids(all), [a, b]);
        assert_eq!(states, States { paused: vec![b.into()], transient: vec![a.into()] });
        assert_eq!(uuids("x; destroy y\n"), Vec::<String>::new());
        assert_eq!(States::read("/paused/transient/end").1, States::default());
        assert_eq!(States::read("").1, States::default());
    }
}
