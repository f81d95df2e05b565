//! The settings that direct a flow's interrupts and protocol processing to one CPU: interrupt affinity if the NIC has
//! interrupts, otherwise RPS.
//!
//! Source: Linux Documentation/networking/scaling.rst; Hanford et al. 2014 direct the interrupts of all receive queues
//! to one core.

use crate::interface::Nic;
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
}

/// An interface whose flows cannot be steered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} has neither interrupts nor receive queues, so its packets cannot be steered to a CPU")]
pub struct NoSteering(Interface);

impl Steering {
    /// The best method for an interface: interrupts if possible, otherwise RPS.
    ///
    /// # Errors
    /// If it has neither interrupts nor receive queues.
    pub fn of(nic: &Nic) -> Result<Self, NoSteering> {
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
        if nic.rx_queues.is_empty() {
            return Err(NoSteering(nic.name.clone()));
        }
        Ok(Self::Rps { interface: nic.name.clone(), queues: nic.rx_queues.clone() })
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
