//! Load that tells the truth: an arrival plan is kept, or what was not kept is said.
//!
//! `plan.rs` and `feed.rs` say what is to be sent when; a worker sends it (`http/` over raw
//! connections, `calls.rs` for what is asked by futures, `local.rs` in this process) and writes down
//! what came of it (`record.rs`, `keys.rs`); `collect.rs` puts workers together into one report.

pub mod answer;
pub mod calls;
pub mod collect;
pub mod compare;
pub mod feed;
pub mod h2;
pub mod http;
pub mod keys;
pub mod local;
pub mod measured;
pub mod pace;
pub mod plan;
pub mod record;
pub mod report;
pub mod run;
pub mod series;
pub mod stored;
pub mod worker;
