//! Debian's list of packages, and the file with its hash. Source: Debian's repository format; deb-version(7).

use std::cmp::Ordering;

use crate::packages::{Packages, Pin};

/// The path of the list in the folder of the distribution.
pub const LIST: &str = "main/binary-loong64/Packages.xz";

/// A package in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    pub(crate) pin: Pin,
}

/// The packages in a list. Entries without name, version, path or hash are skipped.
fn packages(list: &str) -> impl Iterator<Item = Listed> {
    list.split("\n\n").filter_map(|paragraph| {
        let field = |name: &str| {
            let line = paragraph.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))?;
            Some(line.trim().to_owned())
        };
        let pin = Pin { path: field("Filename")?, sha256: field("SHA256")? };
        let is_hash = pin.sha256.len() == 64 && pin.sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
        // The path must stay within the archive and be valid in a URL.
        let is_path = pin.path.starts_with("pool/")
            && !pin.path.split('/').any(|part| part.is_empty() || part.starts_with('.'))
            && pin.path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/+-._~".contains(&byte));
        let listed = Listed { name: field("Package")?, version: field("Version")?, pin };
        (is_hash && is_path).then_some(listed)
    })
}

/// The newest kernel for which the list also has the modules, those modules, and the newest busybox.
pub fn newest_kernel(list: &str) -> Option<[Listed; 3]> {
    let all: Vec<Listed> = packages(list).collect();
    let newest = |name: &str| {
        all.iter().filter(|it| it.name == name).max_by(|a, b| compare_versions(&a.version, &b.version))
    };
    let kernels = all.iter().filter_map(|kernel| {
        let release = kernel.name.strip_prefix("linux-binary-")?.strip_suffix("-loong64")?;
        let is_release = release.starts_with(|first: char| first.is_ascii_digit());
        let modules = all.iter().find(|it| {
            it.name.strip_prefix("linux-modules-") == kernel.name.strip_prefix("linux-binary-")
                && it.version == kernel.version
        })?;
        is_release.then_some((kernel, modules))
    });
    let (kernel, modules) = kernels.max_by(|(a, _), (b, _)| compare_versions(&a.version, &b.version))?;
    Some([kernel.clone(), modules.clone(), newest("busybox-static")?.clone()])
}

impl Packages {
    /// The packages of [`newest_kernel`].
    pub fn newest(list: &str) -> Option<Self> {
        let [kernel, modules, busybox] = newest_kernel(list)?.map(|listed| listed.pin);
        Some(Self { kernel, modules, busybox })
    }
}

/// The SHA-256 of the list in the text of a Release file.
pub fn hash_of_list(release: &str) -> Option<String> {
    let (_, hashes) = release.split_once("\nSHA256:")?;
    let lines = hashes.lines().skip(1).take_while(|line| line.starts_with(' '));
    lines.map(|line| line.split_ascii_whitespace().collect::<Vec<_>>()).find_map(|fields| match fields[..] {
        [hash, _, path] if path == LIST => Some(hash.to_owned()),
        _ => None,
    })
}

/// Compares two versions as dpkg does.
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    let split = |version: &str| {
        let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
        let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, "0"));
        (epoch.parse::<u64>().unwrap_or(0), upstream.to_owned(), revision.to_owned())
    };
    let (a, b) = (split(a), split(b));
    a.0.cmp(&b.0).then_with(|| compare_parts(&a.1, &b.1)).then_with(|| compare_parts(&a.2, &b.2))
}

/// Compares non-digits and numbers alternately. A tilde sorts before the end, and letters before other characters.
fn compare_parts(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    let order = |byte: Option<u8>| match byte {
        Some(b'~') => -1,
        None => 0,
        Some(byte) if byte.is_ascii_alphabetic() => i32::from(byte),
        Some(byte) => i32::from(byte) + 256,
    };
    while !a.is_empty() || !b.is_empty() {
        let texts = [&mut a, &mut b].map(|part| take_while(part, |byte| !byte.is_ascii_digit()));
        for at in 0..=texts[0].len().max(texts[1].len()) {
            let [x, y] = texts.map(|text| order(text.get(at).copied()));
            if x != y {
                return x.cmp(&y);
            }
        }
        let numbers = [&mut a, &mut b].map(|part| {
            take_while(part, |byte| byte == b'0');
            take_while(part, |byte| byte.is_ascii_digit())
        });
        let by_value = numbers[0].len().cmp(&numbers[1].len()).then_with(|| numbers[0].cmp(numbers[1]));
        if by_value != Ordering::Equal {
            return by_value;
        }
    }
    Ordering::Equal
}

/// Removes and returns the leading bytes for which `is_part` holds.
fn take_while<'a>(rest: &mut &'a [u8], is_part: impl Fn(u8) -> bool) -> &'a [u8] {
    let end = rest.iter().position(|byte| !is_part(*byte)).unwrap_or(rest.len());
    let (taken, behind) = rest.split_at(end);
    *rest = behind;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_as_by_dpkg() {
        let ordered =
            ["1~rc1-1", "1-1", "1-1+b1", "1-2", "1-10", "1.0a-1", "1.0+1-1", "1.2-1", "1.10-1", "1:0-1"];
        for (number, version) in ordered.iter().enumerate() {
            for (other, later) in ordered.iter().enumerate() {
                assert_eq!(compare_versions(version, later), number.cmp(&other), "{version} {later}");
            }
        }
        assert_eq!(compare_versions("1.01-1", "1.1-1"), Ordering::Equal);
    }

    fn paragraph(name: &str, version: &str, path: &str) -> String {
        let hash = "0123456789abcdef".repeat(4);
        format!("Package: {name}\nVersion: {version}\nFilename: {path}\nSHA256: {hash}\n\n")
    }

    #[test]
    fn the_newest_kernel_is_one_that_has_modules() {
        let list = [
            paragraph("linux-binary-7.2.13+deb14-loong64", "7.2.13-1", "pool/k1"),
            paragraph("linux-modules-7.2.13+deb14-loong64", "7.2.13-1", "pool/m1"),
            paragraph("linux-binary-7.10.1+deb14-loong64", "7.10.1-1", "pool/k2"),
            paragraph("linux-modules-7.10.1+deb14-loong64", "7.10.1-1", "pool/m2"),
            paragraph("linux-binary-7.11+deb14-loong64", "7.11-1", "pool/k3"),
            paragraph("linux-binary-dbg-loong64", "9-1", "pool/k4"),
            paragraph("linux-modules-dbg-loong64", "9-1", "pool/m4"),
            paragraph("busybox-static", "1:1.38.0-3", "pool/b1"),
            paragraph("busybox-static", "1:1.38.0-3+b1", "pool/b2"),
            paragraph("busybox-static", "1:2-1", "pool/../../b3"),
            paragraph("busybox-static", "1:3-1", "http://example.org/b"),
        ];
        let found = newest_kernel(&list.concat()).expect("there is one");
        assert_eq!(found.map(|listed| listed.pin.path), ["pool/k2", "pool/m2", "pool/b2"]);
        assert!(newest_kernel(&list[..7].concat()).is_none(), "there is no busybox");
    }

    #[test]
    fn the_hash_of_the_list_is_in_its_section_of_the_release() {
        let release = "Origin: Debian\nMD5Sum:\n aa 1 main/binary-loong64/Packages.xz\nSHA256:\n bb 1 main/binary-loong64/Packages.gz\n cc 1 main/binary-loong64/Packages.xz\nSHA512:\n dd 1 x\n";
        assert_eq!(hash_of_list(release).as_deref(), Some("cc"));
        assert_eq!(hash_of_list("SHA256: none"), None);
    }
}
