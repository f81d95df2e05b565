//! A request for a virtual machine: its size, and the policies that bind its CPUs and memory to NUMA nodes.
//!
//! Source: He Mujun et al. (High Technology Letters 2021) for the policies; the documentation of OpenStack Nova and
//! libvirt for the names.

use crate::host::{Device, DeviceKind, PciId};
use crate::name::name_problem;
use serde::{Deserialize, Serialize};

/// Maximum number of virtual CPUs of a request.
pub const MAX_VCPUS: u32 = 1024;
/// Maximum memory of a request in MiB: 16 TiB.
pub const MAX_MEMORY_MIB: u64 = 16 << 20;
/// Maximum expected lifetime, seconds.
pub const MAX_LIFETIME_S: u64 = 3650 * 86400;
/// Maximum number of virtual NUMA nodes of a request.
pub const MAX_VIRTUAL_NODES: u32 = 16;

/// How virtual CPUs are bound to a host's CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CpuPolicy {
    /// The virtual CPUs of a virtual node run on any CPU of its physical node that is not dedicated to another virtual
    /// machine.
    #[default]
    Range,
    /// Each virtual CPU has a dedicated CPU that no other virtual machine uses.
    Exclusive,
    /// Virtual CPUs run on any CPU of the host that is not dedicated. They still count against the nodes that hold the
    /// memory.
    None,
}

/// Which nodes may supply the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum MemoryPolicy {
    /// All memory of a virtual node comes from its own physical node.
    #[default]
    Strict,
    /// Memory of a virtual node comes from its own physical node if possible, and from the nearest nodes otherwise.
    Preferred {
        /// Largest NUMA distance to borrow from: 10 is the local node, 255 any node.
        #[serde(default = "any_distance")]
        #[cfg_attr(feature = "openapi", schema(minimum = 10, maximum = 255))]
        within_distance: u32,
    },
}

fn any_distance() -> u32 {
    255
}

/// How dedicated CPUs are allocated to the hardware threads of cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SmtPolicy {
    /// Prefers whole cores; falls back to single threads.
    #[default]
    Prefer,
    /// Uses one thread of each core and leaves its siblings idle.
    Avoid,
    /// Uses whole cores only; all their threads belong to the virtual machine.
    Require,
}

/// Where the emulator threads run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EmulatorPolicy {
    /// On any CPU of the host that is not dedicated to a virtual machine.
    #[default]
    Shared,
    /// On one additional dedicated CPU of the first virtual node's physical node. Requires exclusive CPUs.
    Isolated,
    /// On the same CPUs as the virtual CPUs.
    WithVcpus,
}

/// Whether a group member is placed together with the other members or apart from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// On the same host or node as the other members.
    Affinity,
    /// On a different host or node from every other member.
    AntiAffinity,
}

/// Scope of a group relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// The host.
    Host,
    /// The NUMA node (for affinity: of the same host).
    Node,
}

/// Membership in a group of a tenant's virtual machines.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// Name of the group.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"))]
    pub group: String,
    /// How this virtual machine relates to the other members. The other members may have a different relation.
    pub relation: Relation,
    /// Whether the relation applies to hosts or to nodes.
    pub level: Level,
}

/// A requested device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DeviceNeed {
    /// Kind of device. Required unless `id` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<DeviceKind>,
    /// Vendor and model, such as 8086:1572.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, pattern = "^[0-9a-fA-F]{4}:[0-9a-fA-F]{4}$"))]
    pub id: Option<PciId>,
    /// Number of such devices.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 16))]
    pub count: u32,
    /// Whether the device must be attached to a node that the virtual machine uses. If false, a local device is only
    /// preferred.
    #[serde(default)]
    pub local: bool,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(count: &u32) -> bool {
    *count == 1
}

/// Maximum number of devices of a virtual machine.
const MAX_DEVICES: u32 = 16;

impl DeviceNeed {
    /// One device of this kind.
    pub fn of_kind(kind: DeviceKind, local: bool) -> Self {
        Self { kind: Some(kind), id: None, count: 1, local }
    }

    /// Returns whether `device` is of the requested kind and model.
    pub fn matches(&self, device: &Device) -> bool {
        self.kind.is_none_or(|kind| kind == device.kind) && self.id.is_none_or(|id| device.id == Some(id))
    }
}

/// The boot source of the virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Boot {
    /// No disk: it runs only the firmware.
    #[default]
    Nothing,
    /// A disk image on the host.
    Disk {
        /// Absolute path on the host.
        path: String,
        /// Image format: "raw" or "qcow2".
        format: String,
    },
    /// Domain XML supplied by the user. The hypervisor fills in CPUs, memory and their binding.
    Template {
        /// The domain XML.
        xml: String,
    },
}

/// A request for a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Name, unique among the tenant's live virtual machines.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"))]
    pub name: String,
    /// Tenant that owns the virtual machine.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"))]
    #[serde(default = "default_tenant")]
    pub tenant: String,
    /// Number of virtual CPUs, at least 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1024))]
    pub vcpus: u32,
    /// Memory in MiB, at least 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 16777216))]
    pub memory_mib: u64,
    /// CPU binding policy.
    #[serde(default)]
    pub cpu: CpuPolicy,
    /// Memory binding policy.
    #[serde(default)]
    pub memory: MemoryPolicy,
    /// Huge page size in KiB; `None` for ordinary pages.
    #[cfg_attr(feature = "openapi", schema(minimum = 64, maximum = 16777216))]
    #[serde(default)]
    pub huge_page_kib: Option<u32>,
    /// Number of virtual NUMA nodes, each on a different physical node. `None` lets the scheduler use as few as
    /// possible.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 16))]
    #[serde(default)]
    pub virtual_nodes: Option<u32>,
    /// Placement of the emulator threads.
    #[serde(default)]
    pub emulator: EmulatorPolicy,
    /// Use of hardware threads. Values other than `prefer` require exclusive CPUs.
    #[serde(default)]
    pub smt: SmtPolicy,
    /// Group memberships.
    #[serde(default)]
    pub groups: Vec<Membership>,
    /// Requested devices.
    #[serde(default)]
    pub devices: Vec<DeviceNeed>,
    /// The boot source of the virtual machine.
    #[serde(default)]
    pub boot: Boot,
    /// Expected lifetime in seconds. It is a hint for the placement and has no other effect.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 315360000))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime_s: Option<u64>,
}

fn default_tenant() -> String {
    "default".into()
}

/// An invalid field of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// Path of the field in the JSON body, for example "groups[1].group".
    pub field: String,
    /// The error and the valid values.
    pub problem: String,
}

impl Request {
    /// Creates a request with default policies.
    pub fn new(name: &str, vcpus: u32, memory_mib: u64) -> Self {
        Self {
            name: name.into(),
            tenant: default_tenant(),
            vcpus,
            memory_mib,
            cpu: CpuPolicy::default(),
            memory: MemoryPolicy::default(),
            huge_page_kib: None,
            virtual_nodes: None,
            emulator: EmulatorPolicy::default(),
            smt: SmtPolicy::default(),
            groups: Vec::new(),
            devices: Vec::new(),
            boot: Boot::default(),
            lifetime_s: None,
        }
    }

    /// Validates every field.
    ///
    /// # Errors
    /// All invalid fields.
    pub fn check(&self) -> Result<(), Vec<Invalid>> {
        let mut wrong = Vec::new();
        let mut note = |field: String, problem: String| wrong.push(Invalid { field, problem });
        for (field, name) in [("name", &self.name), ("tenant", &self.tenant)] {
            if let Some(problem) = name_problem(name) {
                note(field.into(), problem);
            }
        }
        if self.name.bytes().all(|b| b.is_ascii_digit()) && !self.name.is_empty() {
            note(
                "name".into(),
                "is a number, which would be ambiguous with a virtual machine's id: add a letter".into(),
            );
        }
        if u64::from(self.virtual_nodes.unwrap_or(1)) > self.memory_mib.max(1) {
            note("virtual_nodes".into(), "each needs at least one MiB of memory".into());
        }
        if !(1..=MAX_VCPUS).contains(&self.vcpus) {
            note("vcpus".into(), format!("is {}; must be from 1 to {MAX_VCPUS}", self.vcpus));
        }
        if !(1..=MAX_MEMORY_MIB).contains(&self.memory_mib) {
            note("memory_mib".into(), format!("is {}; must be from 1 to {MAX_MEMORY_MIB}", self.memory_mib));
        }
        let nodes = self.virtual_nodes.unwrap_or(1);
        if !(1..=MAX_VIRTUAL_NODES).contains(&nodes) || nodes > self.vcpus.max(1) {
            note(
                "virtual_nodes".into(),
                format!("is {nodes}; must be from 1 to {MAX_VIRTUAL_NODES} and at most vcpus"),
            );
        }
        if let Some(kib) = self.huge_page_kib {
            let known = (64..=16 << 20).contains(&kib) && kib.is_power_of_two();
            let is_multiple =
                (self.memory_mib << 10).is_multiple_of(u64::from(kib) * u64::from(nodes.max(1)));
            if !known {
                note("huge_page_kib".into(), format!("is {kib}; must be a power of two from 64 to 16777216"));
            } else if !is_multiple {
                let problem = format!(
                    "is {}; must be whole pages of {kib} KiB on each of {nodes} nodes",
                    self.memory_mib
                );
                note("memory_mib".into(), problem);
            }
        }
        if let MemoryPolicy::Preferred { within_distance } = self.memory
            && !(10..=255).contains(&within_distance)
        {
            note(
                "memory.preferred.within_distance".into(),
                format!("is {within_distance}; must be from 10 to 255"),
            );
        }
        if self.cpu != CpuPolicy::Exclusive {
            if self.smt != SmtPolicy::Prefer {
                note("smt".into(), "needs exclusive CPUs: set cpu to \"exclusive\"".into());
            }
            if self.emulator == EmulatorPolicy::Isolated {
                note("emulator".into(), "a dedicated CPU needs cpu set to \"exclusive\"".into());
            }
        }
        if self.lifetime_s.is_some_and(|lifetime_s| !(1..=MAX_LIFETIME_S).contains(&lifetime_s)) {
            note("lifetime_s".into(), format!("must be from 1 to {MAX_LIFETIME_S}, ten years"));
        }
        self.check_lists(&mut note);
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    fn check_lists(&self, note: &mut impl FnMut(String, String)) {
        if self.groups.len() > 16 {
            note("groups".into(), format!("has {}; at most 16", self.groups.len()));
        }
        for (at, member) in self.groups.iter().enumerate() {
            let twice = self.groups[..at].iter().any(|m| m.group == member.group && m.level == member.level);
            if let Some(problem) = name_problem(&member.group) {
                note(format!("groups[{at}].group"), problem);
            } else if twice {
                note(format!("groups[{at}].group"), format!("`{}` is listed twice", member.group));
            }
        }
        for (at, need) in self.devices.iter().enumerate() {
            if need.kind.is_none() && need.id.is_none() {
                note(format!("devices[{at}]"), "needs a kind or an id".into());
            }
            if !(1..=MAX_DEVICES).contains(&need.count) {
                note(
                    format!("devices[{at}].count"),
                    format!("is {}; must be from 1 to {MAX_DEVICES}", need.count),
                );
            }
        }
        let devices = self.devices.iter().fold(0u32, |sum, need| sum.saturating_add(need.count));
        if devices > MAX_DEVICES {
            note("devices".into(), format!("has {devices}; at most {MAX_DEVICES}"));
        }
        let bad = |text: &str| text.chars().any(char::is_control);
        match &self.boot {
            Boot::Nothing => {}
            Boot::Disk { path, format } => {
                if !path.starts_with('/')
                    || path.len() > 4096
                    || bad(path)
                    || path.split('/').any(|p| p == "..")
                {
                    note("boot.disk.path".into(), "must be an absolute path without `..`".into());
                }
                if !matches!(format.as_str(), "raw" | "qcow2") {
                    note("boot.disk.format".into(), "must be \"raw\" or \"qcow2\"".into());
                }
            }
            Boot::Template { xml } => {
                if xml.len() > 256 << 10 {
                    note("boot.template.xml".into(), format!("has {} bytes; at most 262144", xml.len()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_body_is_a_request_with_defaults() {
        let request: Request = serde_json::from_str(r#"{"name":"web","vcpus":2,"memory_mib":4096}"#).unwrap();
        assert_eq!(request, Request::new("web", 2, 4096));
        assert_eq!(request.check(), Ok(()));
    }

    #[test]
    fn each_wrong_field_is_named() {
        let field = |change: fn(&mut Request)| {
            let mut request = Request::new("web", 2, 4096);
            change(&mut request);
            request.check().unwrap_err()[0].field.clone()
        };
        assert_eq!(field(|r| r.name = "<x>".into()), "name");
        assert_eq!(field(|r| r.name = "17".into()), "name");
        assert_eq!(field(|r| (r.virtual_nodes, r.memory_mib) = (Some(2), 1)), "virtual_nodes");
        assert_eq!(field(|r| r.tenant = "../a".into()), "tenant");
        assert_eq!(field(|r| r.vcpus = 0), "vcpus");
        assert_eq!(field(|r| r.memory_mib = u64::MAX), "memory_mib");
        assert_eq!(field(|r| r.virtual_nodes = Some(3)), "virtual_nodes");
        assert_eq!(field(|r| r.huge_page_kib = Some(2000)), "huge_page_kib");
        assert_eq!(field(|r| (r.huge_page_kib, r.memory_mib) = (Some(2048), 4097)), "memory_mib");
        assert_eq!(field(|r| r.lifetime_s = Some(0)), "lifetime_s");
        assert_eq!(field(|r| r.lifetime_s = Some(MAX_LIFETIME_S + 1)), "lifetime_s");
        assert_eq!(field(|r| r.smt = SmtPolicy::Avoid), "smt");
        assert_eq!(field(|r| r.emulator = EmulatorPolicy::Isolated), "emulator");
        assert_eq!(
            field(|r| r.memory = MemoryPolicy::Preferred { within_distance: 9 }),
            "memory.preferred.within_distance"
        );
        assert_eq!(
            field(|r| r.boot = Boot::Disk { path: "/a/../b".into(), format: "raw".into() }),
            "boot.disk.path"
        );
        let twice = Membership { group: "g".into(), relation: Relation::Affinity, level: Level::Host };
        let mut request = Request::new("web", 2, 4096);
        request.groups = vec![twice.clone(), twice];
        assert_eq!(request.check().unwrap_err()[0].field, "groups[1].group");
    }

    #[test]
    fn an_unknown_key_is_an_error_and_not_ignored() {
        let text = r#"{"name":"web","vcpus":2,"memory_mib":4096,"hugepages":true}"#;
        assert!(serde_json::from_str::<Request>(text).unwrap_err().to_string().contains("hugepages"));
    }
}
