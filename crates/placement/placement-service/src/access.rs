//! Authorization: roles, tokens, and the caller of a request. The store keeps only digests of tokens.
//!
//! Source: RFC 6750. A token has 256 random bits, so an unsalted digest cannot be brute-forced.

use crate::problem::HttpProblem;
use crate::wire::ProblemKind;
use longma_placement::store::{Token, Vm};
use sha2::{Digest, Sha256};

/// Permissions of a token's bearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// All tenants' virtual machines, hosts, alarms and metrics, but not tokens and quotas.
    Operator,
    /// The virtual machines of one tenant.
    Tenant,
    /// What the agent of one host needs.
    Agent,
}

const ROLES: [(Role, &str); 4] =
    [(Role::Admin, "admin"), (Role::Operator, "operator"), (Role::Tenant, "tenant"), (Role::Agent, "agent")];

impl Role {
    /// Looks up a role by its name.
    pub fn named(name: &str) -> Option<Self> {
        ROLES.iter().find(|r| r.1 == name).map(|r| r.0)
    }

    /// Name of the role.
    pub fn name(self) -> &'static str {
        ROLES.iter().find(|r| r.0 == self).map_or("", |r| r.1)
    }
}

fn hexadecimal(bytes: impl IntoIterator<Item = u8>) -> String {
    bytes.into_iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 digest of a token, as stored.
pub fn digest(token: &str) -> String {
    hexadecimal(Sha256::digest(token.as_bytes()))
}

/// Generates a token.
///
/// # Errors
/// If the system provides no random numbers.
pub fn new_token() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(format!("longma-{}", hexadecimal(bytes)))
}

/// The authenticated caller of a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Name of the token.
    pub name: String,
    pub role: Role,
    /// The tenant or host that the token is restricted to.
    pub scope: Option<String>,
    /// Digest of the token. The name alone is not enough, because it may be reused.
    pub digest: String,
}

impl Caller {
    pub fn of(token: &Token) -> Option<Self> {
        let role = Role::named(&token.role)?;
        // A tenant's or an agent's token must have a scope, or it would be valid for all of them.
        let narrow = matches!(role, Role::Tenant | Role::Agent);
        (narrow == token.scope.is_some()).then(|| Self {
            name: token.name.clone(),
            role,
            scope: token.scope.clone(),
            digest: token.digest.clone(),
        })
    }

    /// Rejects callers with other roles.
    pub fn must_be(&self, roles: &[Role]) -> Result<(), HttpProblem> {
        if roles.contains(&self.role) {
            return Ok(());
        }
        let allowed: Vec<&str> = roles.iter().map(|r| r.name()).collect();
        let detail = format!(
            "the token {:?} has the role {}; this needs {}",
            self.name,
            self.role.name(),
            allowed.join(" or ")
        );
        Err(HttpProblem::new(ProblemKind::NotAllowed, detail))
    }

    /// The tenant that the caller is restricted to, if any. Rejects agents.
    pub fn tenant(&self) -> Result<Option<&str>, HttpProblem> {
        self.must_be(&[Role::Admin, Role::Operator, Role::Tenant])?;
        Ok(if self.role == Role::Tenant { self.scope.as_deref() } else { None })
    }

    /// Returns whether the caller may see a virtual machine.
    pub fn sees(&self, vm: &Vm) -> bool {
        match self.role {
            Role::Admin | Role::Operator => true,
            Role::Tenant => self.scope.as_deref() == Some(&*vm.request.tenant),
            Role::Agent => false,
        }
    }
}
