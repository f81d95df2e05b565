//! While the models are warmed before a region of interest, no simulated time passes for the program and the devices.
//! Source: a flow at line rate, 40 Gb/s, received by the guest `flow_receive`, as in `experiments/affinity-model.toml`.

mod simulator;

use std::process::Command;

use simulator::{guest, simulator};

/// The rate in Gb/s during the region and the number of frames that the NIC drops. The last `warm_millions` million
/// instructions before the region warm the models.
fn receive(warm_millions: u32) -> (f64, u64) {
    let output = Command::new("timeout")
        .arg("300")
        .arg(simulator())
        .args(["--machine", "sandybridge-2x6", "--region", "--warm", &warm_millions.to_string()])
        .args(["--wire", "eth0:7000000", "--set", "flow=0", "--set", "application=1"])
        .args(["--set", "begin=2000000", "--set", "settle=500000", "--set", "bytes=5000000"])
        .arg(guest("flow_receive-lasx"))
        .arg("eth0")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{printed}");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let lost_slots = printed.lines().find(|line| line.starts_with("lost: ")).map(words).expect(&printed);
    let dropped = lost_slots.iter().rev().nth(3).and_then(|word| word.parse().ok());
    (words(&printed)[0].parse().expect(&printed), dropped.expect(&printed))
}

#[test]
fn devices_do_not_advance_while_the_models_are_warmed() {
    for warm_millions in [0, 2, 20] {
        let (gbps, dropped) = receive(warm_millions);
        let case =
            format!("warmed by {warm_millions} million instructions: {gbps} Gb/s, {dropped} frames dropped");
        println!("{case}");
        // The line rate, plus data that waited at the start.
        assert!((38.0..=41.0).contains(&gbps), "{case}");
        assert_eq!(dropped, 0, "{case}");
    }
}
