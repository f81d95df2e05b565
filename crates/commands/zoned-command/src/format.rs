//! `longma zoned format`: creates an empty map.

use super::device::{Layout, LayoutOption, NewDevice, identity};
use super::{Format, Outcome, inspect};
use longma_zoned::Store;
use longma_zoned_runs as runs;

/// Arguments of `longma zoned format`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    new: NewDevice,
    /// Do not allocate space for a file in advance. It then takes space as it fills, and a full file system stops the
    /// map, deletions included, until there is space again.
    #[arg(long)]
    sparse: bool,
    /// Size of a node, in bytes [default: 4096, or the block size if that is larger].
    #[arg(long, value_name = "BYTES")]
    node_bytes: Option<u32>,
    #[command(flatten)]
    layout: LayoutOption,
    /// Output format.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Creates an empty map and describes its device.
pub fn run(arguments: &Arguments) -> Outcome {
    let layout = arguments.layout.layout;
    if layout == Layout::Runs && arguments.node_bytes.is_some() {
        return Err("--node-bytes is for trees: sorted runs have no nodes".into());
    }
    let device = arguments.new.create(layout, arguments.node_bytes, arguments.sparse)?;
    if arguments.new.is_block_device() && !arguments.new.force {
        let first_used = device.zones()?.into_iter().find(|zone| zone.write_pointer > 0);
        if let Some(zone) = first_used {
            return Err(format!(
                "{} contains data, first in {}: overwrite it with --force",
                device.name(),
                zone.number
            )
            .into());
        }
        if let Ok(info) = runs::Store::info(&device) {
            let (device, records) = (device.name(), info.records);
            return Err(format!(
                "{device} contains sorted runs of {records} records: overwrite it with --force"
            )
            .into());
        }
        if let Ok(info) = Store::info(&device) {
            return Err(format!(
                "{} contains a map of {} keys: overwrite it with --force",
                device.name(),
                info.keys
            )
            .into());
        }
    }
    let device = match layout {
        Layout::Tree => Store::format(device, arguments.node_bytes, identity()?)?,
        Layout::Runs => runs::Store::format(device, identity()?)?,
    };
    inspect::describe(&device, false, arguments.format)
}
