//! A region that is lent and revoked before the other side borrows it, while another peer keeps the borrowing thread
//! busy.
//!
//! Source: pidfd_getfd(2). A descriptor number refers to the file that the process has open under it at the time of
//! use.

use super::*;

/// Keeps the server's borrowing thread busy by lending many regions.
fn keep_busy(talker: &Hostile, file: u32) {
    for turn in 0..4000u32 {
        let slot = turn % EXPORTS as u32;
        let export = RegionExport {
            handle: 1 + slot,
            address: 0x1000,
            length: 4096,
            write: false,
            read: false,
            slot,
            serial: 0,
        };
        talker.send_patiently(&ControlMessage::Lend { export, file }, None);
        // Read the answers, so that the socket has space.
        while hear(&talker.socket).is_ok() {}
    }
}

#[test]
fn a_late_mapping_does_not_replace_a_newer_export() {
    let nic = Nic::open().unwrap();
    let tag = nic.create_protection_tag().unwrap();
    let name = format!("late-{}", std::process::id());
    let listen = |wait| nic.connect_wait(&Address::local(&name), wait);
    let _ = listen(Some(Duration::ZERO));
    let memory = nic.allocate(1 << 16, MemoryAttributes::local(tag)).unwrap();
    let client = Nic::open().unwrap();
    let client_tag = client.create_protection_tag().unwrap();
    let [honest, served, other] = [(&client, client_tag), (&nic, tag), (&nic, tag)]
        .map(|(nic, tag)| nic.create_vi(ViAttributes::new(tag), None, None).unwrap());
    let talker = std::thread::scope(|scope| {
        scope.spawn(|| honest.connect(&Address::local("honest"), &Address::local(&name), TIMEOUT).unwrap());
        listen(TIMEOUT).unwrap().accept(&served).unwrap();
        let talker = scope.spawn(|| connect(&name, Reliability::ReliableDelivery));
        listen(TIMEOUT).unwrap().accept(&other).unwrap();
        talker.join().unwrap()
    });
    let (file, _mapping) = create(4096, false).unwrap();
    for round in 0..10 {
        keep_busy(&talker, file.as_raw_fd() as u32);
        // The next file gets the same descriptor number.
        drop(client.allocate(1 << 15, MemoryAttributes::local(client_tag)).unwrap());
        let own = client.allocate(1 << 15, MemoryAttributes::remote(client_tag)).unwrap();
        std::thread::sleep(Duration::from_millis(400));
        served.post_receive(&Descriptor::receive(&[memory.segment(0, 1 << 15)])).unwrap();
        honest.post_send(&Descriptor::send(&[own.segment(0, 1 << 15)])).unwrap();
        let got = served.receive_wait(TIMEOUT).unwrap();
        assert!(got.is_success(), "message {round}: {got:?}");
        assert!(honest.send_wait(TIMEOUT).unwrap().is_success());
    }
}
