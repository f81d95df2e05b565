//! The only settings of a host that this crate changes. `journal` records and restores them.
//!
//! Source: Linux Documentation/core-api/irq/irq-affinity.rst, networking/scaling.rst (RPS, RFS, XPS),
//! ABI/testing/sysfs-class-net.

use crate::host::Host;
use crate::threads;
use longma_cpu_set::CpuSet;
use longma_linux_network::ethtool::DriverProperty;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;

mod napi;
mod queue_delays;
mod segmentation;

/// A setting of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Setting {
    /// Affinity of an interrupt, as a CPU list.
    Irq(u32),
    /// CPUs that process a receive queue's packets (RPS), as a mask.
    Rps {
        /// The interface.
        interface: Interface,
        /// Number of the queue.
        queue: u32,
    },
    /// Number of entries in a receive queue's flow table (RFS).
    QueueFlows {
        /// The interface.
        interface: Interface,
        /// Number of the queue.
        queue: u32,
    },
    /// CPUs that send through a transmit queue (XPS), as a mask.
    Xps {
        /// The interface.
        interface: Interface,
        /// Number of the queue.
        queue: u32,
    },
    /// Affinity of a thread, as a CPU list.
    Thread {
        /// Process ID.
        process: u32,
        /// Thread ID.
        thread: u32,
        /// Start time in ticks since boot. It detects a reused thread ID.
        started: u64,
    },
    /// Number of entries in the host's flow table (RFS).
    HostFlows,
    /// MTU of an interface in bytes.
    Mtu(Interface),
    /// Whether threads instead of softirqs poll an interface's queues (threaded NAPI): 0 or 1.
    Threaded(Interface),
    /// Number of polls of an interface's queues without packets before their interrupts are enabled again.
    NapiDeferHardIrqs(Interface),
    /// Nanoseconds after which an interface's queue with deferred interrupts is polled.
    GroFlushTimeout(Interface),
    /// Maximum nanoseconds for which the interrupts of an interface stay suspended while an application polls.
    IrqSuspendTimeout(Interface),
    /// TCP segmentation offload: 0 or 1, or the value of each feature.
    Segmentation(Interface),
    /// All values of an interface's NAPI instances and of their threads.
    Napi(Interface),
    /// Interrupt coalescing of each queue of an interface.
    QueueDelays(Interface),
    /// Microseconds of busy polling in a read.
    BusyRead,
    /// Microseconds of busy polling in poll and select.
    BusyPoll,
    /// Frequency governor of a CPU.
    Governor(u32),
    /// An offload, a ring size, an interrupt delay or another numeric property of a driver.
    Driver {
        /// The interface.
        interface: Interface,
        /// The property.
        fact: DriverProperty,
    },
}

/// Name of a network interface, valid as a path component.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Interface(String);

/// A text that is not a valid interface name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a valid name of a network interface", longma_text::sanitize(.0))]
pub struct InterfaceError(String);

impl Interface {
    /// The name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Interface {
    type Error = InterfaceError;
    fn try_from(name: String) -> Result<Self, InterfaceError> {
        // The kernel's rule, dev_valid_name.
        let wrong = |letter: char| letter == '/' || letter == ':' || letter.is_whitespace() || letter == '\0';
        let is_name = !name.is_empty() && name.len() < libc::IFNAMSIZ && name != "." && name != "..";
        if is_name && !name.contains(wrong) { Ok(Self(name)) } else { Err(InterfaceError(name)) }
    }
}

impl std::str::FromStr for Interface {
    type Err = InterfaceError;
    fn from_str(name: &str) -> Result<Self, InterfaceError> {
        name.to_string().try_into()
    }
}

impl From<Interface> for String {
    fn from(interface: Interface) -> String {
        interface.0
    }
}

impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Setting {
    /// Path of the setting's file, relative to the root; `None` if the setting has no file.
    pub fn path(&self) -> Option<String> {
        let queue = |interface: &Interface, kind: &str, queue: &u32, file: &str| {
            Some(format!("sys/class/net/{interface}/queues/{kind}-{queue}/{file}"))
        };
        match self {
            Self::Irq(number) => Some(format!("proc/irq/{number}/smp_affinity_list")),
            Self::Rps { interface, queue: number } => queue(interface, "rx", number, "rps_cpus"),
            Self::QueueFlows { interface, queue: number } => queue(interface, "rx", number, "rps_flow_cnt"),
            Self::Xps { interface, queue: number } => queue(interface, "tx", number, "xps_cpus"),
            Self::HostFlows => Some("proc/sys/net/core/rps_sock_flow_entries".into()),
            Self::Mtu(interface) => Some(format!("sys/class/net/{interface}/mtu")),
            Self::Threaded(interface) => Some(format!("sys/class/net/{interface}/threaded")),
            Self::NapiDeferHardIrqs(interface) => {
                Some(format!("sys/class/net/{interface}/napi_defer_hard_irqs"))
            }
            Self::GroFlushTimeout(interface) => Some(format!("sys/class/net/{interface}/gro_flush_timeout")),
            Self::BusyRead => Some("proc/sys/net/core/busy_read".into()),
            Self::BusyPoll => Some("proc/sys/net/core/busy_poll".into()),
            Self::Governor(cpu) => Some(format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor")),
            Self::Driver { .. }
            | Self::Thread { .. }
            | Self::IrqSuspendTimeout(_)
            | Self::Segmentation(_)
            | Self::Napi(_)
            | Self::QueueDelays(_) => None,
        }
    }

    /// The interface of the setting, if any.
    pub fn interface(&self) -> Option<&Interface> {
        match self {
            Self::Rps { interface, .. }
            | Self::QueueFlows { interface, .. }
            | Self::Xps { interface, .. }
            | Self::Driver { interface, .. }
            | Self::Mtu(interface)
            | Self::NapiDeferHardIrqs(interface)
            | Self::GroFlushTimeout(interface)
            | Self::IrqSuspendTimeout(interface)
            | Self::Segmentation(interface)
            | Self::Napi(interface)
            | Self::QueueDelays(interface)
            | Self::Threaded(interface) => Some(interface),
            Self::Irq(_)
            | Self::Thread { .. }
            | Self::HostFlows
            | Self::BusyRead
            | Self::BusyPoll
            | Self::Governor(_) => None,
        }
    }

    /// The same setting of an interface with a new name.
    pub fn renamed(&self, name: &Interface) -> Self {
        let mut setting = self.clone();
        match &mut setting {
            Self::Rps { interface, .. }
            | Self::QueueFlows { interface, .. }
            | Self::Xps { interface, .. }
            | Self::Driver { interface, .. }
            | Self::Mtu(interface)
            | Self::NapiDeferHardIrqs(interface)
            | Self::GroFlushTimeout(interface)
            | Self::IrqSuspendTimeout(interface)
            | Self::Segmentation(interface)
            | Self::Napi(interface)
            | Self::QueueDelays(interface)
            | Self::Threaded(interface) => interface.clone_from(name),
            _ => {}
        }
        setting
    }

    /// The file or directory to lock while the setting is changed, relative to the root. `None` for a thread.
    pub fn keeper(&self) -> Option<String> {
        match (self.interface(), self) {
            (Some(interface), _) => Some(format!("sys/class/net/{interface}")),
            (None, Self::Irq(number)) => Some(format!("proc/irq/{number}")),
            (None, _) => self.path(),
        }
    }

    /// Device and hardware line of an interrupt, as the kernel reports them. They detect a reused interrupt number.
    /// `None` if not reported, and for other settings.
    ///
    /// Source: Linux Documentation/ABI/testing/sysfs-kernel-irq (chip_name, hwirq).
    pub fn source(&self, host: &dyn Host) -> Option<String> {
        let Self::Irq(number) = self else { return None };
        let file = |name: &str| host.read(&format!("sys/kernel/irq/{number}/{name}")).ok();
        let both = format!("{} {}", file("chip_name")?, file("hwirq")?);
        (both.len() > 1).then_some(both)
    }

    /// Returns the thread ID if it still belongs to the same thread.
    fn thread(host: &dyn Host, process: u32, thread: u32, started: u64) -> io::Result<u32> {
        match threads::stat(host, process, thread) {
            Some(stat) if stat.started == started => Ok(thread),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Reads its current value.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn read(&self, host: &dyn Host) -> io::Result<String> {
        match (self, self.path()) {
            (Self::Driver { interface, fact }, _) => Ok(host.driver(interface.name(), *fact)?.to_string()),
            (Self::Thread { process, thread, started }, _) => {
                Ok(host.thread_cpus(Self::thread(host, *process, *thread, *started)?)?.to_string())
            }
            (Self::IrqSuspendTimeout(interface), _) => napi::suspend_timeout(host, interface.name()),
            (Self::Segmentation(interface), _) => segmentation::read(host, interface.name()),
            (Self::Napi(interface), _) => napi::read(host, interface.name()),
            (Self::QueueDelays(interface), _) => queue_delays::read(host, interface.name()),
            (_, path) => host.read(&path.unwrap_or_default()),
        }
    }

    /// Writes a value.
    ///
    /// # Errors
    /// The error of the operating system.
    pub fn write(&self, host: &dyn Host, value: &str) -> io::Result<()> {
        match (self, self.path()) {
            (Self::Driver { interface, fact }, _) => {
                let number = value.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
                host.set_driver(interface.name(), *fact, number)
            }
            (Self::Thread { process, thread, started }, _) => {
                let cpus = value.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
                host.bind_thread(Self::thread(host, *process, *thread, *started)?, &cpus)
            }
            (Self::IrqSuspendTimeout(interface), _) => {
                napi::set_suspend_timeout(host, interface.name(), value)
            }
            (Self::Segmentation(interface), _) => segmentation::write(host, interface.name(), value),
            (Self::Napi(interface), _) => napi::write(host, interface.name(), value),
            (Self::QueueDelays(interface), _) => queue_delays::write(host, interface.name(), value),
            (_, path) => host.write(&path.unwrap_or_default(), value),
        }
    }

    /// Returns whether the kernel or the driver may store a different number from the one written: drivers round ring
    /// sizes and delays, and limit other settings.
    pub fn may_be_rounded(&self) -> bool {
        matches!(
            self,
            Self::Driver { .. }
                | Self::Segmentation(_)
                | Self::HostFlows
                | Self::QueueFlows { .. }
                | Self::NapiDeferHardIrqs(_)
                | Self::GroFlushTimeout(_)
        )
    }

    /// Returns whether a change of another setting of the interface overwrites this one. Such a setting is recorded
    /// before the others are changed, and restored after them.
    pub fn follows_others(&self) -> bool {
        matches!(self, Self::Napi(_) | Self::QueueDelays(_))
    }

    /// Returns whether two texts mean the same value. The kernel prints masks with a different number of leading zeros.
    pub fn means_same(&self, one: &str, other: &str) -> bool {
        let (one, other) = (one.trim(), other.trim());
        let both = |parse: fn(&str) -> Option<CpuSet>| match (parse(one), parse(other)) {
            (Some(one), Some(other)) => one == other,
            _ => one == other,
        };
        match self {
            Self::Irq(_) | Self::Thread { .. } => both(|text| text.parse().ok()),
            Self::Rps { .. } | Self::Xps { .. } => both(|text| CpuSet::from_mask(text).ok()),
            Self::Segmentation(_) => segmentation::means_same(one, other),
            Self::Napi(_) => napi::means_same(one, other),
            _ => one == other,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.path()) {
            (Self::Driver { interface, fact }, _) => write!(f, "{fact} of {interface}"),
            (Self::Thread { process, thread, .. }, _) => {
                write!(f, "CPUs of thread {thread} of process {process}")
            }
            (Self::IrqSuspendTimeout(interface), _) => write!(f, "irq-suspend-timeout of {interface}"),
            (Self::Segmentation(interface), _) => write!(f, "tso of {interface}"),
            (Self::Napi(interface), _) => write!(f, "NAPI instances of {interface}"),
            (Self::QueueDelays(interface), _) => write!(f, "interrupt delays of the queues of {interface}"),
            (_, path) => write!(f, "/{}", path.unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_leave_its_folder_is_not_an_interface() {
        for name in ["", ".", "..", "../../etc", "a/b", "a b", "sixteen-letters-"] {
            assert!(name.parse::<Interface>().is_err(), "{name}");
        }
        assert!("enp1s0f0np0.100".parse::<Interface>().is_ok());
        assert!(serde_json::from_str::<Setting>(r#"{"mtu":"../../../etc/passwd"}"#).is_err());
    }

    #[test]
    fn masks_with_other_zeroes_mean_the_same() {
        let rps = Setting::Rps { interface: "eth0".parse().unwrap(), queue: 0 };
        assert!(rps.means_same("00000000,00000003", "3"));
        assert!(!rps.means_same("1", "3"));
        assert!(Setting::Irq(7).means_same("0-1", "0,1\n"));
        assert!(!Setting::HostFlows.means_same("0", "00"));
    }
}
