//! Runs the guest `flow_receive` on a modelled host. Source: the setup of `experiments/affinity-model.toml`: flows at
//! line rate into a NIC.

use super::{guest, simulator};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Statistics and output of a run.
pub struct Run {
    pub statistics: Value,
    pub printed: String,
}

impl Run {
    /// A statistic; 0 if it is absent.
    pub fn count(&self, name: &str) -> f64 {
        let statistic = name.split('.').try_fold(&self.statistics, |at, word| at.get(word));
        statistic.and_then(|statistic| statistic["value"].as_f64()).unwrap_or(0.0)
    }

    /// How often the kernel did `work` on a core.
    pub fn times(&self, core: u32, work: &str) -> f64 {
        self.count(&format!("core{core}.kernel.{work}.times"))
    }

    /// The number before `words` in the guest's output.
    pub fn number_before(&self, words: &str) -> f64 {
        let before = self.printed.split(words).next().filter(|before| before.len() < self.printed.len());
        let number = before.and_then(|before| before.split_whitespace().last()?.parse().ok());
        number.unwrap_or_else(|| panic!("no {words} in {}", self.printed))
    }
}

/// The shipped machine file of the host in the core-affinity study.
pub fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../machine/topology/machines/sandybridge-2x6.toml")
}

/// Receives over `wires`, each `DEVICE:BYTES`, with these settings of the guest and options of the simulator.
pub fn receive(machine: &Path, wires: &[&str], settings: &[&str], options: &[&str]) -> Run {
    let output_file = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new("timeout");
    command.arg("300").arg(simulator()).arg("--machine").arg(machine).args(["--region", "--statistics"]);
    command.arg(output_file.path()).args(options);
    command.args(wires.iter().flat_map(|wire| ["--wire", wire]));
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    command.arg(guest("flow_receive-lasx"));
    command.args(wires.iter().filter_map(|wire| wire.split(':').next()));
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && output.stdout.starts_with(b"flow_receive: "),
        "{settings:?}: {printed}"
    );
    Run { statistics: serde_json::from_slice(&std::fs::read(output_file.path()).unwrap()).unwrap(), printed }
}
