//! Random bytes of a client, split at random: the reader of requests accepts or refuses them, within its limit.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_zoned_server::testing::{RequestError, RequestReader};

const MAX_BYTES: usize = 1000;

fn requests(input: &[u8], piece: usize) -> Result<Vec<Vec<Vec<u8>>>, RequestError> {
    let (mut reader, mut requests) = (RequestReader::new(MAX_BYTES), Vec::new());
    for mut piece in input.chunks(piece) {
        while let Some(words) = reader.next(&mut piece)? {
            requests.push(words);
        }
        assert!(piece.is_empty());
        assert!(reader.held_bytes() <= MAX_BYTES);
    }
    Ok(requests)
}

fuzz_target!(|data: &[u8]| {
    let Some((first, input)) = data.split_first() else { return };
    let piece = usize::from(*first).max(1);
    assert_eq!(requests(input, piece), requests(input, input.len().max(1)));
});
