//! Tests of `links`.

use super::*;

fn links(all: &[(&str, u32, &str)]) -> Links {
    all.iter().map(|(name, index, address)| ((*name).into(), (*index, Some((*address).into())))).collect()
}

#[test]
fn every_kind_of_difference_is_reported_and_equal_links_have_none() {
    let own = links(&[("lo", 1, "00"), ("eth0", 2, "0a")]);
    assert_eq!(compared(&own, &own), None);
    for (shown, words) in [
        (links(&[("lo", 1, "00")]), "it lacks eth0"),
        (links(&[("lo", 1, "00"), ("eth0", 3, "0a")]), "eth0 is interface 3, but here eth0 is interface 2"),
        (links(&[("lo", 1, "00"), ("eth0", 2, "0b")]), "another hardware address"),
        (links(&[("lo", 1, "00"), ("eth0", 2, "0a"), ("br0", 4, "0c")]), "it has br0"),
        (Links::new(), "it lacks"),
    ] {
        assert!(compared(&shown, &own).is_some_and(|found| found.contains(words)), "{words}");
    }
}

#[test]
fn the_loopback_has_one_index_and_one_name_and_sys_belongs_to_this_namespace() {
    assert_eq!(name_of(index_of("lo").unwrap()).unwrap(), "lo");
    assert_eq!(index_of("nosuch0").unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(name_of(u32::MAX >> 1).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(difference(&|| own().unwrap()), None);
}
