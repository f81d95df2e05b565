//! `longma placement token`, `longma placement quota` and `longma placement audit-log`.

use super::Outcome;
use super::connection::{ConnectionOptions, FormatOptions, with_advice};
use super::print::{self, heading, mib, print_line};
use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use longma_command_line::{size, utc_time};
use longma_placement::store::Quota;
use longma_placement_service::client::part;
use longma_placement_service::wire::{AuditPage, MadeToken, NewToken, Tenants, Tokens};
use std::time::SystemTime;

/// Arguments of `longma placement token`.
#[derive(clap::Args)]
pub struct TokenArguments {
    #[command(subcommand)]
    action: TokenAction,
}

/// Options common to all token commands.
#[derive(clap::Args)]
struct Common {
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

#[derive(Subcommand)]
enum TokenAction {
    /// Create a token and print it. The secret is shown only once.
    #[command(visible_alias = "create")]
    Add {
        /// The token's name.
        name: String,
        /// Role of the token.
        #[arg(long, value_parser = PossibleValuesParser::new(["admin", "operator", "tenant", "agent", "scheduler"]))]
        role: String,
        /// The tenant that a tenant token is for.
        #[arg(long, conflicts_with = "host")]
        tenant: Option<String>,
        /// The host that an agent token is for.
        #[arg(long)]
        host: Option<String>,
        /// Refuse the token after this time, for example 90d, 12h or 30m [default: never].
        #[arg(long, value_name = "TIME", value_parser = lifetime)]
        expires: Option<u64>,
        #[command(flatten)]
        common: Common,
    },
    /// List tokens with their expiry and last use. Their secrets are not stored and cannot be shown.
    List {
        #[command(flatten)]
        common: Common,
    },
    /// Remove a token.
    Remove {
        /// The token's name.
        name: String,
        #[command(flatten)]
        common: Common,
    },
}

/// Arguments of `longma placement quota`.
#[derive(clap::Args)]
pub struct QuotaArguments {
    /// The tenant whose quota to set; without it, list the quotas of all tenants.
    #[arg(requires = "bounds", group = "target")]
    tenant: Option<String>,
    /// Set the quota that a tenant gets with its first virtual machine; existing tenants keep theirs.
    #[arg(long, requires = "bounds", group = "target")]
    default: bool,
    #[command(flatten)]
    bounds: Bounds,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

#[derive(clap::Args)]
#[group(id = "bounds", multiple = true, requires = "target")]
struct Bounds {
    /// Allow at most this many virtual machines.
    #[arg(long, value_name = "COUNT")]
    vms: Option<u32>,
    /// Allow at most this many virtual CPUs.
    #[arg(long, value_name = "COUNT")]
    vcpus: Option<u32>,
    /// Allow at most this much memory, for example 64GiB.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Remove all limits that are not given with this command.
    #[arg(long)]
    unlimited: bool,
}

/// Runs `longma placement token`.
pub fn token(arguments: &TokenArguments) -> Outcome {
    match &arguments.action {
        TokenAction::Add { name, role, tenant, host, expires, common } => {
            let wanted_role = role.as_str();
            let fits = |role: &str, scope: &Option<String>, option: &str| match scope {
                Some(_) if wanted_role != role => {
                    Err(format!("{option} is for the role {role}, not for {wanted_role}"))
                }
                _ => Ok(()),
            };
            fits("tenant", tenant, "--tenant")?;
            fits("agent", host, "--host")?;
            let scope = tenant.clone().or_else(|| host.clone());
            let wanted = NewToken { name: name.clone(), role: role.clone(), scope, lifetime_s: *expires };
            let made: MadeToken =
                common.connection.client()?.post("/v1/tokens", None, &wanted).map_err(with_advice)?;
            if common.format.json { print::json(&made) } else { print::command(&made.token) }
        }
        TokenAction::List { common } => {
            let tokens: Tokens = common.connection.client()?.get("/v1/tokens").map_err(with_advice)?;
            if common.format.json {
                return print::json(&tokens.items);
            }
            let time = |at: Option<i64>| at.map_or("never".into(), |at| utc_time(at as f64));
            let mut rows = vec![heading(["NAME", "ROLE", "FOR", "EXPIRES", "LAST USED"])];
            rows.extend(tokens.items.into_iter().map(|t| {
                let scope = t.scope.unwrap_or_else(|| "all".into());
                vec![t.name, t.role, scope, time(t.expires_at), time(t.used_at)]
            }));
            print::table(&rows)
        }
        TokenAction::Remove { name, common } => {
            common
                .connection
                .client()?
                .delete::<()>(&format!("/v1/tokens/{}", part(name)))
                .map_err(with_advice)?;
            if common.format.json {
                return print::json(&serde_json::json!({ "removed": name }));
            }
            print_line(&format!("{name} is removed"))
        }
    }
}

/// Runs `longma placement quota`.
pub fn quota(arguments: &QuotaArguments) -> Outcome {
    let client = arguments.connection.client()?;
    let bounds = &arguments.bounds;
    let with_bounds = |kept: Quota| {
        let kept = if bounds.unlimited { Quota::default() } else { kept };
        Quota {
            vms: bounds.vms.or(kept.vms),
            vcpus: bounds.vcpus.or(kept.vcpus),
            memory_mib: bounds.memory.map(|bytes| bytes >> 20).or(kept.memory_mib),
        }
    };
    let default = || client.get::<Quota>("/v1/default-quota").map_err(with_advice);
    if let Some(tenant) = &arguments.tenant {
        let known: Tenants = client.get("/v1/tenants").map_err(with_advice)?;
        let known = known.items.into_iter().find(|t| t.tenant == *tenant).map(|t| t.quota);
        let quota = with_bounds(known.map_or_else(default, Ok)?);
        client.put(&format!("/v1/tenants/{}/quota", part(tenant)), &quota).map_err(with_advice)?;
    }
    if arguments.default {
        let quota = with_bounds(default()?);
        client.put("/v1/default-quota", &quota).map_err(with_advice)?;
        if arguments.format.json {
            return print::json(&quota);
        }
        let limit = |limit: Option<String>| limit.unwrap_or_else(|| "unlimited".into());
        return print_line(&format!(
            "new tenants get: virtual machines {}, virtual CPUs {}, memory {}",
            limit(quota.vms.map(|n| n.to_string())),
            limit(quota.vcpus.map(|n| n.to_string())),
            limit(quota.memory_mib.map(mib))
        ));
    }
    let tenants: Tenants = client.get("/v1/tenants").map_err(with_advice)?;
    if arguments.format.json {
        return print::json(&tenants.items);
    }
    let of = |used: String, limit: Option<String>| {
        limit.map_or(used.clone(), |limit| format!("{used} of {limit}"))
    };
    let mut rows = vec![heading(["TENANT", "VMS", "VCPUS", "MEMORY"])];
    rows.extend(tenants.items.iter().map(|t| {
        vec![
            t.tenant.clone(),
            of(t.vms.to_string(), t.quota.vms.map(|m| m.to_string())),
            of(t.vcpus.to_string(), t.quota.vcpus.map(|m| m.to_string())),
            of(mib(t.memory_mib), t.quota.memory_mib.map(mib)),
        ]
    }));
    print::table(&rows)
}

/// Arguments of `longma placement audit-log`.
#[derive(clap::Args)]
pub struct AuditLogArguments {
    /// Only requests with the token of this name.
    #[arg(long, value_name = "TOKEN")]
    actor: Option<String>,
    /// Only requests of this last period, for example 7d, 12h or 30m.
    #[arg(long, value_name = "TIME", value_parser = lifetime)]
    last: Option<u64>,
    /// Print at most this many of the newest requests.
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Only requests with a number below this one. To print the next page, give the last number of the previous page.
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    before: u32,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

/// Runs `longma placement audit-log`.
pub fn audit_log(arguments: &AuditLogArguments) -> Outcome {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let since = arguments.last.map_or(0, |last| now.saturating_sub(last));
    let actor = arguments.actor.as_ref().map(|actor| format!("&actor={}", part(actor))).unwrap_or_default();
    let path =
        format!("/v1/audit-log?since={since}&before={}&limit={}{actor}", arguments.before, arguments.limit);
    let page: AuditPage = arguments.connection.client()?.get(&path).map_err(with_advice)?;
    if arguments.format.json {
        return print::json(&page);
    }
    if page.items.is_empty() {
        return print_line("no requests");
    }
    let mut rows = vec![heading(["NUMBER", "TIME", "TOKEN", "FROM", "REQUEST", "RESULT"])];
    rows.extend(page.items.into_iter().map(|r| {
        let object = if r.object.is_empty() { String::new() } else { format!(": {}", r.object) };
        let problem = r.problem.map(|problem| format!(" {problem}")).unwrap_or_default();
        let (action, result) = (format!("{}{object}", r.action), format!("{}{problem}", r.status));
        let actor = r.actor.unwrap_or_else(|| "-".into());
        vec![r.number.to_string(), utc_time(r.at as f64), actor, r.peer, action, result]
    }));
    print::table(&rows)
}

/// Parses a time span such as `90d`, `12h`, `30m` or `45s` into seconds.
pub(crate) fn lifetime(text: &str) -> Result<u64, String> {
    const UNITS: [(char, u64); 4] = [('d', 86_400), ('h', 3600), ('m', 60), ('s', 1)];
    let seconds = UNITS.iter().find_map(|(unit, seconds)| {
        text.strip_suffix(*unit)?.parse::<u64>().ok()?.checked_mul(*seconds).filter(|span| *span > 0)
    });
    seconds.ok_or_else(|| "give days, hours, minutes or seconds, for example 90d, 12h, 30m or 45s".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_has_a_unit_and_is_not_zero() {
        let spans = ["90d", "12h", "30m", "45s"].map(|text| lifetime(text).unwrap());
        assert_eq!(spans, [7_776_000, 43_200, 1800, 45]);
        for wrong in
            ["", "d", "5", "0d", "-1d", "1.5h", "1 d", "99999999999999999999d", "213503982334602d", "1w"]
        {
            assert!(lifetime(wrong).is_err(), "{wrong}");
        }
    }
}
