//! Fuzzes the API: bodies generated from its OpenAPI document, each with one hostile change. Every answer must be a
//! regular success or rejection.
//!
//! Source: the approach of schemathesis and similar schema-based fuzzers.

use crate::service::*;
use longma_placement_service::openapi;
use longma_random::SplitMix64;
use serde_json::{Map, Value, json};

/// Bodies per operation.
const BODIES: usize = 60;

/// Numbers from a seed, so that every run uses the same bodies.
struct Rng(SplitMix64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        (self.0.next_u64() % end.max(1) as u64) as usize
    }
}

/// Generates a value that matches a schema, with small numbers and short texts.
fn generate(document: &Value, schema: &Value, random: &mut Rng, depth: usize) -> Value {
    if let Some(name) = schema["$ref"].as_str() {
        let at = name.trim_start_matches('#');
        return generate(document, document.pointer(at).unwrap(), random, depth + 1);
    }
    for choice in ["oneOf", "anyOf"] {
        if let Some(choices) = schema[choice].as_array() {
            return generate(document, &choices[random.below(choices.len())], random, depth + 1);
        }
    }
    if let Some(all) = schema["allOf"].as_array() {
        return generate(document, &all[0], random, depth + 1);
    }
    if let Some(words) = schema["enum"].as_array() {
        return words[random.below(words.len())].clone();
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds[random.below(kinds.len())].as_str().unwrap_or_default().to_string(),
        kind => kind.as_str().unwrap_or_default().to_string(),
    };
    match kind.as_str() {
        "object" => {
            let required: Vec<&str> =
                schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let properties = schema["properties"].as_object();
            let wanted = properties
                .into_iter()
                .flatten()
                .filter(|(name, _)| required.contains(&name.as_str()) || depth < 6 && random.below(2) == 0);
            let wanted: Vec<_> = wanted.collect();
            let mut made = Map::new();
            for (name, of) in wanted {
                made.insert(name.clone(), generate(document, of, random, depth + 1));
            }
            Value::Object(made)
        }
        "array" => {
            let length = if depth < 6 { random.below(3) } else { 0 };
            (0..length).map(|_| generate(document, &schema["items"], random, depth + 1)).collect()
        }
        "integer" => json!(1 + random.below(8)),
        "number" => json!(0.5),
        "boolean" => json!(random.below(2) == 0),
        "null" => Value::Null,
        _ => json!(["h1", "web", "0-3", "a"][random.below(4)]),
    }
}

/// An extreme or malformed value.
fn hostile(random: &mut Rng) -> Value {
    let nested = (0..100).fold(json!(1), |inner, _| json!([inner]));
    let all = [
        Value::Null,
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e308),
        json!(0.1),
        json!(""),
        json!("\u{0}\r\n"),
        json!("../../etc/passwd"),
        json!("<x a='b'>]]>&amp;"),
        json!("'; DROP TABLE vms; --"),
        json!("0-4294967295"),
        json!("٣٢١😀"),
        json!("a".repeat(70_000)),
        json!(true),
        json!([]),
        json!({}),
        json!(vec![7; 5_000]),
        nested,
    ];
    all[random.below(all.len())].clone()
}

/// Puts a hostile value in one place, removes a key, or adds one.
fn corrupt(value: &mut Value, random: &mut Rng) {
    let deeper = random.below(4) > 0;
    match value {
        Value::Object(object) if !object.is_empty() => {
            let key = object.keys().nth(random.below(object.len())).unwrap().clone();
            match random.below(6) {
                0 => drop(object.remove(&key)),
                1 => drop(object.insert("extra".into(), hostile(random))),
                _ if deeper => corrupt(&mut object[&key], random),
                _ => object[&key] = hostile(random),
            }
        }
        Value::Array(array) if deeper && !array.is_empty() => {
            let at = random.below(array.len());
            corrupt(&mut array[at], random);
        }
        other => *other = hostile(random),
    }
}

#[test]
fn no_json_body_causes_an_internal_error_or_ends_the_service() {
    let service = service();
    let agent = service.token("g", "agent", Some("h2"));
    let document = serde_json::to_value(openapi()).unwrap();
    let mut random = Rng(SplitMix64::new(16));
    let (mut tried, mut refused) = (0, 0);
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            if schema.is_null() {
                continue;
            }
            let of_agents = path.starts_with("/v1/agents");
            let token = if of_agents { &agent } else { &service.access.token };
            let headers = format!("authorization: Bearer {token}\r\ncontent-type: application/json\r\n");
            let path = path.replace("{vm}", "1").replace("{host}", if of_agents { "h2" } else { "h1" });
            let path = path.replace("{tenant}", "t").replace("{name}", "x");
            for _ in 0..BODIES {
                let mut body = generate(&document, schema, &mut random, 0);
                (0..1 + random.below(2)).for_each(|_| corrupt(&mut body, &mut random));
                // A valid report would block until there is work or the wait time has passed.
                if path.ends_with("/report") && body.as_object().is_some_and(|o| !o.contains_key("extra")) {
                    body["extra"] = json!(1);
                }
                let text = body.to_string();
                let status = service.status(&method.to_uppercase(), &path, &headers, &text);
                let shown: String = text.chars().take(300).collect();
                assert!((200..500).contains(&status), "{status}: {method} {path} {shown}");
                (tried, refused) = (tried + 1, refused + usize::from(status >= 400));
            }
        }
    }
    assert!(tried >= 6 * BODIES && refused > tried / 2, "{refused} of {tried} refused");
    assert_eq!(service.admin_status("GET", "/healthz", ""), 200);
    let audit: Value = service.admin.get("/v1/audit").unwrap();
    assert_eq!(audit["database"], json!([]), "what was taken holds together");
    let logged = service.logged.lock().unwrap();
    assert!(logged.iter().all(|line| !line.contains('\n') && line.len() < 4_000), "lines stay lines");
}
