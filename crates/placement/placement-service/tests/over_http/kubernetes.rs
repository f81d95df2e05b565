//! The extender over HTTP: authentication as kube-scheduler can do it, sizes, and who may ask.

use crate::service::*;
use longma_placement::store::Vm;
use longma_placement_service::wire::NewToken;
use serde_json::{Value, json};

const GUARANTEED: &str = include_str!("../../src/kubernetes/recorded/guaranteed.json");

/// Standard base64 of a text, as in HTTP Basic authentication.
fn base64(text: &str) -> String {
    use base64::prelude::{BASE64_STANDARD, Engine as _};
    BASE64_STANDARD.encode(text)
}

fn headers(authorization: &str) -> String {
    format!("authorization: {authorization}\r\ncontent-type: application/json\r\n")
}

#[test]
fn a_scheduler_may_only_filter_and_prioritize() {
    let service = service();
    let token = service.token("kube", "scheduler", None);
    let basic = headers(&format!("Basic {}", base64(&format!("longma:{token}"))));
    let bearer = headers(&format!("Bearer {token}"));
    for verb in ["filter", "prioritize"] {
        let path = format!("/v1/kubernetes/{verb}");
        for header in [&basic, &bearer] {
            assert_eq!(service.status("POST", &path, header, GUARANTEED), 200, "{verb}");
        }
        for wrong in
            ["Basic", "Basic !", "Basic YTpi", "Bearer YTpi", "Basic bm9jb2xvbg==", &format!("Basic {token}")]
        {
            assert_eq!(service.status("POST", &path, &headers(wrong), GUARANTEED), 401, "{wrong}");
        }
        let admin = headers(&format!("Bearer {}", service.access.token));
        assert_eq!(service.status("POST", &path, &admin, GUARANTEED), 200);
        for (role, scope) in [("tenant", "acme"), ("agent", "h1")] {
            let other = service.token(&format!("{role}-{verb}"), role, Some(scope));
            assert_eq!(
                service.status("POST", &path, &headers(&format!("Bearer {other}")), GUARANTEED),
                403,
                "{role}"
            );
        }
    }
    let client = service.client_of(&token);
    for path in [
        "/v1/vms",
        "/v1/vms/1",
        "/v1/hosts",
        "/v1/tokens",
        "/v1/watch",
        "/v1/tenants",
        "/metrics",
        "/v1/audit-log",
        "/v1/agents/h1/vms",
    ] {
        assert!(client.get::<Value>(path).unwrap_err().to_string().contains("scheduler"), "{path}");
    }
    let vm = json!({ "name": "a", "vcpus": 1, "memory_mib": 64 });
    assert!(client.post::<Vm>("/v1/vms", None, &vm).is_err());
    assert!(client.post::<Value>("/v1/explain", None, &vm).is_err());
    // Basic authentication is for the extender only: browsers would remember it.
    assert_eq!(service.status("GET", "/v1/vms", &basic, ""), 401);
    let admin = headers(&format!("Basic {}", base64(&format!("a:{}", service.access.token))));
    assert_eq!(service.status("GET", "/v1/hosts", &admin, ""), 401);
    let scoped =
        NewToken { name: "x".into(), role: "scheduler".into(), scope: Some("h1".into()), lifetime_s: None };
    assert!(service.admin.post::<Value>("/v1/tokens", None, &scoped).is_err());
}

#[test]
fn hostile_bodies_are_refused_and_do_not_stop_the_extender() {
    let service = service();
    let post = |body: &str| service.admin_status("POST", "/v1/kubernetes/filter", body);
    let deep = format!("{{\"Pod\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for body in ["", "{", "null", "[]", "7", "{\"Pod\":7}", "{\"Pod\":{},\"NodeNames\":[\"a\"]}", &deep] {
        assert_eq!(post(body), 422, "{:.60}", body);
    }
    let header = format!("authorization: Bearer {}\r\ncontent-type: text/plain\r\n", service.access.token);
    assert_eq!(service.status("POST", "/v1/kubernetes/filter", &header, GUARANTEED), 415);
    let long = format!("{{\"Pod\":{{}},\"Nodes\":{{\"items\":[{}]}}}}", " ".repeat(9 << 20));
    assert_eq!(post(&long), 413);
    let many = format!("{{\"Pod\":{{}},\"Nodes\":{{\"items\":[{}0]}}}}", "0,".repeat(100_000));
    assert_eq!(post(&many), 422);
    // This body is larger than other bodies may be.
    let mut args: Value = serde_json::from_str(GUARANTEED).unwrap();
    let mut node = args["Nodes"]["items"][0].clone();
    node["metadata"]["annotations"]["padding"] = json!("x".repeat(4000));
    args["Nodes"]["items"] = Value::Array(vec![node; 500]);
    assert!(args.to_string().len() > 2 << 20);
    assert_eq!(post(&args.to_string()), 200);
    assert_eq!(service.admin_status("GET", "/v1/kubernetes/filter", ""), 405);
}
