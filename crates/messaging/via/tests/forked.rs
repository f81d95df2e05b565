//! A program with open VIs forks. The parent's connections and requests survive, whether the child drops its copies or
//! not.
//!
//! Source: fork(2).

use longma_via::*;
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

/// A connected pair on two NICs of this process.
fn connected_pair(open: &dyn Fn() -> Nic) -> [(Nic, MemoryRegion, Vi); 2] {
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
            sides[0].0.connect_wait(&Address::local(&name), TIMEOUT).unwrap().accept(&sides[0].2).unwrap();
        });
        sides[1].2.connect(&Address::local("client"), &remote, TIMEOUT).unwrap();
    });
    sides
}

/// Exchanges a message in each direction.
fn exchange(sides: &[(Nic, MemoryRegion, Vi); 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let ((_, own, sender), (_, other, receiver)) = (&sides[from], &sides[to]);
        receiver.post_receive(&Descriptor::receive(&[other.segment(0, 1 << 15)])).unwrap();
        sender.post_send(&Descriptor::send(&[own.segment(1 << 15, 1 << 15)])).unwrap();
        assert!(receiver.receive_wait(TIMEOUT).unwrap().is_success());
        assert!(sender.send_wait(TIMEOUT).unwrap().is_success());
    }
}

/// Runs `act` in a forked child. Panics if it panics there.
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

fn parent_survives_fork(open: &dyn Fn() -> Nic) {
    let mut sides = connected_pair(open);
    exchange(&sides);
    // A child that drops nothing.
    in_child(|| {});
    exchange(&sides);
    // A child that drops everything. The parent keeps its own copy.
    let kept = std::mem::ManuallyDrop::new(std::mem::replace(&mut sides, unconnected_pair(open)));
    in_child(|| {
        // SAFETY: this is the child's copy, which is dropped once in the child; the parent's is not dropped here.
        let copy: [(Nic, MemoryRegion, Vi); 2] = unsafe { std::ptr::read(&*kept) };
        assert!(copy[0].2.disconnect().is_err(), "the child ended its parent's connection");
        drop(copy);
    });
    let sides = std::mem::ManuallyDrop::into_inner(kept);
    std::thread::sleep(Duration::from_millis(50));
    exchange(&sides);
    assert!(sides.iter().all(|side| side.2.state() == ViState::Connected));
    // The NIC still detects that the peer ends the connection.
    sides[1].2.disconnect().unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(5);
    while sides[0].2.state() == ViState::Connected {
        assert!(std::time::Instant::now() < end, "the end of the connection was not detected");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Two unconnected sides.
fn unconnected_pair(open: &dyn Fn() -> Nic) -> [(Nic, MemoryRegion, Vi); 2] {
    [open(), open()].map(|nic| {
        let tag = nic.create_protection_tag().unwrap();
        let memory = nic.allocate(4096, MemoryAttributes::local(tag)).unwrap();
        let vi = nic.create_vi(ViAttributes::new(tag), None, None).unwrap();
        (nic, memory, vi)
    })
}

#[test]
fn connections_over_shared_memory_survive_a_child_that_drops_them() {
    parent_survives_fork(&|| Nic::open().unwrap());
}

#[test]
fn connections_over_udp_survive_a_child_that_drops_them() {
    use longma_via::provider::udp::Udp;
    parent_survives_fork(&|| {
        Nic::with_provider(Box::new(Udp::open("127.0.0.1:0".parse().unwrap()).unwrap()))
    });
}

fn request_survives_fork(open: &dyn Fn() -> Nic) {
    let [(server, _memory, vi), (_client, _other, client_vi)] = unconnected_pair(open);
    let name = format!("forked-request-{}", std::process::id());
    let _ = server.connect_wait(&Address::local(&name), Some(Duration::ZERO));
    let remote = Address::new(&server.attributes().local_address, &name);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| client_vi.connect(&Address::local("client"), &remote, TIMEOUT));
        let request =
            std::mem::ManuallyDrop::new(server.connect_wait(&Address::local(&name), TIMEOUT).unwrap());
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
fn a_request_over_shared_memory_survives_a_child_that_drops_it() {
    request_survives_fork(&|| Nic::open().unwrap());
}

#[test]
fn a_request_over_udp_survives_a_child_that_drops_it() {
    use longma_via::provider::udp::Udp;
    let open = || Nic::with_provider(Box::new(Udp::open("127.0.0.1:0".parse().unwrap()).unwrap()));
    request_survives_fork(&open);
}
