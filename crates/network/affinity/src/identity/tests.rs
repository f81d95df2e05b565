//! Tests of `identity`.

use super::*;

#[test]
fn a_cookie_decides_where_both_have_one_and_the_inode_where_not() {
    let of = |text: &str| text.parse::<Identity>().unwrap();
    let first = of("boot1 net:7 cookie:21");
    for (other, is_same) in [
        ("boot1 net:7 cookie:21", true),
        ("boot1 net:7 cookie:22", false),
        ("boot1 net:7", true),
        ("boot1 net:8", false),
        ("boot2 net:7 cookie:21", false),
    ] {
        assert_eq!((first.is_same(&of(other)), of(other).is_same(&first)), (is_same, is_same), "{other}");
        assert_eq!(of(other).to_string(), other);
    }
    assert!(first.is_certain() && !of("boot1 net:7").is_certain());
    for wrong in ["", "boot1", "boot1 net:", "boot1 net:x", "boot1 net:7 cookie:", "boot1 net:7 cookie:-1"] {
        assert!(wrong.parse::<Identity>().is_err(), "{wrong}");
    }
}

#[test]
fn the_kernel_gives_the_same_cookie_twice_or_none() {
    assert_eq!(cookie().ok(), cookie().ok());
}
