//! Opening NICs, protection tags and memory registration.
//!
//! Source: VIA, "Accessing a VI NIC", "Memory Registration", "Memory Protection".

use crate::bed::*;
use crate::{Case, Levels};
use longma_via::*;

pub const CASES: &[Case] = &[
    Case {
        section: "Accessing a VI NIC",
        claim: "a NIC's limits are at least the specification's minimum",
        levels: Levels::Once,
        check: |bed| {
            let nic = bed.open();
            let facts = nic.attributes();
            assert!(facts.max_vis >= 1024 && facts.max_descriptors_per_queue >= 1024);
            assert!(facts.max_segments_per_descriptor >= 252 && facts.max_transfer_bytes >= 32 * 1024);
            assert!(facts.max_register_regions >= 1024 && facts.max_discriminator_bytes >= 16);
            assert!(!facts.reliability.is_empty());
        },
    },
    Case {
        section: "Accessing a VI NIC",
        claim: "a NIC can be opened more than once, and objects of one handle are refused by another",
        levels: Levels::Once,
        check: |bed| {
            let (first, second) = (bed.open(), bed.open());
            let tag = first.create_protection_tag().unwrap();
            second.create_protection_tag().unwrap();
            let other = first.create_protection_tag().unwrap();
            assert!(first.create_vi(bed.attributes(tag), None, None).is_ok());
            assert!(matches!(
                second.create_vi(bed.attributes(other), None, None),
                Err(Error::InvalidProtectionTag(_))
            ));
        },
    },
    Case {
        section: "Memory Protection",
        claim: "a protection tag cannot be destroyed while a VI or memory uses it, and can be afterwards",
        levels: Levels::Once,
        check: |bed| {
            let Side { nic, tag, vi, memory, .. } = bed.side();
            assert!(matches!(nic.destroy_protection_tag(tag), Err(Error::InvalidProtectionTag(_))));
            drop(vi);
            assert!(matches!(nic.destroy_protection_tag(tag), Err(Error::InvalidProtectionTag(_))));
            drop(memory);
            nic.destroy_protection_tag(tag).unwrap();
            assert!(matches!(nic.destroy_protection_tag(tag), Err(Error::InvalidProtectionTag(_))));
        },
    },
    Case {
        section: "Memory Registration",
        claim: "registering memory needs a valid tag and at least one byte",
        levels: Levels::Once,
        check: |bed| {
            let side = bed.side();
            let bad = MemoryAttributes::local(ProtectionTag::from_number(77_777));
            assert!(matches!(side.nic.allocate(64, bad), Err(Error::InvalidProtectionTag(_))));
            let none = side.nic.allocate(0, MemoryAttributes::local(side.tag));
            assert!(matches!(none, Err(Error::InvalidParameter(_))));
        },
    },
    Case {
        section: "Memory Registration",
        claim: "memory registered twice has two independent handles",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            let base = client.memory.as_ptr();
            // SAFETY: the memory outlives both registrations, and no Rust reference to it exists.
            let first =
                unsafe { client.nic.register(base, 4096, MemoryAttributes::local(client.tag)) }.unwrap();
            // SAFETY: as above.
            let second =
                unsafe { client.nic.register(base, 4096, MemoryAttributes::local(client.tag)) }.unwrap();
            assert_ne!(first.handle(), second.handle());
            drop(first);
            client.fill(0, b"still here");
            server.receive_into(0, 64);
            let sent = client.post_and_collect(&server, &Descriptor::send(&[second.segment(0, 10)]));
            assert!(sent.is_success(), "{sent:?}");
            server.collect_receive(&client);
            assert_eq!(server.bytes(0, 10), b"still here");
        },
    },
    Case {
        section: "Memory Registration",
        claim: "memory attributes can be queried and changed",
        levels: Levels::Once,
        check: |bed| {
            let mut side = bed.side();
            assert_eq!(side.memory.attributes(), MemoryAttributes::remote(side.tag));
            side.fill(100, b"kept");
            side.memory.set_attributes(MemoryAttributes::local(side.tag)).unwrap();
            assert_eq!(side.memory.attributes(), MemoryAttributes::local(side.tag));
            assert_eq!(side.bytes(100, 4), b"kept");
            side.memory.set_attributes(MemoryAttributes::remote(side.tag)).unwrap();
            assert_eq!(side.bytes(100, 4), b"kept");
        },
    },
    Case {
        section: "Memory Protection",
        claim: "a send from memory with another tag is a protection error, sends nothing, and puts the VI into the error state",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            let other = client.nic.create_protection_tag().unwrap();
            let secret = client.nic.allocate(64, MemoryAttributes::remote(other)).unwrap();
            secret.write(0, &[0x5a; 64]);
            server.receive_into(0, 64);
            let sent = client.post_and_collect(&server, &Descriptor::send(&[secret.segment(0, 64)]));
            assert!(sent.status.contains(Status::PROTECTION_ERROR), "{sent:?}");
            client.await_state(&server, ViState::Error);
            let received = server.collect_receive(&client);
            assert!(received.status.is_error(), "{received:?}");
            assert_eq!(server.bytes(0, 64), [0; 64]);
        },
    },
    Case {
        section: "Memory Protection",
        claim: "a segment that exceeds its region, or whose region is deregistered, is a protection error",
        levels: Levels::All,
        check: |bed| {
            let wrapped = {
                let (server, client) = bed.pair();
                let long = [client.memory.segment(MEMORY_BYTES - 8, 9)];
                let sent = client.post_and_collect(&server, &Descriptor::send(&long));
                assert!(sent.status.contains(Status::PROTECTION_ERROR), "{sent:?}");
                Segment { address: u64::MAX - 3, ..client.memory.segment(0, 8) }
            };
            let (server, client) = bed.pair();
            let sent = client.post_and_collect(&server, &Descriptor::send(&[wrapped]));
            assert!(sent.status.contains(Status::PROTECTION_ERROR), "{sent:?}");
            let (server, client) = bed.pair();
            let segment = client.nic.allocate(64, MemoryAttributes::local(client.tag)).unwrap().segment(0, 8);
            let sent = client.post_and_collect(&server, &Descriptor::send(&[segment]));
            assert!(sent.status.contains(Status::PROTECTION_ERROR), "{sent:?}");
        },
    },
    Case {
        section: "Memory Protection",
        claim: "a message is never stored into receive memory with another tag",
        levels: Levels::All,
        check: |bed| {
            let (server, client) = bed.pair();
            let other = server.nic.create_protection_tag().unwrap();
            let foreign = server.nic.allocate(64, MemoryAttributes::remote(other)).unwrap();
            server.vi.post_receive(&Descriptor::receive(&[foreign.segment(0, 64)])).unwrap();
            client.fill(0, &[7; 64]);
            client.vi.post_send(&Descriptor::send(&[client.memory.segment(0, 64)])).unwrap();
            let received = server.collect_receive(&client);
            assert!(received.status.is_error(), "{received:?}");
            let mut bytes = [0; 64];
            foreign.read(0, &mut bytes);
            assert_eq!(bytes, [0; 64]);
        },
    },
];
