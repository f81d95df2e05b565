//! Who may do what: roles, tokens, and the caller of a request.
//! Not where tokens are kept: the store keeps their digests, never the tokens.
//! Source: RFC 6750; a token has 256 random bits, so a plain digest of it cannot be searched.

use crate::refusal::Refusal;
use longma_placement::store::{Token, Vm};
use sha2::{Digest, Sha256};

/// What a token's bearer may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// All tenants' virtual machines, hosts, alarms, metrics; no tokens and quotas.
    Operator,
    /// The virtual machines of one tenant.
    Tenant,
    /// What the agent of one host needs.
    Agent,
}

const ROLES: [(Role, &str); 4] =
    [(Role::Admin, "admin"), (Role::Operator, "operator"), (Role::Tenant, "tenant"), (Role::Agent, "agent")];

impl Role {
    /// The role of this name.
    pub fn named(name: &str) -> Option<Self> {
        ROLES.iter().find(|r| r.1 == name).map(|r| r.0)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        ROLES.iter().find(|r| r.0 == self).map_or("", |r| r.1)
    }
}

fn hexadecimal(bytes: impl IntoIterator<Item = u8>) -> String {
    bytes.into_iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 of a token, as the store keeps it.
pub fn digest(token: &str) -> String {
    hexadecimal(Sha256::digest(token.as_bytes()))
}

/// A new token.
///
/// # Errors
/// If the system has no random numbers.
pub fn new_token() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(format!("longma-{}", hexadecimal(bytes)))
}

/// Who calls.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// The token's name.
    pub name: String,
    pub role: Role,
    /// The tenant or the host.
    pub scope: Option<String>,
    /// The token's digest: another one may have its name later.
    pub digest: String,
}

impl Caller {
    pub fn of(token: &Token) -> Option<Self> {
        let role = Role::named(&token.role)?;
        // A tenant's or an agent's token without a scope would be for all.
        let narrow = matches!(role, Role::Tenant | Role::Agent);
        (narrow == token.scope.is_some()).then(|| Self {
            name: token.name.clone(),
            role,
            scope: token.scope.clone(),
            digest: token.digest.clone(),
        })
    }

    /// Refuses all but these roles.
    pub fn must_be(&self, roles: &[Role]) -> Result<(), Refusal> {
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
        Err(Refusal::new(403, "not allowed", detail))
    }

    /// The tenant it is confined to, if it is; refuses agents.
    pub fn tenant(&self) -> Result<Option<&str>, Refusal> {
        self.must_be(&[Role::Admin, Role::Operator, Role::Tenant])?;
        Ok(if self.role == Role::Tenant { self.scope.as_deref() } else { None })
    }

    /// Whether it may see a virtual machine.
    pub fn sees(&self, vm: &Vm) -> bool {
        match self.role {
            Role::Admin | Role::Operator => true,
            Role::Tenant => self.scope.as_deref() == Some(&*vm.request.tenant),
            Role::Agent => false,
        }
    }
}
