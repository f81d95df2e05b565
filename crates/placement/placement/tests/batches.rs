//! Reservations that share a transaction have the results that they have one by one.

#[path = "support/databases.rs"]
mod databases;

use databases::{Database, on_each};
use longma_placement::request::CpuPolicy;
use longma_placement::store::{Quota, Reservation, Reserved, StoreError, VmQuery};
use longma_placement::{Host, Placement, Policy, Request, Scheduler, SqlStore, Store};
use longma_random::SplitMix64;
use longma_topology::Machine;
use std::sync::Arc;

const HOST: &str = "h";

fn open(database: &Database, vms: u32) -> Arc<SqlStore> {
    let store = database.open();
    store.put_host(&Host::of_machine(&Machine::open("hygon-8node").unwrap(), HOST).unwrap(), 1000).unwrap();
    store.set_default_quota(&Quota { vms: Some(vms), ..Quota::default() }).unwrap();
    store
}

/// Placements that are each possible on an empty host. Several of them exclude each other.
fn placements() -> Vec<(Request, Placement)> {
    let mut scheduler = Scheduler::new(Policy::default(), 1);
    scheduler.put_host(&Host::of_machine(&Machine::open("hygon-8node").unwrap(), HOST).unwrap()).unwrap();
    let policies = [CpuPolicy::Exclusive, CpuPolicy::Range];
    let requests = (0..12).map(|n| Request {
        cpu: policies[n % 2],
        ..Request::new("v", 1 + n as u32 % 3, if n == 7 { 10_000 } else { 64 })
    });
    requests.map(|request| (request.clone(), scheduler.decide(&request).unwrap())).collect()
}

/// Random reservations of two tenants. With few names, most meet an earlier one. One in sixteen has a host that does not exist.
fn reservations(random: &mut SplitMix64, names: u64) -> Vec<Reservation> {
    let placements = placements();
    let reservation = |_| {
        let (request, mut placement) = placements[random.below(placements.len() as u64) as usize].clone();
        let tenant = ["a", "b"][random.below(2) as usize].to_string();
        let name = format!("v{}", random.below(names));
        if random.below(16) == 0 {
            placement.host = "removed".into();
        }
        let key = (random.below(3) == 0).then(|| format!("k{}", random.below(6)));
        Reservation { request: Request { tenant, name, ..request }, placement, key, origin: 1 }
    };
    (0..60).map(reservation).collect()
}

/// An answer as text, without IDs, which differ between databases.
fn describe(answer: Result<Reserved, StoreError>) -> String {
    match answer {
        Ok(reserved) => {
            format!("{} {} {:?}", reserved.vm.request.name, reserved.replayed, reserved.vm.placement)
        }
        Err(error) => error.to_string(),
    }
}

fn names(store: &SqlStore) -> Vec<(String, String)> {
    let vms = store.vms(&VmQuery::default()).unwrap();
    vms.into_iter().map(|vm| (vm.request.tenant, vm.request.name)).collect()
}

#[test]
fn reservations_submitted_together_have_the_results_that_they_have_one_by_one() {
    on_each(|database| {
        for (seed, names_used, quota) in [(0, 24, 8), (1, 1000, 50)] {
            let reservations = reservations(&mut SplitMix64::new(seed), names_used);
            let databases = [database.another(), database.another()];
            let [alone, together] = databases.each_ref().map(|database| open(database, quota));
            let expected: Vec<_> =
                reservations.iter().map(|one| describe(alone.reserve(one.clone()).wait())).collect();
            let pending: Vec<_> = reservations.iter().map(|one| together.reserve(one.clone())).collect();
            for (at, (answer, expected)) in pending.into_iter().zip(&expected).enumerate() {
                assert_eq!(&describe(answer.wait()), expected, "seed {seed}, reservation {at}");
            }
            assert_eq!(names(&together), names(&alone));
            assert_eq!(together.check().unwrap(), Vec::<String>::new());
            assert!(quota > 30 || expected.iter().any(|answer| answer.contains("quota")), "{expected:#?}");
        }
    });
}
