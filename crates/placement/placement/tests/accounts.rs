//! Tests of accounting: actors of events, the audit log, expiring tokens, default quotas, and the migration of older
//! databases.

#[path = "support/databases.rs"]
mod databases;

use databases::on_each;
use longma_placement::store::{
    AgentStore, AuditQuery, AuditRecord, Intent, Quota, StoreError, Token, VmState,
};
use longma_placement::{Allocator, Host, Policy, Request, Store};
use longma_topology::Machine;

fn host(name: &str) -> Host {
    Host::of_machine(&Machine::open("hygon-8node").unwrap(), name).unwrap()
}

fn token(name: &str, expires_at: Option<i64>) -> Token {
    let digest = format!("digest of {name}");
    Token { name: name.into(), digest, role: "operator".into(), expires_at, ..Token::default() }
}

fn record(actor: &str, action: &str) -> AuditRecord {
    AuditRecord {
        actor: Some(actor.into()),
        role: Some("admin".into()),
        at: 1_800_000_000,
        peer: "192.0.2.7:4711".into(),
        action: action.into(),
        status: 201,
        ..AuditRecord::default()
    }
}

fn actions(store: &dyn Store, query: &AuditQuery) -> Vec<String> {
    store.audit_log(query).unwrap().into_iter().map(|record| record.action).collect()
}

#[test]
fn events_name_the_actor_of_a_change() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&host("h"), 200).unwrap();
        let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
        let vm = allocator
            .on_behalf_of("alice", |allocator| allocator.place(&Request::new("a", 1, 64), None))
            .unwrap()
            .vm;
        allocator.place(&Request::new("b", 1, 64), None).unwrap();
        store.on_behalf_of("bob").set_intent(vm.id, Intent::Stop).unwrap();
        store.on_behalf_of("agent-h").transition(vm.id, VmState::Reserved, VmState::Creating, None).unwrap();
        let events = store.events(0, 0).unwrap();
        let actors: Vec<_> = events.iter().map(|e| (&*e.kind, e.actor.as_deref())).collect();
        let expected = [
            ("described", None),
            ("reserved", Some("alice")),
            ("reserved", None),
            ("intent", Some("bob")),
            ("creating", Some("agent-h")),
        ];
        assert_eq!(actors, expected);
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
    });
}

#[test]
fn the_audit_log_is_read_from_the_newest_in_pages_by_actor_and_time() {
    on_each(|database| {
        let store = database.open();
        for n in 0..5 {
            store
                .append_audit(&[record(if n % 2 == 0 { "alice" } else { "bob" }, &format!("POST /{n}"))])
                .unwrap();
        }
        let all = store.audit_log(&AuditQuery::default()).unwrap();
        assert_eq!(all.iter().map(|r| r.number).collect::<Vec<_>>(), [5, 4, 3, 2, 1]);
        assert_eq!(AuditRecord { number: 0, ..all[0].clone() }, record("alice", "POST /4"));
        let page = AuditQuery { limit: 2, before: 4, ..AuditQuery::default() };
        assert_eq!(actions(&*store, &page), ["POST /2", "POST /1"]);
        let of_bob = AuditQuery { actor: Some("bob".into()), ..AuditQuery::default() };
        assert_eq!(actions(&*store, &of_bob), ["POST /3", "POST /1"]);
        let later = AuditQuery { since: all[0].at + 1000, ..AuditQuery::default() };
        assert!(actions(&*store, &later).is_empty());
        // Retention is that of events.
        assert_eq!(store.prune(all[4].at).unwrap(), 0);
        assert_eq!(store.prune(all[0].at + 1).unwrap(), 5);
        store.append_audit(&[record("alice", "DELETE /")]).unwrap();
        assert_eq!(store.audit_log(&AuditQuery::default()).unwrap()[0].number, 6, "numbers are not reused");
    });
}

#[test]
fn tokens_keep_their_expiry_and_last_use() {
    on_each(|database| {
        let store = database.open();
        store.put_token(&token("a", Some(4_000_000_000))).unwrap();
        store.put_token(&token("b", None)).unwrap();
        store.put_token(&token("c", Some(10))).unwrap();
        let uses = [("digest of a", 100), ("digest of gone", 100), ("digest of a", 90)];
        store.record_token_uses(&uses.map(|(digest, at)| (digest.to_string(), at))).unwrap();
        store.record_token_uses(&[]).unwrap();
        let times = |name: &str| {
            let tokens = store.tokens().unwrap();
            tokens.iter().find(|t| t.name == name).map(|t| (t.expires_at, t.used_at))
        };
        assert_eq!(times("a"), Some((Some(4_000_000_000), Some(100))));
        assert_eq!(times("b"), Some((None, None)));
        assert_eq!(store.prune(10).unwrap(), 0);
        assert_eq!(store.prune(11).unwrap(), 1, "an expired token goes with the history");
        assert_eq!((times("b"), times("c")), (Some((None, None)), None));
    });
}

#[test]
fn a_new_tenant_gets_the_default_quota_of_that_time() {
    on_each(|database| {
        let store = database.open();
        store.put_host(&host("h"), 200).unwrap();
        let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
        let mut place = |tenant: &str, name: &str| {
            let request = Request { tenant: tenant.into(), ..Request::new(name, 2, 64) };
            allocator.place(&request, None).map(drop).map_err(|error| error.to_string())
        };
        place("before", "a").unwrap();
        assert_eq!(store.default_quota().unwrap(), Quota::default());
        let default = Quota { vms: Some(1), vcpus: Some(3), memory_mib: Some(1 << 40) };
        store.set_default_quota(&default).unwrap();
        assert_eq!(store.default_quota().unwrap(), default);
        store.set_quota("known", &Quota::default()).unwrap();
        for tenant in ["before", "known"] {
            place(tenant, "b").unwrap();
            place(tenant, "c").unwrap();
        }
        place("new", "b").unwrap();
        let refused = place("new", "c").unwrap_err();
        assert!(refused.contains("quota is 1"), "{refused}");
        store.set_default_quota(&Quota::default()).unwrap();
        assert!(place("new", "c").is_err(), "a later default does not change a tenant's quota");
        place("newer", "a").unwrap();
        place("newer", "b").unwrap();
        let refused = Quota { vms: Some(0), ..Quota::default() };
        store.set_default_quota(&refused).unwrap();
        assert!(place("newest", "a").is_err());
        let tenants: Vec<_> = store.tenants().unwrap().into_iter().map(|t| (t.tenant, t.vms)).collect();
        let expected = [("before", 3), ("known", 2), ("new", 1), ("newer", 2)];
        assert_eq!(tenants, expected.map(|(tenant, vms)| (tenant.to_string(), vms)));
        assert_eq!(store.check().unwrap(), Vec::<String>::new());
    });
}

#[test]
fn a_database_of_version_4_is_migrated_with_its_contents() {
    on_each(|database| {
        let vm = {
            let store = database.open();
            store.put_host(&host("h"), 200).unwrap();
            store.put_token(&token("old", None)).unwrap();
            let mut allocator = Allocator::open(store.clone(), Policy::default(), 1).unwrap();
            allocator.place(&Request::new("a", 1, 64), None).unwrap().vm
        };
        database.downgrade_to_version_4();
        let store = database.open();
        assert_eq!(store.vm(vm.id).unwrap(), vm);
        let events: Vec<_> = store.events(0, 0).unwrap().into_iter().map(|e| (e.kind, e.actor)).collect();
        assert_eq!(events, [("described".to_string(), None), ("reserved".to_string(), None)]);
        let tokens = store.tokens().unwrap();
        assert_eq!(
            tokens.iter().map(|t| (&*t.name, t.expires_at, t.used_at)).collect::<Vec<_>>(),
            [("old", None, None)]
        );
        assert!(store.audit_log(&AuditQuery::default()).unwrap().is_empty());
        assert_eq!(store.default_quota().unwrap(), Quota::default());
        // The new features work on the migrated database.
        store.append_audit(&[record("old", "POST /")]).unwrap();
        store.set_default_quota(&Quota { vms: Some(7), ..Quota::default() }).unwrap();
        store.on_behalf_of("old").set_intent(vm.id, Intent::Stop).unwrap();
        assert_eq!(store.events(0, 0).unwrap().last().unwrap().actor.as_deref(), Some("old"));
        assert!(matches!(store.put_token(&token("old", None)), Err(StoreError::Taken { .. })));
        assert_eq!(
            database.open().default_quota().unwrap().vms,
            Some(7),
            "a second opening migrates nothing"
        );
    });
}
