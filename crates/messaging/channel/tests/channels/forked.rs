//! Forked children, which inherit connections and listeners that do not belong to them.

use super::*;
use std::time::Instant;

/// Runs `child` in a forked child and returns its wait status. A child that hangs is killed.
fn in_child(child: impl FnOnce()) -> i32 {
    // SAFETY: the child calls only `child` and ends without the parent's cleanup.
    let process = unsafe { libc::fork() };
    if process == 0 {
        child();
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
    assert!(process > 0);
    let (begin, mut status) = (Instant::now(), 0);
    loop {
        // SAFETY: writes to a local integer.
        if unsafe { libc::waitpid(process, &raw mut status, libc::WNOHANG) } != 0 {
            return status;
        }
        if begin.elapsed() > Duration::from_secs(10) {
            // SAFETY: the child has not been waited for, so the number is still its own.
            unsafe { libc::kill(process, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The child drops only a copy of the memory, so the parent's connections continue.
#[test]
fn what_a_forked_child_drops_stays_with_its_parent() {
    for [client, server] in transports() {
        let (name, mut ends) = (name(), pair(&[client.clone(), server.clone()], [options(); 2]).map(Some));
        let mut listener = Some(server.listen(&name, options()).unwrap().into_async().unwrap());
        let status = in_child(|| {
            drop(std::mem::take(&mut ends));
            drop(listener.take());
        });
        assert_eq!(status, 0, "9 is a child that hung");
        let [Some(client_end), Some(server_end)] = &mut ends else { panic!("the parent has its own") };
        client_end.send(b"to the server").unwrap();
        assert_eq!(server_end.receive().unwrap().unwrap().bytes, b"to the server");
        server_end.send(b"to the client").unwrap();
        assert_eq!(client_end.receive().unwrap().unwrap().bytes, b"to the client");
        // The parent still listens.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| client.connect(&address(&server, &name), options()).unwrap());
            let accepted = async { tokio::time::timeout(TIMEOUT, listener.as_mut().unwrap().accept()).await };
            runtime.block_on(accepted).unwrap().unwrap();
        });
    }
}
