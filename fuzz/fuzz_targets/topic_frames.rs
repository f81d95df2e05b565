//! Frames between a publisher and a client of a topic: any bytes are an error, or a frame that encodes to the same
//! bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_pubsub::wire::{Answer, Hello};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(Hello::decode(&hello.encode()).expect("a frame"), hello);
    }
    match Answer::decode(bytes) {
        // Control characters of a reason are escaped, so it may become longer.
        Ok(Answer::Refusal(reason)) => assert!(!reason.chars().any(char::is_control)),
        Ok(answer) => assert_eq!(Answer::decode(&answer.encode()).expect("a frame"), answer),
        Err(_) => {}
    }
});
