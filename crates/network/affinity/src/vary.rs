//! Parameters that a sweep varies in addition to the pair: offloads, ring sizes, delays and MTU of the interface, packet
//! steering, and how the load sends.
//!
//! Source: ethtool(8); ip-link(8) (BIG TCP: gso_max_size and the like); Linux Documentation/networking/scaling.rst (RFS,
//! accelerated RFS, XPS), networking/napi.rst (threads, busy polling, IRQ mitigation and suspension).

mod idle;
mod limits;
mod value;

pub use idle::idle;
pub use limits::beyond;
pub use value::{LongMask, LongMaskError, Value};

use crate::interface::Nic;
use crate::load::{Iperf, Load};
use crate::setting::Setting;
use crate::{interface::Irq, setting::Interface};
use longma_linux_network::ethtool::DriverProperty;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Maximum MTU of any interface. The kernel stores it in a signed integer (net/core/dev.c, dev_validate_mtu).
pub const MAX_MTU: u64 = i32::MAX as u64;

/// Maximum size of a packet of merged segments (include/linux/netdevice.h, GRO_MAX_SIZE).
const MAX_MERGED_BYTES: u64 = 8 * 65_535;
/// Bytes that the kernel reserves for the headers of a TCP segment, at the least (include/linux/netdevice.h,
/// MAX_TCP_HEADER). The kernel's own value may be larger.
const MAX_TCP_HEADER: u64 = 160;

/// A parameter, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SweepParameter {
    /// Generic receive offload: 0 or 1.
    Gro,
    /// Large receive offload in hardware: 0 or 1.
    Lro,
    /// TCP segmentation offload in hardware: 0 or 1.
    Tso,
    /// Generic segmentation offload: 0 or 1.
    Gso,
    /// Number of descriptors in a receive ring.
    RxRing,
    /// Microseconds that a receive interrupt may be delayed.
    RxUsecs,
    /// MTU in bytes.
    Mtu,
    /// Whether threads instead of softirqs poll the interface's queues (threaded NAPI): 0 or 1.
    Threaded,
    /// Microseconds of busy polling in a read or poll, for the whole host.
    BusyPoll,
    /// Number of entries in the host's flow table (RFS), divided among the receive queues. For the whole host.
    Rfs,
    /// CPUs that send through each transmit queue (XPS), as a mask.
    Xps,
    /// Whether the driver adapts the delay of receive interrupts to the load: 0 or 1.
    AdaptiveRx,
    /// Number of polls without packets before interrupts are enabled again.
    NapiDeferHardIrqs,
    /// Nanoseconds after which a queue with deferred interrupts is polled.
    GroFlushTimeout,
    /// Maximum nanoseconds for which interrupts stay suspended while an application polls.
    IrqSuspendTimeout,
    /// Maximum bytes of a received packet of merged segments, over IPv6 (BIG TCP).
    GroMaxSize,
    /// Maximum bytes of a sent packet before segmentation, over IPv6 (BIG TCP).
    GsoMaxSize,
    /// Maximum bytes of a received packet of merged segments, over IPv4.
    #[serde(rename = "gro-ipv4-max-size")]
    GroIpv4MaxSize,
    /// Maximum bytes of a sent packet before segmentation, over IPv4.
    #[serde(rename = "gso-ipv4-max-size")]
    GsoIpv4MaxSize,
    /// Number of entries in the host's flow table for accelerated RFS: the NIC directs a flow to the queue of its
    /// application's CPU. The queues' interrupts stay where they were before the sweep. For the whole host.
    Arfs,
    /// Whether the load sends from the page cache without copying: 0 or 1.
    ZeroCopy,
    /// Whether the load sends with MSG_ZEROCOPY: 0 or 1.
    MsgZerocopy,
    /// Whether the load receives without copying, for example with io_uring: 0 or 1.
    ZeroCopyReceive,
}

/// A value for each varied parameter.
pub type Variant = BTreeMap<SweepParameter, Value>;

/// A parameter and its values, the default first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variation {
    /// The parameter.
    pub parameter: SweepParameter,
    /// The values.
    pub values: Vec<Value>,
}

/// A text that is not a valid variation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}`{why}", longma_text::sanitize(text))]
pub struct VariationError {
    text: String,
    /// The rest of the sentence.
    why: String,
}

fn names() -> String {
    SweepParameter::ALL.map(|parameter| parameter.to_string()).join(", ")
}

impl SweepParameter {
    /// All parameters.
    pub const ALL: [SweepParameter; 23] = [
        Self::Gro,
        Self::Lro,
        Self::Tso,
        Self::Gso,
        Self::RxRing,
        Self::RxUsecs,
        Self::Mtu,
        Self::Threaded,
        Self::BusyPoll,
        Self::Rfs,
        Self::Xps,
        Self::AdaptiveRx,
        Self::NapiDeferHardIrqs,
        Self::GroFlushTimeout,
        Self::IrqSuspendTimeout,
        Self::GroMaxSize,
        Self::GsoMaxSize,
        Self::GroIpv4MaxSize,
        Self::GsoIpv4MaxSize,
        Self::Arfs,
        Self::ZeroCopy,
        Self::MsgZerocopy,
        Self::ZeroCopyReceive,
    ];

    /// Name, with the unit if it has one.
    fn word(self) -> &'static str {
        match self {
            Self::Gro => "gro",
            Self::Lro => "lro",
            Self::Tso => "tso",
            Self::Gso => "gso",
            Self::RxRing => "rx-ring",
            Self::RxUsecs => "rx-usecs",
            Self::Mtu => "mtu",
            Self::Threaded => "threaded",
            Self::BusyPoll => "busy-poll",
            Self::Rfs => "rfs",
            Self::Xps => "xps",
            Self::AdaptiveRx => "adaptive-rx",
            Self::NapiDeferHardIrqs => "napi-defer-hard-irqs",
            Self::GroFlushTimeout => "gro-flush-timeout",
            Self::IrqSuspendTimeout => "irq-suspend-timeout",
            Self::GroMaxSize => "gro-max-size",
            Self::GsoMaxSize => "gso-max-size",
            Self::GroIpv4MaxSize => "gro-ipv4-max-size",
            Self::GsoIpv4MaxSize => "gso-ipv4-max-size",
            Self::Arfs => "arfs",
            Self::ZeroCopy => "zero-copy",
            Self::MsgZerocopy => "msg-zerocopy",
            Self::ZeroCopyReceive => "zero-copy-receive",
        }
    }

    /// Returns whether it is on or off and only takes 0 and 1.
    fn is_switch(self) -> bool {
        use SweepParameter as P;
        matches!(self, P::Gro | P::Lro | P::Tso | P::Gso | P::Threaded | P::AdaptiveRx) || self.is_of_load()
    }

    /// The range that any kernel accepts, in the parameter's own unit.
    pub fn range(self) -> RangeInclusive<u64> {
        let signed = i32::MAX as u64;
        match self {
            _ if self.is_switch() => 0..=1,
            Self::RxRing => 1..=u64::from(u32::MAX),
            Self::RxUsecs => 0..=u64::from(u32::MAX),
            Self::Mtu => 1..=MAX_MTU,
            Self::BusyPoll => 0..=signed,
            // net/core/sysctl_net_core.c, rps_sock_flow_sysctl.
            Self::Rfs | Self::Arfs => 0..=1 << 29,
            // net/core/dev_api.c, netif_set_napi_defer_hard_irqs: a signed integer.
            Self::NapiDeferHardIrqs => 0..=signed,
            Self::GroMaxSize | Self::GroIpv4MaxSize => 1..=MAX_MERGED_BYTES,
            // net/core/rtnetlink.c, ifla_policy.
            Self::GsoMaxSize | Self::GsoIpv4MaxSize => MAX_TCP_HEADER + 1..=u64::from(u32::MAX),
            _ => 0..=u64::MAX,
        }
    }

    /// Returns whether it applies to the whole host instead of the interface.
    pub fn is_of_host(self) -> bool {
        matches!(self, Self::BusyPoll | Self::Rfs | Self::Arfs)
    }

    /// Returns whether it is an option of the load instead of a setting of the host.
    pub fn is_of_load(self) -> bool {
        matches!(self, Self::ZeroCopy | Self::MsgZerocopy | Self::ZeroCopyReceive)
    }

    /// Its placeholder in a load command, such as `{msg-zerocopy}`, which its value replaces.
    pub fn placeholder(self) -> String {
        format!("{{{}}}", self.word())
    }

    /// Returns whether `value` is in the range that any kernel accepts.
    pub fn takes(self, value: &Value) -> bool {
        match value.number() {
            Some(number) => self.range().contains(&number),
            None => self == Self::Xps,
        }
    }

    /// Formats a value. A mask is hexadecimal, as in the kernel's files.
    pub fn shown(self, value: &Value) -> String {
        if self == Self::Xps { value.mask() } else { value.to_string() }
    }

    /// Parses values separated by commas, as [`SweepParameter::shown`] writes them. A mask may start with 0x.
    fn values(self, text: &str) -> Option<Vec<Value>> {
        if self == Self::Xps {
            return value::masks(text);
        }
        text.split(',').map(|value| value.trim().parse().ok().map(Value::Number)).collect()
    }

    /// The settings of `nic`, and their texts, that give this parameter `value`. All but the MTU are settings of the
    /// physical interfaces below it.
    pub fn settings(self, nic: &Nic, value: &Value) -> Vec<(Setting, String)> {
        if self == Self::Mtu {
            return vec![(Setting::Mtu(nic.name.clone()), value.to_string())];
        }
        let mut all: Vec<(Setting, String)> = Vec::new();
        for setting in nic.physical().into_iter().flat_map(|nic| self.of_one(nic, value)) {
            // Settings of the whole host occur once.
            if !all.contains(&setting) {
                all.push(setting);
            }
        }
        all
    }

    /// The settings of a physical interface.
    fn of_one(self, nic: &Nic, value: &Value) -> Vec<(Setting, String)> {
        let interface = || -> Interface { nic.name.clone() };
        let driver = |fact| vec![(Setting::Driver { interface: interface(), fact }, value.to_string())];
        match self {
            Self::Gro => driver(DriverProperty::Gro),
            Self::Lro => driver(DriverProperty::Lro),
            Self::Tso => vec![(Setting::Segmentation(interface()), value.to_string())],
            Self::Gso => driver(DriverProperty::Gso),
            Self::RxRing => driver(DriverProperty::RxRing),
            Self::RxUsecs => driver(DriverProperty::RxUsecs),
            Self::Mtu => vec![(Setting::Mtu(interface()), value.to_string())],
            Self::Threaded => vec![(Setting::Threaded(interface()), value.to_string())],
            Self::BusyPoll => {
                [Setting::BusyRead, Setting::BusyPoll].map(|setting| (setting, value.to_string())).into()
            }
            Self::Rfs => flow_tables(nic, value),
            Self::Xps => {
                let queue =
                    |queue: &u32| (Setting::Xps { interface: interface(), queue: *queue }, self.shown(value));
                nic.tx_queues.iter().map(queue).collect()
            }
            Self::AdaptiveRx => driver(DriverProperty::AdaptiveRx),
            Self::NapiDeferHardIrqs => vec![(Setting::NapiDeferHardIrqs(interface()), value.to_string())],
            Self::GroFlushTimeout => vec![(Setting::GroFlushTimeout(interface()), value.to_string())],
            Self::IrqSuspendTimeout => vec![(Setting::IrqSuspendTimeout(interface()), value.to_string())],
            Self::GroMaxSize => driver(DriverProperty::GroMaxSize),
            Self::GsoMaxSize => driver(DriverProperty::GsoMaxSize),
            Self::GroIpv4MaxSize => driver(DriverProperty::GroIpv4MaxSize),
            Self::GsoIpv4MaxSize => driver(DriverProperty::GsoIpv4MaxSize),
            Self::Arfs => accelerated(nic, value),
            Self::ZeroCopy | Self::MsgZerocopy | Self::ZeroCopyReceive => Vec::new(),
        }
    }
}

/// The host's flow table with `value` entries, divided among the tables of the queues.
fn flow_tables(nic: &Nic, value: &Value) -> Vec<(Setting, String)> {
    let part = (value.number().unwrap_or(0) / nic.rx_queues.len().max(1) as u64).to_string();
    let queue =
        |queue: &u32| (Setting::QueueFlows { interface: nic.name.clone(), queue: *queue }, part.clone());
    let host = [(Setting::HostFlows, value.to_string())];
    host.into_iter().chain(nic.rx_queues.iter().map(queue)).collect()
}

/// Accelerated RFS: n-tuple filters and flow tables. The driver maps a CPU to the queue whose interrupt the CPU handles, so each
/// interrupt returns to the CPUs that it had before the sweep.
fn accelerated(nic: &Nic, value: &Value) -> Vec<(Setting, String)> {
    let switch = Setting::Driver { interface: nic.name.clone(), fact: DriverProperty::Ntuple };
    let mut all = vec![(switch, u64::from(value.is_on()).to_string())];
    all.extend(flow_tables(nic, value));
    let own = |irq: &Irq| Some((Setting::Irq(irq.number), irq.cpus.as_ref()?.to_string()));
    all.extend(nic.irqs.iter().filter(|_| value.is_on()).filter_map(own));
    all
}

impl fmt::Display for SweepParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for Variation {
    type Err = VariationError;

    fn from_str(text: &str) -> Result<Self, VariationError> {
        let wrong = |why: String| VariationError { text: text.into(), why };
        let (name, values) = text.split_once('=').ok_or_else(|| {
            wrong(format!(" is not NAME=VALUE,VALUE..., such as gro=0,1; names: {}", names()))
        })?;
        let parameter = SweepParameter::ALL.into_iter().find(|parameter| parameter.word() == name);
        let parameter = parameter.ok_or_else(|| {
            let name = longma_text::sanitize(name);
            wrong(format!(": there is no setting `{name}`; there are: {}", names()))
        })?;
        let mut values = parameter.values(values).ok_or_else(|| {
            wrong(match parameter {
                SweepParameter::Xps => ": xps takes hexadecimal CPU masks such as ff or 1,2".into(),
                _ => format!(": {parameter} takes whole numbers, separated by commas"),
            })
        })?;
        if values.iter().any(|value| !parameter.takes(value)) {
            let range = parameter.range();
            let words = match parameter.is_switch() {
                true => "0 and 1".into(),
                false => format!("{} to {}", range.start(), range.end()),
            };
            return Err(wrong(format!(": {parameter} takes {words}")));
        }
        let mut seen = std::collections::BTreeSet::new();
        values.retain(|value| seen.insert(value.clone()));
        Ok(Self { parameter, values })
    }
}

/// All combinations, starting with that of the first values. One empty variant if there are no variations.
pub fn variants(variations: &[Variation]) -> Vec<Variant> {
    variations.iter().fold(vec![Variant::new()], |variants, variation| {
        let with = |variant: &Variant, value: &Value| {
            let mut variant = variant.clone();
            variant.insert(variation.parameter, value.clone());
            variant
        };
        let all = variants
            .iter()
            .flat_map(|variant| variation.values.iter().map(move |value| with(variant, value)));
        all.collect()
    })
}

/// The load with the parameters of a variant that are the load's own.
pub fn load_of(load: &Load, variant: &Variant) -> Load {
    match (load, variant.get(&SweepParameter::ZeroCopy)) {
        (Load::Iperf(iperf), Some(value)) => Load::Iperf(Iperf { zero_copy: value.is_on(), ..iperf.clone() }),
        (Load::Command(words), _) => {
            let own = variant.iter().filter(|(parameter, _)| parameter.is_of_load());
            let own: Vec<(String, String)> =
                own.map(|(parameter, value)| (parameter.placeholder(), value.to_string())).collect();
            let filled = |word: &String| {
                own.iter().fold(word.clone(), |word, (placeholder, value)| word.replace(placeholder, value))
            };
            Load::Command(words.iter().map(filled).collect())
        }
        _ => load.clone(),
    }
}

/// Formats a variant: `gro=0 mtu=1500`.
pub fn words(variant: &Variant) -> String {
    variant
        .iter()
        .map(|(parameter, value)| format!("{parameter}={}", parameter.shown(value)))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests;
