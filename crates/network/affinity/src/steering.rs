//! The settings that direct a flow's interrupts and protocol processing to one CPU: interrupt affinity if the NIC has
//! interrupts, otherwise RPS.
//!
//! Source: Linux Documentation/networking/scaling.rst; Hanford et al. 2014 direct the interrupts of all receive queues
//! to one core.

use crate::interface::{Kind, Nic};
use crate::journal::{Journal, JournalError};
use crate::setting::{Interface, Setting};
use longma_cpu_set::CpuSet;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How the flows of an interface are steered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Steering {
    /// By the affinity of all receive interrupts.
    Interrupts {
        /// The interface.
        interface: Interface,
        /// Numbers of the interrupts.
        irqs: Vec<u32>,
        /// Receive queues, whose RPS is turned off.
        queues: Vec<u32>,
    },
    /// By RPS: the kernel forwards packets to the flow's CPU in software.
    Rps {
        /// The interface.
        interface: Interface,
        /// Numbers of the receive queues.
        queues: Vec<u32>,
    },
    /// At the queues of the interfaces below it; its own queues move no packets.
    Stacked {
        /// The interface.
        interface: Interface,
        /// How the flows of each physical interface are steered.
        lower: Vec<Steering>,
    },
}

/// An interface whose flows cannot be steered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSteering {
    /// It has neither interrupts nor receive queues.
    #[error("{0} has neither interrupts nor receive queues, so its packets cannot be steered to a CPU")]
    NoQueues(Interface),
    /// Its packets arrive by interfaces that cannot be reached.
    #[error(
        "{0} is {words}, and the interfaces below it are not visible here: its packets are steered where those are, for \
            example outside of the container",
        words = .1.words()
    )]
    Hidden(Interface, Kind),
}

impl Steering {
    /// The best method for an interface: interrupts if possible, otherwise RPS.
    ///
    /// # Errors
    /// If it has neither interrupts nor receive queues.
    pub fn of(nic: &Nic) -> Result<Self, NoSteering> {
        if nic.kind.is_layer() {
            return Self::stacked(nic, Self::of);
        }
        let irqs: Vec<u32> = nic.irqs.iter().filter(|irq| irq.cpus.is_some()).map(|irq| irq.number).collect();
        match irqs.is_empty() {
            false => {
                Ok(Self::Interrupts { interface: nic.name.clone(), irqs, queues: nic.rx_queues.clone() })
            }
            true => Self::software(nic),
        }
    }

    /// RPS even if there are interrupts. The affinity of managed interrupts cannot be changed.
    ///
    /// # Errors
    /// If the interface has no receive queue.
    pub fn software(nic: &Nic) -> Result<Self, NoSteering> {
        if nic.kind.is_layer() {
            return Self::stacked(nic, Self::software);
        }
        if nic.rx_queues.is_empty() {
            return Err(NoSteering::NoQueues(nic.name.clone()));
        }
        Ok(Self::Rps { interface: nic.name.clone(), queues: nic.rx_queues.clone() })
    }

    fn stacked(nic: &Nic, each: fn(&Nic) -> Result<Self, NoSteering>) -> Result<Self, NoSteering> {
        if nic.lower.is_empty() {
            return Err(NoSteering::Hidden(nic.name.clone(), nic.kind));
        }
        let lower = nic.lower.iter().map(each).collect::<Result<_, _>>()?;
        Ok(Self::Stacked { interface: nic.name.clone(), lower })
    }

    /// The interface whose flows are steered.
    pub fn interface(&self) -> &Interface {
        let (Self::Interrupts { interface, .. }
        | Self::Rps { interface, .. }
        | Self::Stacked { interface, .. }) = self;
        interface
    }

    /// Returns whether packets are steered in software.
    pub fn is_software(&self) -> bool {
        match self {
            Self::Interrupts { .. } => false,
            Self::Rps { .. } => true,
            Self::Stacked { lower, .. } => lower.iter().all(Self::is_software),
        }
    }

    /// The interrupts that are moved.
    pub fn irqs(&self) -> Vec<u32> {
        match self {
            Self::Interrupts { irqs, .. } => irqs.clone(),
            Self::Rps { .. } => Vec::new(),
            Self::Stacked { lower, .. } => lower.iter().flat_map(Self::irqs).collect(),
        }
    }

    /// The settings and values that direct the flows to `cpu`.
    pub fn towards(&self, cpu: u32) -> Vec<(Setting, String)> {
        let only = CpuSet::one(cpu);
        let rps = |interface: &Interface, queues: &[u32], mask: String| -> Vec<(Setting, String)> {
            let setting = |queue: &u32| Setting::Rps { interface: interface.clone(), queue: *queue };
            queues.iter().map(|queue| (setting(queue), mask.clone())).collect()
        };
        // RFS would direct packets to the application's CPU instead.
        let flows = |interface: &Interface, queues: &[u32]| -> Vec<(Setting, String)> {
            let setting = |queue: &u32| Setting::QueueFlows { interface: interface.clone(), queue: *queue };
            queues.iter().map(|queue| (setting(queue), "0".into())).collect()
        };
        match self {
            Self::Interrupts { interface, irqs, queues } => {
                let irqs = irqs.iter().map(|irq| (Setting::Irq(*irq), only.to_string()));
                let off = CpuSet::default().mask();
                irqs.chain(rps(interface, queues, off)).chain(flows(interface, queues)).collect()
            }
            Self::Rps { interface, queues } => {
                rps(interface, queues, only.mask()).into_iter().chain(flows(interface, queues)).collect()
            }
            Self::Stacked { lower, .. } => lower.iter().flat_map(|lower| lower.towards(cpu)).collect(),
        }
    }

    /// Directs the flows to `cpu`.
    ///
    /// # Errors
    /// As for [`Journal::set`]. A kernel without a flow table is not an error.
    pub fn apply(&self, journal: &mut Journal<'_>, cpu: u32) -> Result<(), JournalError> {
        for (setting, value) in self.towards(cpu) {
            match journal.set(&setting, &value) {
                Err(JournalError::Refused { setting: Setting::QueueFlows { .. }, error, .. })
                    if error.kind() == std::io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Interrupts { interface, irqs, .. } => {
                let plural = if irqs.len() == 1 { "" } else { "s" };
                write!(f, "{} interrupt{plural} of {interface}", irqs.len())
            }
            Self::Rps { interface, queues } => {
                write!(
                    f,
                    "RPS of {interface}, {} queue{}",
                    queues.len(),
                    if queues.len() == 1 { "" } else { "s" }
                )
            }
            Self::Stacked { interface, lower } => {
                let lower: Vec<String> = lower.iter().map(Self::to_string).collect();
                write!(f, "{}, below {interface}", lower.join(" and "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeHost;
    use crate::host::Host;
    use crate::interface;

    const IRQ: &str = "proc/irq/50/smp_affinity_list";
    const RPS: &str = "sys/class/net/eth1/queues/rx-0/rps_cpus";

    fn host() -> FakeHost {
        FakeHost::with(&[
            (RPS, "3"),
            ("sys/class/net/eth1/queues/rx-0/rps_flow_cnt", "4096"),
            (IRQ, "0-1"),
            ("proc/interrupts", " CPU0\n 50: 0 PCI eth1-TxRx-0"),
        ])
    }

    #[test]
    fn interrupts_are_moved_and_software_steering_is_off_meanwhile() {
        let host = host();
        let nic = interface::read(&host, &"eth1".parse().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(&folder.path().join("j"), &host).unwrap();
        Steering::of(&nic).unwrap().apply(&mut journal, 1).unwrap();
        assert_eq!((host.read(IRQ).unwrap(), host.read(RPS).unwrap()), ("1".into(), "0".into()));
        assert_eq!(host.read("sys/class/net/eth1/queues/rx-0/rps_flow_cnt").unwrap(), "0");
    }

    #[test]
    fn a_bond_is_steered_by_the_queues_of_its_nics_and_not_by_its_own() {
        let host = host();
        host.put("sys/class/net/bond0/bonding/slaves", "eth1");
        host.put("sys/class/net/bond0/queues/rx-0/rps_cpus", "0");
        let nic = interface::read(&host, &"bond0".parse().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(&folder.path().join("j"), &host).unwrap();
        let steering = Steering::of(&nic).unwrap();
        assert_eq!(steering.to_string(), "1 interrupt of eth1, below bond0");
        steering.apply(&mut journal, 1).unwrap();
        assert_eq!((host.read(IRQ).unwrap(), host.read(RPS).unwrap()), ("1".into(), "0".into()));
        Steering::software(&nic).unwrap().apply(&mut journal, 1).unwrap();
        assert_eq!(host.read(RPS).unwrap(), "2");
        let own = "sys/class/net/bond0/";
        assert!(host.writes().iter().all(|(path, _)| !path.starts_with(own)), "{:?}", host.writes());
    }

    #[test]
    fn a_macvlan_without_its_nic_is_refused_with_the_reason() {
        let host = host();
        host.put("sys/class/net/mv0/uevent", "DEVTYPE=macvlan");
        host.put("sys/class/net/mv0/queues/rx-0/rps_cpus", "0");
        let nic = interface::read(&host, &"mv0".parse().unwrap()).unwrap();
        let error = Steering::of(&nic).unwrap_err().to_string();
        assert!(error.contains("mv0 is a macvlan, and the interfaces below it are not visible"), "{error}");
    }

    /// Linux 6.1 states no type for a macvlan, and in a container it has no link to its NIC. Only its driver identifies
    /// it.
    #[test]
    fn a_macvlan_in_a_container_is_known_by_its_driver_and_a_veth_is_not_one() {
        let mut host = host();
        host.put("sys/class/net/mv0/queues/rx-0/rps_cpus", "0");
        for (driver, is_refused) in [("macvlan", true), ("ipvlan", true), ("veth", false)] {
            host.link_driver = Some(driver.into());
            let nic = interface::read(&host, &"mv0".parse().unwrap()).unwrap();
            assert_eq!(Steering::of(&nic).is_err(), is_refused, "{driver}");
        }
        // An interface with a device receives packets itself.
        host.link_driver = Some("macvlan".into());
        host.put("sys/class/net/eth1/device/numa_node", "0");
        assert!(Steering::of(&interface::read(&host, &"eth1".parse().unwrap()).unwrap()).is_ok());
    }

    #[test]
    fn an_interface_without_interrupts_or_with_managed_ones_is_steered_in_software() {
        let mut host = host();
        host.refused.insert(IRQ.into());
        host.remove("sys/class/net/eth1/queues/rx-0/rps_flow_cnt");
        let nic = interface::read(&host, &"eth1".parse().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::begin(&folder.path().join("j"), &host).unwrap();
        let refused = Steering::of(&nic).unwrap().apply(&mut journal, 1).unwrap_err();
        assert!(matches!(refused, JournalError::Refused { setting: Setting::Irq(50), .. }));
        Steering::software(&nic).unwrap().apply(&mut journal, 1).unwrap();
        assert_eq!(host.read(RPS).unwrap(), "2");
        let without = Nic { irqs: vec![], rx_queues: vec![], ..nic };
        assert!(Steering::of(&without).is_err());
    }
}
