//! Tests of `merge_sizes`.

use super::*;

#[test]
fn changing_the_size_of_ipv6_states_that_of_ipv4_which_would_follow_it() {
    let now = [LinkAttribute::GroMaxSize(65_536), LinkAttribute::GroIpv4MaxSize(100_000)];
    let changes = |size| changes(&now, size, 32_768).unwrap();
    assert_eq!(
        changes(DriverProperty::GroMaxSize),
        [LinkAttribute::GroMaxSize(32_768), LinkAttribute::GroIpv4MaxSize(100_000)]
    );
    assert_eq!(changes(DriverProperty::GroIpv4MaxSize), [LinkAttribute::GroIpv4MaxSize(32_768)]);
    assert_eq!(changes(DriverProperty::GsoMaxSize), [LinkAttribute::GsoMaxSize(32_768)]);
    assert!(super::changes(&now, DriverProperty::TsoMaxSize, 1).is_err());
}

#[test]
fn a_missing_interface_is_reported() {
    for size in [DriverProperty::GroMaxSize, DriverProperty::TsoMaxSize] {
        assert_eq!(get("nosuch0", size).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
    assert!(set("nosuch0", DriverProperty::GroMaxSize, 65_536).is_err());
    assert!(set("lo", DriverProperty::GroMaxSize, u64::MAX).is_err());
}
