//! The providers that the suite runs against.

use crate::bed::Bed;
use crate::namespaces::Namespaces;
use longma_topology::Machine;
use longma_via::provider::udp::Udp;
use longma_via::{Address, Nic};
use longma_via_myrinet::{Fabric, Kind, Parameters, Settings};
use std::sync::atomic::{AtomicUsize, Ordering};

/// All providers that this machine can run.
pub fn all() -> Vec<Bed> {
    let mut beds = vec![shared_memory(), udp()];
    beds.extend(af_xdp());
    beds.extend([myrinet("BVIA", Kind::Bvia), myrinet("MyVIA", Kind::Myvia)]);
    beds
}

/// A NIC at each end of a veth pair between two network namespaces, shared by all cases. `None` with a message where
/// the system does not permit it.
fn af_xdp() -> Option<Bed> {
    let namespaces = Namespaces::new("conf")?;
    let ends = namespaces.nics()?;
    let opened = AtomicUsize::new(0);
    let open = move || {
        // Keep the namespaces as long as the test bed.
        let _ = &namespaces;
        ends[opened.fetch_add(1, Ordering::Relaxed) % 2].clone()
    };
    Some(Bed::new("AF_XDP", open, |nic, discriminator| {
        Address::new(&nic.attributes().local_address, discriminator)
    }))
}

fn udp() -> Bed {
    let open = || Nic::with_provider(Box::new(Udp::open("127.0.0.1:0".parse().unwrap()).unwrap()));
    Bed::new("UDP", open, |nic, discriminator| Address::new(&nic.attributes().local_address, discriminator))
}

/// One modelled network for all cases, with a host at each port of the switch. Each NIC opened is that of the next
/// host.
fn myrinet(name: &'static str, kind: Kind) -> Bed {
    const HOSTS: usize = 16;
    let machine = Machine::open("piii-myrinet").unwrap();
    let parameters = Parameters { hosts: HOSTS as u32, ..Parameters::of(&machine).unwrap() };
    let fabric = Fabric::new(parameters, Settings::of(kind)).unwrap();
    let opened = AtomicUsize::new(0);
    let open = move || {
        let host = opened.fetch_add(1, Ordering::Relaxed) % HOSTS;
        Nic::with_provider(Box::new(fabric.nic(host).unwrap()))
    };
    Bed::new(name, open, |nic, discriminator| Address::new(&nic.attributes().local_address, discriminator))
}

fn shared_memory() -> Bed {
    Bed::new("shared memory", || Nic::open().unwrap(), |_, discriminator| Address::local(discriminator))
}
