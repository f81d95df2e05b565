//! Losses of a run: lost datagrams, retransmitted segments, and packets dropped by the interface or at a full backlog.

use crate::sweep::{Header, Sample};

/// MTU to assume if the interface reports none.
const ETHERNET_BYTES: u64 = 1500;
/// Bytes of IPv4 and TCP headers.
const HEADER_BYTES: u64 = 40;

/// Retransmitted segments per Gbit of the whole run, if the load reports them.
pub fn retransmits(sample: &Sample, header: &Header) -> Option<f64> {
    let rate = sample.rate?;
    let gbit = rate.gbps * f64::from(header.seconds);
    Some(rate.retransmits? as f64 / gbit).filter(|rate| rate.is_finite())
}

/// Number of full-size packets in one Gbit of data.
pub(super) fn packets_per_gbit(header: &Header) -> f64 {
    let bytes = header.nic.mtu.unwrap_or(ETHERNET_BYTES).saturating_sub(HEADER_BYTES).max(1);
    1e9 / 8.0 / bytes as f64
}

/// The lost fraction of the data, from 0 to 1. If the load counts lost datagrams, that count includes every loss.
/// Otherwise, this is the fraction of retransmitted segments or of dropped packets, whichever is larger. They are not
/// added, because dropped segments are also retransmitted.
pub fn fraction(sample: &Sample, header: &Header) -> f64 {
    let Some(rate) = sample.rate else { return 0.0 };
    if let Some(lost) = rate.lost {
        return lost;
    }
    let packets_per_gbit = packets_per_gbit(header);
    let resent = retransmits(sample, header).map_or(0.0, |count| count / packets_per_gbit);
    let kernel = &sample.kernel;
    let at_backlog: f64 = kernel.backlog_drops.values().map(|drops| *drops as f64).sum();
    // Interfaces count drops at the backlog too.
    let dropped = at_backlog.max(kernel.nic_drops.unwrap_or(0) as f64);
    let received = packets_per_gbit * rate.gbps * kernel.seconds;
    let dropped = if dropped > 0.0 { dropped / (dropped + received) } else { 0.0 };
    resent.max(dropped).clamp(0.0, 1.0)
}
