//! A program with open VIs forks: whether the child drops its copies or not, the parent's connections are unaffected.
//!
//! Source: fork(2).

use longma_via::*;
use std::time::Duration;

const SOON: Option<Duration> = Some(Duration::from_secs(10));

/// A connected pair on two NICs of this process.
fn pair(open: &dyn Fn() -> Nic) -> [(Nic, MemoryRegion, Vi); 2] {
    let sides = [open(), open()].map(|nic| {
        let tag = nic.create_protection_tag().unwrap();
        let memory = nic.allocate(1 << 16, MemoryAttributes::remote(tag)).unwrap();
        let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
        (nic, memory, vi)
    });
    let name = format!("forked-{}", std::process::id());
    let _ = sides[0].0.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let remote = Address::new(&sides[0].0.attributes().local_address, &name);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sides[0].0.connect_wait(&Address::local(&name), SOON).unwrap().accept(&sides[0].2).unwrap();
        });
        sides[1].2.connect(&Address::local("client"), &remote, SOON).unwrap();
    });
    sides
}

/// Exchanges a message in each direction.
fn talk(sides: &[(Nic, MemoryRegion, Vi); 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let ((_, own, sender), (_, other, receiver)) = (&sides[from], &sides[to]);
        receiver.post_receive(&Descriptor::receive(&[other.segment(0, 1 << 15)])).unwrap();
        sender.post_send(&Descriptor::send(&[own.segment(1 << 15, 1 << 15)])).unwrap();
        assert!(receiver.receive_wait(SOON).unwrap().is_success());
        assert!(sender.send_wait(SOON).unwrap().is_success());
    }
}

/// Runs `act` in a forked child.
fn in_child(act: impl FnOnce()) {
    // SAFETY: the child uses only its own copies and exits without running destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(outcome.is_err())) };
    }
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: writes to the given integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child failed");
}

fn the_parent_goes_on(open: &dyn Fn() -> Nic) {
    let mut sides = pair(open);
    talk(&sides);
    // A child that drops nothing.
    in_child(|| {});
    talk(&sides);
    // A child that drops everything, while the parent keeps its own copy.
    let kept = std::mem::ManuallyDrop::new(std::mem::replace(&mut sides, pair_of_nothing(open)));
    in_child(|| {
        // SAFETY: this is the child's copy, which is dropped once in the child; the parent's is not dropped here.
        let copy: [(Nic, MemoryRegion, Vi); 2] = unsafe { std::ptr::read(&*kept) };
        assert!(copy[0].2.disconnect().is_err(), "a child ends its parent's connection");
        drop(copy);
    });
    let sides = std::mem::ManuallyDrop::into_inner(kept);
    std::thread::sleep(Duration::from_millis(50));
    talk(&sides);
    assert!(sides.iter().all(|side| side.2.state() == ViState::Connected));
    // The name still exists, and the NIC's thread still detects the end of a connection.
    sides[1].2.disconnect().unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(5);
    while sides[0].2.state() == ViState::Connected {
        assert!(std::time::Instant::now() < end, "the exit of the peer was not detected");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Two unconnected sides.
fn pair_of_nothing(open: &dyn Fn() -> Nic) -> [(Nic, MemoryRegion, Vi); 2] {
    [open(), open()].map(|nic| {
        let tag = nic.create_protection_tag().unwrap();
        let memory = nic.allocate(4096, MemoryAttributes::local(tag)).unwrap();
        let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
        (nic, memory, vi)
    })
}

#[test]
fn connections_over_shared_memory_outlast_a_child_that_drops_them() {
    the_parent_goes_on(&|| Nic::open().unwrap());
}

#[test]
fn connections_over_udp_outlast_a_child_that_drops_them() {
    use longma_via::provider::udp::Udp;
    the_parent_goes_on(&|| Nic::with_provider(Box::new(Udp::open("127.0.0.1:0".parse().unwrap()).unwrap())));
}

fn a_request_outlasts_a_child_that_drops_it(open: &dyn Fn() -> Nic) {
    let [(server, _memory, vi), (_client, _other, asking)] = pair_of_nothing(open);
    let name = format!("forked-request-{}", std::process::id());
    let _ = server.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let remote = Address::new(&server.attributes().local_address, &name);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| asking.connect(&Address::local("client"), &remote, SOON));
        let request = std::mem::ManuallyDrop::new(server.connect_wait(&Address::local(&name), SOON).unwrap());
        in_child(|| {
            // SAFETY: this is the child's copy, which is dropped once in the child; the parent's is not dropped here.
            drop(unsafe { std::ptr::read(&*request) });
        });
        // By now anything that the child sent has arrived.
        std::thread::sleep(Duration::from_millis(50));
        std::mem::ManuallyDrop::into_inner(request).accept(&vi).unwrap();
        connecting.join().unwrap().expect("the child rejected a request to its parent");
    });
}

#[test]
fn a_request_over_shared_memory_outlasts_a_child_that_drops_it() {
    a_request_outlasts_a_child_that_drops_it(&|| Nic::open().unwrap());
}

#[test]
fn a_request_over_udp_outlasts_a_child_that_drops_it() {
    use longma_via::provider::udp::Udp;
    let open = || Nic::with_provider(Box::new(Udp::open("127.0.0.1:0".parse().unwrap()).unwrap()));
    a_request_outlasts_a_child_that_drops_it(&open);
}
