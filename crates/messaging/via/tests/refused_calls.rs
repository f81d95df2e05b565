//! A server whose system calls are refused permanently, as by a container's seccomp profile, answers once, with the
//! reason.
//!
//! Source: seccomp(2), SECCOMP_SET_MODE_FILTER; seccomp_data in linux/seccomp.h; x86-64 and other little-endian hosts.

use longma_via::*;
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));

/// Makes system call `number` fail with EPERM in the calling thread.
fn refuse(number: libc::c_long) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        // Load the number of the call, the first word of `seccomp_data`.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the program is valid during the calls and affects only this thread, which ends with the test.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn a_server_that_may_not_make_a_system_call_refuses_once_with_the_reason() {
    for number in [libc::SYS_memfd_create, libc::SYS_epoll_create1, libc::SYS_eventfd2] {
        let name = format!("refused-{number}-{}", std::process::id());
        let (client, server) = (Nic::open().unwrap(), Nic::open().unwrap());
        let vi = |nic: &Nic| {
            let tag = nic.create_protection_tag().unwrap();
            nic.create_vi(ViAttributes::new(tag), None, None).unwrap()
        };
        let local = Address::local(&name);
        let _ = server.connect_wait(&local, Some(Duration::ZERO));
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let vi = vi(&server);
                refuse(number);
                server.connect_wait(&local, TIMEOUT).unwrap().accept(&vi).unwrap_err();
                // The client must not ask again.
                server.connect_wait(&local, Some(Duration::from_secs(1))).map(drop).unwrap_err()
            });
            let refusal = vi(&client).connect(&Address::local("client"), &local, TIMEOUT).unwrap_err();
            assert!(refusal.to_string().contains("Operation not permitted"), "{number}: {refusal}");
            assert!(matches!(refusal, Error::Refused(_)), "{number}: {refusal:?}");
            assert!(matches!(serving.join().unwrap(), Error::Timeout), "{number}");
        });
    }
}
