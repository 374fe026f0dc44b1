//! The error body, which is the same for every route.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `{"error": {...}}` with all four keys always present.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorDetail,
}

/// An error, described for people and for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// A message for people.
    pub message: String,
    /// Class of error, such as `invalid_request_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The request field that caused the error, if any.
    #[schema(required)]
    pub param: Option<String>,
    /// A stable code for programs, such as `model_not_found`.
    #[schema(required)]
    pub code: Option<String>,
}
