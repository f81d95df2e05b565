//! Tests of `metrics`.

use super::*;

fn asked(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The server may end the connection before the rest of a long request arrives.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn metrics() -> Metrics {
    let mut metrics = Metrics::default();
    metrics.count(&Decision::new(DecisionKind::Moved, "interrupt 40", "near"));
    metrics.count(&Decision::new(DecisionKind::LeftAlone, "interrupt 41", "excluded"));
    metrics.count(&Decision::new(DecisionKind::LeftAlone, "interrupt 42", "excluded"));
    metrics.queues = vec![("e\"0\\".into(), "3".into(), Some(5), None)];
    metrics
}

/// Each line is a comment, or a name with labels and a number; each figure has a type before it.
#[test]
fn the_text_follows_the_exposition_format() {
    let text = metrics().text();
    for (act, count) in [("moved", 1), ("would-move", 0), ("left-alone", 2), ("missing", 0)] {
        let line = format!("longma_affinity_decisions_total{{act=\"{act}\"}} {count}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
    assert!(text.contains("longma_affinity_queue_cpu{interface=\"e\\\"0\\\\\",queue=\"3\"} 5\n"), "{text}");
    let mut typed = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            typed = rest.split(' ').next().unwrap().into();
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert_eq!(name.split('{').next().unwrap(), typed);
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    assert!(text.ends_with('\n'));
}

#[test]
fn clients_get_the_newest_figures_and_wrong_requests_an_answer() {
    let exporter = Exporter::listen("127.0.0.1:0".parse().unwrap()).unwrap();
    exporter.show(&metrics());
    let of = |request: &[u8]| asked(exporter.address(), request);
    let answer = of(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains(TYPE), "{head}");
    assert_eq!(body, metrics().text());
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    assert!(of(b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(of(b"POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(of(b"\xff\xfe\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(!of(&[b'x'; 3 * MAX_REQUEST]).contains("200 OK"));
    // Silent clients do not delay others.
    let _silent: Vec<_> =
        (0..3 * MAX_CLIENTS).map(|_| TcpStream::connect(exporter.address()).unwrap()).collect();
    let start = std::time::Instant::now();
    assert!(of(b"GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    assert!(start.elapsed() < CLIENT_TIME_LIMIT, "{:?}", start.elapsed());
    assert!(of(b"HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
}

#[test]
fn the_file_is_replaced_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("longma.prom");
    Metrics::default().write(&path).unwrap();
    metrics().write(&path).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), metrics().text());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    assert!(metrics().write(&folder.path().join("missing/longma.prom")).is_err());

    let link = folder.path().join("link");
    std::os::unix::fs::symlink("longma.prom", &link).unwrap();
    Metrics::default().write(&link).unwrap();
    assert!(link.is_symlink());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), Metrics::default().text());
    // A device must not be replaced by a file: the host needs it.
    for other in [Path::new("/dev/null"), folder.path()] {
        assert!(
            metrics().write(other).unwrap_err().to_string().contains("is not a file"),
            "{}",
            other.display()
        );
    }
}
