//! A trace is always valid JSON and contains the traced events.

use longma_sim::{Duration, Time, TraceEvents, Track};
use proptest::prelude::*;
use serde_json::Value;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

const CORE: Track = Track { process: 1, thread: 2 };

fn parse(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(bytes)))
}

fn phases(trace: &Value) -> String {
    trace["traceEvents"].as_array().unwrap().iter().map(|e| e["ph"].as_str().unwrap()).collect()
}

#[test]
fn every_kind_of_event_reads_back() {
    let mut trace = TraceEvents::new(Vec::new(), 1 << 20).unwrap();
    trace.process_name(1, "host \"a\"\n").unwrap();
    trace.thread_name(CORE, "core 2").unwrap();
    trace.slice(CORE, "run", Time::from_ps(1_500_001), Duration::from_ps(2)).unwrap();
    trace
        .slice_with(CORE, "miss", Time::from_ps(7), Duration::from_ps(1), &[("line", "0x40".into())])
        .unwrap();
    trace.counter(1, "link", Time::from_ps(0), &[("read", 1.5), ("write", 0.0)]).unwrap();
    trace.instant(CORE, "trap", Time::from_ps(3)).unwrap();
    trace.flow_start(CORE, "message", 9, Time::from_ps(4)).unwrap();
    trace.flow_end(CORE, "message", 9, Time::from_ps(5)).unwrap();
    assert_eq!(trace.events(), 8);
    let json = parse(&trace.finish().unwrap());
    let events = json["traceEvents"].as_array().unwrap();
    assert_eq!(phases(&json), "MMXXCisf");
    assert_eq!(events[0]["args"]["name"], "host \"a\"\n");
    assert_eq!((&events[1]["pid"], &events[1]["tid"]), (&1.into(), &2.into()));
    assert_eq!(events[2]["ts"].as_f64(), Some(1.500001));
    assert_eq!(events[2]["dur"].as_f64(), Some(0.000002));
    assert_eq!(events[3]["args"]["line"], "0x40");
    assert_eq!(events[4]["args"]["read"], 1.5);
    assert_eq!(events[6]["id"], events[7]["id"]);
    assert_eq!(json["otherData"]["events_left_out"], 0);
}

/// A file with several handles.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_dropped_trace_is_valid_json() {
    let file = Shared::default();
    let mut trace = TraceEvents::new(file.clone(), 1 << 20).unwrap();
    trace.instant(CORE, "a", Time::ZERO).unwrap();
    drop(trace);
    assert_eq!(phases(&parse(&file.0.lock().unwrap())), "i");
}

#[test]
fn a_trace_without_events_is_valid_json() {
    let json = parse(&TraceEvents::new(Vec::new(), 0).unwrap().finish().unwrap());
    assert_eq!(phases(&json), "");
}

/// A disk that is full after a number of bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_an_error_when_writing_and_when_finishing() {
    let mut trace = TraceEvents::new(Full(100), 1 << 20).unwrap();
    trace.instant(CORE, "a", Time::ZERO).unwrap();
    assert!(trace.instant(CORE, "b", Time::ZERO).is_err());
    assert!(trace.instant(CORE, "c", Time::ZERO).is_err());
    assert!(trace.finish().is_err());
}

proptest! {
    #[test]
    fn a_trace_stays_within_its_limit_and_counts_dropped_events(
        limit in 0u64..4096,
        names in proptest::collection::vec("\\PC{0,60}", 0..60),
    ) {
        let mut trace = TraceEvents::new(Vec::new(), limit).unwrap();
        for (at, name) in names.iter().enumerate() {
            trace.slice(CORE, name, Time::from_ps(at as u64), Duration::from_ps(1)).unwrap();
        }
        let omitted = trace.omitted();
        let bytes = trace.finish().unwrap();
        prop_assert!(bytes.len() as u64 <= limit.max(1024));
        let json = parse(&bytes);
        let events = json["traceEvents"].as_array().unwrap();
        let written = names.len() - omitted as usize;
        for (event, name) in events.iter().zip(&names[..written]) {
            prop_assert_eq!(event["name"].as_str(), Some(name.as_str()));
        }
        prop_assert_eq!(events.len(), written + usize::from(omitted > 0));
        prop_assert_eq!(&json["otherData"]["events_left_out"], &Value::from(omitted));
    }
}
