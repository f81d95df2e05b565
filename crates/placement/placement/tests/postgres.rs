//! Behaviour specific to a database server: restarts, lost sessions, concurrent writers, and unsafe settings. Without
//! LONGMA_TEST_POSTGRES the tests do nothing.

#[path = "support/databases.rs"]
mod databases;

use databases::{Database, admin};
use longma_placement::request::CpuPolicy;
use longma_placement::store::{Reservation, StoreError, VmQuery};
use longma_placement::{Allocator, Host, Policy, Request, Scheduler, SqlStore, Store};
use longma_topology::Machine;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

fn host(name: &str) -> Host {
    Host::of_machine(&Machine::open("hygon-8node").unwrap(), name).unwrap().with_first_core_reserved()
}

fn on_server(test: impl Fn(&Database, &str)) {
    match std::env::var("LONGMA_TEST_POSTGRES") {
        Ok(server) => test(&Database::on(&server), &server),
        Err(_) => eprintln!("skipped: LONGMA_TEST_POSTGRES names no server"),
    }
}

/// Ends all sessions of the database, as a restart of the server does.
fn end_sessions(database: &Database, server: &str) {
    let Database::Server { name, .. } = database else {
        unreachable!("only databases of a server are passed")
    };
    admin(
        server,
        &format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"),
    );
}

#[test]
fn a_store_continues_after_its_sessions_were_ended() {
    on_server(|database, server| {
        let store = database.open();
        store.put_host(&host("h"), 200).unwrap();
        for round in 0..5 {
            end_sessions(database, server);
            assert_eq!(store.host_names().unwrap().len(), 1, "reading, round {round}");
            end_sessions(database, server);
            store.raise_alarm("h", Some(round), "cpu", 1.0).unwrap();
        }
        assert_eq!(store.alarms(true, 0).unwrap().len(), 5);
    });
}

#[test]
fn killed_sessions_lose_no_acknowledged_change_and_reserve_nothing_twice() {
    on_server(|database, server| {
        let first = database.open();
        (0..4).for_each(|h| first.put_host(&host(&format!("h{h}")), 200).unwrap());
        let (over, answers) = (&AtomicBool::new(false), &AtomicU32::new(0));
        let answered = std::thread::scope(|scope| {
            // Opened before sessions are terminated, because opening a store does not retry.
            let stores: Vec<_> = (0..3u64).map(|t| (t, database.open())).collect();
            let threads: Vec<_> = stores
                .into_iter()
                .map(|(t, store)| {
                    scope.spawn(move || {
                        let mut answered = Vec::new();
                        for v in 0..60 {
                            let name = format!("t{t}-v{v}");
                            let cpu = if v % 2 == 0 { CpuPolicy::Exclusive } else { CpuPolicy::Range };
                            let request = Request { cpu, ..Request::new(&name, 1, 256) };
                            // A client that does not know the outcome retries with the same key.
                            for attempt in 0..50 {
                                if attempt > 0 {
                                    // Wait until a new connection is attempted again.
                                    std::thread::sleep(std::time::Duration::from_millis(50));
                                }
                                let Ok(mut allocator) =
                                    Allocator::open(store.clone(), Policy::default(), 1 + t)
                                else {
                                    continue;
                                };
                                if let Ok(reserved) = allocator.place(&request, Some(&name)) {
                                    answered.push((name.clone(), reserved.vm.id));
                                    answers.fetch_add(1, Ordering::SeqCst);
                                    break;
                                }
                            }
                        }
                        answered
                    })
                })
                .collect();
            scope.spawn(move || {
                // Terminate sessions after a number of further answers and a varying delay, so that the clients make
                // progress however slow the machine is.
                for round in 0u32.. {
                    while answers.load(Ordering::SeqCst) < round * 4 {
                        if over.load(Ordering::SeqCst) {
                            return;
                        }
                        std::thread::sleep(std::time::Duration::from_millis(1));
                    }
                    std::thread::sleep(std::time::Duration::from_millis(u64::from(round * 7 % 23)));
                    end_sessions(database, server);
                }
            });
            let answered: Vec<_> = threads.into_iter().map(|t| t.join()).collect();
            over.store(true, Ordering::SeqCst);
            answered.into_iter().flat_map(|thread| thread.unwrap()).collect::<Vec<_>>()
        });
        let store = database.open();
        assert_eq!(answered.len(), 180, "each was answered in the end");
        let kept = store.vms(&VmQuery::default()).unwrap();
        assert_eq!(kept.len(), 180, "each occurs once");
        for (name, id) in answered {
            assert!(kept.iter().any(|vm| vm.id == id && vm.request.name == name), "{name} was answered");
        }
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
    });
}

#[test]
fn events_have_their_numbers_in_the_order_of_their_commits() {
    on_server(|database, _| {
        let store = database.open();
        store.put_host(&host("h"), 10_000).unwrap();
        let placement = {
            let mut scheduler = Scheduler::new(Policy { overcommit_percent: 10_000, ..Policy::default() }, 1);
            scheduler.put_host(&host("h")).unwrap();
            scheduler.decide(&Request::new("a", 1, 1)).unwrap()
        };
        std::thread::scope(|scope| {
            for t in 0..3 {
                let placement = placement.clone();
                scope.spawn(move || {
                    let store = database.open();
                    for v in 0..50 {
                        let request = Request::new(&format!("t{t}-v{v}"), 1, 1);
                        let (placement, key) = (placement.clone(), None);
                        store.reserve(Reservation { request, placement, key, origin: t }).wait().unwrap();
                    }
                });
            }
            // A follower that has seen event n must never see a smaller number later.
            let (mut seen, mut after) = (0, 0);
            while seen < 150 {
                let events = store.events(after, 0).unwrap();
                seen += events.iter().filter(|e| e.kind == "reserved").count();
                after = events.last().map_or(after, |e| e.number);
            }
        });
    });
}

#[test]
fn tables_of_a_later_version_and_unreachable_databases_are_rejected() {
    on_server(|database, server| {
        drop(database.open());
        let mut client = postgres::Client::connect(&database.url(), postgres::NoTls).unwrap();
        client.batch_execute("INSERT INTO longma_placement_version (version) VALUES (99)").unwrap();
        let refused = SqlStore::connect(&database.url()).unwrap_err();
        assert!(
            matches!(&refused, StoreError::Format(message) if message.contains("version 99")),
            "{refused}"
        );
        let refused = SqlStore::connect(&format!("{server} dbname=there_is_none")).unwrap_err();
        assert!(refused.to_string().contains("there_is_none"), "{refused}");
        for url in ["postgresql://[", "host=/there-is-no-such-folder user=x", "nonsense"] {
            assert!(SqlStore::connect(url).is_err(), "{url}");
        }
    });
}

#[test]
fn a_peer_stopped_in_a_transfer_delays_others_only_briefly() {
    on_server(|database, _| {
        let store = database.open();
        store.put_host(&host("h"), 200).unwrap();
        // A session that holds the write lock and is idle.
        let mut stopped = postgres::Client::connect(&database.url(), postgres::NoTls).unwrap();
        let held =
            "SET idle_in_transaction_session_timeout = '2s'; BEGIN; SELECT pg_advisory_xact_lock(1282436193)";
        stopped.batch_execute(held).unwrap();
        let store: Arc<SqlStore> = store;
        store
            .raise_alarm("h", None, "cpu", 1.0)
            .expect("the server ends the silent session that holds the lock");
    });
}

/// Makes the first `times` statements on `vms` fail with a serialization error, including those that are rolled back.
fn fail_to_serialize(database: &Database, times: u32, at_commit: bool) -> postgres::Client {
    let mut client = postgres::Client::connect(&database.url(), postgres::NoTls).unwrap();
    let trigger = if at_commit { "CONSTRAINT TRIGGER" } else { "TRIGGER" };
    let when = if at_commit { "DEFERRABLE INITIALLY DEFERRED" } else { "" };
    let sql = format!(
        "CREATE SEQUENCE failures;
        CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('failures') <= {times} THEN
                RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001';
            END IF;
            RETURN NEW;
        END $$;
        CREATE {trigger} fails AFTER INSERT ON vms {when} FOR EACH ROW EXECUTE FUNCTION fail();"
    );
    client.batch_execute(&sql).unwrap();
    client
}

fn failures(client: &mut postgres::Client) -> i64 {
    client.query_one("SELECT last_value FROM failures", &[]).unwrap().get(0)
}

#[test]
fn a_transaction_that_cannot_be_serialized_is_retried_as_a_whole() {
    for at_commit in [false, true] {
        on_server(|database, _| {
            let store = database.open();
            store.put_host(&host("h"), 200).unwrap();
            let mut client = fail_to_serialize(database, 5, at_commit);
            let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
            // Reservations that are pending together share a transaction.
            let begun: Vec<_> = (0..20)
                .map(|v| {
                    allocator.begin(&Request::new(&format!("v{v}"), 1, 64), Some(&format!("k{v}"))).unwrap()
                })
                .collect();
            for one in begun {
                assert!(!allocator.finish(one).unwrap().replayed, "each was made once");
            }
            assert!(failures(&mut client) > 20, "there were some");
            assert_eq!(store.vms(&VmQuery::default()).unwrap().len(), 20);
            assert_eq!(store.check().unwrap(), Vec::<String>::new());
            let reserved = store.events(0, 0).unwrap().iter().filter(|e| e.kind == "reserved").count();
            assert_eq!(reserved, 20, "and told once");
        });
    }
}

#[test]
fn a_transaction_that_can_never_be_serialized_is_given_up_and_leaves_nothing() {
    on_server(|database, _| {
        let store = database.open();
        store.put_host(&host("h"), 200).unwrap();
        let mut client = fail_to_serialize(database, u32::MAX, false);
        let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
        let begun = std::time::Instant::now();
        let refused = allocator.place(&Request::new("a", 1, 64), None).unwrap_err().to_string();
        assert!(refused.contains("busy") && refused.contains("40001"), "{refused}");
        assert!(begun.elapsed() < std::time::Duration::from_secs(8), "{:?}", begun.elapsed());
        assert!(failures(&mut client) > 3, "it was tried");
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
        assert_eq!(
            allocator.scheduler().inventory().usage("h").unwrap().vms,
            0,
            "memory holds nothing either"
        );
        client.batch_execute("DROP TRIGGER fails ON vms").unwrap();
        allocator.place(&Request::new("a", 1, 64), None).unwrap();
    });
}

#[test]
fn a_deadlocked_transaction_is_retried() {
    on_server(|database, _| {
        let store = database.open();
        store.put_host(&host("h"), 200).unwrap();
        let mut other = postgres::Client::connect(&database.url(), postgres::NoTls).unwrap();
        // A longer deadlock timeout, so that the server aborts the store's transaction and not this one.
        other.batch_execute("SET deadlock_timeout = '60s'; BEGIN; SELECT * FROM nodes FOR UPDATE").unwrap();
        std::thread::scope(|scope| {
            let placed = scope.spawn(|| {
                let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
                allocator.place(&Request::new("a", 1, 64), None).map(|reserved| reserved.vm.id)
            });
            std::thread::sleep(std::time::Duration::from_millis(300));
            other.batch_execute("SELECT pg_advisory_xact_lock(1282436193); COMMIT").unwrap();
            placed.join().unwrap().unwrap();
        });
        assert_eq!(store.vms(&VmQuery::default()).unwrap().len(), 1);
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
    });
}
