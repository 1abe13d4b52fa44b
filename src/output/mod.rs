//! How results reach people and scripts.

pub mod explain;
pub mod findings;
pub mod human;
pub mod untrusted;

pub use explain::explain;
pub use findings::finding_text;
pub use human::{about, moment};
pub use untrusted::{Untrusted, json_line};

/// Every JSON object says which version of the output it follows.
pub const SCHEMA: &str = "rlctl/v1";
