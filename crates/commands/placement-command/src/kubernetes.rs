//! `longma placement kubernetes-labels`: the labels of this Kubernetes node that the extender reads.

use super::Outcome;
use super::print;
use longma_command_line::output::print as print_text;
use longma_placement::CpuSet;
use longma_placement_service::agent::{Description, MemoryReserve};
use longma_placement_service::kubernetes::{KubeletUse, labels};
use serde_json::json;
use std::path::PathBuf;

/// Arguments of `longma placement kubernetes-labels`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The kubelet's folder, whose checkpoints list the CPUs and memory assigned to pods.
    #[arg(long, value_name = "FOLDER", default_value = "/var/lib/kubelet")]
    kubelet: PathBuf,
    /// Read /sys and /proc below this folder, for a container that sees the host's files elsewhere.
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
    /// CPUs that pods do not get: the kubelet's reservedSystemCPUs, for example 0,64 [default: none].
    #[arg(long, value_name = "LIST")]
    reserved: Option<CpuSet>,
    /// Memory that pods do not get: a size, or sizes of single nodes, as for `serve`.
    #[arg(long, value_name = "SIZE|LIST", value_parser = super::serve::memory_reserve)]
    reserved_memory: Option<MemoryReserve>,
    /// Print a patch for `kubectl patch node NAME --type merge --patch-file`.
    #[arg(long)]
    patch: bool,
}

/// Runs `longma placement kubernetes-labels`; changes nothing.
pub fn run(arguments: Arguments) -> Outcome {
    let Arguments { kubelet, root, reserved, reserved_memory, patch } = arguments;
    let (reserved, reserved_memory) = (reserved.unwrap_or_default(), reserved_memory.unwrap_or_default());
    let host = Description::Read { root, name: "node".into(), reserved, reserved_memory }.host()?;
    let labels = labels(&host, &KubeletUse::read(&kubelet)?);
    if patch {
        return print::json(&json!({ "metadata": { "labels": labels } }));
    }
    print_text(&labels.iter().map(|(key, value)| format!("{key}={value}\n")).collect::<String>())
}
