//! Sends packets that no debugger sends. Each must be answered or end the session, after which the program continues.
//! Source: GDB manual, appendix E (packets).

use std::io::Read;

use crate::debugged::*;
use crate::programs::{SPINNER, output};

const PACKETS: [&str; 43] = [
    "",
    "g00",
    "G",
    "Gzz",
    "G00",
    "p",
    "pffffffffffffffff",
    "p7fffffff",
    "P",
    "P0",
    "P0=",
    "P0=00",
    "P10=000000000000000000000000000000000000",
    "Pffff=00",
    "m",
    "m0",
    "m0,ffffffffffffffff",
    "mffffffffffffffff,10",
    "M0,4:",
    "Mffffffffffffffff,1:00",
    "X0,0:",
    "Z0",
    "Z0,",
    "Z0,ffffffffffffffff,1",
    "Z0,0,1",
    "Z2,ffffffffffffffff,ffffffffffffffff",
    "Z2,0,0",
    "Z9,0,0",
    "z0,123456,1",
    "z2,123456,8",
    "H",
    "Hg",
    "Hgffffffffff",
    "Hc0",
    "T",
    "T7fffffff",
    "vCont",
    "vCont;q",
    "vFile:open:",
    "vFile:pread:77,ffffffff,ffffffffffffffff",
    "qXfer:features:read:other.xml:0,10",
    "qXfer:features:read:target.xml:ffffffffffffffff,ffffffffffffffff",
    "qXfer:auxv:read::ffffffffffffffff,1",
];

/// The reply, or `None` if the connection is closed.
fn answer(program: &mut DebugSession) -> Option<Vec<u8>> {
    let mut packet = Vec::new();
    let mut byte = [0];
    loop {
        match program.stream.read(&mut byte) {
            Ok(0) | Err(_) => return None,
            Ok(_) => packet.push(byte[0]),
        }
        let is_whole = packet.len() > 3 && packet.contains(&b'$') && packet[packet.len() - 3] == b'#';
        if is_whole {
            return Some(packet);
        }
    }
}

#[test]
fn packets_that_no_debugger_sends_are_answered_or_end_the_session() {
    // An x86-64 program that calls exit_group(7), or a LoongArch64 program.
    let start = |foreign: bool| match foreign {
        true => DebugSession::start_foreign(&[0xbf, 7, 0, 0, 0, 0xb8, 0xe7, 0, 0, 0, 0x0f, 5], 62, 0),
        false => DebugSession::start(&SPINNER),
    };
    for foreign in [true, false] {
        let mut program = start(foreign);
        for packet in PACKETS {
            program.send(packet);
            if answer(&mut program).is_some() {
                let alive = program.request("?");
                assert!(is_stop(&alive, TRAP), "{packet}: {alive}");
                continue;
            }
            // The program has ended, or runs on detached and ends normally.
            let output = output(program.child);
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!((output.status.code(), words.as_str()), (Some(7), ""), "{packet}");
            program = start(foreign);
        }
        program.send("k");
    }
}
