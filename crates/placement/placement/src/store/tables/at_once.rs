//! A reservation in one round trip. Its statements find the host and the new virtual machine themselves, so that no
//! statement needs the answer to another one. A database that combines statements runs all of them as one.
//!
//! Source: PostgreSQL's manual, 7.8.4 Data-Modifying Statements in WITH.

use super::{Result, now, reserved};
use crate::store::sql::{Answer, Database, Query, Row, Value, values};
use crate::store::{Reservation, Reserved, accounts};

/// The host, if it accepts virtual machines, by its name in parameter 1.
const HOST: &str = "(SELECT id FROM hosts WHERE name = ?1 AND status = 'up')";
/// The new virtual machine, by its tenant and name in parameters 2 and 3.
const VM: &str = "(SELECT id FROM vms WHERE tenant = ?2 AND name = ?3 AND state <> 'deleted')";
/// Number of parameters that all statements share: the host's name, the tenant, and the virtual machine's name.
const SHARED: usize = 3;
/// Number of columns that the statement that charges the tenant returns.
const CHARGE_COLUMNS: usize = 6;

/// Makes the reservation. Returns `None` if a statement violates a constraint or changes nothing; the caller then
/// undoes the other statements.
///
/// # Errors
/// If the tenant would exceed its quota, or the database fails.
pub(super) fn reserve(db: &dyn Database, reservation: &Reservation) -> Result<Option<Reserved>> {
    let created_at = now();
    let statements = statements(db, reservation, created_at)?;
    let answers = match db.combines_statements() {
        true => db.run_all(&[combined(reservation, &statements)]).map(|answers| split(&answers[0])),
        false => {
            let shared = shared(reservation);
            let query =
                |one: &Query<'static>| Query::new(one.sql.clone(), &[&shared, &one.values[..]].concat());
            db.run_all(&statements.iter().map(query).collect::<Vec<_>>())
        }
    };
    match answers {
        Ok(answers) => check(reservation, created_at, &answers),
        Err(failure) if failure.is_constraint() => Ok(None),
        Err(failure) => Err(failure.into()),
    }
}

/// The reservation as one statement, for a database that combines statements.
///
/// # Errors
/// If the request cannot be stored as JSON.
pub(super) fn statement(
    db: &dyn Database,
    reservation: &Reservation,
    created_at: i64,
) -> Result<Query<'static>> {
    Ok(combined(reservation, &statements(db, reservation, created_at)?))
}

/// Reads the answer to [`statement`]. `None` as for [`reserve`].
///
/// # Errors
/// If the tenant would exceed its quota.
pub(in crate::store) fn result(
    reservation: &Reservation,
    created_at: i64,
    answer: &Answer,
) -> Result<Option<Reserved>> {
    check(reservation, created_at, &split(answer))
}

/// Reads the answers to [`statements`].
fn check(reservation: &Reservation, created_at: i64, answers: &[Answer]) -> Result<Option<Reserved>> {
    let is_missing = |answer: &Answer| answer.changed == 0 && answer.rows.is_empty();
    let Some(id) = answers[0].rows.first().filter(|_| !answers.iter().any(is_missing)) else {
        return Ok(None);
    };
    accounts::check_quota(&reservation.request, &answers[1])?;
    Ok(Some(reserved(id.get(0)?, reservation, created_at)))
}

/// The parameters that all statements share.
fn shared(reservation: &Reservation) -> [Value; SHARED] {
    let Reservation { request, placement, .. } = reservation;
    [(&placement.host).into(), (&request.tenant).into(), (&request.name).into()]
}

/// The statements: the first inserts the virtual machine and returns its ID, the second charges the tenant. The
/// `values` of each statement follow the shared parameters.
fn statements(db: &dyn Database, reservation: &Reservation, created_at: i64) -> Result<Vec<Query<'static>>> {
    let Reservation { request, placement, .. } = reservation;
    let (body, placed) = (serde_json::to_string(request)?, serde_json::to_string(placement)?);
    let insert_vm = format!(
        "INSERT INTO vms (tenant, name, request, state, host, placement, created_at, updated_at)
            VALUES (?2, ?3, ?4, 'reserved', {HOST}, ?5, ?6, ?6) RETURNING id"
    );
    let charge = accounts::charge_query(request);
    let mut all = vec![
        Query::new(insert_vm, values![&body, placed, created_at]),
        Query::new(renumber(&charge.sql, |n| if n == 1 { 2 } else { n + 2 }), &charge.values[1..]),
    ];
    let cpus: Vec<Value> = placement.tally().exclusive.iter().map(|(_, cpu)| (*cpu).into()).collect();
    if !cpus.is_empty() {
        let rows: Vec<String> =
            (1..=cpus.len()).map(|at| format!("({HOST}, ?{}, {VM})", SHARED + at)).collect();
        all.push(Query::new(
            format!("INSERT INTO exclusive_cpus (host, cpu, vm) VALUES {}", rows.join(", ")),
            &cpus,
        ));
    }
    // These statements have the host's name as parameter 1.
    all.extend(super::total_changes(0, placement, 1).into_iter().map(|change| {
        let Query { sql, values } = change.query;
        let sql = renumber(&sql, |n| if n == 1 { 1 } else { n + 2 })
            .replace("host = ?1", &format!("host = {HOST}"));
        Query::new(sql, &values[1..])
    }));
    if let Some(key) = &reservation.key {
        let sql =
            format!("INSERT INTO keys (tenant, key, request, vm, created_at) VALUES (?2, ?4, ?5, {VM}, ?6)");
        all.push(Query::new(sql, values![key, &body, created_at]));
    }
    let event = format!(
        "INSERT INTO events (at, vm, host, origin, kind, text, actor) VALUES (?4, {VM}, {HOST}, ?5, 'reserved', '', ?6)"
    );
    all.push(Query::new(event, values![created_at, reservation.origin, db.actor()]));
    Ok(all)
}

/// Replaces the number of each parameter.
fn renumber(sql: &str, number: impl Fn(usize) -> usize) -> String {
    let mut parts = sql.split('?');
    let mut changed = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let old = part[..digits].parse().unwrap_or(0);
        changed += &format!("?{}{}", number(old), &part[digits..]);
    }
    changed
}

/// Combines the statements into one. Each of them sees the tables as they were before the combined statement. The other
/// statements therefore refer to the result of the first one instead of to the new row.
fn combined(reservation: &Reservation, statements: &[Query<'static>]) -> Query<'static> {
    let (mut values, mut parts) = (shared(reservation).to_vec(), vec![format!("host AS {HOST}")]);
    let mut columns = vec!["(SELECT id FROM q0)".to_string()];
    for (at, one) in statements.iter().enumerate() {
        let offset = values.len() - SHARED;
        let sql = one.sql.replace(HOST, "(SELECT id FROM host)").replace(VM, "(SELECT id FROM q0)");
        let sql = renumber(&sql, |n| if n > SHARED { n + offset } else { n });
        let returning = if sql.contains(" RETURNING ") { "" } else { " RETURNING 1" };
        parts.push(format!("q{at} AS ({sql}{returning})"));
        values.extend_from_slice(&one.values);
        if at > 1 {
            columns.push(format!("(SELECT count(*) FROM q{at})"));
        }
    }
    let sql = format!("WITH {} SELECT {}, q1.* FROM q1", parts.join(", "), columns.join(", "));
    Query::new(sql, &values)
}

/// Splits the answer to a combined statement into the answers to its statements.
fn split(answer: &Answer) -> Vec<Answer> {
    let row = answer.rows.first().map_or(&[][..], |row| &row.0);
    let rows_of = |cells: &[Value]| match cells.first() {
        None | Some(Value::Null) => Vec::new(),
        Some(_) => vec![Row(cells.to_vec())],
    };
    let (counts, charge) = row.split_at(row.len().saturating_sub(CHARGE_COLUMNS));
    let changed = counts.iter().skip(1).map(|count| match count {
        Value::Int(count) => Answer { changed: *count as usize, rows: Vec::new() },
        _ => Answer::default(),
    });
    let inserted = Answer { changed: 0, rows: rows_of(counts) };
    let charged = Answer { changed: 0, rows: vec![Row(charge.to_vec())] };
    [inserted, charged].into_iter().chain(changed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_renumbered_and_text_stays() {
        assert_eq!(renumber("a = ?1 AND b IN (?2, ?10)", |n| n + 2), "a = ?3 AND b IN (?4, ?12)");
        assert_eq!(renumber("no parameters", |n| n + 2), "no parameters");
    }
}
