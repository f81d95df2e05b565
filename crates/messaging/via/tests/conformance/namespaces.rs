//! Two network namespaces connected by a veth pair, with an AF_XDP NIC at each end. They are not connected to the
//! host's network.
//!
//! Source: veth(4), network_namespaces(7), ip-netns(8).

use longma_via::provider::af_xdp::AfXdp;
use longma_via::{Error, Nic};
use std::os::fd::AsRawFd;
use std::process::Command;

/// Two namespaces with one end of a veth pair each. Dropping removes them.
pub struct Namespaces {
    names: [String; 2],
}

impl Namespaces {
    pub fn new(tag: &str) -> Option<Self> {
        let process = std::process::id();
        let names = ["l", "r"].map(|side| format!("via-{tag}-{process}-{side}"));
        let made = Self { names: names.clone() };
        let [left, right] = &names;
        let link = format!(
            "link add veth0 netns {left} address 02:00:00:00:00:01 type veth peer name veth0 netns {right} address 02:00:00:00:00:02"
        );
        let commands = [
            format!("netns add {left}"),
            format!("netns add {right}"),
            link,
            format!("-n {left} link set veth0 up"),
            format!("-n {right} link set veth0 up"),
        ];
        let worked = commands.iter().all(|words| {
            Command::new("ip").args(words.split(' ')).output().is_ok_and(|output| output.status.success())
        });
        if !worked {
            eprintln!("skipped: network namespaces and veth are not permitted here");
        }
        worked.then_some(made)
    }

    /// Opens the NIC of a side, in a thread that enters its namespace.
    fn nic(&self, side: usize) -> Result<Nic, Error> {
        let path = format!("/var/run/netns/{}", self.names[side]);
        std::thread::spawn(move || {
            let namespace = std::fs::File::open(path).unwrap();
            // SAFETY: changes the network namespace of this thread only, which ends soon.
            let status = unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) };
            assert_eq!(status, 0);
            Ok(Nic::with_provider(Box::new(AfXdp::open("veth0")?)))
        })
        .join()
        .unwrap()
    }

    /// Both NICs, or `None` with a message where AF_XDP is not permitted.
    pub fn nics(&self) -> Option<[Nic; 2]> {
        match (self.nic(0), self.nic(1)) {
            (Ok(left), Ok(right)) => Some([left, right]),
            (Err(error), _) | (_, Err(error)) => {
                assert!(error.to_string().contains("the provider `udp` needs no privileges"), "{error}");
                eprintln!("skipped: {error}");
                None
            }
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}
