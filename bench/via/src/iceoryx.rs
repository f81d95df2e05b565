//! iceoryx2: publish and subscribe of 8 bytes, back and forth.
//! Source: the crate's documentation.

use crate::processes::{Cores, fresh_name, measure, time_ns};
use iceoryx2::prelude::*;

fn play(request: &str, response: &str, rounds: u64, first: bool) -> f64 {
    let node = NodeBuilder::new().create::<ipc::Service>().expect("a node");
    let open = |name: &str| {
        let name = ServiceName::new(name).expect("a name");
        node.service_builder(&name).publish_subscribe::<u64>().open_or_create().expect("a service")
    };
    let (out, into) = if first { (open(request), open(response)) } else { (open(response), open(request)) };
    let publisher = out.publisher_builder().create().expect("a publisher");
    let subscriber = into.subscriber_builder().create().expect("a subscriber");
    // Wait for both sides before the first sample.
    while out.dynamic_config().number_of_subscribers() == 0
        || into.dynamic_config().number_of_publishers() == 0
    {
        std::hint::spin_loop();
    }
    let send = |value: u64| {
        publisher.loan_uninit().expect("a sample").write_payload(value).send().expect("room");
    };
    let receive = || {
        while subscriber.receive().expect("a subscriber").is_none() {
            std::hint::spin_loop();
        }
    };
    let ns = time_ns(|| {
        for round in 0..rounds {
            if first {
                send(round);
                receive();
            } else {
                receive();
                send(round);
            }
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(50));
    ns / rounds as f64 / 2.0
}

/// One-way latency, ns.
pub fn latency_ns(cores: Cores, rounds: u64) -> Option<f64> {
    let (request, response) = (fresh_name("there"), fresh_name("back"));
    let server = || {
        play(&request, &response, rounds, false);
    };
    measure(cores, server, || play(&request, &response, rounds, true))
}
