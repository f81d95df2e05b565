//! Error messages for programs that cannot be loaded, and robustness against arbitrary bytes. Source: elf(5),
//! execve(2).

mod guest;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use guest::{Guest, Load, elf, smallest};
use longma_guest::elf::Image;
use longma_linux::{LoadError, Process, ProcessConfig};
use proptest::prelude::*;

const LIMIT: u64 = 1 << 46;

fn load(bytes: &[u8]) -> Result<(), LoadError> {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    std::fs::write(&program, bytes).unwrap();
    Process::load(ProcessConfig { program, ..Default::default() }).map(drop)
}

fn refusal(bytes: &[u8]) -> String {
    load(bytes).expect_err("it must be refused").to_string()
}

fn code() -> Load {
    Load { address: 0x20_0000, offset: 0, file_bytes: 0x4000, memory_bytes: 0x4000, flags: 5 }
}

#[test]
fn a_file_that_is_not_a_program_is_refused_with_a_reason_and_a_remedy() {
    assert!(refusal(b"").contains("empty"));
    assert!(refusal(b"hello").contains("not an ELF file"));
    assert!(refusal(b"#!\n").contains("its first line has no interpreter after #!"));
    assert!(refusal(b"#!/does/not/exist\n").contains("/does/not/exist"));
    assert!(refusal(&smallest()[..40]).contains("truncated"));
    assert!(refusal(&smallest()[..100]).contains("truncated"));
    assert!(refusal(&smallest()[..0x3fff]).contains("truncated"));
    let mut other = smallest();
    other[18..20].copy_from_slice(&3u16.to_le_bytes());
    assert!(
        refusal(&other).contains("32-bit") && refusal(&other).contains("x86_64-linux"),
        "{}",
        refusal(&other)
    );
    let mut other = smallest();
    other[4] = 1;
    assert!(refusal(&other).contains("64-bit"));
    assert!(refusal(&elf(1, 0, &[code()], 0x4000)).contains("cannot be run"));
    assert!(refusal(&elf(2, 0, &[], 0x4000)).contains("e_phnum"));
}

#[test]
fn invalid_segments_are_refused() {
    let with = |change: &dyn Fn(&mut Load)| {
        let mut load = code();
        change(&mut load);
        refusal(&elf(2, 0x20_0100, &[load], 0x4000))
    };
    assert!(with(&|load| load.memory_bytes = 0x3000).contains("more bytes in the file"));
    assert!(with(&|load| load.memory_bytes = u64::MAX).contains("does not fit"));
    assert!(with(&|load| load.memory_bytes = 1 << 47).contains("does not fit"));
    assert!(with(&|load| load.address = u64::MAX - 0x3fff).contains("does not fit"));
    assert!(with(&|load| load.offset = u64::MAX - 0x3fff).contains("truncated"));
    assert!(with(&|load| load.address = 0x20_1000).contains("16 KiB page"));
    assert!(with(&|load| load.address = 0).contains("never mapped"));
    assert!(refusal(&elf(2, 0, &[code(), code()], 0x4000)).contains("overlaps"));
}

#[test]
fn a_segment_without_bytes_in_the_file_can_have_any_offset() {
    let zeros = Load { address: 0x30_0000, offset: 1 << 40, file_bytes: 0, memory_bytes: 0x4000, flags: 6 };
    assert!(load(&elf(2, 0x20_0100, &[code(), zeros], 0x4000)).is_ok());
}

#[test]
fn a_program_that_fills_the_address_space_is_refused() {
    let mut load = code();
    load.memory_bytes = (1 << 46) - 0x40_0000;
    let message = refusal(&elf(2, 0x20_0100, &[load], 0x4000));
    // Concurrent tests share one host address space, so the reservation may be smaller than 2^46 bytes.
    assert!(message.contains("cannot map") || message.contains("does not fit"), "{message}");
}

#[test]
fn a_cycle_of_script_interpreters_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("loop");
    std::fs::write(&program, format!("#!{}\n", program.display())).unwrap();
    let error = Process::load(ProcessConfig { program, ..Default::default() }).unwrap_err();
    assert!(error.to_string().contains("five deep"), "{error}");
}

#[test]
fn a_script_is_passed_to_its_interpreter_as_an_argument() {
    let directory = tempfile::tempdir().unwrap();
    let (program, script) = (directory.path().join("program"), directory.path().join("script"));
    std::fs::write(&program, smallest()).unwrap();
    std::fs::write(&script, format!("#! {} -x  y \nrest", program.display())).unwrap();
    let config = ProcessConfig {
        program: script.clone(),
        arguments: vec!["name".into(), "argument".into()],
        ..Default::default()
    };
    let (process, _, state) = Process::load(config).unwrap();
    let memory = process.memory();
    let at = |index: u64| memory.load::<u64>(state.r(3) + 8 * index).unwrap();
    let text = |index| String::from_utf8(memory.read_c_string(at(index), 4096).unwrap().unwrap()).unwrap();
    assert_eq!(at(0), 4);
    assert_eq!(text(1), program.to_str().unwrap());
    assert_eq!(text(2), "-x  y");
    assert_eq!(text(3), script.to_str().unwrap());
    assert_eq!(text(4), "argument");
    assert_eq!(at(5), 0);
    assert_eq!(state.pc, 0x20_0100);
    assert_eq!(state.r(3) % 16, 0);
}

#[test]
fn the_programs_path_has_no_links_and_its_name_is_the_links() {
    const READLINKAT: u64 = 78;
    let linked = |directory: &Path, root: Option<PathBuf>, program: PathBuf| {
        std::fs::create_dir_all(directory.join("real")).unwrap();
        std::fs::rename(directory.join("program"), directory.join("real/program")).unwrap();
        std::os::unix::fs::symlink("real/program", directory.join("link")).unwrap();
        ProcessConfig { program, root, ..Default::default() }
    };
    let mut confined =
        Guest::with(|directory| linked(directory, Some(directory.to_owned()), PathBuf::from("/link")));
    let mut free = Guest::with(|directory| linked(directory, None, directory.join("link")));
    let below = free.directory.path().canonicalize().unwrap();
    for (guest, expected) in
        [(&mut confined, PathBuf::from("/real/program")), (&mut free, below.join("real/program"))]
    {
        let (path, buffer) = (guest.path("/proc/self/exe"), guest.put(&[0; 4096]));
        let length = guest.call(READLINKAT, &[libc::AT_FDCWD as u64, path, buffer, 4096]);
        let name = guest.bytes(buffer, usize::try_from(length).unwrap());
        assert_eq!(Path::new(OsStr::from_bytes(&name)), expected);
        let comm = guest.open("/proc/self/status", libc::O_RDONLY);
        assert!(guest.read(comm).starts_with(b"Name:\tlink\n"));
    }
}

#[test]
fn zero_initialised_data_is_zero_even_if_the_file_continues() {
    let data = Load { address: 0x20_4000, offset: 0x4000, file_bytes: 16, memory_bytes: 0x9000, flags: 6 };
    let mut bytes = elf(2, 0x20_0100, &[code(), data], 0x8000);
    bytes[0x4000..].fill(0xff);
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("program");
    std::fs::write(&program, bytes).unwrap();
    let (process, ..) = Process::load(ProcessConfig { program, ..Default::default() }).unwrap();
    let memory = process.memory();
    assert_eq!(memory.load::<u64>(0x20_4008), Ok(u64::MAX));
    assert_eq!(memory.load::<u64>(0x20_4010), Ok(0));
    assert_eq!(memory.load::<u64>(0x20_7ff8), Ok(0));
    assert_eq!(memory.load::<u64>(0x20_cff8), Ok(0));
    assert!(memory.store(0x20_0000, 0u8).is_err(), "code is not writable");
}

#[test]
fn the_heap_of_a_static_pie_can_grow() {
    const BRK: u64 = 214;
    let mut guest = Guest::of(&elf(3, 0x20_0100, &[code()], 0x4000));
    let start = guest.call(BRK, &[0]) as u64;
    let end = start + (64 << 20);
    assert_eq!(guest.call(BRK, &[end]) as u64, end);
    guest.process.memory().store(end - 8, 7u64).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn parsing_arbitrary_bytes_gives_an_image_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = Image::parse(&bytes[..], LIMIT);
    }

    #[test]
    fn parsing_a_damaged_program_gives_sound_segments_or_an_error(
        damage in prop::collection::vec((0usize..400, any::<u8>()), 1..6), length in 0usize..0x4000,
    ) {
        let mut bytes = elf(3, 0x100, &[code(), Load { address: 0x21_0000, ..code() }], 0x4000);
        for (at, value) in damage { bytes[at] = value; }
        bytes.truncate(if length % 2 == 0 { 0x4000 } else { length });
        if let Ok(image) = Image::parse(&bytes[..], LIMIT) {
            let mut end = 0;
            for segment in &image.segments {
                prop_assert!(segment.address >= end && segment.file_bytes <= segment.memory_bytes);
                prop_assert!(segment.offset + segment.file_bytes <= bytes.len() as u64);
                end = segment.address + segment.memory_bytes;
                prop_assert!(end <= LIMIT);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn loading_a_damaged_program_gives_a_process_or_an_error(
        damage in prop::collection::vec((0usize..180, any::<u8>()), 1..4),
    ) {
        let mut bytes = elf(3, 0x100, &[code(), Load { address: 0x21_0000, ..code() }], 0x4000);
        for (at, value) in damage { bytes[at] = value; }
        let _ = load(&bytes);
    }
}
