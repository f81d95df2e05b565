//! Tests of `log`.

use super::*;

#[test]
fn the_log_stays_small_and_keeps_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("decisions.jsonl");
    assert_eq!(read(&path).unwrap(), (vec![], 0));
    let mut log = Log::open(&path).unwrap();
    let decision = |number: usize| Decision::new(DecisionKind::Moved, number.to_string(), "x".repeat(2000));
    let count = 3 * MAX_LOG_BYTES as usize / 2000;
    (0..count).for_each(|number| log.add(&decision(number)).unwrap());
    let sizes: u64 = [before(&path), path.clone()].iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(sizes <= 2 * MAX_LOG_BYTES, "{sizes}");
    std::fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"{\"at\": half\n\xff\n")
        .unwrap();
    Log::open(&path).unwrap().add(&decision(count)).unwrap();
    let (read, lost) = read(&path).unwrap();
    assert_eq!(lost, 2);
    assert_eq!(read.last().unwrap().subject, count.to_string());
    let numbers: Vec<usize> = read.iter().map(|decision| decision.subject.parse().unwrap()).collect();
    assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1) && numbers.len() > 200, "{}", numbers.len());
}
