//! TCP segmentation offload: several features of an interface, one for each type of segment. `ethtool -K NAME tso` sets
//! all of them, and so does a sweep. The features may have had different values before, so the restored value names
//! each of them.

use crate::host::Host;
use std::io;

/// Returns whether a feature belongs to ethtool(8)'s `tso`.
fn is_member(name: &str) -> bool {
    name.starts_with("tx-tcp") && name.ends_with("-segmentation")
}

/// Whether any of the features is active, followed by those that can be changed and whether each is requested:
/// `1 tx-tcp-segmentation=1 tx-tcp6-segmentation=0`.
///
/// # Errors
/// The error of the operating system; `Unsupported` if no feature can be changed.
pub(super) fn read(host: &dyn Host, interface: &str) -> io::Result<String> {
    let members = host.features(interface)?.into_iter().filter(|feature| is_member(&feature.name));
    let (mut is_active, mut text) = (false, String::new());
    for feature in members {
        is_active |= feature.is_active;
        if feature.is_changeable {
            text.push_str(&format!(" {}={}", feature.name, u8::from(feature.is_requested)));
        }
    }
    if text.is_empty() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(format!("{}{text}", u8::from(is_active)))
}

/// Requests the features that `text` names, or with `0` or `1` all features.
///
/// # Errors
/// The error of the operating system; `InvalidInput` for another text.
pub(super) fn write(host: &dyn Host, interface: &str, text: &str) -> io::Result<()> {
    let now = read(host, interface)?;
    let requests = match bit(text) {
        Some(is_on) => requests(&now).map(|requests| requests.map(|(name, _)| (name, is_on)).collect()),
        None => requests(text).map(Iterator::collect),
    };
    let is_some = |requests: &Vec<(&str, bool)>| !requests.is_empty();
    let requests = requests.filter(is_some).ok_or(io::ErrorKind::InvalidInput)?;
    host.request_features(interface, &requests)
}

/// Returns whether the same features are requested. A text of a single digit states only whether any feature is active.
pub(super) fn means_same(one: &str, other: &str) -> bool {
    let all_are = |text: &str, is_on: bool| {
        text.split(' ').next().and_then(bit) == Some(is_on)
            && requests(text).is_some_and(|mut all| all.all(|(_, is_requested)| is_requested == is_on))
    };
    match (bit(one), bit(other)) {
        (Some(one), Some(other)) => one == other,
        (Some(is_on), None) => all_are(other, is_on),
        (None, Some(is_on)) => all_are(one, is_on),
        (None, None) => requests(one).zip(requests(other)).is_some_and(|(one, other)| one.eq(other)),
    }
}

fn bit(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

/// The features in a text and whether each is requested; `None` if it is malformed.
fn requests(text: &str) -> Option<impl Iterator<Item = (&str, bool)>> {
    let request = |word: &'_ str| word.split_once('=').and_then(|(_, digit)| bit(digit)).is_some();
    let words = text.split(' ').skip(1);
    words
        .clone()
        .all(request)
        .then(|| words.filter_map(|word| word.split_once('=')).map(|(name, digit)| (name, digit == "1")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeHost;
    use crate::setting::Setting;
    use longma_linux_network::features::Feature;

    fn feature(name: &str, is_changeable: bool, is_on: bool) -> Feature {
        Feature { name: name.into(), is_changeable, is_requested: is_on, is_active: is_on }
    }

    #[test]
    fn each_feature_has_its_value_and_a_digit_stands_for_all() {
        let host = FakeHost::default();
        host.put_features(vec![
            feature("tx-tcp-segmentation", true, true),
            feature("tx-udp-segmentation", true, true),
            feature("tx-tcp6-segmentation", true, false),
            feature("tx-tcp-mangleid-segmentation", false, false),
        ]);
        let tso = Setting::Segmentation("eth0".parse().unwrap());
        let before = tso.read(&host).unwrap();
        assert_eq!(before, "1 tx-tcp-segmentation=1 tx-tcp6-segmentation=0");
        assert!(!tso.means_same(&before, "1") && !tso.means_same("0", &before));
        for value in ["1", "0"] {
            tso.write(&host, value).unwrap();
            assert!(tso.means_same(&tso.read(&host).unwrap(), value), "{}", tso.read(&host).unwrap());
        }
        let udp = host.features("eth0").unwrap()[1].clone();
        assert!(udp.is_requested, "no TCP segments");
        tso.write(&host, &before).unwrap();
        assert_eq!(tso.read(&host).unwrap(), before);
        assert!(tso.write(&host, "2").is_err() && tso.write(&host, "1 a").is_err());
        host.put_features(vec![feature("tx-tcp-segmentation", false, true)]);
        assert!(tso.read(&host).is_err(), "it cannot be changed");
    }

    #[test]
    fn requested_but_inactive_features_are_not_on() {
        assert!(!means_same("0 tx-tcp-segmentation=1", "1"));
        assert!(!means_same("0 tx-tcp-segmentation=1", "0"));
        // Which features are active depends on other settings.
        assert!(means_same("0 tx-tcp-segmentation=1", "1 tx-tcp-segmentation=1"));
        assert!(!means_same("1 tx-tcp-segmentation=1", "1 tx-tcp6-segmentation=1"));
    }
}
