//! Loads random bytes as a program. Loading must return a consistent process or an error, without a panic or hang.
#![no_main]

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};

use libfuzzer_sys::fuzz_target;
use longma_guest::elf::Image;
use longma_linux::{Process, ProcessConfig};

const LIMIT: u64 = 1 << 46;

fuzz_target!(|data: &[u8]| {
    let Ok(image) = Image::parse(data, LIMIT) else { return };
    let mut end = 0;
    for segment in &image.segments {
        assert!(segment.address >= end && segment.file_bytes <= segment.memory_bytes);
        assert!(segment.file_bytes == 0 || segment.offset + segment.file_bytes <= data.len() as u64);
        end = segment.address + segment.memory_bytes;
        assert!(end <= LIMIT);
    }
    // SAFETY: the name is terminated, and the descriptor is new and owned here.
    let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"program".as_ptr(), 0)) };
    file.write_all(data).expect("memory for one program");
    let program = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
    if let Ok((process, _, state)) = Process::load(ProcessConfig { program, ..Default::default() }) {
        // The initial stack can be read back, and mappings do not overlap.
        process.memory().load::<u64>(state.r(3)).expect("the stack is mapped");
        let mappings = process.address_space().mappings();
        assert!(mappings.windows(2).all(|pair| pair[0].0.end <= pair[1].0.start));
    }
});
