//! Test fixture: a service in this process with a fake hypervisor and a simulated host.
#![allow(dead_code, reason = "every test program uses a part")]

use longma_placement::fake::FakeHypervisor;
use longma_placement::{Host, Policy};
use longma_placement_service::agent::Description;
use longma_placement_service::wire::{HostView, MadeToken, NewToken};
use longma_placement_service::{Access, AllInOne, Client, OidcOptions, Options};
use longma_topology::Machine;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A service that runs until the test process ends.
pub struct Service {
    pub access: Access,
    pub admin: Client,
    pub hypervisor: FakeHypervisor,
    /// Everything it logged.
    pub logged: Arc<Mutex<Vec<String>>>,
    pub folder: tempfile::TempDir,
}

/// Options of a test service.
#[derive(Default)]
pub struct TestOptions {
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Do not start an agent in the service.
    pub without_agent: bool,
    /// A PostgreSQL database instead of a file.
    pub database: Option<String>,
    /// An identity provider.
    pub oidc: Option<OidcOptions>,
    /// Description of the host. The default is [`host`].
    pub description: Option<Description>,
}

/// The default host: eight nodes, each with eight cores of two threads.
pub fn host(name: &str) -> Host {
    Host::of_machine(&Machine::open("hygon-8node").unwrap(), name).unwrap()
}

pub fn service() -> Service {
    service_with(TestOptions::default())
}

pub fn service_with(options: TestOptions) -> Service {
    service_in(tempfile::tempdir().unwrap(), options)
}

/// A service whose state is in the subfolder `home` of a folder.
pub fn service_in(folder: tempfile::TempDir, options: TestOptions) -> Service {
    let hypervisor = FakeHypervisor::new();
    let logged = Arc::new(Mutex::new(Vec::new()));
    let description = options.description.unwrap_or_else(|| Description::Fixed(Box::new(host("h1"))));
    let own = AllInOne { description, hypervisor: Box::new(hypervisor.clone()) };
    let (log, home, without_agent) = (logged.clone(), folder.path().join("home"), options.without_agent);
    let options = Options {
        data_dir: home.clone(),
        database: options.database,
        address: "127.0.0.1:0".parse().unwrap(),
        tls: options.tls,
        plain: false,
        images: "/images".into(),
        policy: Policy::default(),
        retention: None,
        oidc: options.oidc,
        hosts: if without_agent { Vec::new() } else { vec![own] },
        log: Arc::new(move |line: &str| log.lock().unwrap().push(line.to_string())),
    };
    let (ready, is_ready) = channel();
    std::thread::spawn(move || {
        longma_placement_service::serve(options, |_, home| ready.send(home.to_path_buf()).unwrap()).unwrap();
    });
    is_ready.recv_timeout(Duration::from_secs(60)).unwrap();
    let access = Access::read(&home).unwrap();
    let admin = Client::new(&access).unwrap();
    // The agent registers shortly after the service answers.
    if !without_agent {
        until("the host is known", || admin.get::<HostView>("/v1/hosts/h1").is_ok());
    }
    Service { access, admin, hypervisor, logged, folder }
}

impl Service {
    /// Creates a token.
    pub fn token(&self, name: &str, role: &str, scope: Option<&str>) -> String {
        let request = NewToken {
            name: name.into(),
            role: role.into(),
            scope: scope.map(str::to_string),
            ..NewToken::default()
        };
        self.admin.post::<MadeToken>("/v1/tokens", None, &request).unwrap().token
    }

    /// A client with a new token.
    pub fn client(&self, name: &str, role: &str, scope: Option<&str>) -> Client {
        self.client_of(&self.token(name, role, scope))
    }

    pub fn client_of(&self, token: &str) -> Client {
        Client::new(&Access { token: token.into(), ..self.access.clone() }).unwrap()
    }

    pub fn address(&self) -> SocketAddr {
        self.access.url.split_once("://").unwrap().1.parse().unwrap()
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(40))).unwrap();
        stream
    }

    /// Sends raw bytes and returns everything up to the end of the connection.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // Fails if the service answers and closes before it has read everything.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    /// Sends a request and returns the status of the answer.
    pub fn status(&self, method: &str, path: &str, headers: &str, body: &str) -> u16 {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        );
        let answer = self.raw(request.as_bytes());
        let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        status.unwrap_or_else(|| panic!("{method} {path}: {answer:?}"))
    }

    /// Sends a JSON request with the admin's token.
    pub fn admin_status(&self, method: &str, path: &str, body: &str) -> u16 {
        let headers =
            format!("authorization: Bearer {}\r\ncontent-type: application/json\r\n", self.access.token);
        self.status(method, path, &headers, body)
    }
}

/// Waits until the condition holds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..600 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what}: not within 30 s");
}
