//! Tests of `load`.

use super::*;

fn tcp() -> Iperf {
    Iperf { server: "10.0.0.1".into(), port: 5201, zero_copy: true, reverse: true, udp: false, flows: 2 }
}

#[test]
fn the_command_line_is_that_of_the_paper() {
    let words = Load::Iperf(tcp()).words(3).join(" ");
    assert_eq!(
        words,
        "iperf3 --json --client 10.0.0.1 --port 5201 --time 3 --parallel 2 --zerocopy --reverse"
    );
    let udp = Load::Iperf(Iperf { udp: true, reverse: false, zero_copy: false, ..tcp() }).words(1).join(" ");
    assert!(udp.ends_with("--udp --bitrate 0"), "{udp}");
    assert_eq!(Load::Command(vec!["run".into(), "-t{seconds}".into()]).words(7), ["run", "-t7"]);
}

#[test]
fn the_rate_is_that_of_received_bytes() {
    let report = r#"{"end":{"sum_sent":{"bits_per_second":9e9,"retransmits":4},"sum_received":{"bits_per_second":8.5e9},
        "cpu_utilization_percent":{"remote_total":55.0}}}"#;
    let rate = Load::Iperf(tcp()).rate(report).unwrap();
    assert_eq!((rate.gbps, rate.retransmits, rate.lost, rate.remote_cpu), (8.5, Some(4), None, Some(0.55)));
    let report = r#"{"end":{"sum":{"bits_per_second":4e9,"lost_percent":25}}}"#;
    let rate = Load::Iperf(Iperf { udp: true, ..tcp() }).rate(report).unwrap();
    assert_eq!((rate.gbps, rate.lost), (3.0, Some(0.25)));
}

#[test]
fn an_error_or_a_truncated_report_has_no_rate() {
    let load = Load::Iperf(tcp());
    let refused = load.rate(r#"{"start":{},"end":{},"error":"unable to connect to server"}"#).unwrap_err();
    assert_eq!(refused, LoadError::Iperf("unable to connect to server".into()));
    for text in
        ["", "{\"end\":{", "{\"end\":{}}", "[]", "{\"end\":{\"sum_received\":{\"bits_per_second\":null}}}"]
    {
        assert!(matches!(load.rate(text), Err(LoadError::NoRate(_))), "{text}");
    }
}

#[test]
fn a_busy_server_is_recognized() {
    let busy = r#"{"error":"the server is busy running a test. try again later"}"#;
    assert!(Load::Iperf(tcp()).rate(busy).unwrap_err().is_busy());
    assert!(!LoadError::Iperf("unable to connect to server".into()).is_busy());
}

#[test]
fn any_command_may_print_a_rate_in_its_own_unit() {
    let rate = |text: &str| Load::Command(vec![]).rate(text).map(|rate| rate.gbps);
    assert_eq!(rate("23.5\n"), Ok(23.5));
    assert_eq!(rate("warm 1 Gbit/s\nmoved 10 GB in 8 s: 1.25 GB/s.\n"), Ok(10.0));
    assert_eq!(rate("[ ID]  500 Mbits/sec  0 receiver\niperf Done.\n"), Ok(0.5));
    assert_eq!(rate("a 2 Gbps b 3 Gbps"), Ok(3.0));
    assert!(rate("12 apples").is_err() && rate("").is_err() && rate("nan").is_err());
    // The last rate counts, even if it is zero.
    assert_eq!(rate("5 Gbit/s\n0 Gbit/s"), Err(LoadError::Nothing));
    assert_eq!(rate("5e-324"), Err(LoadError::Nothing));
    // Rates that the result file's parser rejects are never written.
    assert!(rate("1e300").is_err() && rate("2e6 Gbit/s").is_err());
}
