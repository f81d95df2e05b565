//! `longma placement request`, and the request options that `explain` shares. The service validates the request and
//! names the field at fault.

use super::Outcome;
use super::connection::{ConnectionOptions, FormatOptions, with_advice};
use super::print;
use clap::builder::PossibleValuesParser;
use longma_command_line::size;
use longma_placement::store::{Vm, VmState};
use longma_placement_service::{Client, key_given_twice};
use longma_text::sanitize;
use serde_json::{Map, Value, json};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The requested virtual machine.
#[derive(clap::Args)]
pub struct RequestOptions {
    /// Name of the virtual machine.
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// Read the request as JSON from this file, or from standard input with `-`.
    ///
    /// Other options override fields of the file.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Number of virtual CPUs.
    #[arg(long, value_name = "COUNT", required_unless_present = "file")]
    vcpus: Option<u32>,
    /// Amount of memory, for example 4GiB or 512MiB.
    #[arg(long, value_name = "SIZE", required_unless_present = "file", value_parser = size)]
    memory: Option<u64>,
    /// Tenant that owns the virtual machine [default: the token's tenant, or "default"].
    #[arg(long)]
    tenant: Option<String>,
    /// CPU policy.
    ///
    /// `range`: all CPUs of its NUMA node that are not exclusive. `exclusive`: one physical CPU per virtual CPU.
    /// `none`: all CPUs of the host that are not exclusive.
    #[arg(long, value_parser = PossibleValuesParser::new(["range", "exclusive", "none"]))]
    cpu: Option<String>,
    /// Memory policy.
    ///
    /// `strict`: only memory of the same node. `preferred`: memory of the same node first, then of other nodes.
    #[arg(long, value_parser = PossibleValuesParser::new(["strict", "preferred"]))]
    memory_policy: Option<String>,
    /// Largest NUMA distance of nodes to take memory from, with --memory-policy preferred.
    ///
    /// 10 allows the virtual machine's own node only; 255 allows any node.
    #[arg(long, value_name = "DISTANCE", requires = "memory_policy")]
    within_distance: Option<u32>,
    /// Size of huge pages: 2MiB or 1GiB.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    huge_pages: Option<u64>,
    /// Number of virtual NUMA nodes, each on a different physical node [default: as few as possible].
    #[arg(long, value_name = "COUNT")]
    virtual_nodes: Option<u32>,
    /// Use of a core's hardware threads, for exclusive CPUs.
    #[arg(long, value_parser = PossibleValuesParser::new(["prefer", "avoid", "require"]))]
    smt: Option<String>,
    /// Where the emulator's own threads run.
    #[arg(long, value_parser = PossibleValuesParser::new(["shared", "isolated", "with-vcpus"]))]
    emulator: Option<String>,
    /// Place it with the members of a group: GROUP for the same host, GROUP:node for the same node. May be repeated.
    #[arg(long, value_name = "GROUP")]
    affinity: Vec<String>,
    /// Place it apart from the members of a group: GROUP for another host, GROUP:node for another node. May be
    /// repeated.
    #[arg(long, value_name = "GROUP")]
    anti_affinity: Vec<String>,
    /// Pass a device of the host to the virtual machine: nic, gpu, or a model such as 8086:1572. With :local, the device
    /// must be on the node of the virtual machine, which is otherwise only preferred; :x2 requests two. May be repeated.
    #[arg(long, value_name = "DEVICE")]
    device: Vec<String>,
    /// Expected lifetime, for example 90d, 12h or 30m: a hint to place virtual machines that end at the same time on the same node.
    #[arg(long, value_name = "TIME", value_parser = super::access::lifetime)]
    lifetime: Option<u64>,
    /// Boot from this disk image: an absolute path on the host.
    #[arg(long, value_name = "PATH", conflicts_with = "template")]
    disk: Option<String>,
    /// Format of the disk image.
    #[arg(long, default_value = "qcow2", value_parser = PossibleValuesParser::new(["raw", "qcow2"]))]
    disk_format: String,
    /// Use this libvirt domain XML, with CPUs, memory and their binding filled in.
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
}

/// Converts bytes to a whole number of units of `unit` bytes.
fn whole_units(bytes: u64, unit: u64, what: &str) -> Result<u64, String> {
    match bytes % unit {
        0 => Ok(bytes / unit),
        _ => Err(format!(
            "{what}: {bytes} bytes are not a whole number of {}iB; give a size with its unit, such as 8GiB",
            if unit == 1 << 20 { 'M' } else { 'K' }
        )),
    }
}

/// Parses the value of `--device`: KIND or VENDOR:MODEL, then `:local` and `:xCOUNT` in any order.
fn device(text: &str) -> Result<Value, String> {
    let wrong = || {
        format!("--device {text}: give nic, gpu or a model such as 8086:1572, then :local or :x2 if needed")
    };
    let mut parts: Vec<&str> = text.split(':').collect();
    let mut need = Map::new();
    while let Some(last) = parts.last().copied() {
        if last == "local" {
            need.insert("local".into(), json!(true));
        } else if let Some(count) = last.strip_prefix('x').and_then(|count| count.parse::<u32>().ok()) {
            need.insert("count".into(), json!(count));
        } else {
            break;
        }
        parts.pop();
    }
    let (key, value) = match parts.as_slice() {
        [kind @ ("nic" | "gpu")] => ("kind", kind.to_string()),
        [vendor, model] => ("id", format!("{vendor}:{model}")),
        _ => return Err(wrong()),
    };
    need.insert(key.into(), json!(value));
    Ok(Value::Object(need))
}

impl RequestOptions {
    /// The request as JSON.
    pub fn body(&self) -> Result<Value, Box<dyn Error>> {
        let mut body = match &self.file {
            None => Map::new(),
            Some(file) => {
                let read = match file.as_os_str() == "-" {
                    true => std::io::read_to_string(std::io::stdin()),
                    false => std::fs::read_to_string(file),
                };
                let text = read.map_err(|e| format!("{}: {e}", file.display()))?;
                if let Some(key) = key_given_twice(text.as_bytes()) {
                    return Err(format!("{}: {key} is given twice", file.display()).into());
                }
                serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?
            }
        };
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(key.into(), value);
            }
        };
        put("name", self.name.as_ref().map(|v| json!(v)));
        put("tenant", self.tenant.as_ref().map(|v| json!(v)));
        put("vcpus", self.vcpus.map(|v| json!(v)));
        let mib = self.memory.map(|bytes| whole_units(bytes, 1 << 20, "--memory")).transpose()?;
        put("memory_mib", mib.map(|v| json!(v)));
        put("cpu", self.cpu.as_ref().map(|v| json!(v)));
        let memory = self.memory_policy.as_ref().map(|policy| match (&**policy, self.within_distance) {
            ("preferred", None) => json!({ "preferred": {} }),
            ("preferred", Some(distance)) => json!({ "preferred": { "within_distance": distance } }),
            _ => json!("strict"),
        });
        put("memory", memory);
        let pages = self.huge_pages.map(|bytes| whole_units(bytes, 1 << 10, "--huge-pages")).transpose()?;
        put("huge_page_kib", pages.map(|v| json!(v)));
        put("virtual_nodes", self.virtual_nodes.map(|v| json!(v)));
        put("lifetime_s", self.lifetime.map(|v| json!(v)));
        put("smt", self.smt.as_ref().map(|v| json!(v)));
        put("emulator", self.emulator.as_ref().map(|v| json!(v)));
        let member = |group: &String, relation: &str| {
            let (group, level) = group.split_once(':').unwrap_or((group, "host"));
            json!({ "group": group, "relation": relation, "level": level })
        };
        let groups: Vec<Value> = (self.affinity.iter().map(|g| member(g, "affinity")))
            .chain(self.anti_affinity.iter().map(|g| member(g, "anti-affinity")))
            .collect();
        put("groups", (!groups.is_empty()).then(|| json!(groups)));
        let devices = self.device.iter().map(|text| device(text)).collect::<Result<Vec<_>, _>>()?;
        put("devices", (!devices.is_empty()).then(|| json!(devices)));
        let disk =
            self.disk.as_ref().map(|path| json!({ "disk": { "path": path, "format": self.disk_format } }));
        put("boot", disk);
        if let Some(file) = &self.template {
            let xml = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
            put("boot", Some(json!({ "template": { "xml": xml } })));
        }
        Ok(Value::Object(body))
    }
}

/// How long to wait for a virtual machine.
#[derive(clap::Args)]
pub struct WaitOptions {
    /// Return without waiting until the virtual machine runs.
    #[arg(long)]
    no_wait: bool,
    /// How long to wait until the virtual machine runs.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
}

/// Arguments of `longma placement request`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    wanted: RequestOptions,
    /// Idempotency key: the service carries out a request with the same key only once.
    #[arg(long)]
    key: Option<String>,
    #[command(flatten)]
    waiting: WaitOptions,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

/// Runs `longma placement request`.
pub fn run(arguments: &Arguments) -> Outcome {
    let client = arguments.connection.client()?;
    let body = arguments.wanted.body()?;
    submit(&client, &body, arguments.key.as_deref(), &arguments.waiting, &arguments.format)
}

/// Requests a virtual machine, waits until it runs and prints where.
pub fn submit(
    client: &Client,
    body: &Value,
    key: Option<&str>,
    waiting: &WaitOptions,
    format: &FormatOptions,
) -> Outcome {
    let mut vm: Vm = client.post("/v1/vms", key, body).map_err(with_advice)?;
    let until = Instant::now() + Duration::from_secs(waiting.patience);
    let is_pending = |vm: &Vm| matches!(vm.state, VmState::Requested | VmState::Reserved | VmState::Creating);
    while !waiting.no_wait && is_pending(&vm) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
        vm = client.get(&format!("/v1/vms/{}", vm.id)).map_err(with_advice)?;
    }
    let failed = vm.state == VmState::Failed;
    if format.json {
        print::json(&vm)?;
    } else {
        let (host, nodes) = print::location(&vm);
        let (id, name) = (vm.id, &vm.request.name);
        print::print_line(&format!("virtual machine {id} ({name}) on {host}, node {nodes}: {}", vm.state))?;
    }
    if failed {
        let why = sanitize(&vm.problem.unwrap_or_default());
        eprintln!("longma: {why}\n  it keeps its placement: fix the cause and start it, or delete it");
    } else if !waiting.no_wait && is_pending(&vm) {
        eprintln!("longma: it does not run yet; see the reason with: longma placement audit");
        return Ok(ExitCode::FAILURE);
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
