//! What the modelled TCP sender promises: the stream arrives whole over a wire that loses, damages, delays and doubles frames.
//! Not the receiving machine, which here is the least that RFC 9293 asks for.

mod receiver;
mod stream;
