//! Parameters that a sweep varies in addition to the pair: offloads, ring sizes, delays and MTU of the interface, and
//! packet steering.
//!
//! Source: ethtool(8); Linux Documentation/networking/scaling.rst (RFS, XPS), networking/napi.rst (threads, busy
//! polling).

mod idle;

pub use idle::idle;

use crate::host::Host;
use crate::interface::Nic;
use crate::setting::Setting;
use crate::{ethtool::DriverProperty, setting::Interface};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Maximum MTU of any interface. The kernel stores it in a signed integer (net/core/dev.c, dev_validate_mtu).
pub const MAX_MTU: u64 = i32::MAX as u64;

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
}

/// A value for each varied parameter.
pub type Variant = BTreeMap<SweepParameter, u64>;

/// A parameter and its values, the default first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variation {
    /// The parameter.
    pub parameter: SweepParameter,
    /// The values.
    pub values: Vec<u64>,
}

/// A text that is not a valid variation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{}` is not NAME=VALUE,VALUE... with whole numbers (for xps: hexadecimal CPU masks such as ff); names: {}",
    longma_text::sanitize(text),
    names()
)]
pub struct VariationError {
    text: String,
}

fn names() -> String {
    SweepParameter::ALL.map(|parameter| parameter.to_string()).join(", ")
}

impl SweepParameter {
    /// All parameters.
    pub const ALL: [SweepParameter; 11] = [
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
        }
    }

    /// Returns whether it is on or off and only takes 0 and 1.
    fn is_switch(self) -> bool {
        matches!(self, Self::Gro | Self::Lro | Self::Tso | Self::Gso | Self::Threaded)
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
            Self::Rfs => 0..=1 << 29,
            _ => 0..=u64::MAX,
        }
    }

    /// Returns whether it applies to the whole host instead of the interface.
    pub fn is_of_host(self) -> bool {
        matches!(self, Self::BusyPoll | Self::Rfs)
    }

    /// Formats a value. A mask is hexadecimal, as in the kernel's files.
    pub fn shown(self, value: u64) -> String {
        if self == Self::Xps { format!("{value:x}") } else { value.to_string() }
    }

    /// Parses what [`SweepParameter::shown`] writes. A mask may start with 0x.
    fn value(self, text: &str) -> Option<u64> {
        if self != Self::Xps {
            return text.parse().ok();
        }
        let digits = text.strip_prefix("0x").unwrap_or(text);
        // from_str_radix accepts a sign, which a mask must not have.
        let is_mask = digits.chars().all(|digit| digit.is_ascii_hexdigit());
        u64::from_str_radix(digits, 16).ok().filter(|_| is_mask)
    }

    /// The settings and texts that give it `value` on `nic`: of the physical interfaces below it, except the MTU.
    pub fn settings(self, nic: &Nic, value: u64) -> Vec<(Setting, String)> {
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
    fn of_one(self, nic: &Nic, value: u64) -> Vec<(Setting, String)> {
        let interface = || -> Interface { nic.name.clone() };
        let driver = |fact| vec![(Setting::Driver { interface: interface(), fact }, value.to_string())];
        match self {
            Self::Gro => driver(DriverProperty::Gro),
            Self::Lro => driver(DriverProperty::Lro),
            Self::Tso => driver(DriverProperty::Tso),
            Self::Gso => driver(DriverProperty::Gso),
            Self::RxRing => driver(DriverProperty::RxRing),
            Self::RxUsecs => driver(DriverProperty::RxUsecs),
            Self::Mtu => vec![(Setting::Mtu(interface()), value.to_string())],
            Self::Threaded => vec![(Setting::Threaded(interface()), value.to_string())],
            Self::BusyPoll => {
                [Setting::BusyRead, Setting::BusyPoll].map(|setting| (setting, value.to_string())).into()
            }
            Self::Rfs => {
                let part = (value / nic.rx_queues.len().max(1) as u64).to_string();
                let queue = |queue: &u32| {
                    (Setting::QueueFlows { interface: interface(), queue: *queue }, part.clone())
                };
                let host = [(Setting::HostFlows, value.to_string())];
                host.into_iter().chain(nic.rx_queues.iter().map(queue)).collect()
            }
            Self::Xps => {
                let queue =
                    |queue: &u32| (Setting::Xps { interface: interface(), queue: *queue }, self.shown(value));
                nic.tx_queues.iter().map(queue).collect()
            }
        }
    }
}

impl fmt::Display for SweepParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for Variation {
    type Err = VariationError;

    fn from_str(text: &str) -> Result<Self, VariationError> {
        let wrong = || VariationError { text: text.into() };
        let (name, values) = text.split_once('=').ok_or_else(wrong)?;
        let parameter =
            SweepParameter::ALL.into_iter().find(|parameter| parameter.word() == name).ok_or_else(wrong)?;
        let mut values: Vec<u64> = values
            .split(',')
            .map(|value| parameter.value(value.trim()))
            .collect::<Option<_>>()
            .ok_or_else(wrong)?;
        let range = parameter.range();
        if values.iter().any(|value| !range.contains(value)) {
            let words = match parameter.is_switch() {
                true => "0 and 1".into(),
                false => format!("{} to {}", range.start(), range.end()),
            };
            return Err(VariationError { text: format!("{text}, which takes {words},") });
        }
        let mut seen = std::collections::BTreeSet::new();
        values.retain(|value| seen.insert(*value));
        Ok(Self { parameter, values })
    }
}

/// All combinations, the one of the first values first. One empty variant if there are no variations.
pub fn variants(variations: &[Variation]) -> Vec<Variant> {
    variations.iter().fold(vec![Variant::new()], |variants, variation| {
        let with = |variant: &Variant, value: u64| {
            let mut variant = variant.clone();
            variant.insert(variation.parameter, value);
            variant
        };
        let all = variants
            .iter()
            .flat_map(|variant| variation.values.iter().map(move |value| with(variant, *value)));
        all.collect()
    })
}

/// Describes the first value that exceeds the limits of `nic`, as far as the host reports them.
pub fn beyond(host: &dyn Host, nic: &Nic, variants: &[Variant]) -> Option<String> {
    let name = &nic.name;
    let is_beyond = |(parameter, value): (&SweepParameter, &u64)| match parameter {
        SweepParameter::Mtu => {
            let sizes = host.packet_sizes(name.name()).ok().filter(|sizes| !sizes.contains(value))?;
            let (min, max) = (sizes.start(), sizes.end());
            Some(format!("{parameter}={value}: {name} accepts packets of {min} to {max} bytes"))
        }
        SweepParameter::RxRing => nic.physical().into_iter().find_map(|nic| {
            let name = &nic.name;
            let max = host.driver(name.name(), DriverProperty::MaxRxRing).ok().filter(|max| value > max)?;
            Some(format!("{parameter}={value}: a receive ring of {name} has at most {max} descriptors"))
        }),
        _ => None,
    };
    variants.iter().flatten().find_map(is_beyond)
}

/// Formats a variant: `gro=0 mtu=1500`.
pub fn words(variant: &Variant) -> String {
    variant
        .iter()
        .map(|(parameter, value)| format!("{parameter}={}", parameter.shown(*value)))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeHost;
    use crate::interface;

    #[test]
    fn every_combination_occurs_once_and_the_present_one_is_first() {
        let variations: Vec<Variation> =
            ["gro=1,0", "mtu=9000,1500,1500"].iter().map(|text| text.parse().unwrap()).collect();
        let all: Vec<String> = variants(&variations).iter().map(words).collect();
        assert_eq!(all, ["gro=1 mtu=9000", "gro=1 mtu=1500", "gro=0 mtu=9000", "gro=0 mtu=1500"]);
        assert_eq!(variants(&[]), vec![Variant::new()]);
        let masks: Variation = "xps=ff,0x10,a".parse().unwrap();
        assert_eq!(masks.values, [0xff, 0x10, 0xa]);
        assert_eq!(words(&variants(&[masks])[0]), "xps=ff");
        for wrong in [
            "xps=g",
            "xps=+1",
            "xps=",
            "gro",
            "gro=",
            "gro=x",
            "gro=2",
            "threaded=1,2",
            "nothing=1",
            "gro=-1",
            "=1",
        ] {
            let error = wrong.parse::<Variation>().unwrap_err().to_string();
            assert!(error.contains("rx-ring, rx-usecs"), "{error}");
        }
    }

    #[test]
    fn a_value_outside_the_interfaces_range_is_named_with_its_limit() {
        let mut host = FakeHost::with(&[("sys/class/net/eth1/mtu", "1500")]);
        let nic = interface::read(&host, &"eth1".parse().unwrap()).unwrap();
        let limit_error =
            |host: &FakeHost, text: &str| beyond(host, &nic, &variants(&[text.parse().unwrap()]));
        assert_eq!(limit_error(&host, "mtu=1500,99999"), None, "no remark");
        host.packet_sizes = Some(68..=9600);
        host.put_driver("eth1", DriverProperty::MaxRxRing, 4096);
        assert_eq!(limit_error(&host, "mtu=68,9600"), None);
        assert_eq!(limit_error(&host, "rx-ring=4096"), None);
        for (text, why) in [
            ("mtu=1500,9601", "mtu=9601: eth1 accepts packets of 68 to 9600 bytes"),
            ("mtu=67", "mtu=67: eth1 accepts packets of 68 to 9600 bytes"),
            ("rx-ring=512,8192", "rx-ring=8192: a receive ring of eth1 has at most 4096 descriptors"),
        ] {
            assert_eq!(limit_error(&host, text).as_deref(), Some(why));
        }
    }

    #[test]
    fn a_knob_writes_its_own_settings_and_a_flow_table_is_shared_by_the_queues() {
        let host = FakeHost::with(&[
            ("sys/class/net/eth1/queues/rx-0/rps_cpus", "0"),
            ("sys/class/net/eth1/queues/rx-1/rps_cpus", "0"),
            ("sys/class/net/eth1/queues/tx-0/xps_cpus", "0"),
        ]);
        let nic = interface::read(&host, &"eth1".parse().unwrap()).unwrap();
        let written = |parameter: SweepParameter, value| -> Vec<String> {
            let settings = parameter.settings(&nic, value);
            settings.into_iter().map(|(setting, value)| format!("{setting} {value}")).collect()
        };
        let queue = "/sys/class/net/eth1/queues";
        assert_eq!(
            written(SweepParameter::Rfs, 4096),
            [
                "/proc/sys/net/core/rps_sock_flow_entries 4096".to_string(),
                format!("{queue}/rx-0/rps_flow_cnt 2048"),
                format!("{queue}/rx-1/rps_flow_cnt 2048")
            ]
        );
        assert_eq!(written(SweepParameter::Xps, 10), [format!("{queue}/tx-0/xps_cpus a")]);
        assert_eq!(written(SweepParameter::Threaded, 1), ["/sys/class/net/eth1/threaded 1"]);
        assert_eq!(written(SweepParameter::BusyPoll, 50).len(), 2);
        let json = serde_json::to_string(&Variant::from([(SweepParameter::RxRing, 512)])).unwrap();
        assert_eq!(json, r#"{"rx-ring":512}"#);
    }
}
