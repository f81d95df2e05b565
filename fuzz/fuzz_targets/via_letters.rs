//! Parses random bytes as messages of a connecting peer: control socket messages, and greetings and message headers in
//! datagrams.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_via::provider::fuzzing::{read_datagram_words, read_letter};

fuzz_target!(|data: &[u8]| {
    read_letter(data);
    read_datagram_words(data);
    // Control messages start with an eight-byte type, where most random input would fail.
    if let Some((kind, rest)) = data.split_first() {
        let mut letter = u64::from(kind % 12).to_le_bytes().to_vec();
        if kind % 12 == 1 {
            // The supported version, so that the rest is parsed.
            letter.extend(5u64.to_le_bytes());
        }
        letter.extend(rest);
        read_letter(&letter);
    }
});
