//! Opens or creates the device named on the command line: a file that emulates a zoned device, a zoned block device, or
//! memory.

use clap::ValueEnum;
use longma_command_line::size;
use longma_zoned::device::{FileDevice, Geometry, KernelDevice, MemoryDevice, NullDevice, StatesRepair};
use longma_zoned::{Durability, Error as MapError, Options, Store, ZonedDevice};
use longma_zoned_runs as runs;
use std::error::Error;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A device of any type.
pub type Device = Arc<dyn ZonedDevice>;

/// Name of a device in memory, which lives as long as the command.
const MEMORY: &str = "memory:";

/// Selects the device.
#[derive(clap::Args, Clone)]
pub struct DeviceOptions {
    /// A file made by `longma zoned format`, a zoned block device such as /dev/nvme0n2, or `memory:` (lost when the
    /// command exits).
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Block device or file to use as conventional zones, if the zoned block device has none.
    #[arg(long, value_name = "FILE")]
    conventional: Option<PathBuf>,
}

/// Geometry of an emulated device.
#[derive(clap::Args, Clone)]
pub struct GeometryOptions {
    /// Number of sequential zones.
    #[arg(long, value_name = "N", default_value_t = 240)]
    zones: u32,
    /// Number of conventional zones.
    #[arg(long, value_name = "N", default_value_t = 16)]
    conventional_zones: u32,
    /// Size of a zone, for example "64 MiB".
    #[arg(long, value_name = "SIZE", default_value = "64 MiB", value_parser = size)]
    zone_size: u64,
    /// Writable capacity of a sequential zone [default: the whole zone].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    zone_capacity: Option<u64>,
    /// Size of a block.
    #[arg(long, value_name = "SIZE", default_value = "4 KiB", value_parser = size)]
    block_size: u64,
    /// Maximum number of open zones; 0 for no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_open: u32,
    /// Maximum number of active (open or partly written) zones; 0 for no limit.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_active: u32,
}

/// The layout of a map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// A ZB+-tree, which all commands support. Best if the cache can hold the data or most of the data that is read.
    #[default]
    Tree,
    /// Sorted runs in tiers, for data many times the cache. Experimental.
    Runs,
}

/// The device to create a new map on; its previous content is lost.
#[derive(clap::Args, Clone)]
pub struct NewDevice {
    #[command(flatten)]
    device: DeviceOptions,
    #[command(flatten)]
    geometry_options: GeometryOptions,
    /// Overwrite existing data.
    #[arg(long)]
    pub force: bool,
}

/// Selects the layout of a new map.
#[derive(clap::Args, Clone, Copy)]
pub struct LayoutOption {
    /// Layout of the map.
    #[arg(long, value_enum, default_value = "tree")]
    pub layout: Layout,
}

/// Limit of memory sizes in MiB: 16 TiB.
const MAX_MIB: u64 = 1 << 24;

/// Options of commands that run a load on a new map.
#[derive(clap::Args, Clone)]
pub struct LoadOptions {
    /// Length of values, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    pub value_bytes: u32,
    /// Make batches durable only at checkpoints and at the end, instead of each at once.
    #[arg(long)]
    relaxed: bool,
    /// Size of the leaf cache, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=MAX_MIB))]
    cache_mib: u64,
    /// Length of the journal, in MiB [default: a quarter of the leaf cache].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=MAX_MIB))]
    journal_mib: Option<u64>,
    /// Seed of the random operations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl LoadOptions {
    /// Size of the leaf cache, in bytes.
    pub const fn cache_bytes(&self) -> u64 {
        self.cache_mib << 20
    }

    /// The map's options.
    pub fn options(&self) -> Options {
        let usual = Options::with_cache(self.cache_bytes());
        Options {
            journal_bytes: self.journal_mib.map_or(usual.journal_bytes, |mib| mib << 20),
            durability: if self.relaxed { Durability::Relaxed } else { Durability::EachBatch },
            ..usual
        }
    }
}

/// Available memory in bytes, if the kernel reports it (MemAvailable, proc(5)).
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

impl GeometryOptions {
    fn geometry(&self) -> Result<Geometry, Box<dyn Error>> {
        let blocks = |bytes: u64, what: &str| match bytes {
            0 => Err(format!("{what} of 0 bytes")),
            _ if !bytes.is_multiple_of(self.block_size.max(1)) => {
                Err(format!("{what} of {bytes} bytes is not a whole number of blocks of {}", self.block_size))
            }
            _ => Ok(bytes / self.block_size),
        };
        let block_bytes = u32::try_from(self.block_size).map_err(|_| "the block size is too large")?;
        if block_bytes == 0 {
            return Err("blocks of 0 bytes".into());
        }
        let zone_blocks = blocks(self.zone_size, "a zone")?;
        Ok(Geometry {
            block_bytes,
            zone_blocks,
            zone_capacity_blocks: self
                .zone_capacity
                .map_or(Ok(zone_blocks), |bytes| blocks(bytes, "a capacity"))?,
            conventional_zones: self.conventional_zones,
            sequential_zones: self.zones,
            max_open_zones: self.max_open,
            max_active_zones: self.max_active,
        })
    }
}

impl NewDevice {
    /// Creates the emulated device or opens the block device. An existing file is replaced only after checking that the
    /// new device can hold a map with nodes of this size.
    /// Unless `sparse`, space for a file is allocated.
    pub fn create(
        &self,
        layout: Layout,
        node_bytes: Option<u32>,
        sparse: bool,
    ) -> Result<Device, Box<dyn Error>> {
        self.device.create(&self.geometry_options, layout, node_bytes, self.force, sparse)
    }

    /// Creates the device with an empty map, for a load. Overwrites a block device only with `--force`.
    pub fn format(&self, layout: Layout) -> Result<Device, Box<dyn Error>> {
        if self.is_block_device() && !self.force {
            return Err("all data on the block device would be lost: confirm with --force".into());
        }
        let device = self.create(layout, None, true)?;
        Ok(match layout {
            Layout::Tree => Store::format(device, None, identity()?)?,
            Layout::Runs => runs::Store::format(device, identity()?)?,
        })
    }

    /// Whether it is a block device, not an emulated device.
    pub fn is_block_device(&self) -> bool {
        self.device.is_block_device()
    }

    /// Checks that a device in memory fits the available memory when the fraction `part` of it is in use, next to
    /// `beside_bytes` of other memory.
    pub fn fits_into_memory(&self, part: f64, beside_bytes: u64) -> Result<(), Box<dyn Error>> {
        if !self.device.is_memory() {
            return Ok(());
        }
        let geometry = self.geometry_options.geometry()?;
        let all = geometry.blocks() as f64 * f64::from(geometry.block_bytes);
        let needed = all * part + beside_bytes as f64;
        let Some(free) = available_memory() else { return Ok(()) };
        if needed <= free as f64 {
            return Ok(());
        }
        let mib = |bytes: f64| (bytes / f64::from(1 << 20)).ceil();
        Err(format!(
            "a device of {} MiB in memory, {:.0} % of it in use, needs {} MiB of memory with caches, but only {} MiB are free: \
             give fewer or smaller zones (--zones, --zone-size), or a file",
            mib(all),
            part * 100.0,
            mib(needed),
            mib(free as f64),
        )
        .into())
    }
}

impl DeviceOptions {
    /// Whether the device is in memory.
    pub fn is_memory(&self) -> bool {
        self.device == Path::new(MEMORY)
    }

    /// Opens an existing device.
    pub fn open(&self) -> Result<Device, Box<dyn Error>> {
        self.is_there()?;
        Ok(match self.is_block_device() {
            true => Arc::new(KernelDevice::open(&self.device, self.conventional.as_deref())?),
            false => Arc::new(FileDevice::open(&self.device)?),
        })
    }

    /// Opens an existing device read-only.
    pub fn open_to_read(&self) -> Result<Device, Box<dyn Error>> {
        self.is_there()?;
        Ok(match self.is_block_device() {
            true => Arc::new(KernelDevice::open_read_only(&self.device, self.conventional.as_deref())?),
            false => Arc::new(FileDevice::open_read_only(&self.device)?),
        })
    }

    /// Opens a device that may be damaged, and reports which zone states were reconstructed.
    pub fn open_to_repair(&self) -> Result<(Device, StatesRepair), Box<dyn Error>> {
        if self.is_block_device() {
            return Ok((self.open()?, StatesRepair::default()));
        }
        self.is_there()?;
        let (device, repair) = FileDevice::open_to_repair(&self.device)?;
        Ok((Arc::new(device), repair))
    }

    fn is_there(&self) -> Result<(), Box<dyn Error>> {
        if self.is_memory() {
            return Err("`memory:` is empty when the command starts: give a file or a block device".into());
        }
        if self.is_block_device() {
            return Ok(());
        }
        if !self.device.exists() {
            let path = self.device.display();
            return Err(format!("there is no {path}: create it with `longma zoned format {path}`").into());
        }
        self.no_conventional()
    }

    /// Creates an emulated device for a map, or opens a block device. An existing file is replaced only if `replace`.
    fn create(
        &self,
        shape: &GeometryOptions,
        layout: Layout,
        node_bytes: Option<u32>,
        replace: bool,
        sparse: bool,
    ) -> Result<Device, Box<dyn Error>> {
        if self.is_block_device() {
            return self.open();
        }
        self.no_conventional()?;
        let geometry = shape.geometry()?;
        if self.is_memory() {
            return Ok(Arc::new(MemoryDevice::new(geometry)?));
        }
        if self.device.exists() && !replace {
            return Err(format!("{} already exists: replace it with --force", self.device.display()).into());
        }
        if replace && self.device.exists() {
            // Only replace files that hold an emulated device, so that a wrong path does not destroy another file.
            FileDevice::open_read_only(&self.device)
                .map_err(|error| format!("cannot replace it: {error}"))?;
        }
        self.can_hold_a_map(geometry, layout, node_bytes)?;
        let create = if sparse { FileDevice::create } else { FileDevice::create_allocated };
        Ok(Arc::new(create(&self.device, geometry, replace)?))
    }

    /// Checks that a map fits the geometry, by formatting a device that discards data. Creating the file first would
    /// already destroy the old one.
    fn can_hold_a_map(
        &self,
        geometry: Geometry,
        layout: Layout,
        node_bytes: Option<u32>,
    ) -> Result<(), Box<dyn Error>> {
        FileDevice::admits(&geometry)?;
        let device = self.device.display().to_string();
        if layout == Layout::Runs {
            return match runs::Store::format(NullDevice::new(geometry)?, 0) {
                Ok(_) => Ok(()),
                Err(runs::Error::Unsuitable { what, .. }) => {
                    Err(runs::Error::Unsuitable { device, what }.into())
                }
                Err(other) => Err(other.into()),
            };
        }
        match Store::format(NullDevice::new(geometry)?, node_bytes, 0) {
            Ok(_) => Ok(()),
            Err(MapError::Unsuitable { what, .. }) => Err(MapError::Unsuitable { device, what }.into()),
            Err(other) => Err(other.into()),
        }
    }

    /// Opens the map on an existing device.
    #[cfg(feature = "server")]
    pub fn map(&self, options: Options) -> Result<Store<Device>, Box<dyn Error>> {
        Ok(Store::open(self.open()?, options)?)
    }

    /// Opens the map on an existing device read-only.
    pub fn map_to_read(&self) -> Result<Store<Device>, Box<dyn Error>> {
        Ok(Store::open_read_only(self.open_to_read()?, Options::default())?)
    }

    /// Whether it is a block device, not an emulated device.
    pub fn is_block_device(&self) -> bool {
        std::fs::metadata(&self.device).is_ok_and(|data| data.file_type().is_block_device())
    }

    fn no_conventional(&self) -> Result<(), Box<dyn Error>> {
        match self.conventional {
            Some(_) => {
                Err("--conventional is for zoned block devices: an emulated device has its own".into())
            }
            None => Ok(()),
        }
    }
}

/// A random identifier for a new map.
pub fn identity() -> Result<u64, std::io::Error> {
    let mut bytes = [0; 8];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
