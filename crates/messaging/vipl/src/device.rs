//! Device names: selects the NIC that a program opens.
//!
//! Source: VIPL, VipOpenNic, which leaves the names to the provider.

use longma_locks::IgnorePoison;
use longma_via::provider::af_xdp::AfXdp;
use longma_via::provider::udp::Udp;
use longma_via::{Error, Nic};
use std::net::ToSocketAddrs;
use std::sync::Mutex;

/// A family of devices provided by another crate. A program opens them as `KIND:...`.
#[derive(Clone, Copy)]
pub struct Devices {
    /// The part of the name before the colon.
    pub kind: &'static str,
    /// A description of the names, for error messages.
    pub names: &'static str,
    /// Opens the device with the given name after the colon.
    pub open: fn(&str) -> Result<Nic, Error>,
}

static ADDED: Mutex<Vec<Devices>> = Mutex::new(Vec::new());

/// Registers additional devices.
pub fn add_devices(devices: Devices) {
    ADDED.lock().ignore_poison().push(devices);
}

/// Opens the NIC with the given name.
pub(crate) fn open(name: &str) -> Result<Nic, Error> {
    if matches!(name, "" | "shm") {
        return Nic::open();
    }
    match name.split_once(':').unwrap_or((name, "")) {
        ("udp", at) => open_udp(if at.is_empty() { "0.0.0.0:0" } else { at }),
        ("af_xdp", interface) if !interface.is_empty() => {
            Ok(Nic::with_provider(Box::new(AfXdp::open(interface)?)))
        }
        (kind, at) => open_added(name, kind, at),
    }
}

fn open_added(name: &str, kind: &str, at: &str) -> Result<Nic, Error> {
    let added = ADDED.lock().ignore_poison().clone();
    if let Some(devices) = added.iter().find(|devices| devices.kind == kind) {
        return (devices.open)(at);
    }
    let more: String = added.iter().map(|devices| format!(", {}", devices.names)).collect();
    Err(Error::InvalidParameter(format!(
        "\"{name}\" is not a device name: give one of shm, udp:ADDRESS:PORT, af_xdp:INTERFACE{more}"
    )))
}

fn open_udp(at: &str) -> Result<Nic, Error> {
    let address = at.to_socket_addrs().ok().and_then(|mut all| all.next());
    let unknown = || Error::InvalidParameter(format!("\"{at}\" is not an address and port of this host"));
    Ok(Nic::with_provider(Box::new(Udp::open(address.ok_or_else(unknown)?)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str) -> String {
        open(name).map(|_| ()).expect_err(name).to_string()
    }

    #[test]
    fn an_unknown_name_is_refused_with_a_list_of_the_valid_ones() {
        for name in ["eth0", "shm:", "af_xdp:", "udpx:1", ":", "SHM"] {
            assert!(refusal(name).contains("udp:ADDRESS:PORT"), "{name}");
        }
        assert!(refusal("udp:nowhere").contains("not an address and port"));
        assert!(refusal("af_xdp:no-such-interface").contains("no-such-interface"));
    }

    #[test]
    fn every_kind_of_nic_opens_by_its_name() {
        for name in ["", "shm"] {
            assert_eq!(open(name).unwrap().attributes().local_address, b"local", "{name}");
        }
        for name in ["udp:", "udp:127.0.0.1:0", "udp:localhost:0", "udp"] {
            assert_eq!(open(name).unwrap().attributes().name, "udp");
        }
    }

    #[test]
    fn devices_added_by_another_crate_open_by_name_and_are_listed() {
        let open_it = |at: &str| match at {
            "one" => Nic::open(),
            _ => Err(Error::InvalidParameter(format!("no {at} here"))),
        };
        add_devices(Devices { kind: "brought", names: "brought:one", open: open_it });
        assert!(open("brought:one").is_ok());
        assert!(refusal("brought:two").contains("no two here"));
        assert!(refusal("bought:one").contains(", af_xdp:INTERFACE, brought:one"));
    }
}
