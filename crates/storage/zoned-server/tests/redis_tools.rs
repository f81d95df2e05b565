//! Tests with existing clients: redis-cli, redis-benchmark and Python's `redis` package. Each test is skipped where its
//! program is missing.

mod support;

use longma_zoned_server::{Password, Settings};
use std::process::{Command, Output};
use support::{Running, empty_map, encoded};

/// Runs a program with a time limit, or prints why the test is skipped.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    if !found.status.success() {
        eprintln!("skipped: {program} is missing: install redis-tools");
        return None;
    }
    Some(Command::new("timeout").arg("120").arg(program).args(arguments).output().unwrap())
}

fn printed(output: Output) -> String {
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn redis_cli_works() {
    let server = Running::new(Settings { password: Some(Password::new(b"secret")), ..Settings::default() });
    let port = server.address.port().to_string();
    for (words, expected) in [
        ("SET river map", "OK\n"),
        ("GET river", "map\n"),
        ("MSET hetu 1 luoshu 2", "OK\n"),
        ("MGET hetu nothing luoshu", "1\n\n2\n"),
        ("DBSIZE", "3\n"),
        ("--scan", "hetu\nluoshu\nriver\n"),
        ("RANGE [h (r", "hetu\n1\nluoshu\n2\n"),
        ("DEL hetu nothing", "1\n"),
        ("SET a 1 EX 10", "ERR SET has no option EX here: keys do not expire\n\n"),
        ("-2 PING", "PONG\n"),
        ("-3 PING", "PONG\n"),
        ("-3 MGET river nothing", "map\n\n"),
    ] {
        let mut arguments = vec!["-p", &port, "--no-auth-warning", "-a", "secret"];
        arguments.extend(words.split(' '));
        let Some(output) = run("redis-cli", &arguments) else { return };
        assert_eq!(printed(output), expected, "{words}");
    }
}

#[test]
fn redis_cli_loads_a_pipeline() {
    let server = Running::new(Settings::default());
    let Some(_) = run("redis-cli", &["--version"]) else { return };
    let request = String::from_utf8(encoded(&["SET", "a", "1"])).unwrap().replace("\r\n", "\\r\\n");
    let port = server.address.port();
    let command = format!("printf '{request}{request}' | redis-cli -p {port} --pipe");
    let text = printed(run("sh", &["-c", &command]).unwrap());
    assert!(text.contains("errors: 0, replies: 2"), "{text}");
}

#[test]
fn redis_benchmark_works() {
    let server = Running::new(Settings::default());
    let port = server.address.port().to_string();
    for extra in [&["-c", "50"][..], &["-c", "20", "-P", "16"]] {
        let mut arguments =
            vec!["-p", &port, "-t", "set,get,mset", "-n", "5000", "-r", "10000", "-d", "100", "--csv"];
        arguments.extend(extra);
        let Some(output) = run("redis-benchmark", &arguments) else { return };
        let text = printed(output);
        for test in ["\"SET\"", "\"GET\"", "\"MSET"] {
            assert!(text.lines().any(|line| line.starts_with(test)), "{text}");
        }
    }
}

#[test]
fn the_python_package_works() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client.py");
    // Test both the system's package and a newer one, if installed: the default version of the protocol differs.
    let mut ran = 0;
    for python in ["python3", "/usr/bin/python3"] {
        if !Command::new(python)
            .args(["-c", "import redis"])
            .output()
            .is_ok_and(|found| found.status.success())
        {
            continue;
        }
        let server = Running::with_map(Settings::default(), empty_map());
        let Some(output) = run(python, &[script, &server.address.port().to_string()]) else { return };
        assert!(printed(output).contains("passed"));
        ran += 1;
    }
    if ran == 0 {
        eprintln!("skipped: Python's package redis is missing: install python3-redis");
    }
}
