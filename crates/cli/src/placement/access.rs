//! `longma placement token` and `quota`.
//! Not what roles may do: that is the service's.

use super::Outcome;
use super::print::{self, heading, mib, say};
use super::reach::{Form, Reach, explained};
use crate::zoned::size;
use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use longma_placement::store::Quota;
use longma_placement_service::client::part;
use longma_placement_service::wire::{MadeToken, NewToken, Tenants, Tokens};

/// Arguments of `longma placement token`.
#[derive(clap::Args)]
pub struct TokenArguments {
    #[command(subcommand)]
    action: TokenAction,
}

/// What all of them take.
#[derive(clap::Args)]
struct Common {
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    form: Form,
}

#[derive(Subcommand)]
enum TokenAction {
    /// Make a token and print it: it is shown this once.
    Add {
        /// Its name.
        name: String,
        /// What its bearer may do.
        #[arg(long, value_parser = PossibleValuesParser::new(["admin", "operator", "tenant", "agent"]))]
        role: String,
        /// The tenant, for a tenant's token.
        #[arg(long, conflicts_with = "host")]
        tenant: Option<String>,
        /// The host, for an agent's token.
        #[arg(long)]
        host: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// List tokens; their secrets are kept nowhere.
    List {
        #[command(flatten)]
        common: Common,
    },
    /// Remove a token.
    Remove {
        /// Its name.
        name: String,
        #[command(flatten)]
        common: Common,
    },
}

/// Arguments of `longma placement quota`.
#[derive(clap::Args)]
pub struct QuotaArguments {
    /// The tenant whose quota is set; without one all are listed.
    #[arg(requires = "bounds")]
    tenant: Option<String>,
    #[command(flatten)]
    bounds: Bounds,
    #[command(flatten)]
    reach: Reach,
    #[command(flatten)]
    form: Form,
}

#[derive(clap::Args)]
#[group(id = "bounds", multiple = true, requires = "tenant")]
struct Bounds {
    /// At most so many virtual machines.
    #[arg(long, value_name = "COUNT")]
    vms: Option<u32>,
    /// At most so many virtual CPUs.
    #[arg(long, value_name = "COUNT")]
    vcpus: Option<u32>,
    /// At most so much memory: 64GiB.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    memory: Option<u64>,
    /// Forget the other bounds that it has.
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
                    Err(format!("{option} is for the role {role}, and not for {wanted_role}"))
                }
                _ => Ok(()),
            };
            fits("tenant", tenant, "--tenant")?;
            fits("agent", host, "--host")?;
            let scope = tenant.clone().or_else(|| host.clone());
            let wanted = NewToken { name: name.clone(), role: role.clone(), scope };
            let made: MadeToken =
                common.reach.client()?.post("/v1/tokens", None, &wanted).map_err(explained)?;
            if common.form.json { print::json(&made) } else { print::command(&made.token) }
        }
        TokenAction::List { common } => {
            let tokens: Tokens = common.reach.client()?.get("/v1/tokens").map_err(explained)?;
            if common.form.json {
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
            common.reach.client()?.delete::<()>(&format!("/v1/tokens/{}", part(name))).map_err(explained)?;
            if common.form.json {
                return print::json(&serde_json::json!({ "removed": name }));
            }
            say(&format!("{name} is removed"))
        }
    }
}

/// Runs `longma placement quota`.
pub fn quota(arguments: &QuotaArguments) -> Outcome {
    let client = arguments.reach.client()?;
    if let Some(tenant) = &arguments.tenant {
        let bounds = &arguments.bounds;
        let known: Tenants = client.get("/v1/tenants").map_err(explained)?;
        let known = known.items.into_iter().find(|t| t.tenant == *tenant && !bounds.unlimited);
        let kept = known.map(|t| t.quota).unwrap_or_default();
        let quota = Quota {
            vms: bounds.vms.or(kept.vms),
            vcpus: bounds.vcpus.or(kept.vcpus),
            memory_mib: bounds.memory.map(|bytes| bytes >> 20).or(kept.memory_mib),
        };
        client.put(&format!("/v1/tenants/{}/quota", part(tenant)), &quota).map_err(explained)?;
    }
    let tenants: Tenants = client.get("/v1/tenants").map_err(explained)?;
    if arguments.form.json {
        return print::json(&tenants.items);
    }
    let of =
        |used: String, most: Option<String>| most.map_or(used.clone(), |most| format!("{used} of {most}"));
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
