//! The types of problems, each with its HTTP status and title. Clients distinguish problems by their type; titles and
//! details are for people.
//!
//! Source: RFC 9110 for the statuses.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $kind:ident = $status:literal, $title:literal;)+) => {
        /// Type of a problem.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
        #[serde(rename_all = "kebab-case")]
        pub enum ProblemKind {
            $($(#[doc = $doc])+ $kind,)+
            /// A kind that this version does not know.
            #[default]
            #[serde(other)]
            Other,
        }

        impl ProblemKind {
            /// HTTP status and title.
            pub(crate) fn status_and_title(self) -> (u16, &'static str) {
                match self {
                    $(Self::$kind => ($status, $title),)+
                    Self::Other => (500, "unknown problem"),
                }
            }
        }
    };
}

kinds! {
    /// The body is not JSON.
    NotJson = 400, "not JSON";
    /// A query parameter is invalid.
    InvalidQuery = 400, "invalid query";
    /// A header is missing or invalid.
    WrongHeader = 400, "wrong header";
    /// The path is invalid.
    WrongPath = 400, "wrong path";
    /// The token is missing, unknown or revoked.
    NotAuthenticated = 401, "not authenticated";
    /// The token has expired.
    TokenExpired = 401, "token expired";
    /// The token does not give this right.
    NotAllowed = 403, "not allowed";
    /// The tenant would exceed its quota.
    OverQuota = 403, "over the quota";
    /// The object does not exist, or the caller must not see it.
    NotFound = 404, "not found";
    /// The path has no such method.
    WrongMethod = 405, "wrong method";
    /// The body arrived too slowly.
    TooSlow = 408, "too slow";
    /// A resource is already reserved.
    Conflict = 409, "conflict";
    /// An object with this name exists.
    Exists = 409, "exists already";
    /// The object's state does not permit the operation.
    WrongState = 409, "not in this state";
    /// No host or node has enough free resources.
    NoRoom = 409, "no room";
    /// A group rule forbids the placement.
    ForbiddenByGroup = 409, "forbidden by a group";
    /// The agent did not make the move, or has undone it.
    NotMoved = 409, "not moved";
    /// The agent of another machine manages the host.
    AnotherAgent = 409, "another agent";
    /// The operation needs a dead host, but its agent reports.
    HostAlive = 409, "the host is alive";
    /// The object is in use.
    InUse = 409, "in use";
    /// The body is too long or cut off.
    BodyTooLong = 413, "body too long";
    /// The body is not `application/json`.
    WrongContentType = 415, "unsupported content type";
    /// Fields of the body are invalid; `fields` lists them.
    WrongFields = 422, "wrong fields";
    /// The idempotency key belongs to another request.
    KeyReused = 422, "key used already";
    /// The header is too long.
    HeaderTooLong = 431, "header too long";
    /// The service failed; its log says why.
    Internal = 500, "internal error";
    /// The database failed; the service's log says why.
    DatabaseFailed = 500, "the database failed";
    /// The database is inconsistent.
    Inconsistent = 500, "the database is inconsistent";
    /// The system provides no random numbers.
    NoRandomNumbers = 500, "the system provides no random numbers";
    /// The service is overloaded; retry later.
    Busy = 503, "busy";
    /// The service is shutting down.
    Ending = 503, "ending";
    /// The identity provider's keys cannot be read.
    IssuerUnreachable = 503, "the identity provider cannot be reached";
    /// The host's agent does not report to this service.
    AgentNotHere = 503, "agent not here";
    /// The database cannot be reached.
    DatabaseUnreachable = 503, "the database cannot be reached";
    /// The database file is no longer at its path.
    DatabaseMoved = 503, "the database was moved";
    /// The agent did not answer in time.
    NoAnswer = 504, "no answer";
    /// The database's disk is full.
    DatabaseFull = 507, "the database is full";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_of_a_newer_service_is_read_as_unknown() {
        let read = |text: &str| serde_json::from_str::<ProblemKind>(text).unwrap();
        assert_eq!(read(r#""no-room""#), ProblemKind::NoRoom);
        assert_eq!(read(r#""invented-later""#), ProblemKind::Other);
    }
}
