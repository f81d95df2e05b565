//! `longma zoned format`
//! Not what is written: that is `longma-zoned`'s store.

use super::device::NewDevice;
use super::{Format, Outcome, inspect};
use longma_zoned::Store;

/// Arguments of `longma zoned format`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    new: NewDevice,
    /// The size of a node, bytes [default: 4096, or a block if that is larger].
    #[arg(long, value_name = "BYTES")]
    node_bytes: Option<u32>,
    /// How to print.
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

/// Makes an empty map and says what it is on.
pub fn run(arguments: &Arguments) -> Outcome {
    let device = arguments.new.create(arguments.node_bytes)?;
    if arguments.new.is_block_device() && !arguments.new.force {
        let first_used = device.zones()?.into_iter().find(|zone| zone.write_pointer > 0);
        if let Some(zone) = first_used {
            return Err(
                format!("{} has data, in {} first: --force loses it", device.name(), zone.number).into()
            );
        }
        if let Ok(info) = Store::info(&device) {
            return Err(format!("{} has a map of {} keys: --force loses it", device.name(), info.keys).into());
        }
    }
    let device = Store::format(device, arguments.node_bytes, identity()?)?;
    inspect::describe(&device, false, arguments.format)
}

/// A number that tells this map from others.
pub fn identity() -> Result<u64, std::io::Error> {
    let mut bytes = [0; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
