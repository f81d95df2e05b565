//! Access control: missing tokens, wrong roles, other tenants' names, malformed bodies, slow clients.

use crate::service::*;
use longma_placement::host::NodeLoad;
use longma_placement::store::{Vm, VmState};
use longma_placement_service::client::ClientError;
use longma_placement_service::wire::{
    AgentChange, AgentOrders, AgentReport, HostView, NewToken, Rebind, Resize, TokenView, Tokens, VmPage,
};
use longma_placement_service::{Client, openapi};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn status_of<T>(answer: Result<T, ClientError>) -> u16 {
    match answer {
        Err(ClientError::Refused(problem)) => problem.status,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

fn web(name: &str) -> Value {
    json!({ "name": name, "vcpus": 2, "memory_mib": 1024 })
}

/// Method and path of every operation in the OpenAPI document, with path parameters filled in.
fn all_operations() -> Vec<(String, String)> {
    let document = serde_json::to_value(openapi()).unwrap();
    let mut all = Vec::new();
    for (path, all_operations) in document["paths"].as_object().unwrap() {
        let path = path
            .replace("{vm}", "1")
            .replace("{host}", "h1")
            .replace("{token}", "t")
            .replace("{tenant}", "t");
        for method in all_operations.as_object().unwrap().keys() {
            all.push((method.to_uppercase(), path.clone()));
        }
    }
    assert!(all.len() > 20, "{all:?}");
    all
}

#[test]
fn without_a_token_every_route_is_rejected() {
    let service = service();
    for (method, path) in all_operations().into_iter().filter(|o| o.1 != "/healthz") {
        for headers in [
            "",
            "authorization: Bearer nonsense\r\n",
            "authorization: Basic YTpi\r\n",
            "authorization: Bearer \r\n",
        ] {
            let headers = format!("{headers}content-type: application/json\r\n");
            assert_eq!(service.status(&method, &path, &headers, "{}"), 401, "{method} {path} {headers:?}");
        }
    }
    assert_eq!(service.status("GET", "/healthz", "", ""), 200);
    // A long token, such as a JWT with many groups.
    let long = format!(
        "GET /v1/vms HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {}\r\n\r\n",
        "a.".repeat(4500)
    );
    let answer = service.raw(long.as_bytes());
    assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("longer than 8192 bytes"), "{answer}");
    assert!(service.admin.get::<VmPage>("/v1/vms").unwrap().items.is_empty());
    let logged = service.logged.lock().unwrap().join("\n");
    assert!(logged.contains("401 POST \"/v1/vms\" from 127.0.0.1"), "{logged}");
    assert!(!logged.contains("nonsense"), "tokens are not logged");
}

#[test]
fn each_role_may_do_exactly_its_operations() {
    let service = service();
    let tenant = service.client("a", "tenant", Some("acme"));
    let operator = service.client("o", "operator", None);
    let agent = service.client("g", "agent", Some("h9"));
    for path in [
        "/v1/hosts",
        "/v1/hosts/h1",
        "/v1/alarms",
        "/v1/audit",
        "/metrics",
        "/v1/tokens",
        "/v1/hosts/h1/defragmentation",
    ] {
        assert_eq!(status_of(tenant.get::<Value>(path)), 403, "{path}");
        assert_eq!(status_of(agent.get::<Value>(path)), 403, "{path}");
    }
    for path in ["/v1/vms", "/v1/vms/1", "/v1/tenants", "/v1/watch"] {
        assert_eq!(status_of(agent.get::<Value>(path)), 403, "{path}");
    }
    let token = NewToken { name: "x".into(), role: "admin".into(), scope: None, ..NewToken::default() };
    for client in [&tenant, &operator, &agent] {
        assert_eq!(status_of(client.post::<Value>("/v1/tokens", None, &token)), 403);
        assert_eq!(status_of(client.delete::<Value>("/v1/tokens/a")), 403);
        assert_eq!(status_of(client.put("/v1/tenants/acme/quota", &json!({}))), 403);
        assert_eq!(
            status_of(client.post::<Value>("/v1/agents/h1/report", None, &AgentReport::default())),
            403
        );
    }
    assert_eq!(status_of(tenant.post::<Value>("/v1/hosts/h1/drain", None, &())), 403);
    assert!(operator.get_text("/metrics").unwrap().contains("longma_placement_hosts"));
    assert!(operator.get::<HostView>("/v1/hosts/h1").is_ok());
}

#[test]
fn a_tenant_sees_and_changes_only_its_own_virtual_machines() {
    let service = service();
    let (acme, evil) =
        (service.client("a", "tenant", Some("acme")), service.client("e", "tenant", Some("evil")));
    let vm: Vm = acme.post("/v1/vms", None, &web("db")).unwrap();
    assert_eq!(vm.request.tenant, "acme", "whose token it is, whose virtual machine it is");
    until("it runs", || acme.get::<Vm>("/v1/vms/db").unwrap().state == VmState::Running);
    let id = vm.id;
    for name in [id.to_string(), "db".into(), "db?tenant=acme".into()] {
        assert_eq!(status_of(evil.get::<Vm>(&format!("/v1/vms/{name}"))), 404, "{name}");
    }
    for action in ["start", "stop", "rebind"] {
        assert_eq!(
            status_of(evil.post::<Vm>(&format!("/v1/vms/{id}/{action}"), None, &Rebind::default())),
            404,
            "{action}"
        );
    }
    let size = Resize { vcpus: Some(1), memory_mib: None };
    assert_eq!(status_of(evil.post::<Vm>(&format!("/v1/vms/{id}/resize"), None, &size)), 404);
    assert_eq!(status_of(evil.delete::<Vm>(&format!("/v1/vms/{id}"))), 404);
    assert_eq!(status_of(evil.get::<VmPage>("/v1/vms?tenant=acme")), 403);
    assert!(evil.get::<VmPage>("/v1/vms").unwrap().items.is_empty());
    let mut other = web("x");
    other["tenant"] = json!("acme");
    assert_eq!(status_of(evil.post::<Vm>("/v1/vms", None, &other)), 403);
    assert_eq!(status_of(evil.post::<Value>("/v1/explain", None, &other)), 403);
    let explained: Value = evil.post("/v1/explain?host=h1", None, &web("x")).unwrap();
    assert_eq!(explained["hosts"], json!([]), "a tenant does not learn how full hosts are");
    assert_eq!(acme.get::<Vm>("/v1/vms/db").unwrap().state, VmState::Running);
}

#[test]
fn a_tenant_cannot_reach_files_of_the_host() {
    let service = service();
    let acme = service.client("a", "tenant", Some("acme"));
    let disk = |path: &str| json!({ "name": "d", "vcpus": 1, "memory_mib": 64, "boot": { "disk": { "path": path, "format": "raw" } } });
    for path in
        ["/etc/shadow", "/images/evil/disk", "/images/acme", "/images/acme/", "/images/acmeX/d", "/dev/sda"]
    {
        assert_eq!(status_of(acme.post::<Vm>("/v1/vms", None, &disk(path))), 403, "{path}");
    }
    for path in ["/images/acme/../evil/d", "images/acme/d", "/images/acme/a\nb"] {
        assert_eq!(status_of(acme.post::<Vm>("/v1/vms", None, &disk(path))), 422, "{path}");
    }
    let mut template = web("t");
    template["boot"] = json!({ "template": { "xml": "<domain/>" } });
    assert_eq!(status_of(acme.post::<Vm>("/v1/vms", None, &template)), 403);
    assert!(acme.post::<Vm>("/v1/vms", None, &disk("/images/acme/d.raw")).is_ok());
}

#[test]
fn an_agent_may_access_only_its_own_host() {
    let service = service();
    let vm: Vm = service.admin.post("/v1/vms", None, &web("a")).unwrap();
    until("it runs", || service.admin.get::<Vm>("/v1/vms/a").unwrap().state == VmState::Running);
    let agent = service.client("g", "agent", Some("h2"));
    let describe = |name: &str| AgentChange::Describe(host(name));
    assert_eq!(status_of(agent.post::<Value>("/v1/agents/h1/report", None, &AgentReport::default())), 403);
    assert_eq!(status_of(agent.get::<Value>("/v1/agents/h1/vms")), 403);
    assert_eq!(status_of(agent.post::<Value>("/v1/agents/h1/changes", None, &describe("h1"))), 403);
    assert_eq!(
        status_of(agent.post::<Value>("/v1/agents/h2/changes", None, &describe("h1"))),
        403,
        "its own path, another's host"
    );
    assert_eq!(
        status_of(agent.post::<Value>("/v1/agents/h2/report", None, &AgentReport::default())),
        404,
        "not described yet"
    );
    agent.post::<Value>("/v1/agents/h2/changes", None, &describe("h2")).unwrap();
    let steal =
        AgentChange::Transition { vm: vm.id, from: VmState::Running, to: VmState::Failed, problem: None };
    assert_eq!(status_of(agent.post::<Value>("/v1/agents/h2/changes", None, &steal)), 404);
    // Invalid loads, and more of them than nodes, change nothing.
    let load = vec![NodeLoad { cpu: 9e9, memory: -1.0 }; 20];
    let report = AgentReport { load, ..AgentReport::default() };
    assert!(agent.post::<AgentOrders>("/v1/agents/h2/report", None, &report).is_ok());
    assert_eq!(service.admin.get::<Vm>("/v1/vms/a").unwrap().state, VmState::Running);
}

#[test]
fn bodies_that_are_not_requests_are_refused_with_the_reason() {
    let service = service();
    let post = |body: &str| service.admin_status("POST", "/v1/vms", body);
    for bad in ["", "{", "nonsense", "\u{0}", "{}{}", "{\"name\":\"a\"} x"] {
        assert_eq!(post(bad), 400, "{bad:?}");
    }
    for wrong in [
        "[]",
        "null",
        "7",
        "{}",
        r#"{"name":"a","vcpus":"2","memory_mib":1}"#,
        r#"{"name":"a","vcpus":-1,"memory_mib":1}"#,
    ] {
        assert_eq!(post(wrong), 422, "{wrong:?}");
    }
    assert_eq!(post(r#"["a","default",1,64]"#), 422, "a list of the fields");
    assert_eq!(service.admin_status("PUT", "/v1/tenants/t/quota", "[1,2,3]"), 422, "a list of the fields");
    assert_eq!(post(r#"{"name":"a","vcpus":1,"memory_mib":64,"hugepages":true}"#), 422, "an unknown key");
    assert_eq!(post(r#"{"name":"a","vcpus":1,"memory_mib":18446744073709551615}"#), 422);
    assert_eq!(post(&"[".repeat(100_000)), 400, "deep");
    assert_eq!(post(&format!("\"{}\"", "a".repeat((1 << 20) + 1))), 413);
    let headers = format!("authorization: Bearer {}\r\ncontent-type: text/plain\r\n", service.access.token);
    assert_eq!(service.status("POST", "/v1/vms", &headers, "{}"), 415);
    // A content length that does not match the body.
    let head = format!("POST /v1/vms HTTP/1.1\r\nhost: x\r\n{headers}");
    assert!(
        service
            .raw(format!("{head}content-length: 99999999999999999999\r\n\r\n").as_bytes())
            .starts_with("HTTP/1.1 400")
    );
    assert!(
        service
            .raw(format!("{head}content-length: 5\r\ncontent-length: 6\r\n\r\nabcdef").as_bytes())
            .starts_with("HTTP/1.1 400")
    );
    for hosts in [
        "",
        "host:\r\n",
        "host: \r\n",
        "host: a b\r\n",
        "host: /v1\r\n",
        "host: u@h\r\n",
        "host: h:abc\r\n",
        "host: h:99999\r\n",
        "host: x\r\nhost: x\r\n",
    ] {
        let answer =
            service.raw(format!("GET /healthz HTTP/1.1\r\n{hosts}connection: close\r\n\r\n").as_bytes());
        assert!(answer.starts_with("HTTP/1.1 400"), "{hosts:?}: {answer}");
    }
    for host in ["localhost", "127.0.0.1:80", "[::1]:8080"] {
        let answer = service
            .raw(format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").as_bytes());
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
    }
    let flood = format!("GET /v1/vms HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    let answer = service.raw(flood.as_bytes());
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    for query in ["limit=0", "limit=99999", "limit=x", "after=x", "unknown=1", "deleted=maybe"] {
        assert_eq!(service.admin_status("GET", &format!("/v1/vms?{query}"), ""), 400, "{query}");
    }
    assert_eq!(service.admin_status("PATCH", "/v1/vms", "{}"), 405);
    assert_eq!(service.admin_status("GET", "/v2/vms", ""), 404);
    assert!(service.admin.get::<VmPage>("/v1/vms").unwrap().items.is_empty());
}

#[test]
fn names_are_checked_in_every_operation() {
    let service = service();
    let hostile = [
        "<x/>", "a&b", "a'b", "a\"b", "../a", "a/b", ".", "..", "-c", "a b", "a\nb", "a\0b", "ä", "%2e%2e",
        "$(id)", "",
    ];
    for name in hostile {
        let field = |change: fn(&mut Value, &str)| {
            let mut body = web("ok");
            change(&mut body, name);
            status_of(service.admin.post::<Vm>("/v1/vms", None, &body))
        };
        assert_eq!(field(|b, n| b["name"] = json!(n)), 422, "{name:?}");
        assert_eq!(field(|b, n| b["tenant"] = json!(n)), 422, "{name:?}");
        let group = |b: &mut Value, n: &str| {
            b["groups"] = json!([{ "group": n, "relation": "affinity", "level": "host" }])
        };
        assert_eq!(field(group), 422, "{name:?}");
        for role in ["tenant", "agent"] {
            let wanted = NewToken {
                name: "t".into(),
                role: role.into(),
                scope: Some(name.into()),
                ..NewToken::default()
            };
            assert_eq!(status_of(service.admin.post::<Value>("/v1/tokens", None, &wanted)), 422, "{name:?}");
        }
        let wanted =
            NewToken { name: name.into(), role: "operator".into(), scope: None, ..NewToken::default() };
        assert_eq!(status_of(service.admin.post::<Value>("/v1/tokens", None, &wanted)), 422, "{name:?}");
    }
    for path in [
        "/v1/vms/..%2f..%2fetc%2fpasswd",
        "/v1/vms/%00",
        "/v1/vms/%ff",
        "/v1/vms/%3Cx%3E",
        "/../../etc/passwd",
        "/v1/vms/99999999999999999999",
    ] {
        let status = service.admin_status("GET", path, "");
        assert!((400..500).contains(&status), "{path}: {status}");
    }
    let key = format!(
        "authorization: Bearer {}\r\ncontent-type: application/json\r\nidempotency-key: {}\r\n",
        service.access.token,
        "k".repeat(200)
    );
    assert_eq!(service.status("POST", "/v1/vms", &key, &web("a").to_string()), 400);
    assert!(service.hypervisor.domains().is_empty());
    let logged = service.logged.lock().unwrap();
    assert!(logged.iter().all(|line| !line.contains('\n')), "no client can write extra lines into the log");
}

#[test]
fn slow_clients_are_closed_and_do_not_delay_others() {
    let service = service();
    let mut in_header: Vec<_> = (0..50).map(|_| service.connect()).collect();
    for stream in &mut in_header {
        stream.write_all(b"GET /v1/vms HTTP/1.1\r\nx: ").unwrap();
    }
    let mut in_body = service.connect();
    let head = format!(
        "POST /v1/vms HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n",
        service.access.token
    );
    in_body.write_all(head.as_bytes()).unwrap();
    let began = Instant::now();
    let dripping = std::thread::spawn(move || {
        // At one byte every half second, the body would take minutes.
        while in_body.write_all(b" ").is_ok() && began.elapsed() < Duration::from_secs(40) {
            std::thread::sleep(Duration::from_millis(500));
            let mut answer = [0; 16];
            in_body.set_nonblocking(true).unwrap();
            let read = in_body.read(&mut answer);
            in_body.set_nonblocking(false).unwrap();
            if read.is_ok_and(|n| n > 0) {
                return String::from_utf8_lossy(&answer).into_owned();
            }
        }
        String::new()
    });
    for _ in 0..20 {
        let asked = Instant::now();
        assert!(service.admin.get::<VmPage>("/v1/vms").is_ok());
        assert!(asked.elapsed() < Duration::from_secs(5), "others are served meanwhile");
    }
    for stream in &mut in_header {
        let mut answer = Vec::new();
        // A timeout of the test's own socket would be an error here.
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408"), "{answer}");
    }
    assert_eq!(dripping.join().unwrap(), "HTTP/1.1 408 Req");
    assert!(began.elapsed() < Duration::from_secs(35));
}

#[test]
fn tokens_are_kept_as_digests_and_end_when_they_are_removed() {
    let service = service();
    let token = service.token("a", "tenant", Some("acme"));
    let client = service.client_of(&token);
    assert!(client.get::<VmPage>("/v1/vms").is_ok());
    let listed: Vec<TokenView> = service.admin.get::<Tokens>("/v1/tokens").unwrap().items;
    assert!(listed.iter().any(|t| t.name == "a" && t.scope.as_deref() == Some("acme")));
    assert!(!serde_json::to_string(&listed).unwrap().contains(&token));
    let home = service.folder.path().join("home");
    for file in std::fs::read_dir(&home).unwrap().flatten() {
        let bytes = std::fs::read(file.path()).unwrap();
        assert!(!bytes.windows(token.len()).any(|w| w == token.as_bytes()), "{:?}", file.path());
    }
    assert_eq!(
        status_of(service.admin.post::<Value>(
            "/v1/tokens",
            None,
            &NewToken { name: "a".into(), role: "operator".into(), scope: None, ..NewToken::default() }
        )),
        409
    );
    service.admin.delete::<()>("/v1/tokens/a").unwrap();
    assert_eq!(status_of(client.get::<VmPage>("/v1/vms")), 401);
    assert_eq!(
        status_of(service.admin.delete::<()>("/v1/tokens/local-admin")),
        409,
        "the last way in is not locked by mistake"
    );
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&home), mode(&home.join("client.json"))), (0o700, 0o600));
}

#[test]
fn a_quota_holds_against_many_concurrent_requests() {
    let service = service();
    let beyond =
        service.admin.put("/v1/tenants/acme/quota", &json!({ "memory_mib": 1u64 << 63 })).unwrap_err();
    assert!(beyond.to_string().contains("memory_mib") && beyond.to_string().contains("at most"), "{beyond}");
    service.admin.put("/v1/tenants/acme/quota", &json!({ "vms": 3, "vcpus": 100 })).unwrap();
    let acme = service.client("a", "tenant", Some("acme"));
    let ask = |client: Client, n: usize| {
        std::thread::spawn(move || client.post::<Vm>("/v1/vms", None, &web(&format!("v{n}"))))
    };
    let asked: Vec<_> = (0..12).map(|n| ask(acme.clone(), n)).collect();
    let answers: Vec<_> = asked.into_iter().map(|a| a.join().unwrap()).collect();
    assert_eq!(answers.iter().filter(|a| a.is_ok()).count(), 3);
    assert!(answers.into_iter().filter(Result::is_err).all(|a| status_of(a) == 403));
    service.admin.put("/v1/tenants/acme/quota", &json!({ "memory_mib": 3500 })).unwrap();
    assert_eq!(status_of(acme.post::<Vm>("/v1/vms", None, &web("more"))), 403, "by memory now");
    let name = acme.get::<VmPage>("/v1/vms").unwrap().items[0].id;
    acme.delete::<Vm>(&format!("/v1/vms/{name}")).unwrap();
    until("a place under the quota", || acme.post::<Vm>("/v1/vms", None, &web("more")).is_ok());
    let audit: Value = service.admin.get("/v1/audit").unwrap();
    assert_eq!(audit["database"], json!([]));
}

#[test]
fn a_watcher_ends_when_its_token_is_removed_although_the_name_is_reused() {
    let service = service();
    let token = service.token("watcher", "tenant", Some("a"));
    let mut stream = service.connect();
    write!(stream, "GET /v1/watch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n").unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    service.admin.delete::<serde_json::Value>("/v1/tokens/watcher").unwrap();
    let again = service.client("watcher", "tenant", Some("a"));
    let vm = serde_json::json!({ "name": "secret", "vcpus": 1, "memory_mib": 64 });
    again.post::<serde_json::Value>("/v1/vms", None, &vm).unwrap();
    let (mut seen, mut read) = (Vec::new(), [0; 1024]);
    while !String::from_utf8_lossy(&seen).contains("event:") {
        let bytes = stream.read(&mut read).unwrap();
        if bytes == 0 {
            return;
        }
        seen.extend_from_slice(&read[..bytes]);
    }
    panic!("{}", String::from_utf8_lossy(&seen));
}

/// Raises the limit of open files to the maximum and returns it.
fn allow_files() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    limit.maximum.map_or(usize::MAX, |max| max as usize)
}

#[test]
fn thousands_of_idle_connections_do_not_delay_others() {
    let service = service();
    // Both ends of each connection are in this process.
    let count = 3000.min((allow_files() - 1500) / 2);
    let (opened, address) = (Arc::new(AtomicUsize::new(0)), service.address());
    let opening = std::thread::spawn({
        let opened = opened.clone();
        move || {
            let connect = |_| {
                let stream = TcpStream::connect(address).unwrap();
                opened.fetch_add(1, Ordering::Relaxed);
                stream
            };
            (0..count).map(connect).collect::<Vec<_>>()
        }
    });
    // All permits are in use, and the kernel's accept queue is not full yet.
    until("there are many", || opened.load(Ordering::Relaxed) > 1500.min(count / 2));
    let began = Instant::now();
    while !opening.is_finished() || began.elapsed() < Duration::from_secs(2) {
        let asked = Instant::now();
        // A new connection each time, and a reused one.
        assert_eq!(service.admin_status("GET", "/v1/vms", ""), 200);
        assert!(service.admin.get::<VmPage>("/v1/vms").is_ok());
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?} with {count}", asked.elapsed());
    }
    drop(opening.join().unwrap());
}

#[test]
fn a_header_may_have_32_kib_and_not_a_byte_more() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let head = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: \r\n\r\n";
    for (bytes, status) in [(32 << 10, "200"), ((32 << 10) + 1, "431"), (40 << 10, "431"), (60 << 10, "431")]
    {
        let header = head.replace("x: \r\n\r\n", &format!("x: {}\r\n\r\n", "y".repeat(bytes - head.len())));
        assert_eq!(header.len(), bytes);
        let answer = service.raw(header.as_bytes());
        // The service may close the connection before it has read a rejected request, and the answer may be lost with
        // it.
        let condition =
            answer.starts_with(&format!("HTTP/1.1 {status}")) || status == "431" && answer.is_empty();
        assert!(condition, "{bytes}: {answer}");
    }
}
