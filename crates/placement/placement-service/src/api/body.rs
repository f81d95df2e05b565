//! Parses JSON bodies. Errors name the field.
//!
//! Source: RFC 8259. serde accepts a list in place of a structure and JSON Schema does not; this module follows JSON
//! Schema.

use crate::problem::HttpProblem;
use crate::state::ServiceState;
use crate::wire::ProblemKind;
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use serde::de::{self, DeserializeOwned, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Maximum size of a body: the largest domain XML, with room for JSON escapes.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 20;
/// Timeout for receiving a body.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// A JSON body with the right content type, within the limits of size and time, and without unknown fields.
pub(crate) struct Body<T>(pub T);

/// The bytes of a JSON body, not parsed yet.
pub(crate) struct RawBody(pub Bytes);

impl<T: DeserializeOwned + Serialize> FromRequest<Arc<ServiceState>> for Body<T> {
    type Rejection = HttpProblem;

    async fn from_request(request: Request, state: &Arc<ServiceState>) -> Result<Self, HttpProblem> {
        let RawBody(bytes) = RawBody::from_request(request, state).await?;
        parse(&bytes).map(Self)
    }
}

impl FromRequest<Arc<ServiceState>> for RawBody {
    type Rejection = HttpProblem;

    async fn from_request(request: Request, _: &Arc<ServiceState>) -> Result<Self, HttpProblem> {
        must_be_json(request.headers())?;
        let read = axum::body::to_bytes(request.into_body(), MAX_BODY_BYTES);
        match tokio::time::timeout(BODY_TIMEOUT, read).await {
            Ok(Ok(bytes)) => Ok(Self(bytes)),
            Ok(Err(_)) => {
                let detail = format!("the body is cut off or has more than {MAX_BODY_BYTES} bytes");
                Err(HttpProblem::new(ProblemKind::BodyTooLong, detail))
            }
            Err(_) => {
                let detail = format!("the body took more than {} s", BODY_TIMEOUT.as_secs());
                Err(HttpProblem::new(ProblemKind::TooSlow, detail))
            }
        }
    }
}

/// Rejects bodies of another type than JSON.
pub(super) fn must_be_json(headers: &HeaderMap) -> Result<(), HttpProblem> {
    let kind = headers.get(CONTENT_TYPE).and_then(|h| h.to_str().ok()).unwrap_or("");
    if kind.split(';').next().map(str::trim) == Some("application/json") {
        return Ok(());
    }
    Err(HttpProblem::new(ProblemKind::WrongContentType, "send the body as application/json".into()))
}

/// Parses a value. Errors name the field. As in JSON Schema, `2.0` is accepted as the integer 2.
pub(super) fn parse<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Result<T, HttpProblem> {
    if let Some(path) = key_given_twice(bytes) {
        return Err(HttpProblem::field(&path, "appears twice".into()));
    }
    parse_strictly(bytes).or_else(|refusal| {
        let parsed = || {
            let mut value: Value = serde_json::from_slice(bytes).ok()?;
            let changed = make_whole(&mut value);
            changed.then(|| parse_strictly(value.to_string().as_bytes()).ok())?
        };
        parsed().ok_or(refusal)
    })
}

/// Returns the path of a duplicate object key. Where the fields are not known in advance (in a map or a generic value),
/// serde would keep the last one.
pub fn key_given_twice(bytes: &[u8]) -> Option<String> {
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let error = serde_path_to_error::deserialize::<_, KeysOnce>(&mut text).err()?;
    // Invalid JSON is reported by the actual parser.
    error.inner().is_data().then(|| error.path().to_string())
}

/// Any JSON value whose objects have no duplicate keys.
struct KeysOnce;

/// Fails to deserialize, to report a duplicate key.
struct DuplicateKey;

impl<'de> Deserialize<'de> for DuplicateKey {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(de::Error::custom("the key appears twice"))
    }
}

impl<'de> Deserialize<'de> for KeysOnce {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for KeysOnce {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Self, A::Error> {
        while all.next_element::<Self>()?.is_some() {}
        Ok(self)
    }
    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<Self, A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = all.next_key::<String>()? {
            // Fail at the value, so that the key is part of the error's path.
            if keys.insert(key) {
                all.next_value::<Self>()?;
            } else {
                all.next_value::<DuplicateKey>()?;
            }
        }
        Ok(self)
    }
}

/// Converts floating-point numbers with integral values to integers. Returns whether there were any.
fn make_whole(value: &mut Value) -> bool {
    match value {
        Value::Number(number) if number.is_f64() => {
            // Up to 2^53, every integer is represented exactly.
            let integer = number.as_f64().filter(|x| x.fract() == 0.0 && x.abs() <= (1u64 << 53) as f64);
            let Some(integer) = integer else { return false };
            *value = (integer as i64).into();
            true
        }
        Value::Array(all) => all.iter_mut().fold(false, |changed, v| make_whole(v) | changed),
        Value::Object(all) => all.values_mut().fold(false, |changed, v| make_whole(v) | changed),
        _ => false,
    }
}

fn parse_strictly<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Result<T, HttpProblem> {
    let mut text = serde_json::Deserializer::from_slice(bytes);
    let value: T = serde_path_to_error::deserialize(&mut text).map_err(|error| {
        let field = error.path().to_string();
        let inner = error.into_inner();
        match serde_json::from_slice::<IgnoredAny>(bytes) {
            Err(error) => HttpProblem::new(ProblemKind::NotJson, error.to_string()),
            Ok(_) if inner.is_data() => HttpProblem::field(&field, inner.to_string()),
            // serde_json reports a list in place of an enum variant as a syntax error.
            Ok(_) => HttpProblem::field(&field, format!("has the wrong type: {inner}")),
        }
    })?;
    text.end().map_err(|error| HttpProblem::new(ProblemKind::NotJson, error.to_string()))?;
    // serde accepts a list of a structure's fields in place of an object. Without any list in the text the check is
    // unnecessary.
    if bytes.contains(&b'[') {
        let refused = |error: serde_json::Error| HttpProblem::new(ProblemKind::NotJson, error.to_string());
        let given: Value = serde_json::from_slice(bytes).map_err(refused)?;
        let taken = serde_json::to_value(&value).map_err(refused)?;
        if let Some(path) = list_for_object(&given, &taken) {
            return Err(HttpProblem::field(&path, "must be an object, not a list".into()));
        }
    }
    Ok(value)
}

/// Path at which a list was accepted in place of an object.
fn list_for_object(given: &Value, taken: &Value) -> Option<String> {
    let below = |place: String, given, taken| {
        let found = list_for_object(given, taken)?;
        let joint = if found.is_empty() || found.starts_with('[') { "" } else { "." };
        Some(format!("{place}{joint}{found}"))
    };
    match (given, taken) {
        (Value::Array(_), Value::Object(_)) => Some(String::new()),
        (Value::Array(given), Value::Array(taken)) => {
            given.iter().zip(taken).enumerate().find_map(|(at, (g, t))| below(format!("[{at}]"), g, t))
        }
        (Value::Object(given), Value::Object(taken)) => {
            given.iter().find_map(|(key, g)| below(key.clone(), g, taken.get(key)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longma_placement::{Host, Request};
    use serde_json::json;

    fn refused<T: DeserializeOwned + Serialize + std::fmt::Debug>(body: &Value) -> (u16, String) {
        let problem = parse::<T>(body.to_string().as_bytes()).unwrap_err().0;
        (problem.status, serde_json::to_string(&problem).unwrap())
    }

    #[test]
    fn a_list_instead_of_a_string_is_reported_with_its_field() {
        let body = json!({ "name": "a", "vcpus": 1, "memory_mib": 64, "cpu": ["range"] });
        let (status, message) = refused::<Request>(&body);
        assert!(
            status == 422 && message.contains(r#""cpu""#) && !message.contains("not JSON"),
            "{status}: {message}"
        );
        let error = parse::<Request>(b"{\"name\": ]").unwrap_err().0;
        assert_eq!(error.kind, ProblemKind::NotJson);
    }

    #[test]
    fn a_duplicate_key_is_reported_with_its_path() {
        let twice = |fields: &[u8]| {
            let problem = key_given_twice(fields);
            // Requests are first parsed as a generic value.
            assert_eq!(parse::<Value>(fields).is_err(), problem.is_some());
            problem
        };
        assert_eq!(twice(br#"{"name": "a", "vcpus": 1, "name": "b"}"#).as_deref(), Some("name"));
        let deep = br#"{"groups": [{"group": "a"}, {"group": "a", "level": "host", "group": "b"}]}"#;
        assert_eq!(twice(deep).as_deref(), Some("groups[1].group"));
        // The same key, spelled with an escape.
        assert_eq!(
            twice(br#"{"boot": {"disk": {"path": "/a", "p\u0061th": "/b"}}}"#).as_deref(),
            Some("boot.disk.path")
        );
        assert_eq!(twice(br#"{"a": {"b": 1}, "b": {"a": [1, 2.5, -3, null, true, "x"]}}"#), None);
        let report = br#"{"vm_cpus": {"1": 0.5, "1": 9.0}}"#;
        let problem = parse::<crate::wire::AgentReport>(report).unwrap_err().0;
        assert_eq!((problem.status, &*problem.fields[0].field), (422, "vm_cpus.1"));
    }

    #[test]
    fn a_list_is_not_an_object_at_any_depth() {
        let with = |key: &str, value: Value| {
            let mut body = json!({ "name": "a", "vcpus": 1, "memory_mib": 64 });
            body[key] = value;
            body
        };
        for (path, body) in [
            ("groups[0]", with("groups", json!([["g", "affinity", "host"]]))),
            ("devices[1]", with("devices", json!([{ "kind": "nic" }, ["nic", null, 1, true]]))),
            ("memory.preferred", with("memory", json!({ "preferred": [16] }))),
            ("boot.disk", with("boot", json!({ "disk": ["/a", "raw"] }))),
            (
                "",
                json!([
                    "a",
                    "t",
                    1,
                    64,
                    "range",
                    "strict",
                    null,
                    null,
                    "shared",
                    "prefer",
                    [],
                    [],
                    "nothing"
                ]),
            ),
        ] {
            let (status, message) = refused::<Request>(&body);
            assert!(
                status == 422 && message.contains(&format!(r#""{path}""#)) && message.contains("not a list"),
                "{message}"
            );
        }
        let node = json!({ "id": 0, "cores": ["0"], "memory": [[4, 64]] });
        let (_, message) = refused::<Host>(&json!({ "name": "h", "nodes": [node], "distances": [[10]] }));
        assert!(message.contains("nodes[0].memory[0]"), "{message}");
        let good = with("groups", json!([{ "group": "g", "relation": "affinity", "level": "host" }]));
        assert_eq!(parse::<Request>(good.to_string().as_bytes()).unwrap().groups.len(), 1);
    }
}
