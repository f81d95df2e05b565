//! Resources never exceed their rate and never delay a request unnecessarily.

use longma_sim::{Calendar, Duration, Resource, Time};
use proptest::prelude::*;

/// 64 bytes take 6.4 ns.
const RATE: u64 = 10_000_000_000;
const BUCKET: Duration = Duration::from_ps(32_768);

fn resource() -> Resource {
    Resource::new(RATE, BUCKET)
}

/// Requests whose arrival times are not in order, as of several cores that are simulated one after another: (arrival in
/// ps, bytes).
fn unordered_requests() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let request = (0u64..1_000_000, 1u32..256);
    proptest::collection::vec(request, 1..300)
}

proptest! {
    #[test]
    fn an_idle_resource_does_not_delay_requests(at in 0u64..1 << 40, bytes in 1u32..4096) {
        let mut resource = resource();
        let service = resource.service(bytes).ps();
        prop_assert_eq!(resource.acquire(Time::from_ps(at), bytes).ps(), at + service);
        prop_assert_eq!(resource.waits().max(), Some(0));
    }

    #[test]
    fn requests_in_time_order_are_served_first_come_first_served(mut requests in unordered_requests()) {
        requests.sort_unstable();
        let mut resource = resource();
        let mut free = 0;
        for (at, bytes) in requests {
            free = free.max(at) + resource.service(bytes).ps();
            prop_assert_eq!(resource.acquire(Time::from_ps(at), bytes).ps(), free);
        }
    }

    #[test]
    fn no_request_is_served_before_arrival_or_above_the_rate(requests in unordered_requests()) {
        let mut resource = resource();
        for (at, bytes) in requests {
            let end = resource.acquire(Time::from_ps(at), bytes).ps();
            prop_assert!(end >= at + resource.service(bytes).ps());
        }
    }

    #[test]
    fn no_window_shows_more_than_the_rate(
        requests in unordered_requests(),
        origin in 0u64..300_000,
        length in 1u64..200_000,
        long in 0u64..40_000_000,
    ) {
        let mut resource = resource();
        resource.record_windows(Time::from_ps(origin), Duration::from_ps(length));
        for &(at, bytes) in &requests {
            resource.serve(Time::from_ps(at), bytes, Duration::from_ps(if bytes % 16 == 0 { at % 5000 } else { 0 }));
        }
        // This transfer is longer than the whole calendar, so it is served after all others.
        resource.acquire(Time::from_ps(long), 100_000);
        let (mut windows, mut moved) = (0, 0.0);
        while let Some((begin, bytes)) = resource.take_window(Time::from_ps(100_000_000)) {
            prop_assert_eq!(begin.ps(), origin + windows * length);
            windows += 1;
            prop_assert!(bytes <= length as f64 * RATE as f64 / 1e12 + 1e-6, "{} bytes in {} ps", bytes, length);
            moved += bytes;
        }
        let all = requests.iter().map(|request| f64::from(request.1)).sum::<f64>() + 100_000.0;
        // Each part of a transfer is rounded down to picoseconds.
        let tolerance = (requests.len() as f64 * 20.0 + (windows + 2000) as f64 * 2.0) * RATE as f64 / 1e12;
        prop_assert!(moved <= all + 1e-6 && (origin > 0 || moved >= all - tolerance), "{} of {} bytes", moved, all);
    }

    #[test]
    fn no_bucket_provides_more_time_than_it_has(requests in unordered_requests()) {
        // Work that arrived after the start of a range of buckets and ended within it was served inside the range.
        let mut resource = resource();
        let bucket = BUCKET.ps();
        let mut served = Vec::new();
        for (at, bytes) in requests {
            let end = resource.acquire(Time::from_ps(at), bytes).ps();
            served.push((at, end, resource.service(bytes).ps()));
        }
        for first in 0..64 {
            for last in [first, first + 1, first + 3, first + 20] {
                let (from, to) = (first * bucket, (last + 1) * bucket);
                let inside = served.iter().filter(|s| s.0 >= from && s.1 <= to).map(|s| s.2).sum::<u64>();
                prop_assert!(inside <= to - from, "{inside} ps of work in {} ps", to - from);
            }
        }
    }

    #[test]
    fn the_order_inside_a_bucket_does_not_change_the_completion_time(
        requests in proptest::collection::vec((0u64..32_768, 1u32..128), 1..60),
    ) {
        let last = |requests: &[(u64, u32)]| {
            let mut resource = resource();
            // A request with a later time comes first, so that the requests are out of order.
            resource.acquire(Time::from_ps(60 * BUCKET.ps()), 1);
            requests.iter().map(|r| resource.acquire(Time::from_ps(r.0), r.1).ps()).max()
        };
        let reversed: Vec<_> = requests.iter().rev().copied().collect();
        let (in_order, other) = (last(&requests).unwrap(), last(&reversed).unwrap());
        prop_assert!(in_order.abs_diff(other) <= BUCKET.ps(), "{in_order} and {other}");
    }

    #[test]
    fn work_is_not_delayed_while_the_resource_is_idle(requests in unordered_requests()) {
        // The last request ends at most two buckets later than on an ideal server with requests in time order.
        let mut resource = resource();
        let latest = requests.iter().map(|r| resource.acquire(Time::from_ps(r.0), r.1).ps()).max().unwrap();
        let mut sorted = requests.clone();
        sorted.sort_unstable();
        let ideal = sorted.iter().fold(0, |free, r| r.0.max(free) + resource.service(r.1).ps());
        prop_assert!(latest <= ideal + 2 * BUCKET.ps(), "{latest} and {ideal}");
    }

    #[test]
    fn requests_of_any_time_and_size_are_served(requests in proptest::collection::vec((any::<u64>(), any::<u32>()), 0..20)) {
        let mut resource = Resource::new(1_000_000, Duration::from_ps(1));
        for (at, bytes) in requests {
            let at = at >> 8;
            prop_assert!(resource.acquire(Time::from_ps(at), bytes).ps() >= at);
        }
    }
}

#[test]
fn a_core_simulated_later_uses_the_time_left_by_others() {
    let mut resource = resource();
    // Core A uses half of the first 3 us; then core B requests a quarter of the same time.
    for turn in 0..234 {
        resource.acquire(Time::from_ps(turn * 12_800), 64);
    }
    let mut worst = 0;
    for turn in 0..117 {
        let at = turn * 25_600;
        worst = worst.max(resource.acquire(Time::from_ps(at), 64).ps() - at - 6400);
    }
    assert!(worst <= BUCKET.ps(), "waited {worst} ps at three quarters of the rate");
}

#[test]
fn an_overloaded_resource_serves_exactly_at_its_rate() {
    let mut resource = resource();
    let mut end = 0;
    for turn in 0..1_000_000u64 {
        // Four cores, each with 64 bytes every 6.4 ns in a quantum of 400 ns.
        let (quantum, core_turn) = (turn / 252, turn % 63);
        end = end.max(resource.acquire(Time::from_ps(quantum * 403_200 + core_turn * 6400), 64).ps());
    }
    assert_eq!(resource.bytes(), 64_000_000);
    let minimum = 6400 * 1_000_000u64;
    assert!((minimum..minimum + minimum / 50).contains(&end), "{end} ps for {minimum} ps of work");
}

#[test]
fn work_longer_than_the_calendar_is_served_last() {
    let mut calendar = Calendar::new(Duration::from_ps(1));
    calendar.take(Time::from_ps(5), Duration::from_ps(3));
    let long = calendar.take(Time::ZERO, Duration::from_ps(1_000_000));
    assert!(long.end.ps() >= 1_000_008);
    assert!(calendar.take(Time::from_ps(7), Duration::from_ps(1)).end > long.end);
}
