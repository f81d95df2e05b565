//! Converts a virtual machine to libvirt's domain XML, and a live domain's XML back to its threads and memory. `tree`
//! handles XML syntax.
//!
//! Source: libvirt, "Domain XML format": CPU Tuning, NUMA Node Tuning, Memory Backing, CPU model and topology. The
//! memory of a running domain can be rebound only in the mode `restrictive`, which does not allow binding virtual nodes
//! individually (libvirt 9.0). A domain with several virtual nodes therefore uses `strict` and keeps its binding.

use super::Virtualization;
use super::tree::{self, Element};
use longma_placement::CpuSet;
use longma_placement::hypervisor::{Domain, DomainState, Pins};
use longma_placement::placement::Placement;
use longma_placement::request::{Boot, MemoryPolicy};
use longma_placement::store::VmId;
use std::collections::BTreeMap;
use std::path::Path;

/// Upper bound of I/O threads, higher than in any real domain.
const MAX_IO_THREADS: usize = 1024;

/// XML namespace of Longma's metadata.
const NAMESPACE: &str = "urn:longma:placement";
/// Elements that Longma replaces in a user's template.
const REPLACED_ELEMENTS: [&str; 13] = [
    "name",
    "uuid",
    "genid",
    "memory",
    "currentMemory",
    "maxMemory",
    "memoryBacking",
    "vcpu",
    "vcpus",
    "cputune",
    "numatune",
    "metadata",
    "cpu",
];

fn set(numbers: impl IntoIterator<Item = u32>) -> CpuSet {
    numbers.into_iter().collect()
}

fn mib_of(placement: &Placement, cell: usize) -> u64 {
    placement.cells[cell].memory.iter().map(|s| s.mib).sum()
}

/// Virtual CPUs of each cell, in libvirt's list format.
fn cell_cpus(placement: &Placement) -> Vec<CpuSet> {
    let mut first = 0;
    let cells = placement.cells.iter().map(|cell| {
        let cpus = set(first..first + cell.vcpus);
        first += cell.vcpus;
        cpus
    });
    cells.collect()
}

/// Affinity of the emulator threads during the start. With several virtual nodes, QEMU starts one thread per node to
/// allocate its memory. That thread binds itself to the node's CPUs and fails if its affinity excludes all of them, so
/// the virtual machine's own CPUs are added. The final affinity is set once the domain runs.
fn start_emulator_affinity(domain: &Domain) -> CpuSet {
    let (emulator, vcpus) = (&domain.pins.emulator, &domain.pins.vcpus);
    match domain.placement.cells.len() {
        0 | 1 => emulator.clone(),
        _ => emulator.iter().chain(vcpus.iter().flat_map(CpuSet::iter)).collect(),
    }
}

/// Numbers of a domain's I/O threads: those listed, or 1 up to the given count.
pub(super) fn io_threads(xml: &Element) -> Vec<u32> {
    let count = xml.child("iothreads").and_then(|count| count.text.trim().parse().ok()).unwrap_or(0);
    let listed = xml.child("iothreadids").into_iter().flat_map(|ids| &ids.children);
    let listed: Vec<u32> = listed.filter_map(|id| id.get("id")?.parse().ok()).collect();
    // Unlisted threads get the lowest free numbers.
    let missing = (count as usize).saturating_sub(listed.len()).min(MAX_IO_THREADS);
    let free: Vec<u32> = (1..).filter(|id| !listed.contains(id)).take(missing).collect();
    [listed, free].concat()
}

fn cputune(domain: &Domain, io_threads: &[u32]) -> Element {
    let pins = &domain.pins;
    let pin =
        |(vcpu, cpus): (usize, &CpuSet)| Element::new("vcpupin").with("vcpu", vcpu).with("cpuset", cpus);
    let emulator = Element::new("emulatorpin").with("cpuset", start_emulator_affinity(domain));
    let of_io = |id: &u32| {
        Element::new("iothreadpin").with("iothread", id).with("cpuset", start_emulator_affinity(domain))
    };
    let vcpus = pins.vcpus.iter().enumerate().map(pin);
    Element::new("cputune")
        .with_children(vcpus)
        .with_child(emulator)
        .with_children(io_threads.iter().map(of_io))
}

fn numatune(placement: &Placement) -> Element {
    let bound = set(placement.bound.iter().copied());
    if placement.cells.len() == 1 {
        let memory = Element::new("memory").with("mode", "restrictive").with("nodeset", bound);
        return Element::new("numatune").with_child(memory);
    }
    let memory = Element::new("memory").with("mode", "strict").with("nodeset", bound);
    let node = |(id, cell): (usize, &longma_placement::placement::Cell)| {
        let (mode, nodes) = match placement.memory {
            MemoryPolicy::Strict => ("strict", set(cell.memory.iter().map(|s| s.node))),
            MemoryPolicy::Preferred { .. } => ("preferred", set([cell.node])),
        };
        Element::new("memnode").with("cellid", id).with("mode", mode).with("nodeset", nodes)
    };
    Element::new("numatune").with_child(memory).with_children(placement.cells.iter().enumerate().map(node))
}

/// The virtual nodes that the guest sees.
fn virtual_nodes(placement: &Placement) -> Option<Element> {
    if placement.cells.len() == 1 {
        return None;
    }
    let cpus = cell_cpus(placement);
    let cell = |at: usize| {
        let mib = mib_of(placement, at);
        Element::new("cell").with("id", at).with("cpus", &cpus[at]).with("memory", mib).with("unit", "MiB")
    };
    Some(Element::new("numa").with_children((0..placement.cells.len()).map(cell)))
}

fn memory_backing(domain: &Domain) -> Option<Element> {
    let mut backing = Element::new("memoryBacking");
    if let Some(kib) = domain.request.huge_page_kib {
        let page = Element::new("page").with("size", kib).with("unit", "KiB");
        backing = backing.with_child(Element::new("hugepages").with_child(page));
    }
    if domain.placement.memory == MemoryPolicy::Strict {
        // Allocate reserved memory at the start, so that the guest cannot run out of it later.
        backing = backing.with_child(Element::new("allocation").with("mode", "immediate"));
    }
    (!backing.children.is_empty()).then_some(backing)
}

/// The elements whose content Longma determines. `cpu` is the template's own element, `io_threads` the numbers of its
/// I/O threads.
fn longma_elements(
    domain: &Domain,
    cpu: Option<Element>,
    io_threads: &[u32],
    uuid: Option<&str>,
) -> Vec<Element> {
    let placement = &domain.placement;
    let mib: u64 = (0..placement.cells.len()).map(|c| mib_of(placement, c)).sum();
    let vm = Element::new("longma:vm").with("xmlns:longma", NAMESPACE).with("id", domain.vm);
    let vm = vm.with("database", &domain.database).with("created-at", domain.created_at);
    let mut elements = vec![Element::new("name").with_text(&domain.name)];
    // `uuid` directly follows `name`: libvirt's schema validation requires these two elements to be adjacent.
    elements.extend(uuid.map(|uuid| Element::new("uuid").with_text(uuid)));
    elements.extend([
        Element::new("metadata").with_child(vm),
        Element::new("memory").with("unit", "MiB").with_text(mib),
        Element::new("vcpu").with("placement", "static").with_text(placement.vcpus()),
        cputune(domain, io_threads),
        numatune(placement),
    ]);
    elements.extend(memory_backing(domain));
    let nodes = virtual_nodes(placement);
    if cpu.is_some() || nodes.is_some() {
        let mut cpu = cpu.unwrap_or_else(|| Element::new("cpu"));
        cpu.children.retain(|c| c.name != "numa" && c.name != "topology");
        elements.push(cpu.with_children(nodes));
    }
    elements
}

/// A minimal machine with only its boot disk.
fn minimal_domain(domain: &Domain, virtualization: Virtualization, uuid: Option<&str>) -> Element {
    let kind = if virtualization == Virtualization::Kvm { "kvm" } else { "qemu" };
    let machine = Element::new("type").with("arch", std::env::consts::ARCH).with_text("hvm");
    let os = Element::new("os").with_child(machine).with_child(Element::new("boot").with("dev", "hd"));
    let none = |name: &str| Element::new(name).with("model", "none");
    let mut devices = Element::new("devices").with_child(none("memballoon"));
    devices = devices
        .with_child(Element::new("controller").with("type", "usb").with("index", 0).with("model", "none"));
    devices = devices.with_child(Element::new("console").with("type", "pty"));
    if let Boot::Disk { path, format } = &domain.request.boot {
        let disk = Element::new("disk").with("type", "file").with("device", "disk");
        let driver = Element::new("driver").with("name", "qemu").with("type", format);
        let target = Element::new("target").with("dev", "vda").with("bus", "virtio");
        // Ignore any backing file named in the image: the guest may have written it.
        let alone = Element::new("backingStore");
        let source = Element::new("source").with("file", path);
        devices = devices
            .with_child(disk.with_child(driver).with_child(source).with_child(alone).with_child(target));
    }
    let cpu =
        (virtualization == Virtualization::Kvm).then(|| Element::new("cpu").with("mode", "host-passthrough"));
    let features = Element::new("features").with_child(Element::new("acpi")).with_child(Element::new("apic"));
    Element::new("domain")
        .with("type", kind)
        .with_children(longma_elements(domain, cpu, &[], uuid))
        .with_child(os)
        .with_child(features)
        .with_child(devices)
}

/// The user's template, completed with Longma's elements.
fn fill_template(domain: &Domain, xml: &str, uuid: Option<&str>) -> Result<Element, String> {
    let mut template = template(xml).map_err(|why| format!("the template: {why}"))?;
    let cpu = template.child("cpu").cloned();
    template.attributes.retain(|a| a.0 != "id");
    template.text.clear();
    template.children.retain(|c| !REPLACED_ELEMENTS.contains(&&*c.name));
    let mut children = longma_elements(domain, cpu, &io_threads(&template), uuid);
    children.append(&mut template.children);
    template.children = children;
    Ok(template)
}

/// Parses a user's template.
///
/// # Errors
/// If it is not well-formed or not a domain.
pub(super) fn template(xml: &str) -> Result<Element, String> {
    let template = tree::parse(xml)?;
    match &*template.name {
        "domain" => Ok(template),
        other => Err(format!("its root element is `{other}`, expected `domain`")),
    }
}

/// Writes the domain as XML, with the `uuid` of the domain that it replaces.
///
/// # Errors
/// If the template is invalid, or the request needs an unsupported feature.
pub(super) fn write(
    domain: &Domain,
    virtualization: Virtualization,
    uuid: Option<&str>,
) -> Result<String, String> {
    if domain.functions.len() < domain.placement.devices.len() {
        let devices = domain.placement.devices.join(", ");
        return Err(format!("the host no longer has all of its devices: {devices}"));
    }
    let mut xml = match &domain.request.boot {
        Boot::Template { xml } => fill_template(domain, xml, uuid)?,
        Boot::Nothing | Boot::Disk { .. } => minimal_domain(domain, virtualization, uuid),
    };
    super::emulation::limit_translated_code(&mut xml);
    let assigned =
        domain.functions.iter().map(|function| assigned(function)).collect::<Result<Vec<_>, _>>()?;
    match xml.children.iter_mut().find(|child| child.name == "devices") {
        Some(devices) => devices.children.extend(assigned),
        None if assigned.is_empty() => {}
        None => xml.children.push(Element::new("devices").with_children(assigned)),
    }
    xml.write()
}

/// A PCI function of the host that is assigned to the guest. Its driver is vfio-pci before the guest starts and after
/// it ends, so that the host does not use the function between two guests.
fn assigned(function: &str) -> Result<Element, String> {
    let parts = function.rsplit_once('.').and_then(|(rest, function)| {
        let mut parts = rest.split(':');
        let parsed = (parts.next()?, parts.next()?, parts.next()?, function);
        parts.next().is_none().then_some(parsed)
    });
    let (domain, bus, slot, number) =
        parts.ok_or_else(|| format!("`{function}` is not the address of a PCI function"))?;
    let is_number =
        |text: &str| !text.is_empty() && text.len() <= 8 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if ![domain, bus, slot, number].into_iter().all(is_number) {
        return Err(format!("`{function}` is not the address of a PCI function"));
    }
    let address =
        Element::new("address").with("domain", format!("0x{domain}")).with("bus", format!("0x{bus}"));
    let address = address.with("slot", format!("0x{slot}")).with("function", format!("0x{number}"));
    let hostdev = Element::new("hostdev").with("mode", "subsystem").with("type", "pci").with("managed", "no");
    Ok(hostdev.with_child(Element::new("source").with_child(address)))
}

/// Addresses of the host's PCI functions that a domain has.
fn functions(xml: &Element) -> Vec<String> {
    let all = xml.child("devices").into_iter().flat_map(|devices| devices.all("hostdev"));
    let pci = all.filter(|hostdev| hostdev.get("type") == Some("pci"));
    let number = |address: &Element, key: &str| {
        u32::from_str_radix(address.get(key).unwrap_or("0x0").strip_prefix("0x")?, 16).ok()
    };
    let address = |hostdev: &Element| {
        let address = hostdev.at(&["source", "address"])?;
        let [domain, bus, slot, function] =
            ["domain", "bus", "slot", "function"].map(|key| number(address, key));
        Some(format!("{:04x}:{:02x}:{:02x}.{:x}", domain?, bus?, slot?, function?))
    };
    pci.filter_map(address).collect()
}

/// Adapts the description of a running domain to the placement of `domain` on the host to which it is migrated.
pub(super) fn for_destination(mut xml: Element, domain: &Domain) -> Element {
    let io_threads = io_threads(&xml);
    xml.attributes.retain(|attribute| attribute.0 != "id");
    xml.children.retain(|child| !matches!(&*child.name, "cputune" | "numatune"));
    xml.with_child(cputune(domain, &io_threads)).with_child(numatune(&domain.placement))
}

/// The domains that libvirt printed one after another. Ignores `domain` elements nested in another domain, for example
/// in its metadata.
pub(super) fn parse_domains(text: &str) -> Vec<Element> {
    tree::parse_each(text).into_iter().filter(|xml| xml.name == "domain").collect()
}

/// Name of a domain.
pub(super) fn name_of(xml: &Element) -> &str {
    xml.child("name").map_or("", |name| &name.text)
}

/// UUID of a domain. Unlike a name, it is never ambiguous to virsh.
pub(super) fn uuid_of(xml: &Element) -> &str {
    xml.child("uuid").map_or("", |uuid| uuid.text.trim())
}

/// Longma's metadata of a domain.
fn longma_metadata(xml: &Element) -> Option<&Element> {
    let mut all = xml.child("metadata")?.all("longma:vm");
    all.find(|longma_metadata| longma_metadata.get("xmlns:longma") == Some(NAMESPACE))
}

/// ID of the virtual machine in a domain's metadata.
pub(super) fn vm_of(xml: &Element) -> Option<VmId> {
    longma_metadata(xml)?.get("id")?.parse().ok()
}

/// Identity of the database in a domain's metadata.
pub(super) fn database_of(xml: &Element) -> Option<String> {
    longma_metadata(xml)?.get("database").map(str::to_string)
}

/// Creation time of the virtual machine in a domain's metadata.
pub(super) fn created_at_of(xml: &Element) -> Option<i64> {
    longma_metadata(xml)?.get("created-at")?.parse().ok()
}

fn list(text: &str) -> Result<CpuSet, String> {
    text.parse::<CpuSet>().map_err(|e| e.to_string())
}

/// State of a live domain from its XML.
pub(super) fn actual(xml: &Element) -> Result<DomainState, String> {
    let vcpu = xml.child("vcpu").ok_or("it has no `vcpu` element")?;
    let count: usize =
        vcpu.text.trim().parse().map_err(|_| format!("`{}` is not a number of virtual CPUs", vcpu.text))?;
    if count > 4096 {
        return Err(format!("it has {count} virtual CPUs"));
    }
    let all = vcpu.get("cpuset").map(list).transpose()?.unwrap_or_default();
    let mut vcpus = vec![all; count];
    for pin in xml.child("cputune").into_iter().flat_map(|tune| tune.all("vcpupin")) {
        let at = pin.get("vcpu").and_then(|v| v.parse::<usize>().ok());
        if let (Some(pinned), Some(cpus)) = (at.and_then(|at| vcpus.get_mut(at)), pin.get("cpuset")) {
            *pinned = list(cpus)?;
        }
    }
    let emulator = xml.at(&["cputune", "emulatorpin"]).and_then(|p| p.get("cpuset"));
    let emulator = emulator.map(list).transpose()?.unwrap_or_default();
    let bound = xml.at(&["numatune", "memory"]).and_then(|m| m.get("nodeset")).map(list).transpose()?;
    Ok(DomainState {
        vm: vm_of(xml),
        database: database_of(xml),
        created_at: created_at_of(xml),
        running: xml.get("id").is_some(),
        pins: Pins { vcpus, emulator },
        bound: bound.map(|nodes| nodes.iter().collect()).unwrap_or_default(),
        offline: offline(xml, count as u32),
        io_threads: io_thread_pins(xml)?,
        size_mib: xml.child("memory").map(|memory| bytes(&memory.text, memory).div_ceil(1 << 20)),
        huge_page_kib: huge_page_kib(xml),
        cpu_limits: cpu_limits(xml),
        functions: functions(xml),
        ..DomainState::default()
    })
}

/// Page size of huge pages, KiB; `None` for ordinary pages. Without a size, QEMU uses the kernel's default, which is
/// 2 MiB on the usual hosts.
fn huge_page_kib(xml: &Element) -> Option<u32> {
    let pages = xml.at(&["memoryBacking", "hugepages"])?;
    let size = |page: &Element| Some(bytes(page.get("size")?, page) >> 10);
    let size = pages.child("page").and_then(size).filter(|kib| *kib > 0).unwrap_or(2048);
    u32::try_from(size).ok()
}

/// Virtual CPUs below `max_vcpus` that are not plugged in. Either the XML lists each one, or the first `current` are
/// plugged in.
fn offline(xml: &Element, max_vcpus: u32) -> CpuSet {
    if let Some(listed) = xml.child("vcpus") {
        let off = listed.all("vcpu").filter(|vcpu| vcpu.get("enabled") == Some("no"));
        return off.filter_map(|vcpu| vcpu.get("id")?.parse().ok()).collect();
    }
    let now = xml.child("vcpu").and_then(|vcpu| vcpu.get("current")?.parse().ok());
    (now.unwrap_or(max_vcpus)..max_vcpus).collect()
}

/// Affinity of each I/O thread; an empty set means any CPU.
fn io_thread_pins(xml: &Element) -> Result<BTreeMap<u32, CpuSet>, String> {
    let mut pins: BTreeMap<u32, CpuSet> =
        io_threads(xml).into_iter().map(|thread| (thread, CpuSet::new())).collect();
    for pin in xml.child("cputune").into_iter().flat_map(|tune| tune.all("iothreadpin")) {
        let thread = pin.get("iothread").and_then(|thread| thread.parse().ok());
        if let (Some(thread), Some(cpus)) = (thread, pin.get("cpuset")) {
            pins.insert(thread, list(cpus)?);
        }
    }
    Ok(pins)
}

/// Default CPU shares of the kernel, for version 2 or version 1 of cgroups.
pub(super) fn default_shares() -> i64 {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { 100 } else { 1024 }
}

/// CPU limits of a domain. Longma sets none. A period without a quota has no effect.
pub(super) fn cpu_limits(xml: &Element) -> BTreeMap<String, i64> {
    let tune = xml.child("cputune").into_iter().flat_map(|tune| &tune.children);
    let bounds = tune.filter_map(|bound| Some((bound.name.clone(), bound.text.trim().parse().ok()?)));
    bounds
        .filter(|(name, value): &(String, i64)| match name.as_str() {
            "shares" => *value != default_shares(),
            "quota" | "global_quota" | "emulator_quota" | "iothread_quota" => *value > 0,
            _ => false,
        })
        .collect()
}

/// Converts a number with the element's unit to bytes.
fn bytes(number: &str, element: &Element) -> u64 {
    let unit = match element.get("unit").unwrap_or("KiB") {
        "b" | "bytes" => 1,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        _ => 1u64 << 10,
    };
    number.trim().parse::<u64>().unwrap_or(0).saturating_mul(unit)
}

/// Memory of each virtual node in bytes, or the total as the only entry.
pub(super) fn cell_bytes(xml: &Element) -> Vec<u64> {
    let cells = xml.at(&["cpu", "numa"]).into_iter().flat_map(|numa| numa.all("cell"));
    let cells: Vec<u64> = cells.map(|cell| bytes(cell.get("memory").unwrap_or(""), cell)).collect();
    if !cells.is_empty() {
        return cells;
    }
    xml.child("memory").map(|memory| bytes(&memory.text, memory)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_placement::request::CpuPolicy;
    use longma_placement::{Host, Policy, Request, Scheduler};
    use longma_topology::Machine;

    fn domain(request: Request) -> Domain {
        let host = Host::of_machine(&Machine::open("hygon-8node").unwrap(), "h").unwrap();
        let mut scheduler = Scheduler::new(Policy::default(), 1);
        scheduler.put_host(&host).unwrap();
        let placement = scheduler.decide_on(&request, "h", &[2, 3], None).unwrap();
        let vcpus = placement.cells.iter().flat_map(|c| c.cpus.clone()).map(|c| set([c])).collect();
        let pins = Pins { vcpus, emulator: "0-3".parse().unwrap() };
        let (name, database) = ("longma-7".into(), "da7a".into());
        Domain { name, vm: 7, database, created_at: 5, request, placement, pins, functions: Vec::new() }
    }

    fn exclusive(vcpus: u32, virtual_nodes: u32) -> Request {
        let virtual_nodes = Some(virtual_nodes);
        Request { cpu: CpuPolicy::Exclusive, virtual_nodes, ..Request::new("a", vcpus, 4096) }
    }

    #[test]
    fn one_virtual_node_can_be_rebound_and_reads_back() {
        let domain = domain(exclusive(4, 1));
        let text = write(&domain, Virtualization::Software, None).unwrap();
        let xml = tree::parse(&text).unwrap();
        let memory = xml.at(&["numatune", "memory"]).unwrap();
        assert_eq!((memory.get("mode"), memory.get("nodeset")), (Some("restrictive"), Some("2")));
        assert_eq!(xml.get("type"), Some("qemu"));
        assert!(xml.at(&["features", "tcg", "tb-cache"]).is_some());
        let actual = actual(&xml).unwrap();
        assert_eq!((actual.vm, actual.running), (Some(7), false));
        assert_eq!(actual.database.as_deref(), Some("da7a"));
        assert_eq!(actual.pins, domain.pins);
        assert_eq!(actual.bound, domain.placement.bound);
        assert_eq!(cell_bytes(&xml), [4096 << 20]);
    }

    #[test]
    fn only_settings_that_limit_cpu_time_are_reported() {
        let text = write(&domain(exclusive(2, 1)), Virtualization::Kvm, None).unwrap();
        let with = |bounds: &str| {
            let xml = tree::parse(&text.replace("</cputune>", &format!("{bounds}</cputune>"))).unwrap();
            actual(&xml).unwrap().cpu_limits.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(with(""), []);
        let free = format!("<shares>{}</shares><period>100000</period><quota>-1</quota>", default_shares());
        assert_eq!(with(&free), []);
        let bounds = "<shares>2</shares><quota>1000</quota><iothread_quota>5000</iothread_quota>";
        let wanted = [("iothread_quota", 5000), ("quota", 1000), ("shares", 2)];
        assert_eq!(with(bounds), wanted.map(|(name, value)| (name.to_string(), value)));
    }

    #[test]
    fn several_domains_in_one_output_are_separated() {
        let one = |id: u32| {
            format!(
                "<domain type='kvm'>\n  <name>longma-{id}</name>\n  <title>&lt;/domain&gt;</title>\n</domain>\n\n"
            )
        };
        let names = |text: &str| -> Vec<String> {
            parse_domains(text).iter().map(|xml| xml.child("name").unwrap().text.clone()).collect()
        };
        assert_eq!(names(&(one(1) + &one(2))), ["longma-1", "longma-2"]);
        assert_eq!(names(&format!("{}<domain>\n<name>\n{}", one(1), one(3))), ["longma-1"]);
        assert_eq!(names(""), Vec::<String>::new());
        // A user stores whole domains in another domain's metadata.
        let inside = format!("<metadata>\n<x:x>\n{}{}</x:x></metadata>\n", one(1), one(1));
        let foreign = one(4).replace("longma-4", "spoof").replace("<title>", &format!("{inside}<title>"));
        assert_eq!(names(&(one(1) + &foreign + &one(2))), ["longma-1", "spoof", "longma-2"]);
        assert!(parse_domains(&foreign).iter().all(|xml| vm_of(xml).is_none()));
    }

    #[test]
    fn a_name_is_read_exactly() {
        for name in
            ["longma-1 ", " longma-1", "copied too", "it's \"x\" & <y>", "-x", "--all", "Größe 2", "3"]
        {
            let xml = Element::new("domain").with_child(Element::new("name").with_text(name));
            assert_eq!(name_of(&parse_domains(&xml.write().unwrap())[0]), name);
        }
    }

    /// The XML has the form that libvirt 9.0 prints after `virsh setvcpus --live` and `iothreadadd`.
    #[test]
    fn the_current_virtual_cpus_and_io_threads_are_read() {
        let with = |vcpu: &str, rest: &str| {
            let text = write(&domain(exclusive(2, 1)), Virtualization::Kvm, None).unwrap();
            let text = text.replace("<vcpu placement=\"static\">2</vcpu>", vcpu);
            actual(&tree::parse(&text.replace("</cputune>", &format!("</cputune>{rest}"))).unwrap()).unwrap()
        };
        let minimal_domain = with("<vcpu placement='static'>2</vcpu>", "");
        assert_eq!((minimal_domain.vcpus().to_string(), minimal_domain.size_mib), ("0-1".into(), Some(4096)));
        let more = with("<vcpu placement='static'>3</vcpu>", "");
        assert_eq!((more.vcpus().to_string(), more.vcpu_cpus(2)), ("0-2".into(), Some(&CpuSet::new())));
        let few = with("<vcpu placement='static' current='1'>3</vcpu>", "");
        assert_eq!((few.vcpus().to_string(), few.vcpu_cpus(1)), ("0".into(), None));
        let listed = "<vcpus><vcpu id='0' enabled='yes' hotpluggable='no' order='1'/><vcpu id='1' enabled='no' hotpluggable='yes'/>
            <vcpu id='2' enabled='yes' hotpluggable='yes' order='2'/></vcpus>";
        let listed = with("<vcpu placement='static' current='2'>3</vcpu>", listed);
        assert_eq!(listed.vcpus().to_string(), "0,2");
        let threads =
            "<iothreads>2</iothreads><iothreadids><iothread id='1'/><iothread id='7'/></iothreadids>";
        let text = write(&domain(exclusive(2, 1)), Virtualization::Kvm, None).unwrap();
        let pinned = format!("<iothreadpin iothread='7' cpuset='3'/></cputune>{threads}");
        let threads = actual(&tree::parse(&text.replace("</cputune>", &pinned)).unwrap()).unwrap().io_threads;
        assert_eq!(threads, BTreeMap::from([(1, CpuSet::new()), (7, set([3]))]));
    }

    #[test]
    fn several_virtual_nodes_are_bound_one_by_one() {
        let xml = tree::parse(&write(&domain(exclusive(6, 2)), Virtualization::Kvm, None).unwrap()).unwrap();
        let nodes: Vec<_> =
            xml.child("numatune").unwrap().all("memnode").map(|m| m.get("nodeset").unwrap()).collect();
        assert_eq!(nodes, ["2", "3"]);
        let cells: Vec<_> =
            xml.at(&["cpu", "numa"]).unwrap().all("cell").map(|c| c.get("cpus").unwrap()).collect();
        assert_eq!(cells, ["0-2", "3-5"]);
        assert_eq!(cell_bytes(&xml), [2048 << 20, 2048 << 20]);
        // QEMU's threads that allocate on node 3 may run there, on the virtual machine's own CPUs.
        let emulator = xml.at(&["cputune", "emulatorpin"]).and_then(|p| p.get("cpuset"));
        assert_eq!(emulator, Some("0-3,16-17,24-25,80,88"));
    }

    #[test]
    fn a_template_keeps_its_elements_except_those_that_longma_sets() {
        let xml = "<domain type='kvm' id='9'><name>x</name><uuid>u</uuid><memory>1</memory><vcpu cpuset='0'>99</vcpu>
            <cputune><vcpupin vcpu='0' cpuset='5'/></cputune><metadata><longma:vm xmlns:longma='urn:longma:placement' id='1'/></metadata>
            <cpu mode='host-model'><topology sockets='9'/><numa><cell id='0' cpus='0' memory='1'/></numa></cpu>
            <os><type>hvm</type></os><devices><interface type='network'/></devices></domain>";
        let request = Request { boot: Boot::Template { xml: xml.into() }, ..exclusive(2, 1) };
        let fill_template =
            tree::parse(&write(&domain(request), Virtualization::Kvm, None).unwrap()).unwrap();
        assert_eq!(fill_template.child("name").unwrap().text, "longma-7");
        assert_eq!(
            (fill_template.get("id"), fill_template.child("uuid"), vm_of(&fill_template)),
            (None, None, Some(7))
        );
        assert_eq!(fill_template.all("vcpu").count(), 1);
        assert_eq!(fill_template.child("cpu").unwrap().get("mode"), Some("host-model"));
        assert!(fill_template.child("cpu").unwrap().children.is_empty());
        assert!(fill_template.at(&["devices", "interface"]).is_some());
        let request = Request { boot: Boot::Template { xml: "<network/>".into() }, ..exclusive(2, 1) };
        assert!(
            write(&domain(request), Virtualization::Kvm, None).unwrap_err().contains("expected `domain`")
        );
    }

    #[test]
    fn a_path_cannot_break_out_of_its_attribute() {
        let path = "/x'/><disk type='block'>&\"<".to_string();
        let boot = Boot::Disk { path: path.clone(), format: "raw".into() };
        let text = write(&domain(Request { boot, ..exclusive(1, 1) }), Virtualization::Kvm, None).unwrap();
        let xml = tree::parse(&text).unwrap();
        let disks: Vec<_> = xml.child("devices").unwrap().all("disk").collect();
        assert_eq!(disks.len(), 1);
        assert_eq!(disks[0].child("source").unwrap().get("file"), Some(&*path));
    }

    #[test]
    fn devices_are_handed_over_as_they_are_and_read_back() {
        let mut with_devices = domain(exclusive(2, 1));
        with_devices.placement.devices = vec!["0000:81:01.0".into(), "0001:02:1f.7".into()];
        with_devices.functions = ["0000:81:01.0", "0001:02:1f.7", "0001:02:1f.6"].map(String::from).to_vec();
        let template = "<domain type='kvm'><name>x</name><os><type>hvm</type></os></domain>".to_string();
        for boot in [Boot::Nothing, Boot::Template { xml: template }] {
            with_devices.request.boot = boot;
            let xml = tree::parse(&write(&with_devices, Virtualization::Kvm, None).unwrap()).unwrap();
            let assigned: Vec<_> = xml.child("devices").unwrap().all("hostdev").collect();
            assert_eq!(assigned.len(), 3);
            assert!(assigned.iter().all(|one| one.get("managed") == Some("no")), "drivers stay as they are");
            assert_eq!(actual(&xml).unwrap().functions, with_devices.functions);
        }
        with_devices.functions.truncate(1);
        assert!(write(&with_devices, Virtualization::Kvm, None).unwrap_err().contains("no longer has all"));
        for wrong in
            ["eth0", "0000:81:01", "81:01.0", "0000:81:01.0:1.0", "0000:8 :01.0", "0000:81:01.'/>", ":::."]
        {
            assert!(assigned(wrong).is_err(), "{wrong}");
        }
    }

    /// Validates the XML against the schema that libvirt checks when it defines a domain.
    #[test]
    fn libvirts_schema_accepts_devices() {
        let mut with_devices = domain(exclusive(2, 1));
        with_devices.placement.devices = vec!["0000:81:01.0".into()];
        with_devices.functions = with_devices.placement.devices.clone();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("domain.xml");
        std::fs::write(&file, write(&with_devices, Virtualization::Software, None).unwrap()).unwrap();
        let run = |name: &str| std::process::Command::new(name).arg(&file).arg("domain").output();
        // virt-xml-validate calls xmllint, which is in another Debian package.
        match (run("virt-xml-validate"), run("xmllint")) {
            (Ok(done), Ok(_)) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
            _ => eprintln!("skipped: virt-xml-validate or xmllint is not installed"),
        }
    }

    #[test]
    fn a_migrated_domain_keeps_all_but_its_place() {
        let there = domain(exclusive(2, 1));
        let xml = "<domain type='kvm' id='3'><name>longma-7</name><uuid>u</uuid><vcpu placement='static'>2</vcpu>
            <iothreads>1</iothreads><cputune><shares>9</shares><vcpupin vcpu='0' cpuset='5'/></cputune>
            <numatune><memory mode='restrictive' nodeset='7'/></numatune><devices><disk type='file'/></devices></domain>";
        let moved = for_destination(tree::parse(xml).unwrap(), &there);
        assert_eq!((moved.get("id"), moved.child("uuid").unwrap().text.as_str()), (None, "u"));
        assert!(moved.at(&["devices", "disk"]).is_some());
        let tune = moved.child("cputune").unwrap();
        assert_eq!(moved.all("cputune").count() + moved.all("numatune").count(), 2);
        let pins: Vec<_> = tune.all("vcpupin").map(|pin| pin.get("cpuset").unwrap().to_string()).collect();
        assert_eq!(pins, there.pins.vcpus.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(tune.all("iothreadpin").count(), 1);
        assert_eq!(moved.at(&["numatune", "memory"]).unwrap().get("nodeset"), Some("2"));
    }
}
