//! `longma placement token` and `longma placement quota`.

use super::Outcome;
use super::connection::{ConnectionOptions, FormatOptions, with_advice};
use super::print::{self, heading, mib, print_line};
use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use longma_command_line::size;
use longma_placement::store::Quota;
use longma_placement_service::client::part;
use longma_placement_service::wire::{MadeToken, NewToken, Tenants, Tokens};

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
    /// Make a token and print it. The secret is shown only once.
    Add {
        /// The token's name.
        name: String,
        /// What the bearer of the token may do.
        #[arg(long, value_parser = PossibleValuesParser::new(["admin", "operator", "tenant", "agent"]))]
        role: String,
        /// The tenant that a tenant token is for.
        #[arg(long, conflicts_with = "host")]
        tenant: Option<String>,
        /// The host that an agent token is for.
        #[arg(long)]
        host: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// List tokens. Their secrets are not stored and cannot be shown.
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
    #[arg(requires = "bounds")]
    tenant: Option<String>,
    #[command(flatten)]
    bounds: Bounds,
    #[command(flatten)]
    connection: ConnectionOptions,
    #[command(flatten)]
    format: FormatOptions,
}

#[derive(clap::Args)]
#[group(id = "bounds", multiple = true, requires = "tenant")]
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
        TokenAction::Add { name, role, tenant, host, common } => {
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
            let wanted = NewToken { name: name.clone(), role: role.clone(), scope };
            let made: MadeToken =
                common.connection.client()?.post("/v1/tokens", None, &wanted).map_err(with_advice)?;
            if common.format.json { print::json(&made) } else { print::command(&made.token) }
        }
        TokenAction::List { common } => {
            let tokens: Tokens = common.connection.client()?.get("/v1/tokens").map_err(with_advice)?;
            if common.format.json {
                return print::json(&tokens.items);
            }
            let mut rows = vec![heading(["NAME", "ROLE", "FOR"])];
            rows.extend(
                tokens
                    .items
                    .into_iter()
                    .map(|t| vec![t.name, t.role, t.scope.unwrap_or_else(|| "all".into())]),
            );
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
    if let Some(tenant) = &arguments.tenant {
        let bounds = &arguments.bounds;
        let known: Tenants = client.get("/v1/tenants").map_err(with_advice)?;
        let known = known.items.into_iter().find(|t| t.tenant == *tenant && !bounds.unlimited);
        let kept = known.map(|t| t.quota).unwrap_or_default();
        let quota = Quota {
            vms: bounds.vms.or(kept.vms),
            vcpus: bounds.vcpus.or(kept.vcpus),
            memory_mib: bounds.memory.map(|bytes| bytes >> 20).or(kept.memory_mib),
        };
        client.put(&format!("/v1/tenants/{}/quota", part(tenant)), &quota).map_err(with_advice)?;
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
