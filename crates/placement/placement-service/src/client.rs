//! HTTP client for the service's API, used by the command and by agents.
//!
//! Source: the service's OpenAPI document.

use crate::data_dir::Access;
use crate::wire::{PROTOCOL, Problem, ProblemKind, Watched, plain};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use ureq::Agent;
use ureq::config::Config;
use ureq::http::{Method, Request, Uri};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

/// Timeout for an answer. Moving a large virtual machine takes longest.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum size of an answer in bytes.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// The service rejected the request.
    #[error("{}", message_of(.0))]
    Refused(Problem),
    /// The service is unreachable.
    #[error("{url} cannot be reached: {why}")]
    Unreachable {
        /// URL of the service.
        url: String,
        /// Reason.
        why: String,
    },
    /// The server did not prove that it is the intended service.
    #[error("{url} answers but is not trusted: {why}")]
    Untrusted {
        /// URL of the service.
        url: String,
        /// The reason and the remedy.
        why: String,
    },
    /// The server is not a placement service.
    #[error("the server at {url} is not a placement service: {why}")]
    Unexpected {
        /// URL of the service.
        url: String,
        /// The unexpected part of its answer.
        why: String,
    },
}

fn message_of(problem: &Problem) -> String {
    // The text echoes user input, so strip terminal control sequences.
    let mut text = plain(&format!("{} ({} {})", problem.detail, problem.status, problem.title));
    for field in &problem.fields {
        text += "\n  ";
        text += &plain(&field.to_string());
    }
    text
}

/// A resolver that maps every name to one address.
#[derive(Debug)]
struct FixedResolver(SocketAddr);

impl Resolver for FixedResolver {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let mut found = self.empty();
        found.push(self.0);
        Ok(found)
    }
}

/// Reads all certificates of a file: the service's own, its issuers', or both.
pub(crate) fn certificates(file: &Path) -> Result<Vec<Certificate<'static>>, String> {
    let pem = std::fs::read(file).map_err(|e| e.to_string())?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.map_err(|e| e.to_string())? {
            found.push(certificate);
        }
    }
    if found.is_empty() { Err("it holds no certificate (PEM: BEGIN CERTIFICATE)".into()) } else { Ok(found) }
}

/// If TLS caused the failure, returns the reason and the remedy.
fn tls_failure(error: &ureq::Error) -> Option<String> {
    use rustls::CertificateError as Wrong;
    let error = match error {
        ureq::Error::Rustls(error) => error,
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref::<rustls::Error>()?,
        _ => return None,
    };
    let advice = match error {
        rustls::Error::InvalidCertificate(wrong) => match wrong {
            Wrong::UnknownIssuer => {
                "no trusted authority signed its certificate: pass that certificate or its issuer's with --certificate"
            }
            Wrong::Expired | Wrong::ExpiredContext { .. } => {
                "its certificate has expired: renew it and restart the service"
            }
            Wrong::NotValidYet | Wrong::NotValidYetContext { .. } => {
                "its certificate is not valid yet: check the clocks of this machine and of the service"
            }
            Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => {
                "its certificate is for another name: use a name in the certificate"
            }
            _ => "its certificate is not valid for a service: see the service's log for the reason",
        },
        rustls::Error::InvalidMessage(_) => {
            "it does not speak TLS: does its address begin with http:// \
            rather than https://?"
        }
        _ => "the TLS handshake failed",
    };
    Some(plain(&format!("{advice} ({error})")))
}

/// A client of one service.
#[derive(Clone, Debug)]
pub struct Client {
    agent: Agent,
    url: String,
    authorization: String,
    /// Identity of the machine, if the client belongs to an agent.
    machine: Option<String>,
}

/// HTTP header with the identity of the agent's machine.
pub(crate) const MACHINE_HEADER: &str = "longma-machine";

/// HTTP header of agents' requests, and of the answers to them, with [`PROTOCOL`] of the sender.
pub(crate) const PROTOCOL_HEADER: &str = "longma-protocol";

/// What to do if an agent of protocol version `agent` is newer than the service. Old services do not name their
/// version.
pub(crate) fn update_service_first(agent: u32, service: Option<u32>) -> String {
    let service = service.map_or("an older one".to_string(), |version| format!("version {version}"));
    format!(
        "this agent speaks version {agent} of the protocol, the service {service}: update the service first"
    )
}

/// Adds the remedy to the answer of a service that does not understand a newer agent.
fn explain_older_service(problem: &mut Problem, service: Option<u32>) {
    let is_of_versions = match problem.kind {
        ProblemKind::WrongFields | ProblemKind::WrongMethod => true,
        // The service does not know the path. For a missing object, the detail is a different one.
        ProblemKind::NotFound => problem.detail.contains("such path"),
        _ => false,
    };
    if is_of_versions {
        problem.detail += &format!("; {}", update_service_first(PROTOCOL, service));
    }
}

/// Percent-encodes a name for use as a path segment.
pub fn part(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~');
    let coded = |b: u8| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") };
    let text: String = name.bytes().map(coded).collect();
    // A segment of only dots would be normalized away as a relative path.
    if matches!(&*text, "." | "..") { text.replace('.', "%2E") } else { text }
}

/// Trusts these certificates, or by default the system's.
pub(crate) fn trusted_roots(certificates: Option<&[Certificate<'static>]>) -> TlsConfig {
    let tls = TlsConfig::builder();
    if let Some(certificates) = certificates {
        return tls.root_certs(RootCerts::new_with_certs(certificates)).build();
    }
    let found = rustls_native_certs::load_native_certs().certs;
    // If the system has no root certificates, use those built into this program.
    if found.is_empty() {
        return tls.build();
    }
    let found: Vec<_> = found.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    tls.root_certs(RootCerts::new_with_certs(&found)).build()
}

impl Client {
    /// Creates a client.
    ///
    /// # Errors
    /// If the certificate cannot be read.
    pub fn new(access: &Access) -> Result<Self, ClientError> {
        let url = access.url.trim_end_matches('/').to_string();
        let tls = match &access.certificate {
            Some(file) => {
                let why = |e: String| ClientError::Unreachable {
                    url: url.clone(),
                    why: format!("the certificate {}: {e}", file.display()),
                };
                trusted_roots(Some(&certificates(file).map_err(why)?))
            }
            None if url.starts_with("https:") => trusted_roots(None),
            None => TlsConfig::default(),
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_global(Some(ANSWER_TIMEOUT))
            .tls_config(tls)
            .build();
        let authorization = format!("Bearer {}", access.token);
        let agent = match access.address {
            Some(address) => Agent::with_parts(config, DefaultConnector::default(), FixedResolver(address)),
            None => config.into(),
        };
        Ok(Self { agent, url, authorization, machine: None })
    }

    /// Returns the service's URL if the token can be read on the network: without TLS, to another machine.
    pub fn plaintext_url(&self) -> Option<&str> {
        let (scheme, rest) = self.url.split_once("://")?;
        let authority =
            Some(rest).filter(|_| scheme.eq_ignore_ascii_case("http"))?.split(['/', '?', '#']).next()?;
        // A user's name before the host may look like a local address.
        let authority = authority.rsplit('@').next()?;
        let host = match authority.strip_prefix('[') {
            Some(rest) => rest.split(']').next()?,
            None => authority.split(':').next()?,
        };
        let is_local =
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        (!is_local).then_some(&*self.url)
    }

    /// Makes this the client of the agent on `machine`, which is reduced to its first 64 alphanumeric characters.
    pub fn for_machine(self, machine: &str) -> Self {
        Self {
            machine: Some(machine.chars().filter(|c| c.is_ascii_alphanumeric()).take(64).collect()),
            ..self
        }
    }

    /// Returns whether the client belongs to an agent.
    pub(crate) fn is_agent(&self) -> bool {
        self.machine.is_some()
    }

    fn unreachable(&self, error: &ureq::Error) -> ClientError {
        if let Some(why) = tls_failure(error) {
            return ClientError::Untrusted { url: self.url.clone(), why };
        }
        ClientError::Unreachable { url: self.url.clone(), why: plain(&error.to_string()) }
    }

    fn unexpected(&self, why: impl ToString) -> ClientError {
        ClientError::Unexpected { url: self.url.clone(), why: plain(&why.to_string()) }
    }

    fn send(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: Option<Vec<u8>>,
    ) -> Result<Vec<u8>, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header("authorization", &self.authorization);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        if let Some(machine) = &self.machine {
            request = request.header(MACHINE_HEADER, machine).header(PROTOCOL_HEADER, PROTOCOL);
        }
        let answered = match body {
            Some(body) => {
                let request = request.header("content-type", "application/json").body(body);
                self.agent.run(request.map_err(|e| self.unexpected(e))?)
            }
            None => self.agent.run(request.body(()).map_err(|e| self.unexpected(e))?),
        };
        let mut answer = answered.map_err(|e| self.unreachable(&e))?;
        let status = answer.status();
        let protocol: Option<u32> =
            answer.headers().get(PROTOCOL_HEADER).and_then(|h| h.to_str().ok()?.parse().ok());
        let bytes = answer
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER_BYTES)
            .read_to_vec()
            .map_err(|e| self.unreachable(&e))?;
        if status.is_success() {
            return Ok(bytes);
        }
        match serde_json::from_slice(&bytes) {
            Ok(mut problem) => {
                if self.is_agent() && protocol.is_none_or(|version| version < PROTOCOL) {
                    explain_older_service(&mut problem, protocol);
                }
                Err(ClientError::Refused(problem))
            }
            Err(_) => Err(self.unexpected(format!("status {status}"))),
        }
    }

    fn json<T: DeserializeOwned>(&self, bytes: &[u8]) -> Result<T, ClientError> {
        // An empty body means `null`.
        let bytes = if bytes.is_empty() { b"null" } else { bytes };
        serde_json::from_slice(bytes).map_err(|e| self.unexpected(e))
    }

    fn body(&self, body: &impl Serialize) -> Result<Option<Vec<u8>>, ClientError> {
        serde_json::to_vec(body).map(Some).map_err(|e| self.unexpected(e))
    }

    /// Sends a GET request.
    ///
    /// # Errors
    /// If the service rejects the request, is unreachable, or is not a placement service.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.json(&self.send(Method::GET, path, None, None)?)
    }

    /// Sends a GET request and returns the body as text.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn get_text(&self, path: &str) -> Result<String, ClientError> {
        String::from_utf8(self.send(Method::GET, path, None, None)?).map_err(|e| self.unexpected(e))
    }

    /// Sends a POST request. With an idempotency `key`, repeating the request has no further effect.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        key: Option<&str>,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = self.body(body)?;
        self.json(&self.send(Method::POST, path, key, body)?)
    }

    /// Sends a PUT request.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn put(&self, path: &str, body: &impl Serialize) -> Result<(), ClientError> {
        let body = self.body(body)?;
        self.send(Method::PUT, path, None, body).map(drop)
    }

    /// Sends a DELETE request.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.json(&self.send(Method::DELETE, path, None, None)?)
    }

    /// Calls `seen` with each event after number `after`, or only with new events if `after` is `None`. Returns when
    /// `seen` returns false or the service ends.
    ///
    /// # Errors
    /// As for [`Client::get`].
    pub fn watch(
        &self,
        after: Option<i64>,
        mut seen: impl FnMut(Watched) -> bool,
    ) -> Result<(), ClientError> {
        let query = after.map(|n| format!("?after={n}")).unwrap_or_default();
        let request = self
            .agent
            .get(format!("{}/v1/watch{query}", self.url))
            .header("authorization", &self.authorization);
        let answer = request.config().timeout_global(None).timeout_recv_body(None).build().call();
        let answer = answer.map_err(|e| self.unreachable(&e))?;
        let status = answer.status();
        let reader = answer.into_body().into_reader();
        if !status.is_success() {
            let mut text = Vec::new();
            // If reading fails, the body is not a valid problem and is reported as `Unexpected` below.
            let _ = reader.take(MAX_ANSWER_BYTES).read_to_end(&mut text);
            return Err(serde_json::from_slice(&text)
                .map_or_else(|_| self.unexpected(format!("status {status}")), ClientError::Refused));
        }
        for line in BufReader::new(reader).lines() {
            // The service has ended, or the connection was lost.
            let Ok(line) = line else { return Ok(()) };
            if let Some(data) = line.strip_prefix("data:") {
                let event = serde_json::from_str(data.trim_start()).map_err(|e| self.unexpected(e))?;
                if !seen(event) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    #[test]
    fn a_token_is_visible_on_the_way_to_another_machine_without_tls() {
        let visible = |url: &str| {
            let access =
                Access { url: url.into(), address: None, token: "longma-0".into(), certificate: None };
            Client::new(&access).unwrap().plaintext_url().is_some()
        };
        for url in [
            "http://host1:7420",
            "http://192.0.2.1",
            "http://[2001:db8::1]:7420/",
            "HTTP://host1",
            "http://localhost:x@host1/",
            "http://127.0.0.1@host1",
        ] {
            assert!(visible(url), "{url}");
        }
        for url in ["http://127.0.0.1:7420", "http://localhost", "http://[::1]:7420", "https://host1:7420"] {
            assert!(!visible(url), "{url}");
        }
    }

    #[test]
    fn an_agent_that_an_older_service_does_not_understand_says_to_update_the_service() {
        let answer = |headers: &'static str, body: &'static str| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 4096]);
                let length = body.len();
                let _ = write!(stream, "HTTP/1.1 422 X\r\n{headers}content-length: {length}\r\n\r\n{body}");
            });
            let access = Access { url, address: None, token: "longma-0".into(), certificate: None };
            let client = Client::new(&access).unwrap().for_machine("m");
            client.get::<()>("/v1/agents/h/vms").unwrap_err().to_string()
        };
        let fields = r#"{"kind":"wrong-fields","status":422,"title":"t","detail":"unknown field"}"#;
        for headers in ["", "longma-protocol: 1\r\n"] {
            let text = answer(headers, fields);
            assert!(text.contains("unknown field; ") && text.contains("update the service first"), "{text}");
        }
        assert!(!answer("longma-protocol: 2\r\n", fields).contains("update"));
        let other = r#"{"kind":"conflict","status":409,"title":"t","detail":"taken"}"#;
        assert!(!answer("", other).contains("update"));
    }
}
