//! JWTs of a local issuer, and those of attackers.

use super::*;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD as URL_SAFE, Engine as _};
use jsonwebtoken::Algorithm;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::json;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// An RSA key for these tests only.
const RSA_KEY: &str = include_str!("test_key.txt");

/// Keys that the issuer sends late.
const SLOW: &str = "slow";

/// An issuer: its keys, and the number of times that they were requested.
struct Issuer {
    url: String,
    jwks: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
    key: EcdsaKeyPair,
}

fn new_key() -> EcdsaKeyPair {
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &SystemRandom::new()).unwrap();
    EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &SystemRandom::new()).unwrap()
}

fn rsa_key() -> RsaKeyPair {
    RsaKeyPair::from_pkcs8(&BASE64_STANDARD.decode(RSA_KEY.split_whitespace().collect::<String>()).unwrap())
        .unwrap()
}

fn jwk(kid: &str, key: &EcdsaKeyPair) -> Value {
    let point = key.public_key().as_ref();
    let [x, y] = [&point[1..33], &point[33..]].map(|part| URL_SAFE.encode(part));
    json!({ "kty": "EC", "crv": "P-256", "use": "sig", "kid": kid, "x": x, "y": y })
}

fn rsa_jwk(kid: &str) -> Value {
    let key = rsa_key();
    let public: ring::rsa::PublicKeyComponents<Vec<u8>> = key.public().into();
    json!({ "kty": "RSA", "alg": "RS256", "kid": kid, "n": URL_SAFE.encode(public.n), "e": URL_SAFE.encode(public.e) })
}

impl Issuer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/realm", listener.local_addr().unwrap());
        let key = new_key();
        let jwks = Arc::new(Mutex::new(json!({ "keys": [jwk("k1", &key), rsa_jwk("r1")] }).to_string()));
        let asked = Arc::new(AtomicUsize::new(0));
        let (keys, count, issuer) = (jwks.clone(), asked.clone(), url.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = [0; 4096];
                let read = stream.read(&mut request).unwrap_or(0);
                let request = String::from_utf8_lossy(&request[..read]).into_owned();
                let body = if request.starts_with("GET /realm/.well-known/openid-configuration ") {
                    json!({ "issuer": issuer, "jwks_uri": format!("{issuer}/keys") }).to_string()
                } else {
                    count.fetch_add(1, Ordering::SeqCst);
                    keys.lock().unwrap().clone()
                };
                if body == SLOW {
                    std::thread::sleep(Duration::from_secs(3));
                }
                let length = body.len();
                let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n";
                let _ = write!(stream, "{head}content-length: {length}\r\n\r\n{body}");
            }
        });
        Self { url, jwks, asked, key }
    }

    fn options(&self) -> OidcOptions {
        let rules = [("groups", Some("ops"), "operator", None), ("org.name", None, "tenant", None)];
        let rule = |(claim, value, role, tenant): (&str, Option<&str>, &str, Option<&str>)| RoleRule {
            claim: claim.into(),
            value: value.map(str::to_string),
            role: role.into(),
            tenant: tenant.map(str::to_string),
        };
        OidcOptions {
            issuer: self.url.clone(),
            audience: "longma".into(),
            jwks: None,
            certificate: None,
            algorithms: vec![Algorithm::RS256, Algorithm::ES256],
            clock_skew_s: 60,
            name_claim: "sub".into(),
            roles: rules.map(rule).to_vec(),
        }
    }

    fn oidc(&self) -> Oidc {
        Oidc::new(self.options(), Arc::new(|_: &str| {})).unwrap()
    }

    /// Claims that are accepted.
    fn claims(&self) -> Value {
        let now = crate::access::now();
        json!({ "iss": self.url, "aud": "longma", "sub": "alice", "exp": now + 600, "groups": ["users", "ops"] })
    }

    fn signed(&self, claims: &Value) -> String {
        signed(&json!({ "alg": "ES256", "kid": "k1", "typ": "JWT" }), claims, |message| {
            self.key.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
        })
    }
}

fn signed(header: &Value, claims: &Value, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let parts = [header, claims].map(|part| URL_SAFE.encode(part.to_string()));
    let message = parts.join(".");
    let signature = URL_SAFE.encode(sign(message.as_bytes()));
    format!("{message}.{signature}")
}

/// The caller, or the kind and the text of the problem.
fn ask(oidc: &Oidc, token: &str) -> Result<Caller, (ProblemKind, String)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(oidc.caller(token)).map_err(|problem| (problem.0.kind, problem.0.detail))
}

fn with(mut claims: Value, key: &str, value: Value) -> Value {
    claims[key] = value;
    claims
}

#[test]
fn claims_decide_the_role() {
    let issuer = Issuer::start();
    let oidc = issuer.oidc();
    let caller = ask(&oidc, &issuer.signed(&issuer.claims())).unwrap();
    assert_eq!((&*caller.name, caller.role.name(), &caller.scope), ("oidc:alice", "operator", &None));
    assert!(caller.expires_at.unwrap() > crate::access::now() + 600, "the skew counts");
    let tenant = with(with(issuer.claims(), "groups", json!("users")), "org", json!({ "name": "acme" }));
    let caller = ask(&oidc, &issuer.signed(&tenant)).unwrap();
    assert_eq!((caller.role.name(), caller.scope.as_deref()), ("tenant", Some("acme")));
    // A value that is not a tenant's name gives no role.
    for name in [json!("a/b"), json!(""), json!(7), json!(["acme"])] {
        let odd = with(with(issuer.claims(), "groups", json!([])), "org", json!({ "name": name.clone() }));
        let (kind, why) = ask(&oidc, &issuer.signed(&odd)).unwrap_err();
        assert_eq!(kind, ProblemKind::NotAllowed, "{name}: {why}");
    }
    let rsa = signed(&json!({ "alg": "RS256", "kid": "r1" }), &issuer.claims(), |message| {
        let (key, mut signature) = (rsa_key(), vec![0; 256]);
        key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
        signature
    });
    assert_eq!(ask(&oidc, &rsa).unwrap().role.name(), "operator");
    let audiences = with(issuer.claims(), "aud", json!(["other", "longma"]));
    assert!(ask(&oidc, &issuer.signed(&audiences)).is_ok());
    // Names are shown to other users.
    let hostile = with(issuer.claims(), "sub", json!("a\u{1b}[2J\u{202e}b"));
    assert!(!ask(&oidc, &issuer.signed(&hostile)).unwrap().name.contains(['\u{1b}', '\u{202e}']));
    let (_, why) = ask(&oidc, &issuer.signed(&with(issuer.claims(), "sub", json!("   ")))).unwrap_err();
    assert!(why.contains("has no name"), "{why}");
}

#[test]
fn hostile_tokens_are_refused() {
    let issuer = Issuer::start();
    let oidc = issuer.oidc();
    let (claims, now) = (issuer.claims(), crate::access::now());
    let not_authenticated = |token: &str| {
        let (kind, why) = ask(&oidc, token).unwrap_err();
        assert_eq!(kind, ProblemKind::NotAuthenticated, "{why}");
        why
    };
    for alg in ["none", "None", "NONE", ""] {
        let unsigned = signed(&json!({ "alg": alg, "kid": "k1" }), &claims, |_| Vec::new());
        assert!(not_authenticated(&unsigned).contains("header is invalid"), "{alg}");
    }
    // The issuer's public key as the secret of a symmetric algorithm.
    let public = issuer.key.public_key().as_ref().to_vec();
    let point = |key: &[u8]| ring::hmac::Key::new(ring::hmac::HMAC_SHA256, key);
    for secret in [public.clone(), issuer.jwks.lock().unwrap().clone().into_bytes(), b"k1".to_vec()] {
        let forged = signed(&json!({ "alg": "HS256", "kid": "k1" }), &claims, |message| {
            ring::hmac::sign(&point(&secret), message).as_ref().to_vec()
        });
        assert!(not_authenticated(&forged).contains("algorithm is not accepted"));
    }
    // An EC signature under the RSA key's name and the reverse, another key, and a changed payload.
    let ec = |message: &[u8]| issuer.key.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec();
    for (alg, kid) in [("ES256", "r1"), ("RS256", "k1"), ("RS256", "r1"), ("ES384", "k1"), ("PS256", "r1")] {
        not_authenticated(&signed(&json!({ "alg": alg, "kid": kid }), &claims, ec));
    }
    let other = new_key();
    let forged = signed(&json!({ "alg": "ES256", "kid": "k1" }), &claims, |message| {
        other.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
    });
    assert!(not_authenticated(&forged).contains("signature is wrong"));
    // A key in the token's own header.
    let brought = json!({ "alg": "ES256", "jwk": jwk("k1", &other), "jku": "http://127.0.0.1:1/" });
    let brought = signed(&brought, &claims, |message| {
        other.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
    });
    not_authenticated(&brought);
    let good = issuer.signed(&claims);
    let parts: Vec<&str> = good.split('.').collect();
    let admin = URL_SAFE.encode(with(claims.clone(), "sub", json!("root")).to_string());
    not_authenticated(&format!("{}.{admin}.{}", parts[0], parts[2]));
    not_authenticated(&format!("{}.{}.", parts[0], parts[1]));
    // Critical extensions, which a recipient must understand.
    not_authenticated(&signed(&json!({ "alg": "ES256", "kid": "k1", "crit": ["x"], "x": 1 }), &claims, ec));
    let wrong = [
        ("aud", json!("other"), "another audience"),
        ("aud", json!([]), "audience"),
        ("iss", json!("https://elsewhere"), "another issuer"),
        ("iss", json!(["https://elsewhere", issuer.url]), "another issuer"),
        ("nbf", json!(now + 120), "not valid yet"),
        ("sub", json!(""), "has no name"),
    ];
    for (key, value, part) in wrong {
        let why = not_authenticated(&issuer.signed(&with(claims.clone(), key, value)));
        assert!(why.contains(part), "{key}: {why}");
    }
    for key in ["exp", "iss", "aud", "sub"] {
        let mut without = claims.clone();
        without.as_object_mut().unwrap().remove(key);
        assert!(not_authenticated(&issuer.signed(&without)).contains(&format!("no claim {key}")), "{key}");
    }
    for value in [json!("soon"), json!(null), json!(-1), json!(1e300)] {
        let odd = ask(&oidc, &issuer.signed(&with(claims.clone(), "exp", value.clone())));
        assert!(odd.is_err() || value == json!(1e300), "{value}");
    }
    let expired = ask(&oidc, &issuer.signed(&with(claims.clone(), "exp", json!(now - 61)))).unwrap_err();
    assert_eq!(expired.0, ProblemKind::TokenExpired);
    assert!(
        ask(&oidc, &issuer.signed(&with(claims, "exp", json!(now - 30)))).is_ok(),
        "the clocks may differ"
    );
}

#[test]
fn new_keys_are_found_and_a_flood_of_unknown_ones_does_not_reach_the_issuer() {
    let issuer = Issuer::start();
    let oidc = issuer.oidc();
    let claims = issuer.claims();
    ask(&oidc, &issuer.signed(&claims)).unwrap();
    assert_eq!(issuer.asked.load(Ordering::SeqCst), 1);
    let unknown = |kid: &str| signed(&json!({ "alg": "ES256", "kid": kid }), &claims, |_| vec![0; 64]);
    for kid in 0..500 {
        let (_, why) = ask(&oidc, &unknown(&format!("x{kid}"))).unwrap_err();
        assert!(why.contains("no such key"), "{why}");
    }
    assert_eq!(issuer.asked.load(Ordering::SeqCst), 1);
    ask(&oidc, &issuer.signed(&claims)).unwrap();
    // The issuer changes its key. After the interval, the new key is found.
    let next = new_key();
    *issuer.jwks.lock().unwrap() =
        json!({ "keys": [jwk("k2", &next), { "kty": "new", "kid": "k3" }] }).to_string();
    let rotated = signed(&json!({ "alg": "ES256", "kid": "k2" }), &claims, |message| {
        next.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
    });
    ask(&oidc, &rotated).unwrap_err();
    oidc.keys.forget_attempt();
    ask(&oidc, &rotated).unwrap();
    assert_eq!(issuer.asked.load(Ordering::SeqCst), 2);
    assert!(
        ask(&oidc, &issuer.signed(&claims)).unwrap_err().1.contains("no such key"),
        "the old key is gone"
    );
    // The known keys stay valid if the issuer's answer is malformed.
    *issuer.jwks.lock().unwrap() = "no keys".into();
    oidc.keys.forget_attempt();
    ask(&oidc, &unknown("k9")).unwrap_err();
    ask(&oidc, &rotated).unwrap();
}

#[test]
fn a_slow_issuer_delays_no_token_whose_key_is_known() {
    let issuer = Issuer::start();
    let oidc = issuer.oidc();
    let token = issuer.signed(&issuer.claims());
    ask(&oidc, &token).unwrap();
    *issuer.jwks.lock().unwrap() = SLOW.into();
    oidc.keys.age(Duration::from_secs(3600));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let began = Instant::now();
    runtime.block_on(oidc.caller(&token)).unwrap();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    // The request to the issuer continues on the runtime.
    drop(runtime);
    // A day after the keys were read, the issuer has to answer.
    oidc.keys.age(Duration::from_secs(25 * 3600));
    assert_eq!(ask(&oidc, &token).unwrap_err().0, ProblemKind::IssuerUnreachable);
}

#[test]
fn an_issuer_that_cannot_be_reached_is_said_to_be() {
    let issuer = Issuer::start();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = OidcOptions { jwks: Some(format!("http://{gone}/keys")), ..issuer.options() };
    let oidc = Oidc::new(options, Arc::new(|_: &str| {})).unwrap();
    let (kind, _) = ask(&oidc, &issuer.signed(&issuer.claims())).unwrap_err();
    assert_eq!(kind, ProblemKind::IssuerUnreachable);
    // Another issuer's configuration.
    let options = OidcOptions { issuer: format!("{}/", issuer.url), ..issuer.options() };
    let oidc = Oidc::new(options, Arc::new(|_: &str| {})).unwrap();
    let claims = with(issuer.claims(), "iss", json!(format!("{}/", issuer.url)));
    assert_eq!(ask(&oidc, &issuer.signed(&claims)).unwrap_err().0, ProblemKind::IssuerUnreachable);
}

#[test]
fn keys_are_used_only_for_what_they_are() {
    let issuer = Issuer::start();
    let claims = issuer.claims();
    let set = |keys: Value| *issuer.jwks.lock().unwrap() = json!({ "keys": keys }).to_string();
    let public = issuer.key.public_key().as_ref().to_vec();
    let secret = json!({ "kty": "oct", "kid": "k1", "k": URL_SAFE.encode(&public) });
    let for_encryption = with(jwk("k1", &issuer.key), "use", json!("enc"));
    let for_other = with(jwk("k1", &issuer.key), "alg", json!("ES384"));
    for keys in [json!([secret]), json!([for_encryption]), json!([for_other]), json!([])] {
        set(keys.clone());
        let (_, why) = ask(&issuer.oidc(), &issuer.signed(&claims)).unwrap_err();
        assert!(why.contains("no such key"), "{keys}: {why}");
    }
    // A token without a key name is accepted only if a single key suits it.
    let unnamed = signed(&json!({ "alg": "ES256" }), &claims, |message| {
        issuer.key.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec()
    });
    set(json!([jwk("k1", &issuer.key), rsa_jwk("r1")]));
    ask(&issuer.oidc(), &unnamed).unwrap();
    set(json!([jwk("k1", &issuer.key), jwk("k2", &new_key())]));
    ask(&issuer.oidc(), &unnamed).unwrap_err();
}

#[test]
fn a_wrong_configuration_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("oidc.toml");
    let open = |text: &str| {
        std::fs::write(&file, text).unwrap();
        OidcOptions::open(&file)
    };
    let rule = "[[roles]]\nclaim = \"groups\"\nvalue = \"ops\"\nrole = \"operator\"\n";
    let good = format!("issuer = \"https://id\"\naudience = \"longma\"\n{rule}");
    let options = open(&good).unwrap();
    assert_eq!((options.algorithms, options.clock_skew_s), (vec![Algorithm::RS256, Algorithm::ES256], 60));
    let wrong = [
        (good.replace("https", "http"), "must begin with https"),
        (good.replace("\"longma\"", "\"longma\"\nalgorithms = [\"HS256\"]"), "public keys"),
        (good.replace("\"longma\"", "\"longma\"\nalgorithms = [\"none\"]"), "unknown variant"),
        (good.replace("\"longma\"", "\"longma\"\nclock_skew_s = 3600"), "at most 300"),
        (good.replace("longma", ""), "audience"),
        (good.replace("\"operator\"", "\"agent\""), "not admin, operator or tenant"),
        (good.replace("\"operator\"", "\"tenant\""), "needs a value and a tenant"),
        (good.replace("value = \"ops\"\n", ""), "needs a value"),
        (good.replace(rule, "roles = []"), "no token has any right"),
        (good.replace("audience", "audiences"), "unknown field"),
    ];
    for (text, part) in wrong {
        let why = open(&text).unwrap_err();
        assert!(why.contains(part) && why.contains("oidc.toml"), "{why}");
    }
}
