//! Network interfaces and accelerators on the PCI bus that can be handed to virtual machines: whole devices, and
//! virtual functions of SR-IOV. Functions that the IOMMU cannot separate form one device. The operator dedicates a
//! device by binding all its functions to the driver vfio-pci; a device in use by the host is never taken from it.
//!
//! Source: Linux Documentation/ABI/testing/sysfs-bus-pci, sysfs-kernel-iommu_groups; Documentation/driver-api/vfio.rst.

use super::{CollectError, invalid, names, read_if_there};
use crate::host::{Device, DeviceKind, PciId, is_device_name};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Maximum number of devices listed.
const MAX_DEVICES: usize = 1024;
/// The driver of functions that are handed to virtual machines.
const VFIO: &str = "vfio-pci";

/// A function of the PCI bus.
struct Function {
    folder: PathBuf,
    address: String,
}

impl Function {
    fn at(root: &Path, address: &str) -> Self {
        Self { folder: root.join("sys/bus/pci/devices").join(address), address: address.into() }
    }

    /// The class, such as "0x020000"; `None` if the function does not exist.
    fn class(&self) -> Result<Option<String>, CollectError> {
        read_if_there(&self.folder.join("class"))
    }

    fn kind(&self) -> Result<Option<DeviceKind>, CollectError> {
        // PCI base classes: 02 network, 03 display, 12 processing accelerator.
        Ok(self.class()?.and_then(|class| match class.get(..4) {
            Some("0x02") => Some(DeviceKind::Nic),
            Some("0x03" | "0x12") => Some(DeviceKind::Gpu),
            _ => None,
        }))
    }

    fn is_bridge(&self) -> Result<bool, CollectError> {
        Ok(self.class()?.is_some_and(|class| class.starts_with("0x06")))
    }

    fn number(&self, file: &str) -> Result<Option<i64>, CollectError> {
        let path = self.folder.join(file);
        let parse = |text: String| text.parse().map_err(|_| invalid(&path, "is not a number"));
        read_if_there(&path)?.map(parse).transpose()
    }

    fn id(&self) -> Result<Option<PciId>, CollectError> {
        let number = |file: &str| -> Result<Option<u16>, CollectError> {
            let text = read_if_there(&self.folder.join(file))?;
            Ok(text.and_then(|text| u16::from_str_radix(text.strip_prefix("0x")?, 16).ok()))
        };
        Ok(number("vendor")?.zip(number("device")?).map(|(vendor, device)| PciId { vendor, device }))
    }

    /// Name of the target of one of the function's symbolic links.
    fn link(&self, name: &str) -> Option<String> {
        let target = std::fs::read_link(self.folder.join(name)).ok()?;
        Some(target.file_name()?.to_str()?.to_string())
    }
}

/// Lists the devices below `root`, named by the address of a function, and those that cannot be handed over, with the
/// reason.
pub(super) fn devices(root: &Path, nodes: &[u32]) -> Result<Vec<Device>, CollectError> {
    let mut devices = Vec::new();
    let mut seen = BTreeSet::new();
    for address in names(&root.join("sys/bus/pci/devices")) {
        let function = Function::at(root, &address);
        let Some(kind) = function.kind()? else { continue };
        if devices.len() == MAX_DEVICES || !is_device_name(&address) || seen.contains(&address) {
            continue;
        }
        if function.number("sriov_numvfs")?.is_some_and(|functions| functions > 0) {
            // The virtual functions are listed instead of the physical one.
            continue;
        }
        let (functions, unusable) = separable(root, &function)?;
        seen.extend(functions.iter().cloned());
        let node = function.number("numa_node")?.and_then(|n| u32::try_from(n).ok());
        devices.push(Device {
            kind,
            node: node.filter(|node| nodes.contains(node)),
            slots: u32::from(unusable.is_none()),
            id: function.id()?,
            functions,
            unusable,
            name: address,
        });
    }
    Ok(devices)
}

/// The functions that are handed over with `function`, this one first, and why they cannot be.
fn separable(root: &Path, function: &Function) -> Result<(Vec<String>, Option<String>), CollectError> {
    let Some(group) = function.link("iommu_group") else {
        let why = "it has no IOMMU group: enable the IOMMU in the firmware and the kernel";
        return Ok((vec![function.address.clone()], Some(why.into())));
    };
    let mut members = names(&root.join("sys/kernel/iommu_groups").join(&group).join("devices"));
    members.retain(|address| is_device_name(address) && *address != function.address);
    members.insert(0, function.address.clone());
    let (mut functions, mut unusable) = (Vec::new(), None);
    for address in members {
        let member = Function::at(root, &address);
        if member.is_bridge()? || member.class()?.is_none() {
            continue;
        }
        let driver = member.link("driver");
        if driver.as_deref() != Some(VFIO) {
            let uses = driver.map_or("no driver".to_string(), |driver| format!("the driver {driver}"));
            unusable = unusable.or_else(|| Some(format!("{address} has {uses}: bind it to {VFIO}")));
        }
        functions.push(address);
    }
    Ok((functions, unusable))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn put(&self, address: &str, class: &str, node: &str, group: Option<u32>, driver: Option<&str>) {
            let folder = self.0.path().join("sys/bus/pci/devices").join(address);
            std::fs::create_dir_all(&folder).unwrap();
            let files = [("class", class), ("numa_node", node), ("vendor", "0x8086"), ("device", "0x1572")];
            for (name, text) in files {
                std::fs::write(folder.join(name), format!("{text}\n")).unwrap();
            }
            if let Some(driver) = driver {
                std::os::unix::fs::symlink(format!("../../drivers/{driver}"), folder.join("driver")).unwrap();
            }
            if let Some(group) = group {
                let group = format!("sys/kernel/iommu_groups/{group}");
                std::os::unix::fs::symlink(format!("../../../../{group}"), folder.join("iommu_group"))
                    .unwrap();
                let members = self.0.path().join(group).join("devices");
                std::fs::create_dir_all(&members).unwrap();
                std::fs::write(members.join(address), "").unwrap();
            }
        }

        fn devices(&self) -> Vec<Device> {
            devices(self.0.path(), &[0, 1]).unwrap()
        }
    }

    #[test]
    fn virtual_functions_are_devices_instead_of_their_physical_function() {
        let tree = Tree::new();
        tree.put("0000:81:00.0", "0x020000", "1", Some(1), Some("ice"));
        std::fs::write(tree.0.path().join("sys/bus/pci/devices/0000:81:00.0/sriov_numvfs"), "2\n").unwrap();
        tree.put("0000:81:01.0", "0x020000", "1", Some(2), Some("vfio-pci"));
        tree.put("0000:81:01.1", "0x020000", "1", Some(3), Some("iavf"));
        let found = tree.devices();
        let slots: Vec<_> = found.iter().map(|d| (&*d.name, d.slots, d.node)).collect();
        assert_eq!(slots, [("0000:81:01.0", 1, Some(1)), ("0000:81:01.1", 0, Some(1))]);
        assert_eq!(found[0].id.unwrap().to_string(), "8086:1572");
        assert_eq!(found[0].functions, ["0000:81:01.0"]);
        let why = found[1].unusable.as_deref();
        assert_eq!(why, Some("0000:81:01.1 has the driver iavf: bind it to vfio-pci"));
    }

    #[test]
    fn what_the_iommu_cannot_separate_is_one_device() {
        let tree = Tree::new();
        // A bridge, a graphics card and its audio function in one group; two network functions in another.
        tree.put("0000:00:01.0", "0x060400", "0", Some(1), Some("pcieport"));
        tree.put("0000:01:00.0", "0x030000", "0", Some(1), Some("vfio-pci"));
        tree.put("0000:01:00.1", "0x040300", "0", Some(1), Some("vfio-pci"));
        tree.put("0000:02:00.0", "0x020000", "-1", Some(2), Some("vfio-pci"));
        tree.put("0000:02:00.1", "0x020000", "7", Some(2), None);
        let found = tree.devices();
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!((found[0].kind, found[0].slots), (DeviceKind::Gpu, 1));
        assert_eq!(found[0].functions, ["0000:01:00.0", "0000:01:00.1"]);
        assert_eq!((found[1].node, found[1].slots), (None, 0));
        assert!(found[1].unusable.as_ref().unwrap().contains("0000:02:00.1 has no driver"), "{found:?}");
    }

    #[test]
    fn without_an_iommu_nothing_can_be_handed_over() {
        let tree = Tree::new();
        tree.put("0000:01:00.0", "0x120000", "0", None, Some("vfio-pci"));
        tree.put("0000:01:00.1", "0x010000", "0", Some(1), Some("vfio-pci"));
        let found = tree.devices();
        assert_eq!(found.len(), 1);
        assert!(found[0].slots == 0 && found[0].unusable.as_ref().unwrap().contains("enable the IOMMU"));
    }

    #[test]
    fn vendors_and_models_are_read_strictly() {
        for text in ["", "8086", "8086:", "8086:157", "8086:15722", "+086:1572", "8086:1572 "] {
            assert!(PciId::try_from(text.to_string()).is_err(), "{text:?}");
        }
        assert_eq!(PciId::try_from("8086:A2aF".to_string()).unwrap().to_string(), "8086:a2af");
    }
}
