//! A TCP sender at the other end of a wire, the counterpart of netperf's TCP_STREAM receiver. It opens one connection
//! and only sends; there are no selective acknowledgements, timestamps or urgent data.
//!
//! Source: RFC 9293 (TCP), 5681 (congestion control), 6298 (retransmission timer), 6582 (NewReno), 7323 section 2
//! (window scale).

mod congestion;
mod segment;
mod sender;
mod timer;

pub use segment::{Endpoint, Segment, SegmentError};
pub use sender::{Phase, SenderCounters, SenderSpec, TcpSender, stream_byte};
