//! Which device a person means: a file that emulates one, a zoned block device, or memory.
//! Not the devices: those are `longma-zoned`.

use longma_topology::units::Size;
use longma_zoned::device::{FileDevice, Geometry, KernelDevice, MemoryDevice, NullDevice, StatesRepair};
use longma_zoned::{Durability, Error as MapError, Options, Store, ZonedDevice};
use std::error::Error;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Any device.
pub type Device = Arc<dyn ZonedDevice>;

/// The word for a device that lives as long as the command.
const MEMORY: &str = "memory:";

/// Which device.
#[derive(clap::Args, Clone)]
pub struct Which {
    /// A file made by `longma zoned format`, a zoned block device such as /dev/nvme0n2, or `memory:` (gone when the command ends).
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Where the conventional part is, if the block device has none: another block device or a file.
    #[arg(long, value_name = "FILE")]
    conventional: Option<PathBuf>,
}

/// What an emulated device is made of.
#[derive(clap::Args, Clone)]
pub struct Shape {
    /// Zones that are written at their write pointer.
    #[arg(long, value_name = "N", default_value_t = 240)]
    zones: u32,
    /// Zones that are written in place.
    #[arg(long, value_name = "N", default_value_t = 16)]
    conventional_zones: u32,
    /// The size of a zone, such as "64 MiB".
    #[arg(long, value_name = "SIZE", default_value = "64 MiB", value_parser = size)]
    zone_size: u64,
    /// How much of a sequential zone can be written [default: all].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    zone_capacity: Option<u64>,
    /// The size of a block.
    #[arg(long, value_name = "SIZE", default_value = "4 KiB", value_parser = size)]
    block_size: u64,
    /// Sequential zones that may be open at once; 0 for any number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_open: u32,
    /// Sequential zones that may be partly written at once; 0 for any number.
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_active: u32,
}

/// A device that a new map is made on: what is there is lost.
#[derive(clap::Args, Clone)]
pub struct NewDevice {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    shape: Shape,
    /// Lose what is there.
    #[arg(long)]
    pub force: bool,
}

/// The most memory that can be asked for, MiB: 16 TiB.
const MOST_MIB: u64 = 1 << 24;

/// What the commands that put a load on a new map have in common.
#[derive(clap::Args, Clone)]
pub struct Load {
    /// The length of values, bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    pub value_bytes: u32,
    /// Let batches be safe at checkpoints and at the end only, instead of each at once.
    #[arg(long)]
    relaxed: bool,
    /// Memory for leaves, MiB.
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=MOST_MIB))]
    cache_mib: u64,
    /// How long the journal gets, MiB [default: a quarter of the memory for leaves].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=MOST_MIB))]
    journal_mib: Option<u64>,
    /// Chooses the operations.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl Load {
    /// Memory for leaves, bytes.
    pub const fn cache_bytes(&self) -> u64 {
        self.cache_mib << 20
    }

    /// How the map is run.
    pub fn options(&self) -> Options {
        let usual = Options::with_cache(self.cache_bytes());
        Options {
            journal_bytes: self.journal_mib.map_or(usual.journal_bytes, |mib| mib << 20),
            durability: if self.relaxed { Durability::Relaxed } else { Durability::EachBatch },
            ..usual
        }
    }
}

/// How much memory is free, bytes, where the kernel says it: proc(5), meminfo.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes of a size with its unit: 64MiB.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    // "64MiB" is what people type on a command line.
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let spaced = format!("{} {}", number.trim_end(), if unit.is_empty() { "B" } else { unit });
    spaced.parse::<Size>().map(Size::bytes).map_err(|error| format!("{}; {}", error.message, error.help))
}

impl Shape {
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
    /// Makes the emulated device, or opens the block device. An old file is lost only if a map with nodes of this size can be on the new one.
    pub fn create(&self, node_bytes: Option<u32>) -> Result<Device, Box<dyn Error>> {
        self.which.create(&self.shape, node_bytes, self.force)
    }

    /// The same with an empty map on it, for a load. A block device is written to only with `--force`.
    pub fn format(&self) -> Result<Device, Box<dyn Error>> {
        if self.is_block_device() && !self.force {
            return Err("all that is on the block device would be lost: say --force".into());
        }
        Ok(Store::format(self.create(None)?, None, super::format::identity()?)?)
    }

    /// Whether it is a zoned block device, not an emulated one.
    pub fn is_block_device(&self) -> bool {
        self.which.is_block_device()
    }

    /// Whether a device in memory has so much of it as is needed when a part of it is in use, and something beside it.
    pub fn fits_into_memory(&self, part: f64, beside_bytes: u64) -> Result<(), Box<dyn Error>> {
        if !self.which.is_memory() {
            return Ok(());
        }
        let geometry = self.shape.geometry()?;
        let all = geometry.blocks() as f64 * f64::from(geometry.block_bytes);
        let needed = all * part + beside_bytes as f64;
        let Some(free) = available_memory() else { return Ok(()) };
        if needed <= free as f64 {
            return Ok(());
        }
        let mib = |bytes: f64| (bytes / f64::from(1 << 20)).ceil();
        Err(format!(
            "a device in memory of {} MiB, {:.0} % of it in use, and what comes beside it take {} MiB of memory, and {} MiB are free: \
             give fewer or smaller zones (--zones, --zone-size), or a file",
            mib(all),
            part * 100.0,
            mib(needed),
            mib(free as f64),
        )
        .into())
    }
}

impl Which {
    /// Whether it is gone when the command ends.
    pub fn is_memory(&self) -> bool {
        self.device == Path::new(MEMORY)
    }

    /// Opens a device that is there.
    pub fn open(&self) -> Result<Device, Box<dyn Error>> {
        self.is_there()?;
        Ok(match self.is_block_device() {
            true => Arc::new(KernelDevice::open(&self.device, self.conventional.as_deref())?),
            false => Arc::new(FileDevice::open(&self.device)?),
        })
    }

    /// Opens a device that is there so that nothing can be written to it.
    pub fn open_to_read(&self) -> Result<Device, Box<dyn Error>> {
        self.is_there()?;
        Ok(match self.is_block_device() {
            true => Arc::new(KernelDevice::open_read_only(&self.device, self.conventional.as_deref())?),
            false => Arc::new(FileDevice::open_read_only(&self.device)?),
        })
    }

    /// Opens a device that may be damaged itself, and says what had to be guessed of it.
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
            return Err(
                "`memory:` holds nothing when the command begins: give a file or a block device".into()
            );
        }
        if self.is_block_device() {
            return Ok(());
        }
        if !self.device.exists() {
            let path = self.device.display();
            return Err(format!("there is no {path}: `longma zoned format {path}` makes it").into());
        }
        self.no_conventional()
    }

    /// Makes a new emulated device for a map, or opens a block device. An existing file is replaced only if `replace`.
    fn create(
        &self,
        shape: &Shape,
        node_bytes: Option<u32>,
        replace: bool,
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
            return Err(format!("{} is there already: --force replaces it", self.device.display()).into());
        }
        if replace && self.device.exists() {
            // So that a wrong path does not cost somebody his file.
            FileDevice::open_read_only(&self.device)
                .map_err(|error| format!("will not replace it: {error}"))?;
        }
        self.can_hold_a_map(geometry, node_bytes)?;
        Ok(Arc::new(FileDevice::create(&self.device, geometry, replace)?))
    }

    /// Whether a map can be made on such a device: it is made on one that keeps nothing. Making the file would already cost the old one.
    fn can_hold_a_map(&self, geometry: Geometry, node_bytes: Option<u32>) -> Result<(), MapError> {
        FileDevice::admits(&geometry)?;
        match Store::format(NullDevice::new(geometry)?, node_bytes, 0) {
            Ok(_) => Ok(()),
            Err(MapError::Unsuitable { what, .. }) => {
                Err(MapError::Unsuitable { device: self.device.display().to_string(), what })
            }
            Err(other) => Err(other),
        }
    }

    /// Opens the map on a device that is there.
    pub fn map(&self, options: Options) -> Result<Store<Device>, Box<dyn Error>> {
        Ok(Store::open(self.open()?, options)?)
    }

    /// Opens the map on a device that is there, and writes nothing to it.
    pub fn map_to_read(&self) -> Result<Store<Device>, Box<dyn Error>> {
        Ok(Store::open_read_only(self.open_to_read()?, Options::default())?)
    }

    /// Whether it is a zoned block device, not an emulated one.
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
