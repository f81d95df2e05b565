//! Parses random text as a placement request and a host. Each must be rejected with a message or accepted; placements
//! must fit the hosts; no input may cause a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longma_placement::{Host, Policy, Request, Scheduler};

fuzz_target!(|input: (&str, &str)| {
    let (request, host) = input;
    let mut scheduler = Scheduler::new(Policy::default(), 1);
    let machine = longma_topology::Machine::open("hygon-8node").expect("a built-in machine");
    scheduler
        .put_host(&Host::of_machine(&machine, "h0").expect("it states its memory"))
        .expect("it holds together");
    if let Ok(host) = serde_json::from_str::<Host>(host) {
        assert_eq!(host.check().is_ok(), scheduler.put_host(&host).is_ok());
    }
    if let Ok(request) = serde_json::from_str::<Request>(request) {
        let explained = scheduler.explain(&request, None, 4);
        assert_eq!(explained.is_ok(), request.check().is_ok());
        if let Ok(placement) = scheduler.place(&request) {
            assert!(explained.is_ok_and(|e| e.fitting > 0));
            assert_eq!(placement.vcpus(), request.vcpus);
            scheduler.release(&placement).expect("it was reserved");
        }
    }
});
