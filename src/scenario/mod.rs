//! Scenarios: the traffic, the limiters that see it, what breaks, and what must be true.
//!
//! `format` describes the file, `draft` and `whole` make a [`Scenario`] of its text, `read` puts
//! imports and the matrix together; `run` lets it happen and records it; `report` tells.

mod draft;
pub mod explain;
pub mod files;
mod format;
pub mod model;
pub mod read;
pub mod report;
pub mod run;
pub mod schema;
mod whole;

pub use model::Scenario;
pub use read::{LoadError, load};

use crate::engine::clock::Micros;

/// When virtual time begins: a midnight, so that every window of up to a day begins with the run.
pub const EPOCH: Micros = Micros(20_454 * Micros::DAY.0);
