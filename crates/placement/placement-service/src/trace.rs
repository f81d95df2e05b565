//! Request traces in CSV, with the columns of Azure's public packing trace.
//!
//! Source: "Azure Trace for Packing 2020" (github.com/Azure/AzurePublicDataset): tables `vm` and `vmType`.

use crate::fleet_file::{Fault, InputError};
use csv::{ReaderBuilder, StringRecord};
use longma_placement::Request;
use longma_placement::host::Host;
use longma_placement::replay::Arrival;
use longma_placement::request::{CpuPolicy, MAX_LIFETIME_S, MAX_MEMORY_MIB, MAX_VCPUS, MemoryPolicy};
use std::fmt::Display;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Maximum number of requests of a trace.
const MAX_REQUESTS: usize = 10_000_000;
/// Largest time of a trace, days.
const MAX_DAYS: f64 = 1e6;
/// Seconds of a day.
const DAY_S: f64 = 86_400.0;

/// How the rows of a trace become requests.
#[derive(Clone, Copy, Debug)]
pub struct Conversion<'a> {
    /// The machine of which `core` and `memory` are fractions.
    pub machine: &'a Host,
    /// CPU policy of rows without the column `cpu`.
    pub cpu: CpuPolicy,
    /// Memory policy of rows without the column `memory_policy`.
    pub memory: MemoryPolicy,
}

/// Positions of the columns.
struct Columns {
    start: usize,
    end: usize,
    size: SizeColumns,
    cpu: Option<usize>,
    memory_policy: Option<usize>,
    virtual_nodes: Option<usize>,
    lifetime: Option<usize>,
}

/// How the size of a virtual machine is stated.
enum SizeColumns {
    /// `core` and `memory`: fractions of a machine.
    Fractions(usize, usize),
    /// `vcpus` and `memory_mib`.
    Amounts(usize, usize),
}

/// Reads a trace; returns its requests in the order of their times.
///
/// # Errors
/// If the file cannot be read; or the first line and column at fault.
pub fn open(file: &Path, conversion: &Conversion<'_>) -> Result<Vec<Arrival>, InputError> {
    let fault = |problem: String| Fault { line: None, field: String::new(), problem }.within(file);
    let kind = std::fs::metadata(file).map_err(|error| fault(error.to_string()))?.file_type();
    if !kind.is_file() && !kind.is_fifo() {
        return Err(fault("is neither a file nor a pipe".into()));
    }
    let opened = std::fs::File::open(file).map_err(|error| fault(error.to_string()))?;
    parse(opened, conversion).map_err(|fault| fault.within(file))
}

/// Parses a trace; returns its requests in the order of their times.
///
/// # Errors
/// The first line and column at fault.
pub fn parse(text: impl Read, conversion: &Conversion<'_>) -> Result<Vec<Arrival>, Fault> {
    let mut reader = ReaderBuilder::new().trim(csv::Trim::All).from_reader(text);
    let header = reader.headers().map_err(csv_fault)?.clone();
    let columns = Columns::of(&header)?;
    let (mut all, mut record) = (Vec::new(), StringRecord::new());
    while reader.read_record(&mut record).map_err(csv_fault)? {
        if all.len() >= MAX_REQUESTS {
            let problem = format!("has more than {MAX_REQUESTS} requests");
            return Err(Fault { line: None, field: String::new(), problem });
        }
        let row = Row { record: &record, header: &header };
        row.is_one_line()?;
        all.push(columns.arrival(&row, all.len(), conversion)?);
    }
    if all.is_empty() {
        return Err(Fault { line: None, field: String::new(), problem: "has no requests".into() });
    }
    all.sort_by(|a, b| a.at.total_cmp(&b.at));
    Ok(all)
}

fn csv_fault(error: csv::Error) -> Fault {
    let line = error.position().map(csv::Position::line);
    let problem = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("has {len} columns; the first line has {expected_len}")
        }
        csv::ErrorKind::Utf8 { .. } => "is not UTF-8".into(),
        csv::ErrorKind::Io(error) => error.to_string(),
        _ => error.to_string(),
    };
    Fault { line, field: String::new(), problem }
}

/// A row with its header.
struct Row<'a> {
    record: &'a StringRecord,
    header: &'a StringRecord,
}

impl Row<'_> {
    fn fault(&self, column: usize, problem: impl Display) -> Fault {
        let line = self.record.position().map(csv::Position::line);
        Fault {
            line,
            field: self.header.get(column).unwrap_or_default().into(),
            problem: problem.to_string(),
        }
    }

    fn text(&self, column: usize) -> &str {
        self.record.get(column).unwrap_or_default()
    }

    /// Refuses a field with an end of line: after a stray quote, the CSV reader treats the following rows as text of
    /// the field.
    fn is_one_line(&self) -> Result<(), Fault> {
        let found = self.record.iter().position(|text| text.contains(['\n', '\r']));
        found.map_or(Ok(()), |column| Err(self.fault(column, "is quoted and continues in the next line")))
    }

    /// A whole number in a range.
    fn integer(&self, column: usize, from: u32, to: u32) -> Result<u32, Fault> {
        let number = self.number(column, from.into(), to.into())?;
        match number.fract() == 0.0 {
            true => Ok(number as u32),
            false => Err(self.fault(column, format!("{number} is not a whole number"))),
        }
    }

    /// A number in a range.
    fn number(&self, column: usize, from: f64, to: f64) -> Result<f64, Fault> {
        let text = self.text(column);
        text.parse::<f64>().ok().filter(|number| (from..=to).contains(number)).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            self.fault(column, format!("{shown:?} is not a number from {from} to {to}"))
        })
    }

    /// An entry of a table of names and values; `None` if the column is missing or empty.
    fn lookup<T: Copy>(&self, column: Option<usize>, table: &[(&str, T)]) -> Result<Option<T>, Fault> {
        let Some(column) = column.filter(|column| !self.text(*column).is_empty()) else { return Ok(None) };
        let found = table.iter().find(|entry| entry.0 == self.text(column));
        let names: Vec<&str> = table.iter().map(|entry| entry.0).collect();
        found.map(|entry| Some(entry.1)).ok_or_else(|| {
            let shown: String = self.text(column).chars().take(40).collect();
            self.fault(column, format!("{shown:?} is none of {}", names.join(", ")))
        })
    }
}

impl Columns {
    fn of(header: &StringRecord) -> Result<Self, Fault> {
        let fault = |field: &str, problem: &str| Fault {
            line: Some(1),
            field: field.into(),
            problem: problem.into(),
        };
        let position = |name: &str| {
            let mut at = header.iter().enumerate().filter(|column| column.1 == name).map(|column| column.0);
            let first = at.next();
            if at.next().is_some() { Err(fault(name, "is listed twice")) } else { Ok(first) }
        };
        let required = |name: &str| position(name)?.ok_or_else(|| fault(name, "this column is missing"));
        let size = match (position("vcpus")?, position("core")?) {
            (Some(vcpus), None) => SizeColumns::Amounts(vcpus, required("memory_mib")?),
            (None, Some(core)) => SizeColumns::Fractions(core, required("memory")?),
            (Some(_), Some(_)) => {
                return Err(fault("vcpus", "state either vcpus and memory_mib, or core and memory"));
            }
            (None, None) => return Err(fault("core", "this column is missing, and so is vcpus")),
        };
        Ok(Self {
            start: required("starttime")?,
            end: required("endtime")?,
            size,
            cpu: position("cpu")?,
            memory_policy: position("memory_policy")?,
            virtual_nodes: position("virtual_nodes")?,
            lifetime: position("lifetime")?,
        })
    }

    fn arrival(&self, row: &Row<'_>, number: usize, conversion: &Conversion<'_>) -> Result<Arrival, Fault> {
        let start = row.number(self.start, -MAX_DAYS, MAX_DAYS)?;
        let end = match row.text(self.end) {
            "" | "NULL" | "null" => f64::INFINITY,
            _ => row.number(self.end, -MAX_DAYS, MAX_DAYS)?,
        };
        if end < start {
            return Err(row.fault(self.end, "is before starttime"));
        }
        let (vcpus, memory_mib) = self.size(row, conversion.machine)?;
        let cpus =
            [("range", CpuPolicy::Range), ("exclusive", CpuPolicy::Exclusive), ("none", CpuPolicy::None)];
        let preferred = MemoryPolicy::Preferred { within_distance: 255 };
        let memories = [("strict", MemoryPolicy::Strict), ("preferred", preferred)];
        let nodes = self.virtual_nodes.filter(|column| !row.text(*column).is_empty());
        let virtual_nodes = nodes.map(|column| row.integer(column, 1, 16)).transpose()?;
        let lifetime = self.lifetime.filter(|column| !row.text(*column).is_empty());
        let lifetime =
            lifetime.map(|column| row.number(column, 0.0, MAX_LIFETIME_S as f64 / DAY_S)).transpose()?;
        let request = Request {
            lifetime_s: lifetime.map(|days| (days * DAY_S).ceil().max(1.0) as u64),
            cpu: row.lookup(self.cpu, &cpus)?.unwrap_or(conversion.cpu),
            memory: row.lookup(self.memory_policy, &memories)?.unwrap_or(conversion.memory),
            virtual_nodes,
            ..Request::new(&format!("v{number}"), vcpus, memory_mib)
        };
        if let Err(wrong) = request.check() {
            let problem = wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            return Err(row.fault(self.start, format!("the request is invalid: {problem}")));
        }
        Ok(Arrival { at: start * 24.0, leaves: end * 24.0, request })
    }

    /// Virtual CPUs and MiB of a row.
    fn size(&self, row: &Row<'_>, machine: &Host) -> Result<(u32, u64), Fault> {
        let (vcpus, mib) = match self.size {
            SizeColumns::Amounts(vcpus, mib) => {
                (row.integer(vcpus, 1, MAX_VCPUS)?.into(), row.number(mib, 1.0, MAX_MEMORY_MIB as f64)?)
            }
            SizeColumns::Fractions(core, memory) => {
                let all: u64 =
                    machine.nodes.iter().filter_map(|n| n.memory.first()).map(|pool| pool.mib).sum();
                let part = |column| row.number(column, 0.0, 1.0);
                (part(core)? * machine.cpu_count() as f64, part(memory)? * all as f64)
            }
        };
        // A product such as 0.1 * 80 may exceed the whole number by a rounding error.
        let round_up = |amount: f64| (amount - 1e-6).ceil().max(1.0);
        Ok((round_up(vcpus).min(MAX_VCPUS.into()) as u32, round_up(mib).min(MAX_MEMORY_MIB as f64) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_topology::Machine;
    use proptest::prelude::*;

    fn parsed(text: &str) -> Result<Vec<Arrival>, Fault> {
        let machine = Host::of_machine(&Machine::open("hygon-8node").unwrap(), "h").unwrap();
        let (cpu, memory) = (CpuPolicy::Range, MemoryPolicy::Strict);
        parse(text.as_bytes(), &Conversion { machine: &machine, cpu, memory })
    }

    #[test]
    fn endless_traces_are_not_read() {
        let machine = Host::of_machine(&Machine::open("hygon-8node").unwrap(), "h").unwrap();
        let (cpu, memory) = (CpuPolicy::Range, MemoryPolicy::Strict);
        let problem = open(Path::new("/dev/zero"), &Conversion { machine: &machine, cpu, memory })
            .unwrap_err()
            .to_string();
        assert!(problem.contains("neither a file nor a pipe"), "{problem}");
    }

    #[test]
    fn rows_of_the_packing_trace_become_requests_in_the_order_of_their_times() {
        let trace = "vmId,tenantId,vmTypeId,priority,starttime,endtime,core,memory\n\
            7,1,3,0,0.5,1.5,0.03125,0.015625\n8,1,3,1,-2.25,NULL,1,0.5\n";
        let all = parsed(trace).unwrap();
        assert_eq!((all[0].at, all[0].leaves), (-54.0, f64::INFINITY));
        assert_eq!((all[0].request.vcpus, all[0].request.memory_mib), (128, 131_072));
        assert_eq!((all[1].at, all[1].leaves), (12.0, 36.0));
        assert_eq!((all[1].request.vcpus, all[1].request.memory_mib), (4, 4096));
        assert!(all[1].request.memory == MemoryPolicy::Strict && all[1].request.virtual_nodes.is_none());
    }

    #[test]
    fn sizes_and_policies_may_be_stated_directly() {
        let all = parsed(
            "starttime,endtime,vcpus,memory_mib,cpu,memory_policy,virtual_nodes,lifetime\n0,,2,512,exclusive,preferred,2,0.5\n1,2,1,64,,,,\n",
        );
        let all = all.unwrap();
        assert_eq!((all[0].request.cpu, all[0].request.virtual_nodes), (CpuPolicy::Exclusive, Some(2)));
        assert!(matches!(all[0].request.memory, MemoryPolicy::Preferred { .. }));
        assert_eq!((all[1].request.cpu, all[1].request.virtual_nodes), (CpuPolicy::Range, None));
        assert_eq!(all.iter().map(|one| one.request.lifetime_s).collect::<Vec<_>>(), [Some(43_200), None]);
    }

    #[test]
    fn faults_name_the_line_and_the_column() {
        let head = "starttime,endtime,core,memory\n0,1,0.5,0.5\n";
        for (row, field, problem) in [
            ("x,1,0.5,0.5", "starttime", "\"x\" is not a number"),
            ("0,NaN,0.5,0.5", "endtime", "is not a number"),
            ("1,0,0.5,0.5", "endtime", "is before starttime"),
            ("0,1,1.5,0.5", "core", "from 0 to 1"),
            ("0,1,0.5,inf", "memory", "from 0 to 1"),
            ("0,1,0.5", "", "has 3 columns"),
        ] {
            let fault = parsed(&format!("{head}{row}\n")).unwrap_err();
            assert_eq!((fault.line, &*fault.field), (Some(3), field), "{row}: {fault:?}");
            assert!(fault.problem.contains(problem), "{fault:?}");
        }
        let head = "starttime,endtime,vcpus,memory_mib,virtual_nodes,note\n0,1,1,64,,a\n";
        for (row, field, problem) in [
            // The CSV reader would treat the last row as text of the note.
            ("0,1,1,64,,\"b\n2,3,1,64,,c", "note", "continues in the next line"),
            ("0,1,2.5,64,,", "vcpus", "2.5 is not a whole number"),
            ("0,1,2,64,1.9,", "virtual_nodes", "1.9 is not a whole number"),
        ] {
            let fault = parsed(&format!("{head}{row}\n")).unwrap_err();
            assert_eq!((fault.line, &*fault.field), (Some(3), field), "{row}: {fault:?}");
            assert!(fault.problem.contains(problem), "{fault:?}");
        }
        for (header, field) in [
            ("starttime,endtime", "core"),
            ("endtime,core,memory", "starttime"),
            ("starttime,endtime,core", "memory"),
            ("starttime,endtime,core,core,memory", "core"),
            ("starttime,endtime,core,memory,vcpus", "vcpus"),
        ] {
            let fault = parsed(&format!("{header}\n")).unwrap_err();
            assert_eq!((fault.line, &*fault.field), (Some(1), field), "{header}");
        }
        assert!(parsed("").is_err() && parsed("starttime,endtime,core,memory\n").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,200}") {
            let _ = parsed(&text);
        }

        #[test]
        fn any_row_is_valid_or_refused_with_its_line(cells in prop::collection::vec("[-0-9.eInfNaNULL\"]{0,8}", 4)) {
            match parsed(&format!("starttime,endtime,core,memory\n{}\n", cells.join(","))) {
                Ok(all) => prop_assert!(all.iter().all(|one| one.at.is_finite() && one.leaves >= one.at)),
                Err(fault) => prop_assert!(fault.line.is_none_or(|line| line >= 2)),
            }
        }
    }
}
