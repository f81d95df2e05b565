//! `longma placement import`: turns a libvirt domain that the service did not create into a virtual machine.

use super::Outcome;
use super::connection::{ConnectionOptions, FormatOptions};
use super::request::{WaitOptions, submit};
use clap::builder::PossibleValuesParser;
use longma_placement_service::libvirt::import;
use longma_text::quote_for_shell;
use serde_json::json;
use std::process::ExitCode;

/// Arguments of `longma placement import`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The domain, which must be shut off.
    domain: String,
    /// Connection URI of libvirt.
    #[arg(long, value_name = "URI", default_value = "qemu:///system")]
    libvirt: String,
    /// Name of the virtual machine [default: the domain's].
    #[arg(long)]
    name: Option<String>,
    /// Tenant that owns the virtual machine.
    #[arg(long, default_value = "default")]
    tenant: String,
    /// CPU policy.
    #[arg(long, default_value = "range", value_parser = PossibleValuesParser::new(["range", "exclusive", "none"]))]
    cpu: String,
    #[command(flatten)]
    waiting: WaitOptions,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

/// Runs `longma placement import`.
pub fn run(arguments: &Arguments) -> Outcome {
    let client = arguments.connection.client()?;
    let found = import(&arguments.libvirt, &arguments.domain)?;
    let name = arguments.name.as_ref().unwrap_or(&arguments.domain);
    let body = json!({
        "name": name, "tenant": arguments.tenant, "vcpus": found.vcpus, "memory_mib": found.memory_mib,
        "cpu": arguments.cpu, "huge_page_kib": found.huge_page_kib, "boot": { "template": { "xml": found.xml } },
    });
    let code = submit(&client, &body, None, &arguments.waiting, &arguments.format)?;
    if code == ExitCode::SUCCESS {
        let domain = quote_for_shell(&arguments.domain);
        eprintln!(
            "longma: the old definition remains; it must not be started: virsh undefine --domain {domain}"
        );
    }
    Ok(code)
}
