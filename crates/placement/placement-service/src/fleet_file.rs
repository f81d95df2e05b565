//! Fleet files: a TOML list of kinds of modelled hosts, each described by a machine file, by hwloc's XML or by `lscpu`.
//!
//! Source: hwloc's documentation, "Importing and exporting topologies from/to XML files"; lscpu(1), `--parse`.

mod lscpu;
mod lstopo;

pub use lscpu::parse as parse_lscpu;
pub use lstopo::parse as parse_lstopo;

use longma_placement::host::Host;
use longma_placement::name::name_problem;
use longma_placement::{CpuSet, host::Pool};
use longma_topology::Machine;
use serde::Deserialize;
use std::fmt::{self, Display};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Maximum number of hosts of a fleet.
pub const MAX_HOSTS: u32 = 10_000;
/// Maximum size of a fleet file, and of the description of a host.
const MAX_BYTES: u64 = 16 << 20;

/// A fault in an input file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct InputError {
    /// The file.
    pub file: PathBuf,
    /// Line, from 1 on; `None` if the fault concerns the whole file.
    pub line: Option<u64>,
    /// The field at fault, such as `hosts[1].count`; may be empty.
    pub field: String,
    /// What is wrong.
    pub problem: String,
}

impl Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        self.line.iter().try_for_each(|line| write!(f, ":{line}"))?;
        let separator = if self.field.is_empty() { "" } else { ": " };
        write!(f, "{separator}{}: {}", self.field, self.problem)
    }
}

/// An error in a text: its line, the field, and a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Line, from 1 on; `None` if the fault concerns the whole text.
    pub line: Option<u64>,
    /// The field at fault; may be empty.
    pub field: String,
    /// What is wrong.
    pub problem: String,
}

impl Fault {
    fn at(line: Option<u64>, field: impl Into<String>, problem: impl Display) -> Self {
        Self { line, field: field.into(), problem: problem.to_string() }
    }

    /// The fault, with the file that the text is from.
    pub(crate) fn within(self, file: &Path) -> InputError {
        InputError { file: file.into(), line: self.line, field: self.field, problem: self.problem }
    }
}

/// Line of a position in a text, from 1 on.
fn line_at(text: &str, at: usize) -> u64 {
    1 + text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count() as u64
}

/// Reads a text file of limited size.
///
/// # Errors
/// If it cannot be read, is too large or is not UTF-8.
pub(crate) fn read(file: &Path) -> Result<String, InputError> {
    let fault = |problem: String| Fault::at(None, "", problem).within(file);
    let mut bytes = Vec::new();
    let opened =
        std::fs::File::open(file).and_then(|opened| opened.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    opened.map_err(|error| fault(error.to_string()))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(fault(format!("is larger than {} MiB", MAX_BYTES >> 20)));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line =
            1 + error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count();
        Fault::at(Some(line as u64), "", "is not UTF-8").within(file)
    })
}

/// A fleet of modelled hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Fleet {
    /// The hosts: copies of each kind in turn, named `KIND-1`, `KIND-2`, ...
    pub hosts: Vec<Host>,
    /// The name of each kind, and the host that describes it.
    pub kinds: Vec<(String, Host)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    hosts: Vec<Kind>,
}

/// One entry of `hosts`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    name: Spanned<String>,
    count: Spanned<u32>,
    machine: Option<Spanned<String>>,
    lstopo: Option<Spanned<PathBuf>>,
    lscpu: Option<Spanned<PathBuf>>,
    /// Memory of each node, which `lscpu` does not print.
    node_memory_mib: Option<Spanned<u64>>,
    /// CPUs reserved for the host.
    reserved: Option<Spanned<String>>,
    /// Memory of each node reserved for the host.
    reserved_memory_mib: Option<Spanned<u64>>,
}

/// Reads a fleet file.
///
/// # Errors
/// If it, or a file that it names, cannot be read or is invalid.
pub fn open(file: &Path) -> Result<Fleet, InputError> {
    let text = read(file)?;
    let folder = file.parent().unwrap_or(Path::new("")).to_path_buf();
    parse(&text, &|path| {
        let path = folder.join(path);
        Ok((read(&path)?, path))
    })
    .map_err(|fault| match fault {
        Failure::Here(fault) => fault.within(file),
        Failure::Elsewhere(error) => error,
    })
}

/// A fault in the fleet file itself or in a file that it names.
#[derive(Debug)]
enum Failure {
    Here(Fault),
    Elsewhere(InputError),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Here(fault)
    }
}

/// Reads a file that a fleet file names; also returns its path.
type ReadFile<'a> = &'a dyn Fn(&Path) -> Result<(String, PathBuf), InputError>;

/// Creates a fault from the span of a value in the text, its key, and the problem.
type FaultAt<'a> = &'a dyn Fn(Range<usize>, &str, &dyn Display) -> Fault;

fn parse(text: &str, read: ReadFile<'_>) -> Result<Fleet, Failure> {
    let document: Document = toml::from_str(text).map_err(|error| {
        Fault::at(error.span().map(|span| line_at(text, span.start)), "", error.message())
    })?;
    let mut fleet = Fleet { hosts: Vec::new(), kinds: Vec::new() };
    if document.hosts.is_empty() {
        return Err(Fault::at(None, "hosts", "is empty").into());
    }
    for (at, kind) in document.hosts.iter().enumerate() {
        let fault = |span: Range<usize>, key: &str, problem: &dyn Display| {
            Fault::at(Some(line_at(text, span.start)), format!("hosts[{at}].{key}"), problem)
        };
        if let Some(problem) = name_problem(kind.name.get_ref()) {
            return Err(fault(kind.name.span(), "name", &problem).into());
        }
        let host = kind.host(&fault, read)?;
        let (name, count) = (kind.name.get_ref(), *kind.count.get_ref());
        if fleet.kinds.iter().any(|known| known.0 == *name) {
            return Err(fault(kind.name.span(), "name", &"is used twice").into());
        }
        let left = MAX_HOSTS - fleet.hosts.len() as u32;
        if count == 0 || count > left {
            let problem = format!("is {count}; a fleet has 1 to {MAX_HOSTS} hosts");
            return Err(fault(kind.count.span(), "count", &problem).into());
        }
        let copies = (1..=count).map(|number| Host { name: format!("{name}-{number}"), ..host.clone() });
        fleet.hosts.extend(copies);
        fleet.kinds.push((name.clone(), host));
        let last = fleet.hosts.last().map(Host::check);
        last.unwrap_or(Ok(())).map_err(|error| fault(kind.name.span(), "name", &error.problem))?;
    }
    // Kinds such as `a` and `a-1` could produce the same name.
    let mut names: Vec<&str> = fleet.hosts.iter().map(|host| &*host.name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Fault::at(None, "hosts", format!("two hosts would be called {}", pair[0])).into()),
        None => Ok(fleet),
    }
}

impl Kind {
    /// The host that the entry describes.
    fn host(&self, fault: FaultAt<'_>, read: ReadFile<'_>) -> Result<Host, Failure> {
        let name = self.name.get_ref();
        let mut host = match (&self.machine, &self.lstopo, &self.lscpu) {
            (Some(machine), None, None) => {
                let wrong = |problem: &dyn Display| fault(machine.span(), "machine", problem);
                let opened = Machine::open(machine.get_ref()).map_err(|error| wrong(&error))?;
                Host::of_machine(&opened, name).map_err(|error| wrong(&error.problem))?
            }
            (None, Some(path), None) => {
                let (text, path) = read(path.get_ref()).map_err(Failure::Elsewhere)?;
                lstopo::parse(&text, name).map_err(|fault| Failure::Elsewhere(fault.within(&path)))?
            }
            (None, None, Some(path)) => {
                let Some(mib) = &self.node_memory_mib else {
                    return Err(
                        fault(path.span(), "node_memory_mib", &"is missing: lscpu prints no memory").into()
                    );
                };
                let (text, path) = read(path.get_ref()).map_err(Failure::Elsewhere)?;
                lscpu::parse(&text, name, *mib.get_ref())
                    .map_err(|fault| Failure::Elsewhere(fault.within(&path)))?
            }
            _ => {
                let problem = "needs exactly one of machine, lstopo and lscpu";
                return Err(fault(self.name.span(), "name", &problem).into());
            }
        };
        if let Some(mib) = self.node_memory_mib.as_ref().filter(|_| self.lscpu.is_none()) {
            return Err(fault(mib.span(), "node_memory_mib", &"is only for hosts described by lscpu").into());
        }
        if let Some(reserved) = &self.reserved {
            let list = reserved.get_ref().parse::<CpuSet>();
            host.reserved = list.map_err(|error| fault(reserved.span(), "reserved", &error))?;
            host.check().map_err(|error| fault(reserved.span(), "reserved", &error.problem))?;
        }
        if let Some(mib) = &self.reserved_memory_mib {
            for node in &mut host.nodes {
                let Some(Pool { mib: all, .. }) = node.memory.first_mut() else { continue };
                let left = all.checked_sub(*mib.get_ref());
                let problem = format!("node {} has only {all} MiB", node.id);
                *all = left.ok_or_else(|| fault(mib.span(), "reserved_memory_mib", &problem))?;
            }
        }
        Ok(host)
    }
}

#[cfg(test)]
mod tests;
