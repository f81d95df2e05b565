//! Reads a Debian package, or a list of packages, of any content.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = longma_debian::files(data, &mut |path| path.len() % 2 == 0);
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = longma_debian::newest_kernel(text);
    }
});
