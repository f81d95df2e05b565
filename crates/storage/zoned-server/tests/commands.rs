//! Tests of the commands, with one client and with several.

mod support;

use longma_zoned_server::{Limits, Password, Settings};
use proptest::prelude::*;
use std::collections::BTreeMap;
use support::{Client, Reply, Running, encoded};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A request of the model test.
#[derive(Clone, Debug)]
enum Request {
    Get(u8),
    Set(u8, u16, &'static str),
    Delete(Vec<u8>),
    Exists(Vec<u8>),
    GetMany(Vec<u8>),
    SetMany(Vec<(u8, u8)>),
    Range(u8, u8, bool, u8),
    Size,
    Transaction(Vec<Request>),
}

fn key(number: u8) -> Vec<u8> {
    format!("key{number:03}").into_bytes()
}

fn value(size: u16) -> Vec<u8> {
    vec![b'a' + (size % 26) as u8; usize::from(size)]
}

fn simple_request() -> impl Strategy<Value = Request> {
    let number = 0u8..12;
    let numbers = || prop::collection::vec(0u8..12, 1..5);
    prop_oneof![
        number.clone().prop_map(Request::Get),
        // The range includes values that are stored outside of leaves.
        (number.clone(), prop_oneof![0u16..40, 3000u16..6000], prop::sample::select(vec!["", "NX", "XX"]))
            .prop_map(|(key, size, condition)| Request::Set(key, size, condition)),
        numbers().prop_map(Request::Delete),
        numbers().prop_map(Request::Exists),
        numbers().prop_map(Request::GetMany),
        prop::collection::vec((0u8..12, any::<u8>()), 1..4).prop_map(Request::SetMany),
        (number.clone(), number, any::<bool>(), 1u8..6)
            .prop_map(|(a, b, reverse, n)| Request::Range(a, b, reverse, n)),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        6 => simple_request(),
        1 => Just(Request::Size),
        1 => prop::collection::vec(simple_request(), 0..5).prop_map(Request::Transaction),
    ]
}

impl Request {
    fn words(&self) -> Vec<Vec<u8>> {
        let with_keys = |name: &str, keys: &[u8]| {
            std::iter::once(name.into()).chain(keys.iter().map(|number| key(*number))).collect()
        };
        match self {
            Self::Get(number) => with_keys("GET", &[*number]),
            Self::Set(number, size, "") => vec![b"SET".to_vec(), key(*number), value(*size)],
            Self::Set(number, size, condition) => {
                vec![b"SET".to_vec(), key(*number), value(*size), (*condition).into()]
            }
            Self::Delete(keys) => with_keys("DEL", keys),
            Self::Exists(keys) => with_keys("EXISTS", keys),
            Self::GetMany(keys) => with_keys("MGET", keys),
            Self::SetMany(pairs) => std::iter::once(b"MSET".to_vec())
                .chain(pairs.iter().flat_map(|(number, size)| [key(*number), value((*size).into())]))
                .collect(),
            Self::Range(start, end, reverse, count) => {
                let mut words = vec![
                    b"RANGE".to_vec(),
                    [&b"["[..], &key(*start)].concat(),
                    [&b"("[..], &key(*end)].concat(),
                ];
                words.extend([b"COUNT".to_vec(), count.to_string().into()]);
                words.extend(reverse.then(|| b"REV".to_vec()));
                words
            }
            Self::Size => vec![b"DBSIZE".to_vec()],
            Self::Transaction(_) => Vec::new(),
        }
    }

    fn encoded(&self) -> Vec<u8> {
        match self {
            Self::Transaction(requests) => {
                let inner: Vec<u8> = requests.iter().flat_map(Self::encoded).collect();
                [encoded(&["MULTI"]), inner, encoded(&["EXEC"])].concat()
            }
            _ => encoded(&self.words()),
        }
    }

    /// The model's reply.
    fn expected(&self, model: &mut Model) -> Reply {
        match self {
            Self::Get(number) => Reply::Bulk(model.get(&key(*number)).cloned()),
            Self::Set(number, size, condition) => {
                let is_met = match *condition {
                    "NX" => !model.contains_key(&key(*number)),
                    "XX" => model.contains_key(&key(*number)),
                    _ => true,
                };
                if is_met {
                    model.insert(key(*number), value(*size));
                }
                if is_met { Reply::ok() } else { Reply::Bulk(None) }
            }
            Self::Delete(keys) => Reply::Integer(
                keys.iter().filter(|number| model.remove(&key(**number)).is_some()).count() as i64,
            ),
            Self::Exists(keys) => {
                Reply::Integer(keys.iter().filter(|number| model.contains_key(&key(**number))).count() as i64)
            }
            Self::GetMany(keys) => Reply::Array(Some(
                keys.iter().map(|number| Reply::Bulk(model.get(&key(*number)).cloned())).collect(),
            )),
            Self::SetMany(pairs) => {
                model.extend(pairs.iter().map(|(number, size)| (key(*number), value((*size).into()))));
                Reply::ok()
            }
            Self::Range(start, end, reverse, count) => {
                let mut rows: Vec<_> =
                    model.iter().filter(|(k, _)| (key(*start)..key(*end)).contains(k)).collect();
                if *reverse {
                    rows.reverse();
                }
                Reply::bulks(rows.into_iter().take((*count).into()).flat_map(|(key, value)| [key, value]))
            }
            Self::Size => Reply::Integer(model.len() as i64),
            Self::Transaction(requests) => {
                Reply::Array(Some(requests.iter().map(|request| request.expected(model)).collect()))
            }
        }
    }
}

/// The reply to a request that was sent. The replies to the commands of a transaction are checked here.
fn replied(client: &mut Client, request: &Request) -> Reply {
    if let Request::Transaction(requests) = request {
        assert_eq!(client.reply(), Reply::ok());
        for _ in requests {
            assert_eq!(client.reply(), Reply::Simple("QUEUED".into()));
        }
    }
    client.reply()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_requests_pipelined_or_not_have_the_replies_of_a_model(
        pipelines in prop::collection::vec(prop::collection::vec(request(), 1..12), 1..12),
    ) {
        let server = Running::new(Settings::default());
        let (mut client, mut model) = (server.client(), Model::new());
        for requests in pipelines {
            client.send(&requests.iter().flat_map(Request::encoded).collect::<Vec<_>>());
            for request in requests {
                prop_assert_eq!(replied(&mut client, &request), request.expected(&mut model), "{:?}", request);
            }
        }
        server.end().unwrap();
    }
}

#[test]
fn changes_of_several_clients_are_applied_one_after_the_other() {
    let server = Running::new(Settings::default());
    let mut threads = Vec::new();
    for _ in 0..8 {
        let mut client = server.client();
        threads.push(std::thread::spawn(move || {
            for _ in 0..40 {
                // Retry until no other client has changed the counter in the meantime.
                loop {
                    assert_eq!(client.ask("WATCH counter"), Reply::ok());
                    let old = match client.ask("GET counter") {
                        Reply::Bulk(None) => 0,
                        found => String::from_utf8(found.bytes()).unwrap().parse::<u32>().unwrap(),
                    };
                    assert_eq!(client.ask("MULTI"), Reply::ok());
                    client.ask(&format!("SET counter {}", old + 1));
                    client.ask("GET counter");
                    match client.ask("EXEC") {
                        Reply::Array(None) => continue,
                        done => assert_eq!(done.array()[1], Reply::bulk((old + 1).to_string())),
                    }
                    break;
                }
            }
        }));
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(server.client().ask("GET counter"), Reply::bulk("320"));
}

#[test]
fn a_transaction_with_a_refused_command_or_a_changed_key_changes_nothing() {
    let server = Running::new(Settings::default());
    let (mut client, mut other) = (server.client(), server.client());
    client.ask("MULTI");
    assert_eq!(client.ask("SET a 1"), Reply::Simple("QUEUED".into()));
    assert!(client.ask("SET a 1 EX 5").error().contains("keys do not expire"));
    assert!(client.ask("EXEC").error().starts_with("EXECABORT"));
    assert_eq!(client.ask("GET a"), Reply::Bulk(None));
    client.ask("MULTI");
    client.ask("SET a 1");
    assert_eq!(client.ask("DISCARD"), Reply::ok());
    assert_eq!(client.ask("GET a"), Reply::Bulk(None));
    for (change, conflict) in [
        ("SET a 2", true),
        ("DEL absent", false),
        ("SET a 3 NX", false),
        ("DEL a", true),
        ("MSET b 1 a 4", true),
    ] {
        client.ask("WATCH a absent");
        other.ask(change);
        client.ask("MULTI");
        client.ask("PING");
        assert_eq!(client.ask("EXEC") == Reply::Array(None), conflict, "{change}");
    }
    client.ask("WATCH a");
    other.ask("SET a 5");
    client.ask("UNWATCH");
    client.ask("MULTI");
    assert_eq!(client.ask("EXEC"), Reply::Array(Some(Vec::new())));
    assert!(client.ask("EXEC").error().contains("EXEC without MULTI"));
    client.ask("MULTI");
    assert!(client.ask("MULTI").error().contains("nested"));
    assert!(client.ask("WATCH a").error().contains("inside MULTI"));
    assert_eq!(client.ask("UNWATCH"), Reply::Simple("QUEUED".into()));
    assert_eq!(client.ask("EXEC"), Reply::Array(Some(vec![Reply::ok()])));
    // A conditional command that does not change its key causes no conflict, even if the transaction changes another
    // key.
    client.ask("SET kept 1");
    client.ask("WATCH absent kept");
    other.ask("MULTI");
    for command in ["DEL absent other", "SET kept 2 NX", "SET absent 1 XX", "SET other 1"] {
        other.ask(command);
    }
    assert_eq!(other.ask("EXEC").array().len(), 4);
    client.ask("MULTI");
    assert_eq!(client.ask("EXEC"), Reply::Array(Some(Vec::new())));
    // Changes in the client's own pipeline count too.
    client.send(
        &[encoded(&["WATCH", "a"]), encoded(&["SET", "a", "6"]), encoded(&["MULTI"]), encoded(&["EXEC"])]
            .concat(),
    );
    let replies: Vec<Reply> = (0..4).map(|_| client.reply()).collect();
    assert_eq!(replies[3], Reply::Array(None));
}

#[test]
fn a_scan_returns_each_key_once_while_others_change() {
    let server = Running::new(Settings::default());
    let mut client = server.client();
    for number in 0..500 {
        client.send(&encoded(&["SET", &format!("user:{number:03}"), "x"]));
        client.send(&encoded(&["SET", &format!("z{number}"), "x"]));
    }
    (0..1000).for_each(|_| assert_eq!(client.reply(), Reply::ok()));
    let (mut found, mut cursor) = (Vec::new(), "0".to_string());
    loop {
        let [next, keys] =
            client.ask(&format!("SCAN {cursor} MATCH user:*[05] COUNT 7")).array().try_into().unwrap();
        found.extend(keys.array().into_iter().map(|key| String::from_utf8(key.bytes()).unwrap()));
        server.client().ask("SET a new");
        server.client().ask("DEL user:250");
        cursor = String::from_utf8(next.bytes()).unwrap();
        if cursor == "0" {
            break;
        }
    }
    let expected: Vec<_> = (0..500)
        .step_by(5)
        .filter(|number| *number != 250)
        .map(|number| format!("user:{number:03}"))
        .collect();
    assert_eq!(found, expected);
    assert!(client.ask("SCAN 77777").error().contains("start again at 0"));
    let all = client.ask("SCAN 0 COUNT 100000").array();
    assert_eq!((&all[0], all[1].clone().array().len()), (&Reply::bulk("0"), 1000));
    assert_eq!(
        client.ask("SCAN 0 MATCH nothing*").array(),
        [Reply::bulk("0"), Reply::Array(Some(Vec::new()))]
    );
}

#[test]
fn a_scan_with_an_expensive_pattern_returns_early_and_continues() {
    let server = Running::new(Settings::default());
    let mut client = server.client();
    for number in 0..300 {
        client.send(&encoded(&["SET", &format!("{number:03}{}", "a".repeat(480)), "x"]));
    }
    (0..300).for_each(|_| assert_eq!(client.reply(), Reply::ok()));
    let pattern = format!("*{}b*", "a".repeat(240));
    let (mut calls, mut cursor) = (0, "0".to_string());
    while calls == 0 || cursor != "0" {
        let reply = client.ask(&format!("SCAN {cursor} MATCH {pattern} COUNT 100000")).array();
        assert_eq!(reply[1], Reply::Array(Some(Vec::new())));
        cursor = String::from_utf8(reply[0].clone().bytes()).unwrap();
        calls += 1;
    }
    assert!((3..=300).contains(&calls), "{calls}");
    let longest = "?".repeat(1024);
    assert_eq!(client.ask(&format!("SCAN 0 MATCH {longest}")).array().len(), 2);
    assert!(client.ask(&format!("SCAN 0 MATCH {longest}?")).error().contains("at most 1024"));
}

#[test]
fn a_range_from_the_last_or_to_the_first_key_is_empty() {
    let server = Running::new(Settings::default());
    let mut client = server.client();
    client.ask("SET a 1");
    for range in ["+ -", "+ +", "- -", "+ [z", "[a -", "+ - REV"] {
        assert_eq!(client.ask(&format!("RANGE {range}")), Reply::Array(Some(Vec::new())), "{range}");
    }
}

#[test]
fn a_client_learns_what_the_server_is() {
    let server = Running::new(Settings::default());
    let mut client = server.client();
    assert_eq!(client.ask("PING"), Reply::Simple("PONG".into()));
    assert_eq!(client.ask("PING river"), Reply::bulk("river"));
    assert_eq!(client.ask("ECHO map"), Reply::bulk("map"));
    for version in ["1", "4", "x"] {
        assert!(client.ask(&format!("HELLO {version}")).error().starts_with("NOPROTO"));
    }
    let hello = client.ask("HELLO 2 SETNAME reader").array();
    assert_eq!(&hello[4..6], &[Reply::bulk("proto"), Reply::Integer(2)]);
    assert_eq!(client.ask("CLIENT GETNAME"), Reply::bulk("reader"));
    assert_eq!(client.ask("SELECT 0"), Reply::ok());
    assert!(client.ask("AUTH x").error().contains("has no password"));
    client.ask("SET a 1");
    let info = String::from_utf8(client.ask("INFO").bytes()).unwrap();
    for line in
        ["connected_clients:1", "durability:each_reply", "committed_commands:1", "db0:keys=1,expires=0"]
    {
        assert!(info.contains(line), "{info}");
    }
    let Reply::Integer(count) = client.ask("COMMAND COUNT") else { panic!() };
    let commands = client.ask("COMMAND").array();
    assert_eq!(commands.len() as i64, count);
    let get = client.ask("COMMAND INFO get").array().remove(0).array();
    assert_eq!((&get[0], &get[1]), (&Reply::bulk("get"), &Reply::Integer(2)));
    assert_eq!(client.ask("QUIT"), Reply::ok());
    assert_eq!(client.try_reply(), None);
}

#[test]
fn version_3_of_the_protocol_has_its_own_null_and_map() {
    use std::io::Read;
    let server = Running::new(Settings::default());
    let mut client = server.client();
    let mut expect = |request: &str, reply: &str| {
        client.send(&encoded(&request.split(' ').collect::<Vec<_>>()));
        let mut got = vec![0; reply.len()];
        client.socket.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), reply, "{request}");
    };
    let hello = |first: &str, proto| {
        let version = env!("CARGO_PKG_VERSION");
        format!(
            "{first}\r\n$6\r\nserver\r\n$6\r\nlongma\r\n$7\r\nversion\r\n${}\r\n{version}\r\n$5\r\nproto\r\n:{proto}\r\n\
             $2\r\nid\r\n:1\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n",
            version.len()
        )
    };
    expect("HELLO 3", &hello("%7", 3));
    expect("GET a", "_\r\n");
    expect("SET a 1 XX", "_\r\n");
    expect("SET a 1", "+OK\r\n");
    expect("MGET a b", "*2\r\n$1\r\n1\r\n_\r\n");
    expect("WATCH a", "+OK\r\n");
    expect("SET a 2", "+OK\r\n");
    expect("MULTI", "+OK\r\n");
    expect("EXEC", "_\r\n");
    expect("HELLO", &hello("%7", 3));
    expect("HELLO 2", &hello("*14", 2));
    expect("GET b", "$-1\r\n");
}

#[test]
fn without_the_password_a_client_can_only_authenticate() {
    let password = Some(Password::new(b"secret"));
    let server = Running::new(Settings { password, ..Settings::default() });
    let mut client = server.client();
    for request in ["GET a", "SET a 1", "PING", "INFO", "COMMAND", "MULTI", "NOTHING", "CLIENT ID"] {
        assert!(client.ask(request).error().starts_with("NOAUTH"), "{request}");
    }
    assert!(client.ask("HELLO 2").error().starts_with("NOAUTH"));
    assert!(client.ask("AUTH wrong").error().starts_with("WRONGPASS"));
    assert!(client.ask("AUTH other secret").error().starts_with("WRONGPASS"));
    assert_eq!(client.ask("AUTH secret"), Reply::ok());
    assert_eq!(client.ask("SET a 1"), Reply::ok());
    let mut client = server.client();
    assert_eq!(client.ask("HELLO 2 AUTH default secret").array().len(), 14);
    assert_eq!(client.ask("GET a"), Reply::bulk("1"));
    let mut guesser = server.client();
    (0..3).for_each(|_| assert!(guesser.ask("AUTH guess").error().starts_with("WRONGPASS")));
    assert_eq!(guesser.try_reply(), None, "disconnected after three wrong passwords");
}

#[test]
fn a_full_map_refuses_one_clients_insert_and_takes_anothers_deletion() {
    use longma_zoned::device::{Geometry, MemoryDevice};
    let geometry = Geometry {
        block_bytes: 4096,
        zone_blocks: 64,
        zone_capacity_blocks: 64,
        conventional_zones: 2,
        sequential_zones: 12,
        max_open_zones: 0,
        max_active_zones: 0,
    };
    let map = longma_zoned::Store::open_or_create(
        MemoryDevice::new(geometry).unwrap(),
        longma_zoned::Options::with_cache(1 << 20),
    )
    .unwrap();
    let server = Running::with_map(Settings::default(), map);
    let mut client = server.client();
    let big = "x".repeat(40_000);
    let refused = (0..1000).filter(|number| client.ask(&format!("SET key{number} {big}")) != Reply::ok());
    assert_eq!(refused.take(3).count(), 3);
    // In one pipeline, and so in one group.
    let more: Vec<String> = (0..10).flat_map(|number| [format!("more{number}"), big.clone()]).collect();
    let mut pipeline = encoded(&[&["MSET".to_string()][..], &more].concat());
    pipeline.extend(encoded(&["DEL", "key0", "key1"]));
    pipeline.extend(encoded(&["GET", "key2"]));
    client.send(&pipeline);
    assert!(client.reply().error().contains("is full"));
    assert_eq!(client.reply(), Reply::Integer(2));
    assert_eq!(client.reply(), Reply::bulk(&big));
    server.end().unwrap();
}

#[test]
fn a_server_that_ends_finishes_what_has_arrived_and_closes_the_map() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("map");
    let geometry = longma_zoned::device::Geometry::with_capacity(64 << 20);
    let open = || longma_zoned::device::FileDevice::open_or_create(&path, geometry).unwrap();
    let map = longma_zoned::Store::open_or_create(open(), longma_zoned::Options::default()).unwrap();
    let server = Running::with_map(Settings::default(), map);
    let mut clients: Vec<Client> = (0..4).map(|_| server.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.ask(&format!("SET key{number} 1")), Reply::ok());
    }
    server.end().unwrap();
    clients.iter_mut().for_each(|client| assert_eq!(client.try_reply(), None));
    let map = longma_zoned::Store::open_or_create(open(), longma_zoned::Options::default()).unwrap();
    assert_eq!(map.len(), 4);
    map.close().unwrap();
}

#[test]
fn limits_on_transactions_and_watched_keys_hold() {
    let limits = Limits { pipeline: 3, command_bytes: 1024, ..Limits::default() };
    let server = Running::new(Settings { limits, ..Settings::default() });
    let mut client = server.client();
    assert!(client.ask("WATCH a b c d").error().contains("at most 3 keys"));
    client.ask("MULTI");
    (0..3).for_each(|_| assert_eq!(client.ask("SET a 1"), Reply::Simple("QUEUED".into())));
    assert!(client.ask("SET a 1").error().contains("at most 3 commands"));
    assert!(client.ask("EXEC").error().starts_with("EXECABORT"));
    client.ask("MULTI");
    client.ask(&format!("SET a {}", "x".repeat(500)));
    assert!(client.ask(&format!("SET a {}", "x".repeat(500))).error().contains("at most 1024 bytes"));
    assert!(client.ask("EXEC").error().starts_with("EXECABORT"));
    assert_eq!(client.ask("GET a"), Reply::Bulk(None));
}
