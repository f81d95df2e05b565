//! Random frames of a peer, at a channel's state machines: each frame is accepted or refused, within the promised memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_channel::state::{Assembly, Flow, Frame};
use longma_channel::wire::{FrameKind, HEADER_BYTES, Header, Hello};

const SLOTS: u32 = 4;
const MAX_MESSAGE: u32 = 500;

fuzz_target!(|data: &[u8]| {
    let (mut flow, mut assembly) = (Flow::new(SLOTS), Assembly::new(MAX_MESSAGE));
    let mut frames = data.chunks(HEADER_BYTES + 24);
    if data.first().is_some_and(|byte| byte % 2 == 0) {
        // A valid hello, so that the reader also parses the frames after it.
        let hello = Header { kind: FrameKind::Hello, credits: 0, total: 0, id: 0 };
        flow.received(&hello, &Hello { slot_bytes: 64, slots: 3 }.encode()).unwrap();
        frames.next();
    }
    for frame in frames {
        let Some((header, payload)) = frame.split_first_chunk() else { return };
        let Ok(header) = Header::decode(header) else { continue };
        let Ok(kind) = flow.received(&header, payload) else { return };
        if kind == Frame::Data {
            match assembly.push(&header, payload.len(), |bytes| bytes.copy_from_slice(payload)) {
                Ok(message) => {
                    assert!(message.is_none_or(|message| message.bytes.len() <= MAX_MESSAGE as usize))
                }
                Err(_) => return,
            }
            flow.free();
            if flow.must_return() {
                assert!(u32::from(flow.take_freed()) <= SLOTS);
            }
        }
    }
});
