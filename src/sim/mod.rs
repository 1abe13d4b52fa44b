//! Traffic against limits in virtual time: the engine's own arithmetic, on states that are found by
//! the number of their key.

pub mod emit;
pub mod executor;
pub mod lane;
pub mod nodes;
pub mod outcome;
pub mod picture;
pub mod policy;
pub mod replay;
pub mod requests;
pub mod run;
pub mod so_what;
pub mod source;
pub mod suggest;
pub mod timeline;
pub mod window;

use crate::engine::clock::Micros;

/// One request of a simulation: when, whose (by number), and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub at: Micros,
    pub key: u32,
    pub cost: u32,
}
