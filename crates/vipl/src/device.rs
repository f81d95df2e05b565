//! Device names: which NIC a program means by the name that it opens.
//! Not the NICs, which are `longma-via`'s providers.
//! Source: VIPL, VipOpenNic, which leaves the names to the provider.

use crate::handles::lock;
use longma_topology::Machine;
use longma_via::provider::af_xdp::AfXdp;
use longma_via::provider::myrinet::{Fabric, Kind, Parameters, Settings};
use longma_via::provider::udp::Udp;
use longma_via::{Error, Nic};
use std::net::ToSocketAddrs;
use std::sync::Mutex;

/// The machine whose NICs `myrinet:` models, and the hosts that its switch has ports for.
const MYRINET_MACHINE: &str = "piii-myrinet";
const MYRINET_HOSTS: u32 = 16;

/// Opens the NIC of that name.
pub(crate) fn open(name: &str) -> Result<Nic, Error> {
    if matches!(name, "" | "shm") {
        return Nic::open();
    }
    match name.split_once(':').unwrap_or((name, "")) {
        ("udp", at) => open_udp(if at.is_empty() { "0.0.0.0:0" } else { at }),
        ("af_xdp", interface) if !interface.is_empty() => {
            Ok(Nic::with_provider(Box::new(AfXdp::open(interface)?)))
        }
        ("myrinet", at) => open_myrinet(at),
        _ => Err(Error::InvalidParameter(format!(
            "\"{name}\" is none of shm, udp:ADDRESS:PORT, af_xdp:INTERFACE, myrinet:bvia and myrinet:myvia"
        ))),
    }
}

fn open_udp(at: &str) -> Result<Nic, Error> {
    let address = at.to_socket_addrs().ok().and_then(|mut all| all.next());
    let unknown = || Error::InvalidParameter(format!("\"{at}\" is no address and port of this host"));
    Ok(Nic::with_provider(Box::new(Udp::open(address.ok_or_else(unknown)?)?)))
}

/// The modelled networks of this process, one a firmware, and how many of its NICs were opened.
static NETWORKS: Mutex<[Option<(Fabric, usize)>; 2]> = Mutex::new([None, None]);

/// `FIRMWARE` or `FIRMWARE:HOST`. Without a host, each NIC opened is the next host's.
fn open_myrinet(at: &str) -> Result<Nic, Error> {
    let (firmware, host) = at.split_once(':').map_or((at, None), |(firmware, host)| (firmware, Some(host)));
    let kind = match firmware {
        "bvia" => Kind::Bvia,
        "" | "myvia" => Kind::Myvia,
        _ => return Err(Error::InvalidParameter(format!("\"{firmware}\" is no firmware: bvia or myvia"))),
    };
    let host = host.map(str::parse::<usize>).transpose();
    let host = host.map_err(|_| Error::InvalidParameter(format!("\"{at}\" names no host by its number")))?;
    let mut networks = lock(&NETWORKS);
    let network = &mut networks[usize::from(kind == Kind::Myvia)];
    if network.is_none() {
        let invalid = |error: &dyn std::fmt::Display| Error::InvalidParameter(error.to_string());
        let machine = Machine::open(MYRINET_MACHINE).map_err(|error| invalid(&error))?;
        let parameters = Parameters::of(&machine).map_err(|error| invalid(&error))?;
        let parameters = Parameters { hosts: MYRINET_HOSTS, ..parameters };
        *network = Some((Fabric::new(parameters, Settings::of(kind))?, 0));
    }
    let Some((fabric, opened)) = network else { return Err(Error::Resource("no network".into())) };
    let host = host.unwrap_or(*opened % MYRINET_HOSTS as usize);
    *opened += 1;
    Ok(Nic::with_provider(Box::new(fabric.nic(host)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str) -> String {
        open(name).map(|_| ()).expect_err(name).to_string()
    }

    #[test]
    fn a_name_that_is_none_is_refused_with_those_that_are() {
        for name in ["eth0", "shm:", "af_xdp:", "udpx:1", ":", "SHM"] {
            assert!(refusal(name).contains("udp:ADDRESS:PORT"), "{name}");
        }
        assert!(refusal("udp:nowhere").contains("no address and port"));
        assert!(refusal("myrinet:gm").contains("bvia or myvia"));
        assert!(refusal("myrinet:bvia:x").contains("by its number"));
        assert!(refusal("myrinet:bvia:16").contains("16 hosts"));
        assert!(refusal("af_xdp:no-such-interface").contains("no-such-interface"));
    }

    #[test]
    fn every_kind_of_nic_opens_by_its_name() {
        for (name, host) in
            [("", "local"), ("shm", "local"), ("myrinet:myvia:3", "3"), ("myrinet:bvia:0", "0")]
        {
            assert_eq!(open(name).unwrap().attributes().local_address, host.as_bytes(), "{name}");
        }
        for name in ["udp:", "udp:127.0.0.1:0", "udp:localhost:0", "udp"] {
            assert_eq!(open(name).unwrap().attributes().name, "udp");
        }
        let next = [open("myrinet:myvia").unwrap(), open("myrinet:myvia").unwrap()];
        assert_ne!(next[0].attributes().local_address, next[1].attributes().local_address);
    }
}
