//! How results reach people and scripts.

pub mod csv;
pub mod explain;
pub mod findings;
pub mod format;
pub mod human;
pub mod rows;
pub mod schema;
pub mod untrusted;

pub use explain::{explain, explain_standing};
pub use findings::finding_text;
pub use format::{Format, Look, Tone};
pub use human::{about, count, counted, moment};
pub use rows::{Column, List, Row, Rows, with_schema};
pub use untrusted::{Untrusted, json_line};

/// Every JSON object says which version of the output it follows.
pub const SCHEMA: &str = "rlctl/v1";
