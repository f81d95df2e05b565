//! Requests for new processes that are refused. The guest programs `fork_storm` and `unix_process` test the permitted
//! ones. Source: clone(2).

mod guest;

use guest::{Guest, error};

#[test]
fn clone_with_an_invalid_exit_signal_is_refused() {
    const CLONE3: u64 = 435;
    let mut guest = Guest::new();
    for exit_signal in [65u64, 200, 256, u64::MAX] {
        let mut arguments = [0u64; 11];
        arguments[4] = exit_signal;
        let bytes: Vec<u8> = arguments.iter().flat_map(|word| word.to_le_bytes()).collect();
        let address = guest.put(&bytes);
        assert_eq!(guest.call(CLONE3, &[address, bytes.len() as u64]), error(libc::EINVAL), "{exit_signal}");
    }
}
