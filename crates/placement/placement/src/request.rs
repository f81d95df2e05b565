//! What a user asks for: a virtual machine, and how it is to lie on a host's nodes.
//! Not where it goes: that is a `Placement`.
//! Source: He Mujun et al. (High Technology Letters 2021) for the policies; Nova's and libvirt's documents for the names.

use crate::host::DeviceKind;
use crate::name::name_problem;
use serde::{Deserialize, Serialize};

/// Virtual CPUs a request may have.
pub const MAX_VCPUS: u32 = 1024;
/// Memory a request may have, MiB: 16 TiB.
pub const MAX_MEMORY_MIB: u64 = 16 << 20;
/// Virtual NUMA nodes a request may have.
pub const MAX_VIRTUAL_NODES: u32 = 16;

/// How virtual CPUs are bound to a host's CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum CpuPolicy {
    /// The virtual CPUs of a virtual node run on any CPU of its physical node that is nobody's own.
    #[default]
    Range,
    /// Each virtual CPU has a CPU of its own, on which no other virtual machine runs.
    Exclusive,
    /// They run on any CPU of the host that is nobody's own. They still count on the nodes that hold their memory.
    None,
}

/// Where memory may lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum MemoryPolicy {
    /// Each virtual node's memory on its own physical node, all of it.
    #[default]
    Strict,
    /// Each virtual node's memory on its own physical node as far as there is room, the rest on the nearest nodes.
    Preferred {
        /// Farthest node that may be used: 10 is the own node; 255 is any.
        #[serde(default = "any_distance")]
        #[cfg_attr(feature = "openapi", schema(minimum = 10, maximum = 255))]
        within_distance: u32,
    },
}

fn any_distance() -> u32 {
    255
}

/// How virtual CPUs of their own CPUs use the hardware threads of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum SmtPolicy {
    /// Whole cores first, single threads if there are no others.
    #[default]
    Prefer,
    /// A core for each virtual CPU; its other threads stay idle.
    Avoid,
    /// Whole cores only, all threads of which belong to the virtual machine.
    Require,
}

/// Where the emulator's own threads run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EmulatorPolicy {
    /// On any CPU of the host that is no virtual machine's own.
    #[default]
    Shared,
    /// On one more CPU of its own, on the first virtual node's physical node. With exclusive CPUs only.
    Isolated,
    /// On the CPUs of the virtual CPUs.
    WithVcpus,
}

/// Whether members of a group seek or shun each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Relation {
    /// Where the others are.
    Affinity,
    /// Where none of the others is.
    AntiAffinity,
}

/// What a group's members share or do not share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// A host.
    Host,
    /// A NUMA node (affinity: of the same host).
    Node,
}

/// Membership in a group of virtual machines of one tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Membership {
    /// The group's name.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"))]
    pub group: String,
    /// What this virtual machine wants of the others, whatever they want of it.
    pub relation: Relation,
    /// Hosts or nodes.
    pub level: Level,
}

/// A device that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DeviceNeed {
    /// Its kind.
    pub kind: DeviceKind,
    /// Whether it must hang on a node that the virtual machine uses; else it is preferred there.
    #[serde(default)]
    pub local: bool,
}

/// What it starts from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Boot {
    /// Nothing: firmware only.
    #[default]
    Nothing,
    /// A disk image on the host.
    Disk {
        /// Absolute path.
        path: String,
        /// Format of the image: "raw" or "qcow2".
        format: String,
    },
    /// The user's own domain XML, into which CPUs, memory and their binding are written.
    Template {
        /// The XML.
        xml: String,
    },
}

/// A virtual machine that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Its name, unique in its tenant while it lives.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"))]
    pub name: String,
    /// Whose it is.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"))]
    #[serde(default = "default_tenant")]
    pub tenant: String,
    /// Virtual CPUs, at least 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1024))]
    pub vcpus: u32,
    /// Memory in MiB, at least 1.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 16777216))]
    pub memory_mib: u64,
    /// Binding of CPUs.
    #[serde(default)]
    pub cpu: CpuPolicy,
    /// Binding of memory.
    #[serde(default)]
    pub memory: MemoryPolicy,
    /// Size of its huge pages in KiB; none for ordinary pages.
    #[cfg_attr(feature = "openapi", schema(minimum = 64, maximum = 16777216))]
    #[serde(default)]
    pub huge_page_kib: Option<u32>,
    /// Virtual NUMA nodes, each on a physical node of its own; none for as few as will do.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 16))]
    #[serde(default)]
    pub virtual_nodes: Option<u32>,
    /// Place of the emulator's threads.
    #[serde(default)]
    pub emulator: EmulatorPolicy,
    /// Use of hardware threads. Other than `prefer` with exclusive CPUs only.
    #[serde(default)]
    pub smt: SmtPolicy,
    /// Its groups.
    #[serde(default)]
    pub groups: Vec<Membership>,
    /// Its devices.
    #[serde(default)]
    pub devices: Vec<DeviceNeed>,
    /// What it starts from.
    #[serde(default)]
    pub boot: Boot,
}

fn default_tenant() -> String {
    "default".into()
}

/// A field that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// The field, as in the JSON body: "groups[1].group".
    pub field: String,
    /// What is wrong with it and what would be right.
    pub problem: String,
}

impl Request {
    /// A request with every policy at its default.
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
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// All fields that are wrong.
    pub fn check(&self) -> Result<(), Vec<Invalid>> {
        let mut wrong = Vec::new();
        let mut note = |field: String, problem: String| wrong.push(Invalid { field, problem });
        for (field, name) in [("name", &self.name), ("tenant", &self.tenant)] {
            if let Some(problem) = name_problem(name) {
                note(field.into(), problem);
            }
        }
        if self.name.bytes().all(|b| b.is_ascii_digit()) && !self.name.is_empty() {
            note("name".into(), "is a number, by which another virtual machine goes: add a letter".into());
        }
        if u64::from(self.virtual_nodes.unwrap_or(1)) > self.memory_mib.max(1) {
            note("virtual_nodes".into(), "there is not a MiB of memory for each".into());
        }
        if !(1..=MAX_VCPUS).contains(&self.vcpus) {
            note("vcpus".into(), format!("is {}; from 1 to {MAX_VCPUS}", self.vcpus));
        }
        if !(1..=MAX_MEMORY_MIB).contains(&self.memory_mib) {
            note("memory_mib".into(), format!("is {}; from 1 to {MAX_MEMORY_MIB}", self.memory_mib));
        }
        let nodes = self.virtual_nodes.unwrap_or(1);
        if !(1..=MAX_VIRTUAL_NODES).contains(&nodes) || nodes > self.vcpus.max(1) {
            note("virtual_nodes".into(), format!("is {nodes}; from 1 to {MAX_VIRTUAL_NODES} and to vcpus"));
        }
        if let Some(kib) = self.huge_page_kib {
            let known = (64..=16 << 20).contains(&kib) && kib.is_power_of_two();
            let whole = (self.memory_mib << 10).is_multiple_of(u64::from(kib) * u64::from(nodes.max(1)));
            if !known {
                note("huge_page_kib".into(), format!("is {kib}; a power of two from 64 to 16777216"));
            } else if !whole {
                let problem =
                    format!("is {}; not whole pages of {kib} KiB for {nodes} nodes", self.memory_mib);
                note("memory_mib".into(), problem);
            }
        }
        if let MemoryPolicy::Preferred { within_distance } = self.memory
            && !(10..=255).contains(&within_distance)
        {
            note("memory.preferred.within_distance".into(), format!("is {within_distance}; from 10 to 255"));
        }
        if self.cpu != CpuPolicy::Exclusive {
            if self.smt != SmtPolicy::Prefer {
                note("smt".into(), "needs exclusive CPUs: set cpu to \"exclusive\"".into());
            }
            if self.emulator == EmulatorPolicy::Isolated {
                note("emulator".into(), "a CPU of its own needs cpu set to \"exclusive\"".into());
            }
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
                note(format!("groups[{at}].group"), format!("`{}` is named twice", member.group));
            }
        }
        if self.devices.len() > 16 {
            note("devices".into(), format!("has {}; at most 16", self.devices.len()));
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
