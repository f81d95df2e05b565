//! Converts a machine file's zoned device to the geometry and timing of the model in `longma-zoned-lab`. The timing
//! follows from its flash or from its stated latencies.

use longma_lab::{Failure, Point};
use longma_sim::Duration;
use longma_topology::units::{Size, Time};
use longma_topology::{Machine, parts::Zoned};
use longma_zoned::device::Geometry;
use longma_zoned_lab::Parameters;

/// Geometry and timing of a device.
pub struct Drive {
    /// Its zones.
    pub geometry: Geometry,
    /// Its timing.
    pub parameters: Parameters,
}

impl Drive {
    /// The device named by the point's parameter `device`, or the only zoned device of the point's machine. Without a
    /// machine: a ZN540 with one conventional zone and 40 sequential zones of 2 GiB.
    ///
    /// # Errors
    /// If the machine has no such device, or the device cannot be modelled.
    pub fn of(point: &Point) -> Result<Self, Failure> {
        let name = point.text("device");
        match &point.machine {
            Some(machine) => {
                let machine = Machine::parse(&machine.name, &machine.text)
                    .map_err(|report| Failure::refused(report.to_string()))?;
                Self::of_machine(&machine, name).map_err(Failure::refused)
            }
            None if name.is_empty() => Ok(Self::default_drive()),
            None => {
                Err(Failure::refused(format!("the device `{name}` needs a machine: name one in `machines`")))
            }
        }
    }

    fn default_drive() -> Self {
        let geometry = Geometry {
            block_bytes: 4096,
            zone_blocks: 1 << 19,
            zone_capacity_blocks: 1 << 19,
            conventional_zones: 1,
            sequential_zones: 40,
            max_open_zones: 0,
            max_active_zones: 0,
        };
        Self { geometry, parameters: Parameters::ZN540 }
    }

    fn of_machine(machine: &Machine, name: &str) -> Result<Self, String> {
        let placed = machine.hosts.iter().flat_map(|host| &host.devices);
        let zoned =
            placed.filter_map(|placed| Some((placed, machine.devices.get(&*placed.device)?.zoned.as_ref()?)));
        let all: Vec<_> = zoned.collect();
        let wanted: Vec<_> =
            all.iter().filter(|(placed, _)| name.is_empty() || placed.name == name).collect();
        let names = all.iter().map(|(placed, _)| placed.name.as_str()).collect::<Vec<_>>().join(", ");
        match wanted[..] {
            [(_, zoned)] => Self::of_part(zoned),
            [] if all.is_empty() => Err(format!("machine {} has no zoned device", machine.name)),
            [] => Err(format!("machine {} has no zoned device `{name}`; it has {names}", machine.name)),
            _ => {
                Err(format!("machine {} has the zoned devices {names}: name one with `device`", machine.name))
            }
        }
    }

    fn of_part(zoned: &Zoned) -> Result<Self, String> {
        let block = zoned.block.bytes().max(1);
        let geometry = Geometry {
            block_bytes: u32::try_from(block).map_err(|_| format!("blocks of {}", zoned.block))?,
            zone_blocks: zoned.zone_size.bytes() / block,
            zone_capacity_blocks: zoned.zone_capacity.bytes() / block,
            conventional_zones: zoned.conventional_zones,
            sequential_zones: zoned.zones,
            max_open_zones: zoned.max_open.unwrap_or(0),
            max_active_zones: zoned.max_active.unwrap_or(0),
        };
        Ok(Self { geometry, parameters: times(zoned)? })
    }
}

fn times(zoned: &Zoned) -> Result<Parameters, String> {
    let duration = |time: Time| Duration::from_ps(time.ps());
    if let (Some(read), Some(write)) = (zoned.read_latency, zoned.write_latency) {
        let reset = zoned.reset_latency.map_or(Duration::ZERO, duration);
        return Ok(Parameters::answering(duration(read), duration(write), reset));
    }
    let default_drive = Parameters::ZN540;
    let parameters = Parameters {
        channels: zoned.channels.unwrap_or(default_drive.channels),
        dies_per_channel: zoned.luns_per_channel.unwrap_or(default_drive.dies_per_channel),
        page_bytes: zoned.page.map_or(default_drive.page_bytes, Size::bytes),
        // A channel is eight bits wide.
        channel_bytes_per_second: zoned
            .channel_rate
            .map_or(default_drive.channel_bytes_per_second, |rate| rate.per_second()),
        read_4k: zoned.read.map_or(default_drive.read_4k, duration),
        program: zoned.program.map_or(default_drive.program, duration),
        erase: zoned.erase.map_or(default_drive.erase, duration),
        ..default_drive
    };
    let dies = u64::from(parameters.channels) * u64::from(parameters.dies_per_channel);
    if !(1..=4096).contains(&dies) || parameters.page_bytes == 0 || parameters.channel_bytes_per_second == 0 {
        return Err(
            "a drive with a flash model needs 1 to 4096 dies and a page size and channel rate above 0".into(),
        );
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drives_of_the_shipped_host_are_a_zn540_and_a_device_with_stated_latencies() {
        let machine = Machine::open("zns-host").unwrap();
        let drive = Drive::of_machine(&machine, "nvme0").unwrap();
        assert_eq!(drive.parameters, Parameters::ZN540);
        assert_eq!((drive.geometry.zone_capacity_blocks, drive.geometry.max_open_zones), (275_712, 14));
        let published = Drive::of_machine(&machine, "nullb0").unwrap();
        assert_eq!((published.geometry.conventional_zones, published.geometry.sequential_zones), (1, 40));
        assert_ne!(published.parameters, Parameters::ZN540);
        for (name, why) in [("", "the zoned devices nvme0, nullb0"), ("nvme1", "it has nvme0, nullb0")] {
            assert!(Drive::of_machine(&machine, name).err().unwrap().contains(why), "{name}");
        }
        let other = Machine::open("godson3").unwrap();
        assert!(Drive::of_machine(&other, "").err().unwrap().contains("no zoned device"));
    }
}
