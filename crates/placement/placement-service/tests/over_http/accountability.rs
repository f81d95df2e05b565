//! Accountability: the audit log, actors of events, and tokens that expire.

use crate::service::*;
use longma_placement::store::{AuditRecord, Quota, Vm};
use longma_placement_service::Client;
use longma_placement_service::client::ClientError;
use longma_placement_service::wire::{
    AuditPage, MadeToken, NewToken, ProblemKind, TokenView, Tokens, VmPage,
};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::time::{Duration, Instant};

fn web(name: &str) -> Value {
    json!({ "name": name, "vcpus": 1, "memory_mib": 64 })
}

fn audit_log(service: &Service, query: &str) -> Vec<AuditRecord> {
    service.admin.get::<AuditPage>(&format!("/v1/audit-log?{query}")).unwrap().items
}

fn refused_kind<T>(answer: Result<T, ClientError>) -> ProblemKind {
    match answer {
        Err(ClientError::Refused(problem)) => problem.kind,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("it was not refused"),
    }
}

fn token_view(service: &Service, name: &str) -> TokenView {
    let tokens: Tokens = service.admin.get("/v1/tokens").unwrap();
    tokens.items.into_iter().find(|t| t.name == name).unwrap()
}

fn expiring(service: &Service, name: &str, role: &str, scope: Option<&str>, lifetime_s: u64) -> MadeToken {
    let (name, role, scope) = (name.into(), role.into(), scope.map(str::to_string));
    let wanted = NewToken { name, role, scope, lifetime_s: Some(lifetime_s) };
    service.admin.post("/v1/tokens", None, &wanted).unwrap()
}

/// Kind and actor of the events that a client sees, up to one of kind `last`.
fn watched(client: &Client, last: &str) -> Vec<(String, Option<String>)> {
    let mut seen = Vec::new();
    let watching = client.watch(Some(0), |event| {
        let is_last = event.kind == last;
        seen.push((event.kind, event.actor));
        !is_last
    });
    watching.unwrap();
    seen
}

#[test]
fn changes_and_refusals_are_in_the_audit_log_and_reads_are_not() {
    let service = service();
    let acme = service.client("ci", "tenant", Some("acme"));
    let vm: Vm = acme.post("/v1/vms", None, &web("db")).unwrap();
    acme.get::<VmPage>("/v1/vms").unwrap();
    acme.post::<Value>("/v1/explain", None, &web("x")).unwrap();
    acme.post::<Vm>("/v1/vms/db/stop", None, &()).unwrap();
    assert_eq!(refused_kind(acme.get::<Value>("/v1/hosts")), ProblemKind::NotAllowed);
    assert_eq!(refused_kind(acme.post::<Vm>("/v1/vms", None, &web("db"))), ProblemKind::Exists);
    service.admin.put("/v1/tenants/acme/quota", &json!({ "vms": 3 })).unwrap();
    assert_eq!(service.status("GET", "/v1/vms", "authorization: Bearer longma-guess\r\n", ""), 401);
    let log = audit_log(&service, "");
    let lines: Vec<_> =
        log.iter().rev().map(|r| (r.actor.as_deref(), &*r.action, r.status, &*r.object)).collect();
    let about = format!("virtual machine {} (acme/db)", vm.id);
    let expected = [
        (Some("local-admin"), "POST /v1/tokens", 201, "token ci with the role tenant for acme"),
        (Some("ci"), "POST /v1/vms", 201, &*about),
        (Some("ci"), "POST /v1/vms/db/stop", 200, &*about),
        (Some("ci"), "GET /v1/hosts", 403, ""),
        (Some("ci"), "POST /v1/vms", 409, "virtual machine db of tenant acme"),
        (
            Some("local-admin"),
            "PUT /v1/tenants/acme/quota",
            204,
            "quota: virtual machines 3, virtual CPUs unlimited, MiB unlimited",
        ),
        (None, "GET /v1/vms", 401, ""),
    ];
    assert_eq!(lines, expected);
    let stopped = &log[4];
    assert_eq!((stopped.role.as_deref(), stopped.scope.as_deref()), (Some("tenant"), Some("acme")));
    assert!(stopped.peer.starts_with("127.0.0.1:") && stopped.problem.is_none(), "{stopped:?}");
    assert!(log[2].problem.as_ref().is_some_and(|why| why.contains("already has")), "{log:?}");
    let text = serde_json::to_string(&log).unwrap();
    assert!(!text.contains("longma-"), "no token is recorded: {text}");
    // Filters and pages.
    assert_eq!(audit_log(&service, "actor=ci").len(), 4);
    let page: AuditPage = service.admin.get("/v1/audit-log?limit=2").unwrap();
    assert_eq!((page.items.len(), page.next), (2, Some(log[1].number)));
    let before = format!("limit=1000&before={}", log[1].number);
    assert_eq!(audit_log(&service, &before), log[2..]);
    assert!(audit_log(&service, "since=99999999999").is_empty());
}

#[test]
fn only_admins_read_the_audit_log_and_nobody_changes_it() {
    let service = service();
    for (role, scope) in [("operator", None), ("tenant", Some("acme")), ("agent", Some("h1"))] {
        let client = service.client(role, role, scope);
        for path in ["/v1/audit-log", "/v1/audit-log?actor=local-admin", "/v1/default-quota"] {
            if role != "operator" || path.contains("audit") {
                assert_eq!(refused_kind(client.get::<Value>(path)), ProblemKind::NotAllowed, "{role} {path}");
            }
        }
        let put = client.put("/v1/default-quota", &json!({ "vms": 1 }));
        assert_eq!(refused_kind(put), ProblemKind::NotAllowed, "{role}");
    }
    for method in ["DELETE", "PUT", "POST", "PATCH"] {
        assert_eq!(service.admin_status(method, "/v1/audit-log", "{}"), 405, "{method}");
    }
    for query in ["limit=0", "limit=1001", "limit=x", "before=-1", "since=1e3", "actor=%00", "who=me"] {
        assert_eq!(service.admin_status("GET", &format!("/v1/audit-log?{query}"), ""), 400, "{query}");
    }
    // An actor's name is data.
    assert!(audit_log(&service, "actor=x%27%20OR%201%3D1--").is_empty());
}

#[test]
fn refused_requests_cannot_fill_the_audit_log_or_forge_a_line() {
    let service = service();
    for _ in 0..80 {
        assert_eq!(service.status("GET", "/v1/vms", "authorization: Bearer x\r\n", ""), 401);
    }
    let long = format!("/v1/vms/{}", "%0A%1b".repeat(200));
    let acme = service.token("a", "tenant", Some("acme"));
    let header = format!("authorization: Bearer {acme}\r\n");
    assert_eq!(service.status("DELETE", &long, &header, ""), 404);
    let log = audit_log(&service, "limit=1000");
    assert_eq!(log.iter().filter(|r| r.status == 401).count(), 60);
    let longest = log.iter().map(|r| r.action.chars().count()).max();
    assert_eq!(longest, Some(200));
    assert!(log.iter().all(|r| !r.action.contains(['\n', '\u{1b}'])));
}

#[test]
fn events_name_their_actor_but_not_to_strangers() {
    let service = service();
    let acme = service.client("ci", "tenant", Some("acme"));
    let vm: Vm = acme.post("/v1/vms", None, &web("db")).unwrap();
    until("it runs", || service.hypervisor.domains().len() == 1);
    service.admin.delete::<Vm>(&format!("/v1/vms/{}", vm.id)).unwrap();
    let all = watched(&service.admin, "deleted");
    let actor = |kind: &str| all.iter().find(|(k, _)| k == kind).unwrap().1.as_deref();
    assert_eq!((actor("reserved"), actor("intent")), (Some("ci"), Some("local-admin")));
    assert_eq!(actor("creating"), None, "the service's own agent");
    let own = watched(&acme, "deleted");
    let actor = |kind: &str| own.iter().find(|(k, _)| k == kind).unwrap().1.as_deref();
    assert_eq!((actor("reserved"), actor("intent")), (Some("ci"), None));
}

#[test]
fn an_expired_token_is_refused_with_the_reason_and_its_streams_end() {
    let service = service();
    let made = expiring(&service, "short", "tenant", Some("acme"), 3);
    let began = Instant::now();
    let client = service.client_of(&made.token);
    client.get::<VmPage>("/v1/vms").unwrap();
    let mut stream = service.connect();
    write!(
        stream,
        "GET /v1/watch HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {}\r\n\r\n",
        made.token
    )
    .unwrap();
    let mut seen = Vec::new();
    stream.read_to_end(&mut seen).unwrap();
    let seen = String::from_utf8_lossy(&seen);
    assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
    assert!(
        began.elapsed() < Duration::from_secs(9),
        "the stream ends with the token: {:?}",
        began.elapsed()
    );
    let refused = client.get::<VmPage>("/v1/vms").unwrap_err();
    assert!(refused.to_string().contains("expired"), "{refused}");
    let ClientError::Refused(problem) = refused else { panic!("{refused}") };
    assert_eq!((problem.status, problem.kind), (401, ProblemKind::TokenExpired));
    let view = token_view(&service, "short");
    assert_eq!(view.expires_at, made.expires_at);
    assert!(view.used_at.is_some_and(|used| Some(used) <= made.expires_at), "{view:?}");
    let last = &audit_log(&service, "limit=1")[0];
    assert_eq!((last.actor.as_deref(), last.status), (Some("short"), 401), "whose token it was");
    for lifetime in [json!(0), json!(-1), json!(315_360_001), json!(1.5), json!("1d"), json!(u64::MAX)] {
        let body = json!({ "name": "x", "role": "operator", "lifetime_s": lifetime }).to_string();
        assert_eq!(service.admin_status("POST", "/v1/tokens", &body), 422, "{body}");
    }
}

#[test]
fn the_last_use_of_a_token_is_listed_at_once() {
    let service = service();
    let client = service.client("used", "operator", None);
    service.token("unused", "operator", None);
    client.get::<VmPage>("/v1/vms").unwrap();
    assert!(token_view(&service, "used").used_at.is_some_and(|at| at > 1_700_000_000));
    assert_eq!(token_view(&service, "unused").used_at, None);
}

#[test]
fn a_default_quota_limits_new_tenants() {
    let service = service();
    service.admin.put("/v1/default-quota", &json!({ "vms": 1 })).unwrap();
    let quota: Quota = service.admin.get("/v1/default-quota").unwrap();
    assert_eq!(quota, Quota { vms: Some(1), ..Quota::default() });
    let acme = service.client("a", "tenant", Some("acme"));
    acme.post::<Vm>("/v1/vms", None, &web("one")).unwrap();
    assert_eq!(refused_kind(acme.post::<Vm>("/v1/vms", None, &web("two"))), ProblemKind::OverQuota);
    let beyond = json!({ "memory_mib": 1u64 << 63 }).to_string();
    assert_eq!(service.admin_status("PUT", "/v1/default-quota", &beyond), 422);
}
