//! What is answered when something is wrong: `application/problem+json`, with a reason that helps.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::engine::config::ConfigErrors;
use crate::engine::registry::RegistryError;
use crate::engine::store::StoreError;

#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) status: StatusCode,
    detail: String,
    /// What is wrong in a policy, one by one.
    errors: Vec<Value>,
    retry_after: Option<u64>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        Problem { status, detail: detail.into(), errors: Vec::new(), retry_after: None }
    }

    /// It cannot be read.
    pub(super) fn malformed(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, detail)
    }

    /// It can be read, but not meant.
    pub(super) fn impossible(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::NOT_FOUND, detail)
    }

    pub(super) fn conflict(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::CONFLICT, detail)
    }

    pub(super) fn unavailable(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).after(1)
    }

    /// The same, to be tried again in so many seconds.
    pub(super) fn after(self, seconds: u64) -> Problem {
        Problem { retry_after: Some(seconds), ..self }
    }

    /// The same, about one of several.
    pub(super) fn about(self, what: &str) -> Problem {
        Problem { detail: format!("{what}: {}", self.detail), ..self }
    }

    pub(super) fn to_json(&self) -> Value {
        let mut body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if !self.errors.is_empty() {
            body["errors"] = self.errors.clone().into();
        }
        body
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = (self.status, self.to_json().to_string()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            headers.insert(http::header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

impl From<RegistryError> for Problem {
    fn from(error: RegistryError) -> Problem {
        let status = match &error {
            RegistryError::Store(_) | RegistryError::Unrecorded(_) => {
                return Problem::unavailable(error.to_string());
            }
            RegistryError::NoReason
            | RegistryError::TooLong { .. }
            | RegistryError::Control(..)
            | RegistryError::Name { .. }
            | RegistryError::NoLimit
            | RegistryError::TooMany { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            RegistryError::Conflict { .. } => StatusCode::PRECONDITION_FAILED,
            RegistryError::NoVersion(_) => StatusCode::NOT_FOUND,
            RegistryError::Contended(_) => StatusCode::CONFLICT,
            RegistryError::Unreadable { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Problem::new(status, error.to_string())
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Problem {
        match error {
            StoreError::OtherCost => Problem::impossible(error.to_string()),
            error => Problem::unavailable(error.to_string()),
        }
    }
}

impl From<ConfigErrors> for Problem {
    fn from(wrong: ConfigErrors) -> Problem {
        let error = |finding: &crate::engine::config::Finding| {
            json!({
                "line": finding.place.line,
                "column": finding.place.column,
                "message": finding.message,
                "hint": finding.hint,
            })
        };
        let errors = wrong.errors.iter().map(error).collect();
        Problem { errors, ..Problem::impossible(format!("the policy cannot be used: {wrong}")) }
    }
}
