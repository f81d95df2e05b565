//! Network interfaces and disks of a host. Virtual ones, such as bridges, loop devices and RAM disks, are skipped.
//!
//! Source: Linux Documentation/ABI/testing/sysfs-class-net, stable/sysfs-block.

use super::assemble::Assembled;
use super::sysfs::Sysfs;
use crate::parts::*;
use crate::read::{Cited, Map, Name, SourcePositions};
use crate::units::{BitRate, Size};

/// The maximum number of devices described; a host may have thousands of logical units.
const MAX_DEVICES: usize = 256;

pub(super) fn devices(sysfs: &Sysfs, host: &Assembled) -> (Map<Device>, Vec<Placed>) {
    let networks =
        sysfs.names("sys/class/net").into_iter().filter_map(|n| network(sysfs, &n).map(|d| ("net", n, d)));
    let disks = sysfs.names("sys/block").into_iter().filter_map(|n| disk(sysfs, &n).map(|d| ("block", n, d)));
    let (mut types, mut placed) = (Map::new(), Vec::new());
    for (class, name, device) in networks.chain(disks).take(MAX_DEVICES) {
        let base = if device.ethernet.is_some() { "nic" } else { "disk" };
        let known = types.iter().find(|t| *t.1 == device).map(|t: (&String, &Device)| t.0.clone());
        let type_name = known.unwrap_or_else(|| format!("{base}{}", types.len()));
        types.insert(type_name.clone(), device);
        let folder =
            if class == "net" { format!("sys/class/net/{name}") } else { format!("sys/block/{name}") };
        let node = sysfs.read(&format!("{folder}/device/numa_node")).and_then(|n| n.parse::<u32>().ok());
        let position = node.and_then(|n| host.node_order.iter().position(|o| *o == n));
        let on = format!("chip{}", position.map_or(0, |p| host.node_socket[p]));
        placed.push(Placed {
            name,
            device: Name::new(type_name),
            on: Name::new(on),
            marks: SourcePositions::default(),
        });
    }
    (types, placed)
}

fn device(title: String) -> Device {
    Device {
        title,
        ethernet: None,
        myrinet: None,
        zoned: None,
        block: None,
        dma: None,
        source: Cited::one("sysfs"),
        source_of: Map::new(),
        marks: SourcePositions::default(),
    }
}

fn network(sysfs: &Sysfs, name: &str) -> Option<Device> {
    let base = format!("sys/class/net/{name}");
    if !sysfs.exists(&format!("{base}/device")) {
        return None;
    }
    // The kernel reports -1 or an error for a link that is down and for virtual NICs.
    let mbits = sysfs.number(&format!("{base}/speed")).filter(|s| (1..10_000_000).contains(s));
    let ethernet = Ethernet {
        rate: mbits.map(|m| BitRate::new(m * 1_000_000)),
        ports: 1,
        mtu: sysfs.number(&format!("{base}/mtu")).map(Size::new),
        queues: queues(sysfs, &base),
        rx_fifo: None,
        dma_burst: None,
        interrupt_delay: None,
        dca: false,
        pause: false,
        marks: SourcePositions::default(),
    };
    let driver = std::fs::read_link(sysfs.root().join(&base).join("device/driver")).ok();
    let driver = driver.and_then(|d| d.file_name().map(|n| n.to_string_lossy().into_owned()));
    let title = driver.map_or("network interface".into(), |d| format!("network interface ({d})"));
    Some(Device { ethernet: Some(ethernet), ..device(title) })
}

fn queues(sysfs: &Sysfs, base: &str) -> u32 {
    let count = sysfs.names(&format!("{base}/queues")).iter().filter(|q| q.starts_with("rx-")).count();
    (count as u32).max(1)
}

fn disk(sysfs: &Sysfs, name: &str) -> Option<Device> {
    let base = format!("sys/block/{name}");
    let software = ["loop", "ram", "zram", "dm-", "md", "sr", "nbd", "fd"];
    if software.iter().any(|p| name.starts_with(p)) {
        return None;
    }
    let number = |file: &str| sysfs.number(&format!("{base}/{file}"));
    let capacity = number("size").filter(|s| *s > 0)?.checked_mul(512)?;
    let block = number("queue/logical_block_size").filter(|b| b.is_power_of_two()).unwrap_or(512);
    let model = sysfs.read(&format!("{base}/device/model"));
    let title = model.unwrap_or_else(|| "block device".into());
    let zone = number("queue/chunk_sectors").and_then(|s| s.checked_mul(512)).filter(|z| *z > 0);
    let zoned = sysfs.read(&format!("{base}/queue/zoned")).is_some_and(|z| z != "none");
    if let (true, Some(zone), Some(zones)) = (zoned, zone, number("queue/nr_zones")) {
        let limit = |file: &str| number(file).filter(|n| *n > 0).and_then(|n| u32::try_from(n).ok());
        let zoned = zoned_device(
            block,
            zone,
            u32::try_from(zones).ok()?,
            limit("queue/max_open_zones"),
            limit("queue/max_active_zones"),
        );
        return Some(Device { zoned: Some(zoned), ..device(title) });
    }
    let block = Block {
        capacity: Some(Size::new(capacity)),
        block: Size::new(block),
        rotational: number("queue/rotational") == Some(1),
        read_latency: None,
        write_latency: None,
        marks: SourcePositions::default(),
    };
    Some(Device { block: Some(block), ..device(title) })
}

fn zoned_device(block: u64, zone: u64, zones: u32, max_open: Option<u32>, max_active: Option<u32>) -> Zoned {
    Zoned {
        block: Size::new(block),
        zone_size: Size::new(zone),
        // sysfs does not report a zone's capacity; its size is an upper bound.
        zone_capacity: Size::new(zone),
        zones,
        conventional_zones: 0,
        max_open,
        max_active,
        channels: None,
        luns_per_channel: None,
        page: None,
        read: None,
        program: None,
        erase: None,
        channel_rate: None,
        read_latency: None,
        write_latency: None,
        reset_latency: None,
        marks: SourcePositions::default(),
    }
}
