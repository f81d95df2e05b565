//! Tests of varied settings that replace others, and of values that an interface refuses.

use super::*;
use longma_linux_network::features::Feature;
use longma_linux_network::napi::{NapiInstance, NapiValues};

fn number(bench: &Bench) -> usize {
    bench.plan(1).pairs.len()
}

#[test]
fn a_refused_value_of_the_only_varied_setting_is_recorded_and_the_others_are_measured() {
    const TIMEOUT: &str = "sys/class/net/eth0/gro_flush_timeout";
    for order in ["mtu=9000,1500", "mtu=1500,9000,1400"] {
        let mut bench = Bench::new();
        [(MTU, "1500"), (TIMEOUT, "0")].iter().for_each(|(path, text)| bench.host.put(path, text));
        bench.host.excluded = vec![((MTU.into(), "9000".into()), (TIMEOUT.into(), "0".into()))];
        bench.variants = crate::vary::variants(&[order.parse().unwrap()]);
        let before = bench.host.all();
        let outcome = bench.run("echo 1", 2, &mut |_, _, _| ()).unwrap();
        let (runs, others) = (2 * number(&bench), bench.variants.len() - 1);
        assert_eq!((outcome.ran, outcome.refused, outcome.failed), (others * runs, runs, 0), "{order}");
        assert_eq!(bench.host.all(), before);
        let results = Results::read(&bench.file()).unwrap();
        let refused = results.refused();
        let (variant, why) = refused.iter().next().unwrap();
        assert_eq!((refused.len(), words(variant)), (1, "mtu=9000".into()));
        assert!(why.contains("cannot set /sys/class/net/eth0/mtu to `9000`"), "{why}");
    }
}

fn feature(name: &str, is_on: bool) -> Feature {
    Feature { name: name.into(), is_changeable: true, is_requested: is_on, is_active: is_on }
}

#[test]
fn segmentation_offloads_that_differ_are_restored_one_by_one() {
    let mut bench = Bench::new();
    let mixed = vec![feature("tx-tcp-segmentation", true), feature("tx-tcp6-segmentation", false)];
    bench.host.put_features(mixed.clone());
    bench.variants = crate::vary::variants(&["tso=0,1".parse().unwrap()]);
    let outcome = bench
        .run("echo 1", 1, &mut |sample, _, _| {
            let is_on = sample.variant[&SweepParameter::Tso].is_on();
            let now = bench.host.features("eth0").unwrap();
            assert!(now.iter().all(|feature| feature.is_requested == is_on), "{now:?}");
        })
        .unwrap();
    assert_eq!((outcome.ran, outcome.refused), (2 * number(&bench), 0));
    assert_eq!(bench.host.features("eth0").unwrap(), mixed);
}

fn instance(id: u32, timeout: u64) -> NapiInstance {
    let values = NapiValues { gro_flush_timeout: Some(timeout), ..NapiValues::default() };
    NapiInstance { id, thread: None, values }
}

#[test]
fn values_of_napi_instances_are_restored_after_the_settings_that_replace_them() {
    let mut bench = Bench::new();
    bench.host.put(THREADED, "0");
    bench.host.put_napi(vec![instance(1, 20_000), instance(2, 40_000)]);
    bench.variants = crate::vary::variants(&["threaded=0,1".parse().unwrap()]);
    let mut next = 3;
    bench
        .run("echo 1", 2, &mut |_, _, _| {
            // The host behaves like a driver that recreates its instances.
            bench.host.put_napi(vec![instance(next, 0), instance(next + 1, 0)]);
            next += 2;
        })
        .unwrap();
    let timeouts = |instances: Vec<NapiInstance>| -> Vec<Option<u64>> {
        instances.iter().map(|instance| instance.values.gro_flush_timeout).collect()
    };
    assert_eq!(timeouts(bench.host.napi("eth0").unwrap()), [Some(20_000), Some(40_000)]);
    // A killed sweep leaves the values in its journal.
    let path = bench.folder.path().join("journal");
    let mut journal = Journal::begin(&path, &bench.host).unwrap();
    journal.preserve(&Setting::Napi("eth0".parse().unwrap())).unwrap();
    journal.set(&Setting::Threaded("eth0".parse().unwrap()), "1").unwrap();
    let text = std::fs::read(&path).unwrap();
    bench.host.put_napi(vec![instance(90, 0), instance(91, 0)]);
    std::mem::forget(journal);
    let copy = bench.folder.path().join("copy");
    std::fs::write(&copy, text).unwrap();
    std::fs::set_permissions(&copy, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let restored = Journal::recover(&copy, &bench.host, false).unwrap().unwrap();
    assert!(restored.is_whole(), "{restored:?}");
    assert_eq!(bench.host.read(THREADED).unwrap(), "0");
    assert_eq!(bench.host.napi("eth0").unwrap(), [instance(90, 20_000), instance(91, 40_000)]);
}
