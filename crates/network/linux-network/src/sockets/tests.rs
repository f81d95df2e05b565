//! Tests of `sockets`.

use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

#[test]
fn a_connection_of_this_process_is_found_with_its_inode_and_bytes() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    accepted.write_all(&[7; 5000]).unwrap();
    client.read_exact(&mut [0; 5000]).unwrap();
    let Ok(all) = dump() else {
        eprintln!("skipped: this kernel has no sock_diag");
        return;
    };
    let found = all.iter().find(|socket| socket.local == client.local_addr().unwrap()).unwrap();
    assert_eq!(found.remote, listener.local_addr().unwrap());
    assert_eq!(found.received, Some(5000));
    let link = std::fs::read_link(format!("/proc/self/fd/{}", client.as_raw_fd())).unwrap();
    assert_eq!(link.to_str().unwrap(), format!("socket:[{}]", found.inode));
    let same = from_proc(|path| std::fs::read_to_string(format!("/{path}")));
    assert!(same.iter().any(|socket| (socket.local, socket.inode) == (found.local, found.inode)));
    assert!(addresses("lo").contains(&IpAddr::V4(Ipv4Addr::LOCALHOST)));
}

#[test]
fn udp_sockets_are_found_with_their_drops_connected_or_not() {
    let [one, other] = [0, 1].map(|_| std::net::UdpSocket::bind("127.0.0.1:0").unwrap());
    one.connect(other.local_addr().unwrap()).unwrap();
    // Send more than fits into the receive buffer of `other`, which does not read.
    for _ in 0..2000 {
        one.send(&[0; 4000]).unwrap();
    }
    let Ok(all) = dump_datagrams() else {
        eprintln!("skipped: this kernel has no sock_diag of UDP");
        return;
    };
    let find = |socket: &std::net::UdpSocket| {
        all.iter().find(|of| of.local == socket.local_addr().unwrap()).unwrap().clone()
    };
    assert_eq!((find(&one).remote, find(&other).remote), (Some(other.local_addr().unwrap()), None));
    assert!(find(&other).dropped > Some(0) && find(&one).dropped == Some(0), "{all:?}");
    let link = std::fs::read_link(format!("/proc/self/fd/{}", one.as_raw_fd())).unwrap();
    assert_eq!(link.to_str().unwrap(), format!("socket:[{}]", find(&one).inode));
}

#[test]
fn a_table_of_connections_is_parsed_and_other_lines_are_ignored() {
    let files = [
        (
            "proc/net/tcp",
            "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
             0: 0100007F:1451 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 11 1\n\
             1: 0201C6C6:1451 0101C6C6:ABCD 01 00000000:00000000 00:00000000 00000000 0 0 4711 1\n\
             2: xyz 01\n 3: 02:1 03:1 01 a b c d e f",
        ),
        (
            "proc/net/tcp6",
            "  sl\n 0: 0000000000000000FFFF00000201C6C6:1451 0000000000000000FFFF00000101C6C6:0001 01 0:0 0:0 0 0 0 99",
        ),
    ];
    let found = from_proc(|path| {
        let found = files.iter().find(|(name, _)| *name == path);
        found.map(|(_, text)| text.to_string()).ok_or_else(|| io::ErrorKind::NotFound.into())
    });
    if cfg!(target_endian = "little") {
        assert_eq!(found[0].local, "198.198.1.2:5201".parse().unwrap());
        assert_eq!(found[1].remote, "198.198.1.1:1".parse().unwrap());
    }
    assert_eq!(found.iter().map(|socket| socket.inode).collect::<Vec<_>>(), [4711, 99]);
}
