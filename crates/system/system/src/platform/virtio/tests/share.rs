//! Tests the shared folder as a driver uses it. The requests are those of the crate's own tests.

use longma_share::{Access, Share};

use super::*;

/// Bytes of the buffer for a reply.
const ROOM: u32 = 4096;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("the host has a temporary folder");
    std::fs::write(folder.path().join("file"), "content").expect("the folder is writable");
    folder
}

fn shared(folder: &tempfile::TempDir) -> Bench {
    let share = Share::open(folder.path(), Access::Write).expect("it is a folder");
    Bench::with(Transport::share(SharedFolder::new(share, "share").expect("it is a tag"))).start()
}

impl Bench {
    /// Sends a message in two descriptors and returns the reply.
    pub(super) fn ask(&mut self, kind: u8, fields: &[u8]) -> Vec<u8> {
        let bytes = 7 + fields.len() as u32;
        self.put(HEADER, &[&bytes.to_le_bytes()[..], &[kind, 1, 0]].concat());
        self.put(DATA, fields);
        self.put(STATUS, &[0; 8]);
        self.descriptor(0, HEADER, 7, NEXT, 1);
        self.descriptor(1, DATA, fields.len() as u32, NEXT, 2);
        self.descriptor(2, STATUS, ROOM, WRITABLE, 0);
        assert_eq!(self.notify(0).messages.len(), 1);
        let used = self.get(USED + 4 + 8 * u64::from((self.available - 1) % 16), 8);
        let bytes = u32::from_le_bytes([used[4], used[5], used[6], used[7]]);
        self.get(STATUS, bytes as usize)
    }

    /// Agrees on a version and attaches as fid 0.
    pub(super) fn attach(&mut self) {
        assert_eq!(self.ask(100, &[words(&[8192]), text("9P2000.L")].concat())[4], 101);
        let attach = [words(&[0, u32::MAX]), text(""), text(""), words(&[0])].concat();
        assert_eq!(self.ask(104, &attach)[4], 105);
    }
}

#[test]
fn a_driver_reads_the_tag_and_a_file() {
    let folder = folder();
    let mut bench = shared(&folder);
    assert_eq!(bench.host.read(WINDOW + u64::from(window::DEVICE), 8), u64::from_le_bytes(*b"\x05\0share\0"));
    assert_eq!(bench.host.read_config(SLOT, 4), 0x1049_1af4);
    bench.attach();
    assert_eq!(bench.ask(110, &[words(&[0, 1]), vec![1, 0], text("file")].concat())[4], 111);
    assert_eq!(bench.ask(12, &words(&[1, 0]))[4], 13);
    let reply = bench.ask(116, &words(&[1, 0, 0, 100]));
    assert_eq!(reply[4..], [&[117, 1, 0, 7, 0, 0, 0], &b"content"[..]].concat());
}

#[test]
fn a_reset_of_the_device_ends_what_was_open() {
    let folder = folder();
    let mut bench = shared(&folder);
    bench.attach();
    bench.write(0x14, 1, 0);
    bench.available = 0;
    bench.put(AVAILABLE, &[0; 64]);
    bench.put(USED, &[0; 256]);
    let mut bench = bench.start();
    assert_eq!(bench.ask(120, &words(&[0]))[4], 7, "no version is agreed on");
    bench.attach();
}

#[test]
fn a_request_that_is_too_long_or_has_no_room_for_a_reply_is_used_without_an_effect() {
    let folder = folder();
    let mut bench = shared(&folder);
    bench.attach();
    // A message of 16 MiB, one without a reply, and one of no bytes.
    for (bytes, room) in [(16 << 20, ROOM), (7, 0), (7, 6), (0, ROOM)] {
        bench.descriptor(0, HEADER, bytes, NEXT, 1);
        bench.descriptor(1, STATUS, room, WRITABLE, 0);
        assert_eq!(bench.notify(0).messages.len(), 1);
        let used = bench.get(USED + 4 + 8 * u64::from((bench.available - 1) % 16), 8);
        assert_eq!(used[4..], [0; 4], "{bytes} {room}");
    }
    assert_eq!(bench.ask(120, &words(&[0]))[4], 121, "the device still works");
}

#[test]
fn a_tag_is_a_word() {
    let folder = folder();
    let long = "x".repeat(65);
    for (tag, is_usable) in
        [("a", true), ("my-folder_1.0", true), ("", false), ("a b", false), (long.as_str(), false)]
    {
        let share = Share::open(folder.path(), Access::Read).expect("it is a folder");
        assert_eq!(SharedFolder::new(share, tag).is_ok(), is_usable, "{tag:?}");
    }
}

proptest! {
    #[test]
    fn any_message_changes_only_the_memory_that_the_device_reports(
        kind in any::<u8>(),
        fields in prop::collection::vec(any::<u8>(), 0..64),
        buffers in prop::collection::vec(descriptor(), 4),
    ) {
        let folder = folder();
        let mut bench = shared(&folder);
        bench.attach();
        let bytes = 7 + fields.len() as u32;
        bench.put(HEADER, &[&bytes.to_le_bytes()[..], &[kind, 1, 0], &fields].concat());
        bench.descriptor(0, HEADER, bytes, NEXT, 1);
        for (number, (address, bytes, flags, next)) in buffers.into_iter().enumerate() {
            bench.descriptor(1 + number as u64, address, bytes, flags, next % 6);
        }
        // The available ring, which `notify` writes.
        let before = bench.get(0, TEST_BYTES);
        let effects = bench.notify(0);
        let after = bench.get(0, TEST_BYTES);
        let is_reported = |at: u64| effects.written.iter().any(|(start, end)| (*start..*end).contains(&at));
        let ring = AVAILABLE as usize..AVAILABLE as usize + 64;
        for at in (0..TEST_BYTES).filter(|at| before[*at] != after[*at] && !ring.contains(at)) {
            prop_assert!(is_reported(at as u64), "{at:#x}");
        }
        prop_assert_eq!(std::fs::read(folder.path().join("file")).unwrap().len(), 7);
    }
}
