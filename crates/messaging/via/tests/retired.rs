//! Memory is deregistered or gets other attributes while a message in it has not been received yet.
//!
//! Source: VIA, memory registration.

use longma_via::*;
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));
const LENGTH: usize = 1 << 15;

struct End {
    vi: Vi,
    tag: ProtectionTag,
    nic: Nic,
}

fn pair(name: &str) -> [End; 2] {
    let ends = [(); 2].map(|()| {
        let nic = Nic::open().unwrap();
        let tag = nic.create_protection_tag().unwrap();
        let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
        End { vi, tag, nic }
    });
    let name = Address::local(format!("{name}-{}", std::process::id()));
    let _ = ends[0].nic.connect_wait(&name, Some(Duration::ZERO));
    std::thread::scope(|scope| {
        scope.spawn(|| ends[0].nic.connect_wait(&name, TIMEOUT).unwrap().accept(&ends[0].vi).unwrap());
        ends[1].vi.connect(&Address::local("client"), &name, TIMEOUT).unwrap();
    });
    ends
}

/// Waits until the other side has received the control messages and mapped the regions.
fn settle() {
    std::thread::sleep(Duration::from_millis(200));
}

fn filled(end: &End, attributes: MemoryAttributes, byte: u8) -> MemoryRegion {
    let memory = end.nic.allocate(LENGTH, attributes).unwrap();
    memory.write(0, &vec![byte; LENGTH]);
    settle();
    memory
}

/// Receives the next message, which consists of `byte` throughout.
fn arrives(receiver: &End, into: &MemoryRegion, byte: u8) {
    receiver.vi.post_receive(&Descriptor::receive(&[into.segment(0, LENGTH)])).unwrap();
    let got = receiver.vi.receive_wait(TIMEOUT).unwrap();
    assert!(got.is_success() && got.length as usize == LENGTH, "{got:?}");
    let mut bytes = vec![0; LENGTH];
    into.read(0, &mut bytes);
    assert!(bytes.iter().all(|received| *received == byte), "the message does not consist of {byte}");
}

#[test]
fn a_message_from_deregistered_memory_arrives_though_another_region_reuses_its_slot() {
    let [receiver, sender] = pair("retired-place");
    let into = receiver.nic.allocate(LENGTH, MemoryAttributes::local(receiver.tag)).unwrap();
    let old = filled(&sender, MemoryAttributes::local(sender.tag), 1);
    sender.vi.post_send(&Descriptor::send(&[old.segment(0, LENGTH)])).unwrap();
    drop(old);
    let next = filled(&sender, MemoryAttributes::remote(sender.tag), 2);
    arrives(&receiver, &into, 1);
    assert!(sender.vi.send_wait(TIMEOUT).unwrap().is_success());
    settle();
    sender.vi.post_send(&Descriptor::send(&[next.segment(0, LENGTH)])).unwrap();
    arrives(&receiver, &into, 2);
    assert!(sender.vi.send_wait(TIMEOUT).unwrap().is_success());
}

#[test]
fn memory_whose_attributes_change_during_a_message_still_carries_messages() {
    let [receiver, sender] = pair("retired-attributes");
    let into = receiver.nic.allocate(LENGTH, MemoryAttributes::local(receiver.tag)).unwrap();
    let mut memory = filled(&sender, MemoryAttributes::local(sender.tag), 3);
    sender.vi.post_send(&Descriptor::send(&[memory.segment(0, LENGTH)])).unwrap();
    memory.set_attributes(MemoryAttributes::remote(sender.tag)).unwrap();
    settle();
    arrives(&receiver, &into, 3);
    assert!(sender.vi.send_wait(TIMEOUT).unwrap().is_success());
    settle();
    for byte in 4..7 {
        memory.write(0, &vec![byte; LENGTH]);
        sender.vi.post_send(&Descriptor::send(&[memory.segment(0, LENGTH)])).unwrap();
        arrives(&receiver, &into, byte);
        assert!(sender.vi.send_wait(TIMEOUT).unwrap().is_success());
    }
}

/// A sender that always sends another message before the previous one has been received.
#[test]
fn memory_deregistered_during_constant_traffic_frees_its_slot() {
    let [receiver, sender] = pair("retired-stream");
    let into = receiver.nic.allocate(LENGTH, MemoryAttributes::local(receiver.tag)).unwrap();
    let kept = filled(&sender, MemoryAttributes::local(sender.tag), 7);
    let post = |from: &MemoryRegion| {
        sender.vi.post_send(&Descriptor::send(&[from.segment(0, LENGTH)])).unwrap();
    };
    post(&kept);
    for turn in 0..300 {
        if turn % 50 == 0 {
            settle();
        }
        drop(sender.nic.allocate(LENGTH, MemoryAttributes::local(sender.tag)).unwrap());
        post(&kept);
        arrives(&receiver, &into, 7);
        assert!(sender.vi.send_wait(TIMEOUT).unwrap().is_success());
    }
    // Another message is still pending. If the other side is slow to handle control messages, a region is not lent.
    let several = [(); 5].map(|()| filled(&sender, MemoryAttributes::local(sender.tag), 8));
    arrives(&receiver, &into, 7);
    assert!(sender.vi.send_wait(TIMEOUT).unwrap().is_success());
    let lies_there = several.iter().any(|next| {
        sender.vi.post_send(&Descriptor::send(&[next.segment(0, 12 << 10)])).unwrap();
        let sent = sender.vi.send_done();
        receiver.vi.post_receive(&Descriptor::receive(&[into.segment(0, LENGTH)])).unwrap();
        assert!(receiver.vi.receive_wait(TIMEOUT).unwrap().is_success());
        let lies_there = sent.is_none();
        assert!(sent.or_else(|| sender.vi.send_wait(TIMEOUT).ok()).unwrap().is_success());
        lies_there
    });
    assert!(lies_there, "there was no place to lend one at");
}

/// The other side looks up the region of a message before or while it learns of the change.
#[test]
fn memory_whose_attributes_change_repeatedly_during_messages_loses_none() {
    let [receiver, sender] = pair("retired-often");
    let into = receiver.nic.allocate(LENGTH, MemoryAttributes::local(receiver.tag)).unwrap();
    let mut memory = filled(&sender, MemoryAttributes::local(sender.tag), 0);
    let both = [MemoryAttributes::remote(sender.tag), MemoryAttributes::local(sender.tag)];
    for turn in 0..2000usize {
        let byte = turn as u8;
        memory.write(0, &[byte; LENGTH]);
        sender.vi.post_send(&Descriptor::send(&[memory.segment(0, LENGTH)])).unwrap();
        let (receiver, into) = (&receiver, &into);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                (0..turn % 50 * 20).for_each(|_| std::hint::spin_loop());
                arrives(receiver, into, byte);
            });
            memory.set_attributes(both[turn % 2]).unwrap();
        });
        assert!(sender.vi.send_wait(TIMEOUT).unwrap().is_success(), "turn {turn}");
        if turn % 2 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
