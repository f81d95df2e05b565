//! Tokens, quotas (including the default quota), and the tenants' usage, which is checked against quotas. The service defines the roles.

use super::sql::{Answer, Database, Query, Row, values};
use super::tables::{Result, now};
use super::{Quota, StoreError, TenantUse, Token};
use crate::request::Request;

pub(super) fn put_token(db: &dyn Database, token: &Token) -> Result<()> {
    let sql = "INSERT INTO tokens (name, digest, role, scope, created_at, expires_at)
        VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let scope = token.scope.as_deref();
    let added = db.run(sql, values![&token.name, &token.digest, &token.role, scope, now(), token.expires_at]);
    added.map_err(|failure| match failure.is_constraint() {
        true => StoreError::Taken { what: format!("token called {}", token.name) },
        false => failure.into(),
    })?;
    Ok(())
}

pub(super) fn tokens(db: &dyn Database) -> Result<Vec<Token>> {
    let token = |r: &Row| {
        let (name, digest, role) = (r.get(0)?, r.get(1)?, r.get(2)?);
        let (scope, created_at, expires_at, used_at) = (r.get(3)?, r.get(4)?, r.get(5)?, r.get(6)?);
        Ok(Token { name, digest, role, scope, created_at, expires_at, used_at })
    };
    let sql = "SELECT name, digest, role, scope, created_at, expires_at, used_at FROM tokens ORDER BY name";
    db.rows(sql, &[])?.iter().map(token).collect()
}

/// Records when tokens were used. Tokens that have been removed in the meantime are skipped.
pub(super) fn record_token_uses(db: &dyn Database, uses: &[(String, i64)]) -> Result<()> {
    let sql = "UPDATE tokens SET used_at = ?2 WHERE digest = ?1 AND (used_at IS NULL OR used_at < ?2)";
    let uses: Vec<_> = uses.iter().map(|(digest, at)| Query::new(sql, values![digest, *at])).collect();
    db.run_all(&uses)?;
    Ok(())
}

/// A memory limit as stored. A limit above `i64::MAX` is stored as unlimited, unless the caller has rejected it.
fn stored_memory(quota: &Quota) -> Option<i64> {
    quota.memory_mib.map(|mib| i64::try_from(mib).unwrap_or(i64::MAX))
}

/// Reads a quota from three columns.
fn read_quota(row: &Row, column: usize) -> Result<Quota> {
    let memory: Option<i64> = row.get(column + 2)?;
    let memory_mib = memory.map(|mib| mib.max(0) as u64);
    Ok(Quota { vms: row.get(column)?, vcpus: row.get(column + 1)?, memory_mib })
}

pub(super) fn default_quota(db: &dyn Database) -> Result<Quota> {
    let row = db.row("SELECT most_vms, most_vcpus, most_memory_mib FROM default_quota", &[])?;
    row.map_or(Ok(Quota::default()), |row| read_quota(&row, 0))
}

pub(super) fn set_default_quota(db: &dyn Database, quota: &Quota) -> Result<()> {
    let sql = "UPDATE default_quota SET most_vms = ?1, most_vcpus = ?2, most_memory_mib = ?3";
    db.run(sql, values![quota.vms, quota.vcpus, stored_memory(quota)])?;
    Ok(())
}

pub(super) fn set_quota(db: &dyn Database, tenant: &str, quota: &Quota) -> Result<()> {
    let sql = "INSERT INTO tenants (tenant, most_vms, most_vcpus, most_memory_mib) VALUES (?1, ?2, ?3, ?4)
        ON CONFLICT (tenant) DO UPDATE SET most_vms = excluded.most_vms, most_vcpus = excluded.most_vcpus,
            most_memory_mib = excluded.most_memory_mib";
    db.run(sql, values![tenant, quota.vms, quota.vcpus, stored_memory(quota)])?;
    Ok(())
}

pub(super) fn tenants(db: &dyn Database) -> Result<Vec<TenantUse>> {
    let row = |r: &Row| {
        let quota = read_quota(r, 1)?;
        let used: i64 = r.get(6)?;
        let (vms, vcpus, memory_mib) = (r.get(4)?, r.get(5)?, used.max(0) as u64);
        Ok(TenantUse { tenant: r.get(0)?, quota, vms, vcpus, memory_mib })
    };
    let sql = "SELECT tenant, most_vms, most_vcpus, most_memory_mib, vms, vcpus, memory_mib FROM tenants ORDER BY tenant";
    db.rows(sql, &[])?.iter().map(row).collect()
}

/// Adds a virtual machine to its tenant's usage. A new tenant has the default quota. The query returns the new usage,
/// for [`check_quota`].
pub(super) fn charge_query(request: &Request) -> Query<'static> {
    let sql = "INSERT INTO tenants (tenant, vms, vcpus, memory_mib, most_vms, most_vcpus, most_memory_mib)
        VALUES (?1, 1, ?2, ?3, (SELECT most_vms FROM default_quota), (SELECT most_vcpus FROM default_quota),
            (SELECT most_memory_mib FROM default_quota))
        ON CONFLICT (tenant) DO UPDATE SET vms = tenants.vms + 1, vcpus = tenants.vcpus + excluded.vcpus,
            memory_mib = tenants.memory_mib + excluded.memory_mib
        RETURNING most_vms, vms, most_vcpus, vcpus, most_memory_mib, memory_mib";
    Query::new(sql, values![&request.tenant, request.vcpus, request.memory_mib as i64])
}

/// Checks that a tenant's new usage is within its quota.
///
/// # Errors
/// The exceeded limit. The caller must roll the change back.
pub(super) fn check_quota(request: &Request, charged: &Answer) -> Result<()> {
    let sums = charged.rows.first();
    let sums = sums.ok_or_else(|| StoreError::Database("a tenant's totals are missing".into()))?;
    let sum = |at: usize| -> Result<(Option<i64>, i64)> { Ok((sums.get(at)?, sums.get(at + 1)?)) };
    let sums = [("virtual machines", sum(0)?), ("virtual CPUs", sum(2)?), ("MiB of memory", sum(4)?)];
    for (what, (limit, would)) in sums {
        if let Some(limit) = limit.filter(|limit| would > *limit) {
            let (limit, would) = (limit.max(0) as u64, would as u64);
            return Err(StoreError::Quota { tenant: request.tenant.clone(), what, limit, would });
        }
    }
    Ok(())
}

/// Subtracts a virtual machine from its tenant's usage.
pub(super) fn release_usage(db: &dyn Database, request: &Request) -> Result<()> {
    let sql = "UPDATE tenants SET vms = vms - 1, vcpus = vcpus - ?2, memory_mib = memory_mib - ?3 WHERE tenant = ?1";
    db.run(sql, values![&request.tenant, request.vcpus, request.memory_mib as i64])?;
    Ok(())
}
