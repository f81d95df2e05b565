//! HTTP error answers, and their mapping from errors of the store, the scheduler and the placement thread.
//!
//! Source: RFC 9457; RFC 9110, 10.2.3 for Retry-After.

use crate::Log;
use crate::placement_worker::WorkerError;
use crate::wire::{Problem, ProblemKind};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use longma_placement::allocator::AllocateError;
use longma_placement::request::Invalid;
use longma_placement::scheduler::NoPlacement;
use longma_placement::store::StoreError;

/// Value of Retry-After in seconds.
const RETRY_AFTER_S: &str = "2";

/// An error answer.
#[derive(Clone, Debug)]
pub(crate) struct HttpProblem(pub Problem);

impl HttpProblem {
    pub fn new(kind: ProblemKind, detail: String) -> Self {
        let (status, title) = kind.status_and_title();
        Self(Problem { kind, status, title: title.into(), detail, fields: Vec::new() })
    }

    pub fn fields(detail: &str, fields: Vec<Invalid>) -> Self {
        let mut problem = Self::new(ProblemKind::WrongFields, detail.into());
        problem.0.fields = fields;
        problem
    }

    pub fn field(field: &str, problem: String) -> Self {
        Self::fields("a field is invalid", vec![Invalid { field: field.into(), problem }])
    }

    pub fn unknown(what: &str) -> Self {
        Self::new(ProblemKind::NotFound, format!("there is no {what}"))
    }

    /// Maps a store error. Details of a database failure go to the log only.
    pub fn of_store(error: StoreError, log: &Log) -> Self {
        let message = error.to_string();
        match error {
            StoreError::Conflict { .. } => Self::new(ProblemKind::Conflict, message),
            StoreError::Exists { .. } | StoreError::Taken { .. } => Self::new(ProblemKind::Exists, message),
            StoreError::NotAllowed { .. } | StoreError::Stale { .. } => {
                Self::new(ProblemKind::WrongState, message)
            }
            StoreError::KeyReused => Self::new(ProblemKind::KeyReused, message),
            StoreError::Quota { .. } => Self::new(ProblemKind::OverQuota, message),
            StoreError::Unknown { .. } => Self::new(ProblemKind::NotFound, message),
            StoreError::Busy(_) => {
                log(&message);
                Self::new(
                    ProblemKind::Busy,
                    "nothing was changed: other processes use the database; try again".into(),
                )
            }
            StoreError::Full(_) => {
                log(&message);
                let detail = "nothing was changed: free space on the database's disk, then try again".into();
                Self::new(ProblemKind::DatabaseFull, detail)
            }
            StoreError::Unreachable(_) => {
                log(&message);
                let detail = "the service reconnects with each request. Nothing was changed, unless the \
                    connection broke during this request: repeat it with the same idempotency key, or \
                    check the state first";
                Self::new(ProblemKind::DatabaseUnreachable, detail.into())
            }
            StoreError::Format(_) | StoreError::Database(_) | StoreError::Service(_) => {
                log(&message);
                // A commit whose acknowledgement was lost may have succeeded.
                let detail =
                    "see the service's log for the reason; the change may have been made: check, or \
                        repeat the request with the same idempotency key"
                        .into();
                Self::new(ProblemKind::DatabaseFailed, detail)
            }
            StoreError::Closed => {
                Self::new(ProblemKind::Ending, "the service is shutting down; try again".into())
            }
        }
    }

    pub fn of_allocation(error: AllocateError, log: &Log) -> Self {
        match error {
            AllocateError::NoPlacement(NoPlacement::Invalid(fields)) => {
                Self::fields("the request is invalid", fields)
            }
            AllocateError::NoPlacement(NoPlacement::NoFit { hosts: 0 }) => {
                Self::new(ProblemKind::NoRoom, "no host is registered: start an agent on one".into())
            }
            AllocateError::NoPlacement(error) => Self::new(ProblemKind::NoRoom, error.to_string()),
            AllocateError::Store(error) => Self::of_store(error, log),
            AllocateError::Inventory(error) => {
                log(&format!("the database is inconsistent: {error}"));
                Self::new(ProblemKind::Inconsistent, "run an audit to see where".into())
            }
        }
    }
}

impl From<WorkerError> for HttpProblem {
    fn from(error: WorkerError) -> Self {
        match error {
            WorkerError::Busy => {
                Self::new(ProblemKind::Busy, "too many requests are waiting; try again".into())
            }
            WorkerError::Gone => {
                Self::new(ProblemKind::Ending, "the service is shutting down; try again".into())
            }
        }
    }
}

impl IntoResponse for HttpProblem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, axum::Json(&self.0)).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
        }
        response.extensions_mut().insert(self.0);
        response
    }
}
