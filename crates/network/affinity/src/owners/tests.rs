//! Tests of `owners`.

use super::*;
use crate::fake::FakeHost;

#[test]
fn owners_are_found_followed_and_forgotten() {
    let host = FakeHost::with(&[
        ("proc/7/fd/3", "-> socket:[100]"),
        ("proc/7/fd/4", "-> /dev/null"),
        ("proc/9/fd/5", "-> socket:[101]"),
        ("proc/self/fd/5", "-> socket:[101]"),
    ]);
    let mut owners = SocketOwners::default();
    let found = owners.of(&host, &[100, 101, 102, 0]);
    assert_eq!(
        (found[&100], found[&101]),
        (SocketOwner { process: 7, descriptor: 3 }, SocketOwner { process: 9, descriptor: 5 })
    );
    assert_eq!(found.len(), 2);
    // The descriptor was passed to another process.
    host.remove("proc/7/fd/3");
    host.put("proc/8/fd/6", "-> socket:[100]");
    assert_eq!(owners.of(&host, &[100, 101, 102])[&100], SocketOwner { process: 8, descriptor: 6 });
    host.put("proc/8/fd/7", "-> socket:[102]");
    let looks = (1..=RETRY_AFTER_LOOKUPS + 1).find(|_| owners.of(&host, &[100, 102]).contains_key(&102));
    assert_eq!(looks, Some(RETRY_AFTER_LOOKUPS - 1));
    assert!(owners.of(&host, &[]).is_empty());
}
