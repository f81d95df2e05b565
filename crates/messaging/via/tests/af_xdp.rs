//! VIs over AF_XDP, in two network namespaces connected by a veth pair. Skipped with a message where that is not
//! permitted. The conformance suite covers the specification.

#[path = "conformance/namespaces.rs"]
mod namespaces;

use longma_via::provider::af_xdp::AfXdp;
use longma_via::{Address, Descriptor, Error, MemoryAttributes, MemoryRegion, Nic, Vi, ViAttributes};
use namespaces::Namespaces;
use std::time::Duration;

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

fn end(nic: &Nic) -> (Vi, MemoryRegion) {
    let tag = nic.create_protection_tag().unwrap();
    let memory = nic.allocate(1 << 20, MemoryAttributes::remote(tag)).unwrap();
    (nic.create_vi(ViAttributes::new(tag), None, None).unwrap(), memory)
}

#[test]
fn messages_and_remote_writes_cross_a_veth_pair() {
    let Some(namespaces) = Namespaces::new("data") else { return };
    let Some([left, right]) = namespaces.nics() else { return };
    assert_eq!(right.attributes().local_address, b"02:00:00:00:00:02");
    let ((client, from), (server, to)) = (end(&left), end(&right));
    std::thread::scope(|scope| {
        scope.spawn(|| right.connect_wait(&Address::local("x"), LIMIT).unwrap().accept(&server).unwrap());
        let remote = Address::new("02:00:00:00:00:02", "x");
        while let Err(error) = client.connect(&Address::local("me"), &remote, LIMIT) {
            assert!(matches!(error, Error::NoMatch(_)), "{error}");
        }
    });
    for bytes in [0usize, 1, 1400, 1500, 65_536, 1 << 20] {
        let pattern: Vec<u8> = (0..bytes).map(|i| (i * 13 + bytes) as u8).collect();
        from.write(0, &pattern);
        server.post_receive(&Descriptor::receive(&[to.segment(0, 1 << 20)])).unwrap();
        client.post_send(&Descriptor::send(&[from.segment(0, bytes)])).unwrap();
        let got = server.receive_wait(LIMIT).unwrap();
        assert!(got.is_success() && got.length as usize == bytes, "{got:?}");
        assert!(client.send_wait(LIMIT).unwrap().is_success());
        let mut read = vec![0; bytes];
        to.read(0, &mut read);
        assert!(read == pattern, "{bytes} bytes");
    }
    from.write(0, b"there");
    server.post_receive(&Descriptor::receive(&[])).unwrap();
    let write = [from.segment(0, 5)];
    client.post_send(&Descriptor::rdma_write(&write, to.remote(77)).with_immediate(1)).unwrap();
    assert_eq!(server.receive_wait(LIMIT).unwrap().immediate, Some(1));
    let mut read = [0; 5];
    to.read(77, &mut read);
    assert_eq!(&read, b"there");
}

#[test]
fn a_missing_interface_is_named_in_the_error() {
    let error = AfXdp::open("no-such-interface").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("`no-such-interface`") && error.contains("ip link"), "{error}");
}
