//! The modelled TCP sender: the stream arrives completely over a wire that loses, damages, delays and duplicates
//! frames. The receiver implements the minimum that RFC 9293 requires.

mod receiver;
mod stream;
