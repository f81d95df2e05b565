//! Detects varied parameters that have no effect under a load, and explains why. The interface itself reports values
//! that it rejects.
//!
//! Source: Linux net/core/dev.c (netdev_pick_tx, get_rps_cpu, napi_complete_done), include/net/gro.h (the size by
//! protocol), net/ipv4/tcp_offload.c and udp_offload.c, Documentation/networking/napi.rst; ethtool(8).

use super::{SweepParameter, Value, Variation};
use crate::host::Host;
use crate::interface::Nic;
use crate::load::Load;
use crate::pairs::Pair;
use std::net::IpAddr;

/// Describes, in one sentence each, the `variations` that have no effect on some of the `pairs`.
pub fn idle(
    host: &dyn Host,
    variations: &[Variation],
    nic: &Nic,
    load: &Load,
    pairs: &[Pair],
) -> Vec<String> {
    let values = |parameter: SweepParameter| {
        variations
            .iter()
            .find(|variation| variation.parameter == parameter)
            .map_or(&[][..], |variation| &variation.values)
    };
    let (is_udp, sends) = match load {
        Load::Iperf(iperf) => (iperf.udp, !iperf.reverse),
        Load::Command(_) => (false, false),
    };
    let is_iperf = matches!(load, Load::Iperf(_));
    let is_zero = |parameter| !values(parameter).iter().any(Value::is_on);
    // The address family of a host name is unknown, because names are not resolved here.
    let is_ipv4 = match load {
        Load::Iperf(iperf) => iperf.server.parse().ok().map(|address: IpAddr| address.is_ipv4()),
        Load::Command(_) => None,
    };
    // A veth has NAPI instances only while GRO is on.
    let has_no_napi = is_zero(SweepParameter::Gro) && nic.physical().iter().all(|nic| has_no_napi(host, nic));
    let why = |parameter: SweepParameter| match parameter {
        SweepParameter::Xps if nic.physical().iter().all(|nic| nic.tx_queues.len() < 2) => {
            Some(format!("{} has one transmit queue", nic.name))
        }
        SweepParameter::Gro
        | SweepParameter::Lro
        | SweepParameter::Tso
        | SweepParameter::Gso
        | SweepParameter::GroMaxSize
        | SweepParameter::GsoMaxSize
        | SweepParameter::GroIpv4MaxSize
        | SweepParameter::GsoIpv4MaxSize
            if is_udp =>
        {
            Some("iperf3's datagrams are neither merged nor segmented".into())
        }
        SweepParameter::Tso
        | SweepParameter::Gso
        | SweepParameter::GsoMaxSize
        | SweepParameter::GsoIpv4MaxSize
            if is_iperf && !sends =>
        {
            Some("this host sends only acknowledgements; with --forward it sends data".into())
        }
        SweepParameter::Gro
        | SweepParameter::Lro
        | SweepParameter::GroMaxSize
        | SweepParameter::GroIpv4MaxSize
            if is_iperf && sends =>
        {
            Some("only acknowledgements arrive here; without --forward data arrive".into())
        }
        SweepParameter::GroMaxSize | SweepParameter::GsoMaxSize if is_ipv4 == Some(true) => {
            Some("the flow is one of IPv4; gro-ipv4-max-size and gso-ipv4-max-size apply to it".into())
        }
        SweepParameter::GroIpv4MaxSize | SweepParameter::GsoIpv4MaxSize if is_ipv4 == Some(false) => {
            Some("the flow is one of IPv6; gro-max-size and gso-max-size apply to it".into())
        }
        SweepParameter::ZeroCopy if is_udp => Some("iperf3 copies datagrams".into()),
        SweepParameter::NapiDeferHardIrqs | SweepParameter::GroFlushTimeout if has_no_napi => {
            Some(format!("{} has no NAPI instance, like a veth without GRO", nic.name))
        }
        SweepParameter::NapiDeferHardIrqs if is_zero(SweepParameter::GroFlushTimeout) => {
            Some("gro-flush-timeout is 0; vary both".into())
        }
        SweepParameter::GroFlushTimeout if is_zero(SweepParameter::NapiDeferHardIrqs) => {
            Some("napi-defer-hard-irqs is 0; vary both".into())
        }
        SweepParameter::IrqSuspendTimeout => {
            Some("the application does not poll by epoll with prefer_busy_poll; iperf3 does not".into())
        }
        SweepParameter::RxUsecs if values(SweepParameter::AdaptiveRx).iter().any(Value::is_on) => {
            Some("the driver adapts the delay (adaptive-rx=1)".into())
        }
        SweepParameter::Rfs | SweepParameter::Arfs if is_zero(parameter) => {
            Some("a flow table without entries does nothing".into())
        }
        SweepParameter::Arfs if !nic.physical().iter().any(|nic| has_own_cpus(nic)) => {
            Some(format!("no interrupt of {} is bound to one CPU; give each queue a CPU first", nic.name))
        }
        SweepParameter::Rfs => {
            let same = pairs.iter().filter(|pair| pair.flow == pair.application).count();
            let why = "the application runs on the flow's own CPU";
            match same {
                0 => None,
                all if all == pairs.len() => Some(why.into()),
                some => Some(format!("{why} on {some} of {} pairs", pairs.len())),
            }
        }
        _ => None,
    };
    let words = |variation: &Variation| {
        let parameter = variation.parameter;
        why(parameter).map(|why| format!("{parameter} does nothing where {why}"))
    };
    variations.iter().filter_map(words).collect()
}

/// Returns whether an interrupt is bound to a single CPU. The driver derives the queue of each CPU from such bindings.
fn has_own_cpus(nic: &Nic) -> bool {
    nic.irqs.iter().any(|irq| irq.cpus.as_ref().is_some_and(|cpus| cpus.len() == 1))
}

/// Returns whether the kernel lists NAPI instances, but none of this interface.
fn has_no_napi(host: &dyn Host, nic: &Nic) -> bool {
    host.napi(nic.name.name()).is_ok_and(|instances| instances.is_empty())
}

#[cfg(test)]
mod tests;
