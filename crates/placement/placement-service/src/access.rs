//! Authorization: roles, tokens, and the caller of a request. The store keeps only digests of tokens.
//!
//! Source: RFC 6750. A token has 256 random bits, so an unsalted digest cannot be brute-forced.

use crate::problem::HttpProblem;
use crate::wire::ProblemKind;
use longma_placement::store::{Token, Vm};
use sha2::{Digest, Sha256};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

/// Permissions of a token's bearer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Everything.
    Admin,
    /// All tenants' virtual machines, hosts, alarms and metrics, but not tokens and quotas.
    Operator,
    /// The virtual machines of one tenant.
    Tenant,
    /// The operations of one host's agent.
    Agent,
    /// The scheduler of a Kubernetes cluster: only the extender's verbs.
    Scheduler,
}

const ROLES: [(Role, &str); 5] = [
    (Role::Admin, "admin"),
    (Role::Operator, "operator"),
    (Role::Tenant, "tenant"),
    (Role::Agent, "agent"),
    (Role::Scheduler, "scheduler"),
];

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

/// Seconds since 1970; 0 if the clock is earlier.
pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64)
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
    /// When the token expires, in seconds since 1970.
    pub expires_at: Option<i64>,
    /// Whether the token is a JWT of the identity provider, which the store does not know.
    pub is_jwt: bool,
    /// The object of the request, for the audit log. Clones share it.
    object: Arc<OnceLock<String>>,
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
            expires_at: token.expires_at,
            is_jwt: false,
            object: Arc::default(),
        })
    }

    /// The caller with a JWT of the identity provider.
    pub fn of_jwt(
        name: String,
        role: Role,
        scope: Option<String>,
        digest: String,
        expires_at: Option<i64>,
    ) -> Self {
        Self { name, role, scope, digest, expires_at, is_jwt: true, object: Arc::default() }
    }

    /// The caller of a new request with the same token.
    pub fn with_new_object(&self) -> Self {
        Self { object: Arc::default(), ..self.clone() }
    }

    /// The number of seconds since the token expired; `None` if it is valid.
    pub fn expired_for_s(&self) -> Option<i64> {
        self.expires_at.map(|end| now() - end).filter(|late| *late >= 0)
    }

    /// Records the object of the request, for the audit log. Only the first call has an effect.
    pub fn concerns(&self, object: impl FnOnce() -> String) {
        self.object.get_or_init(object);
    }

    /// Records the virtual machine of the request as its object.
    pub fn concerns_vm(&self, vm: &Vm) {
        self.concerns(|| format!("virtual machine {} ({}/{})", vm.id, vm.request.tenant, vm.request.name));
    }

    /// The object named in the request, if any.
    pub fn object(&self) -> &str {
        self.object.get().map_or("", |object| object)
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
            Role::Agent | Role::Scheduler => false,
        }
    }
}
