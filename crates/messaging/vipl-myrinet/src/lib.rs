//! VIPL with the modelled Myrinet: `libvipl` in which `VipOpenNic` also accepts `myrinet:bvia` and `myrinet:myvia`.

use longma_locks::IgnorePoison;
use longma_topology::Machine;
use longma_via::{Error, Nic};
use longma_via_myrinet::{Fabric, Kind, Parameters, Settings};
use std::sync::Mutex;
use vipl::{Devices, add_devices};

/// The machine whose NICs are modelled, and the number of ports of its switch.
const MACHINE: &str = "piii-myrinet";
const HOSTS: u32 = 16;

/// The devices that this library adds.
pub const DEVICES: Devices = Devices { kind: "myrinet", names: "myrinet:bvia, myrinet:myvia", open };

/// Called by the dynamic loader before any other function of the library.
// SAFETY: the section contains addresses of C functions that may take no arguments, and this is one.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    add_devices(DEVICES);
}

/// The modelled network of each firmware in this process, with the number of NICs opened.
static NETWORKS: Mutex<[Option<(Fabric, usize)>; 2]> = Mutex::new([None, None]);

/// Opens `FIRMWARE` or `FIRMWARE:HOST`. Without a host, each call opens the NIC of the next host.
fn open(at: &str) -> Result<Nic, Error> {
    let (firmware, host) = at.split_once(':').map_or((at, None), |(firmware, host)| (firmware, Some(host)));
    let kind = match firmware {
        "bvia" => Kind::Bvia,
        "" | "myvia" => Kind::Myvia,
        _ => {
            return Err(Error::InvalidParameter(format!(
                "\"{firmware}\" is not a firmware: give bvia or myvia"
            )));
        }
    };
    let host = host.map(str::parse::<usize>).transpose();
    let host = host
        .map_err(|_| Error::InvalidParameter(format!("\"{at}\" does not end with the number of a host")))?;
    let mut networks = NETWORKS.lock().ignore_poison();
    let network = &mut networks[usize::from(kind == Kind::Myvia)];
    if network.is_none() {
        let invalid = |error: &dyn std::fmt::Display| Error::InvalidParameter(error.to_string());
        let machine = Machine::open(MACHINE).map_err(|error| invalid(&error))?;
        let parameters = Parameters::of(&machine).map_err(|error| invalid(&error))?;
        let parameters = Parameters { hosts: HOSTS, ..parameters };
        *network = Some((Fabric::new(parameters, Settings::of(kind))?, 0));
    }
    let Some((fabric, opened)) = network else { return Err(Error::Resource("no network".into())) };
    let host = host.unwrap_or(*opened % HOSTS as usize);
    *opened += 1;
    Ok(Nic::with_provider(Box::new(fabric.nic(host)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(at: &str) -> String {
        open(at).map(|_| ()).expect_err(at).to_string()
    }

    #[test]
    fn unknown_firmwares_and_hosts_are_refused() {
        assert!(refusal("gm").contains("bvia or myvia"));
        assert!(refusal("bvia:x").contains("number of a host"));
        assert!(refusal("bvia:16").contains("16 hosts"));
    }

    #[test]
    fn a_nic_is_the_host_that_is_named_or_the_next() {
        for (at, host) in [("myvia:3", "3"), ("bvia:0", "0")] {
            assert_eq!(open(at).unwrap().attributes().local_address, host.as_bytes(), "{at}");
        }
        let next = [open("myvia").unwrap(), open("myvia").unwrap()];
        assert_ne!(next[0].attributes().local_address, next[1].attributes().local_address);
    }
}
