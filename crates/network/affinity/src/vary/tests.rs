//! Tests of `vary`.

use super::*;
use crate::fake::FakeHost;
use crate::interface;

#[test]
fn every_combination_occurs_once_and_the_present_one_is_first() {
    let variations: Vec<Variation> =
        ["gro=1,0", "mtu=9000,1500,1500"].iter().map(|text| text.parse().unwrap()).collect();
    let all: Vec<String> = variants(&variations).iter().map(words).collect();
    assert_eq!(all, ["gro=1 mtu=9000", "gro=1 mtu=1500", "gro=0 mtu=9000", "gro=0 mtu=1500"]);
    assert_eq!(variants(&[]), vec![Variant::new()]);
    let masks: Variation = "xps=ff,0x10,a".parse().unwrap();
    assert_eq!(masks.values, [0xff, 0x10, 0xa].map(Value::Number));
    assert_eq!(words(&variants(&[masks])[0]), "xps=ff");
    for (wrong, why) in [
        ("xps=g", "xps takes hexadecimal CPU masks"),
        ("xps=+1", "xps takes hexadecimal CPU masks"),
        ("xps=", "xps takes hexadecimal CPU masks"),
        ("gro", "is not NAME=VALUE,VALUE..., such as gro=0,1; names: gro, lro, "),
        ("gro=", "gro takes whole numbers"),
        ("gro=x", "gro takes whole numbers"),
        ("gro=2", "gro takes 0 and 1"),
        ("threaded=1,2", "threaded takes 0 and 1"),
        ("gro-max-size=99999999", "gro-max-size takes 1 to "),
        ("nothing=1", "there is no setting `nothing`; there are: gro, lro, "),
        ("gro=-1", "gro takes whole numbers"),
        ("=1", "there is no setting ``"),
    ] {
        let error = wrong.parse::<Variation>().unwrap_err().to_string();
        assert!(error.contains(why) && error.starts_with(&format!("`{wrong}`")), "{error}");
    }
}

#[test]
fn a_knob_writes_its_own_settings_and_a_flow_table_is_shared_by_the_queues() {
    let host = FakeHost::with(&[
        ("sys/class/net/eth1/queues/rx-0/rps_cpus", "0"),
        ("sys/class/net/eth1/queues/rx-1/rps_cpus", "0"),
        ("sys/class/net/eth1/queues/tx-0/xps_cpus", "0"),
    ]);
    let nic = interface::read(&host, &"eth1".parse().unwrap()).unwrap();
    let written = |parameter: SweepParameter, value: u64| -> Vec<String> {
        let settings = parameter.settings(&nic, &value.into());
        settings.into_iter().map(|(setting, value)| format!("{setting} {value}")).collect()
    };
    let queue = "/sys/class/net/eth1/queues";
    assert_eq!(
        written(SweepParameter::Rfs, 4096),
        [
            "/proc/sys/net/core/rps_sock_flow_entries 4096".to_string(),
            format!("{queue}/rx-0/rps_flow_cnt 2048"),
            format!("{queue}/rx-1/rps_flow_cnt 2048")
        ]
    );
    assert_eq!(written(SweepParameter::Xps, 10), [format!("{queue}/tx-0/xps_cpus a")]);
    assert_eq!(written(SweepParameter::Threaded, 1), ["/sys/class/net/eth1/threaded 1"]);
    assert_eq!(written(SweepParameter::BusyPoll, 50).len(), 2);
    let json = serde_json::to_string(&Variant::from([(SweepParameter::RxRing, 512.into())])).unwrap();
    assert_eq!(json, r#"{"rx-ring":512}"#);
}

#[test]
fn a_variant_decides_how_iperf3_sends() {
    let tcp = Iperf { server: "a".into(), port: 1, zero_copy: true, reverse: true, udp: false, flows: 1 };
    let words = |load: Load, value: u64| {
        load_of(&load, &[(SweepParameter::ZeroCopy, value.into())].into()).words(1).join(" ")
    };
    assert!(words(Load::Iperf(tcp.clone()), 1).contains("--zerocopy"));
    assert!(!words(Load::Iperf(tcp.clone()), 0).contains("--zerocopy"));
    assert!(load_of(&Load::Iperf(tcp.clone()), &Variant::new()).words(1).contains(&"--zerocopy".to_string()));
    assert_eq!(words(Load::Command(vec!["run".into()]), 1), "run");
}
