//! Network interfaces of the calling thread's namespace as the kernel reports them: names, indices and hardware
//! addresses. Also detects a mounted /sys that belongs to another namespace.
//!
//! Source: netdevice(7), rtnetlink(7); Linux fs/sysfs/mount.c: a /sys shows the namespace of the process that mounted
//! it.

use crate::ethtool::exchange;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::time::Duration;

/// The index of each interface by its name, and its hardware address if that has six bytes.
pub type Links = BTreeMap<String, (u32, Option<String>)>;

/// Interfaces appear and disappear, so /sys and the kernel are considered different only after several comparisons.
const MAX_COMPARISONS: usize = 4;
const PAUSE: Duration = Duration::from_millis(50);

/// Index of an interface.
///
/// # Errors
/// `NotFound` if it does not exist.
pub fn index_of(name: &str) -> io::Result<u32> {
    let text = CString::new(name).map_err(|_| io::ErrorKind::NotFound)?;
    // SAFETY: the string is zero-terminated and outlives the call.
    match unsafe { libc::if_nametoindex(text.as_ptr()) } {
        0 => Err(missing()),
        index => Ok(index),
    }
}

/// Current name of the interface with an index.
///
/// # Errors
/// `NotFound` if it does not exist.
pub fn name_of(index: u32) -> io::Result<String> {
    let mut name = [0 as libc::c_char; libc::IFNAMSIZ];
    // SAFETY: the kernel writes at most IFNAMSIZ bytes, the last of them zero.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return Err(missing());
    }
    // SAFETY: as above.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

/// Name of the driver of an interface. Source: Linux include/uapi/linux/ethtool.h (struct ethtool_drvinfo).
///
/// # Errors
/// The kernel's error.
pub fn driver_of(name: &str) -> io::Result<String> {
    const GET_DRIVER: u32 = 3;
    /// Words of the structure: the command, the names, and numbers.
    const WORDS: usize = 49;
    let mut words = [0u32; WORDS];
    words[0] = GET_DRIVER;
    exchange(name, &mut words)?;
    let driver: Vec<u8> = words[1..9].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let length = driver.iter().position(|byte| *byte == 0).unwrap_or(driver.len());
    Ok(String::from_utf8_lossy(&driver[..length]).into_owned())
}

fn missing() -> io::Error {
    let error = io::Error::last_os_error();
    let is_none = matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO));
    if is_none { io::ErrorKind::NotFound.into() } else { error }
}

/// Describes how the mounted /sys differs from the kernel's list of interfaces in this namespace; `None` if they agree.
pub fn difference(shown: &dyn Fn() -> Links) -> Option<String> {
    let mut found = None;
    for look in 0..MAX_COMPARISONS {
        if look > 0 {
            std::thread::sleep(PAUSE);
        }
        // If the kernel does not answer, there is nothing to compare with.
        found = compared(&shown(), &own().ok()?);
        found.as_ref()?;
    }
    found
}

/// The kernel's list of interfaces.
fn own() -> io::Result<Links> {
    let mut links: Links = nix::net::if_::if_nameindex()?
        .iter()
        .map(|link| (link.name().to_string_lossy().into_owned(), (link.index(), None)))
        .collect();
    for one in nix::ifaddrs::getifaddrs().into_iter().flatten() {
        // Longer addresses, such as InfiniBand's, are not reported completely.
        let of_six = |address: &nix::sys::socket::LinkAddr| (address.halen() == 6).then(|| address.addr())?;
        let address = one.address.and_then(|address| address.as_link_addr().and_then(of_six));
        if let (Some(address), Some(link)) = (address, links.get_mut(&one.interface_name)) {
            link.1 = Some(address.map(|byte| format!("{byte:02x}")).join(":"));
        }
    }
    Ok(links)
}

fn compared(shown: &Links, own: &Links) -> Option<String> {
    for (name, (index, address)) in own {
        match shown.get(name) {
            None => return Some(format!("it lacks {name}, which is interface {index} here")),
            Some((other, _)) if other != index => {
                return Some(format!(
                    "its {name} is interface {other}, but here {name} is interface {index}"
                ));
            }
            Some((_, Some(other))) if address.as_ref().is_some_and(|address| address != other) => {
                return Some(format!("its {name} has another hardware address than the one here"));
            }
            Some(_) => {}
        }
    }
    let more = shown.keys().find(|name| !own.contains_key(*name))?;
    Some(format!("it has {more}, which does not exist here"))
}

#[cfg(test)]
mod tests;
