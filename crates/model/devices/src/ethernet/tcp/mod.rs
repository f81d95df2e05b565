//! A TCP sender at the other end of a wire: what netperf's TCP_STREAM is to the machine that receives it.
//! Not a full TCP: no selective acknowledgements, timestamps, urgent data or data towards it; one connection that it opens itself.
//! Source: RFC 9293 (TCP), 5681 (congestion control), 6298 (retransmission timer), 6582 (NewReno), 7323 section 2 (window scale).

mod congestion;
mod segment;
mod sender;
mod timer;

pub use segment::{Endpoint, Segment, SegmentError};
pub use sender::{Phase, SenderCounters, SenderSpec, TcpSender, stream_byte};
