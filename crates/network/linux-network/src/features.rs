//! The features of an interface, such as `tx-tcp6-segmentation`: which can be changed, which are requested, and which
//! are active. An offload of ethtool(8), such as TSO, comprises several features.
//!
//! Source: Linux include/uapi/linux/ethtool.h (struct ethtool_sset_info, ethtool_gstrings, ethtool_gfeatures,
//! ethtool_sfeatures), net/ethtool/ioctl.c; Documentation/networking/netdev-features.rst.

use crate::ethtool::exchange;
use std::io;

const GET_STRINGS: u32 = 0x1b;
const GET_SET_INFO: u32 = 0x37;
const GET_FEATURES: u32 = 0x3a;
const SET_FEATURES: u32 = 0x3b;
/// The set of strings with the names of features: ETH_SS_FEATURES.
const NAMES: u32 = 4;
/// Words of a name: ETH_GSTRING_LEN.
const NAME_WORDS: usize = 8;
/// Maximum plausible number of features.
const MAX_FEATURES: u32 = 1024;

/// A feature of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name.
    pub name: String,
    /// Whether it can be changed.
    pub is_changeable: bool,
    /// Whether the feature was requested. It becomes active only if other settings allow it.
    pub is_requested: bool,
    /// Whether it is active.
    pub is_active: bool,
}

/// Reads all features of `interface`, in the network namespace of the calling thread.
///
/// # Errors
/// The kernel's error; `Unsupported` if it reports no features.
pub fn get(interface: &str) -> io::Result<Vec<Feature>> {
    let names = names(interface)?;
    let blocks = names.len().div_ceil(32);
    let mut words = vec![0u32; 2 + 4 * blocks];
    (words[0], words[1]) = (GET_FEATURES, blocks as u32);
    exchange(interface, &mut words)?;
    Ok(read(names, &words))
}

/// Requests features to be on or off. Other features are unchanged.
///
/// # Errors
/// The kernel's error; `Unsupported` for a name that the kernel does not know.
pub fn request(interface: &str, features: &[(&str, bool)]) -> io::Result<()> {
    let names = names(interface)?;
    exchange(interface, &mut requests(&names, features)?)
}

/// The names of all features by bit; an unused bit has no name.
fn names(interface: &str) -> io::Result<Vec<String>> {
    // struct ethtool_sset_info: command, reserved, the mask of the sets in 64 bits, and the number of strings.
    let mut info = [0u32; 5];
    info[0] = GET_SET_INFO;
    let [low, high] = halves(1 << NAMES);
    (info[2], info[3]) = (low, high);
    exchange(interface, &mut info)?;
    let count = info[4];
    if count == 0 || count > MAX_FEATURES {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut words = vec![0u32; 3 + count as usize * NAME_WORDS];
    (words[0], words[1], words[2]) = (GET_STRINGS, NAMES, count);
    exchange(interface, &mut words)?;
    let name = |words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    Ok(words[3..].chunks_exact(NAME_WORDS).map(name).collect())
}

/// The two words of a number of 64 bits in memory.
fn halves(number: u64) -> [u32; 2] {
    let bytes = number.to_ne_bytes();
    [0, 4].map(|at| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]))
}

/// Decodes an answer, which has four words for each 32 features: the bits available, requested, active, and never
/// changed.
fn read(names: Vec<String>, words: &[u32]) -> Vec<Feature> {
    let blocks = words.get(2..).unwrap_or_default().chunks_exact(4);
    let blocks: Vec<&[u32]> = blocks.take(words[1] as usize).collect();
    let feature = |(bit, name): (usize, String)| {
        let block = blocks.get(bit / 32)?;
        let has = |word: usize| block[word] >> (bit % 32) & 1 == 1;
        Some(Feature { name, is_changeable: has(0), is_requested: has(1), is_active: has(2) })
    };
    let all = names.into_iter().enumerate().filter_map(feature);
    all.filter(|feature| !feature.name.is_empty()).collect()
}

/// The structure that requests features, with two words for each 32 features: the bits to change and their values.
fn requests(names: &[String], features: &[(&str, bool)]) -> io::Result<Vec<u32>> {
    let blocks = names.len().div_ceil(32);
    let mut words = vec![0u32; 2 + 2 * blocks];
    (words[0], words[1]) = (SET_FEATURES, blocks as u32);
    for (name, is_on) in features {
        let bit = names.iter().position(|known| known == name).ok_or(io::ErrorKind::Unsupported)?;
        let at = 2 + bit / 32 * 2;
        words[at] |= 1 << (bit % 32);
        words[at + 1] |= u32::from(*is_on) << (bit % 32);
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(count: usize) -> Vec<String> {
        (0..count).map(|bit| if bit == 1 { String::new() } else { format!("f{bit}") }).collect()
    }

    #[test]
    fn features_are_found_by_their_bits_in_any_block() {
        let mut words = vec![0; 2 + 4 * 2];
        words[1] = 2;
        words[2..6].copy_from_slice(&[0b101, 0b100, 0b110, 0]);
        words[6..10].copy_from_slice(&[1 << 3, 1 << 3, 0, 0]);
        let found = read(named(36), &words);
        assert_eq!(found.len(), 35, "a bit without a name is left out");
        let of = |name: &str| found.iter().find(|feature| feature.name == name).unwrap();
        assert!(of("f0").is_changeable && !of("f0").is_requested && !of("f0").is_active);
        assert!(of("f2").is_changeable && of("f2").is_requested && of("f2").is_active);
        assert!(of("f35").is_changeable && of("f35").is_requested && !of("f35").is_active);
        // The kernel returns fewer blocks than the names need.
        words[1] = 1;
        assert_eq!(read(named(36), &words).len(), 31);
    }

    #[test]
    fn only_the_named_features_are_requested() {
        let words = requests(&named(36), &[("f2", true), ("f3", false), ("f35", true)]).unwrap();
        assert_eq!(words, [SET_FEATURES, 2, 0b1100, 0b0100, 1 << 3, 1 << 3]);
        assert!(requests(&named(4), &[("f9", true)]).is_err());
    }

    #[test]
    fn the_loopback_interface_has_features_with_names() {
        let features = get("lo").unwrap();
        let loopback = features.iter().find(|feature| feature.name == "loopback").unwrap();
        assert!(loopback.is_active && !loopback.is_changeable);
        assert!(get("nosuch0").is_err() && request("nosuch0", &[]).is_err());
        assert!(request("lo", &[("no-such-feature", true)]).is_err());
    }
}
