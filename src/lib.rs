//! rlctl: one binary with which people operate and test rate limiters.
//!
//! A module may name only modules to its right: `cmd → tui → scenario → load → sim → gateway → ops →
//! expect → traffic → output → engine`; tests/tidy.rs holds that.

/// One file per command: arguments, run, printing.
pub mod cmd;
/// Limits, algorithms, policies, stores: what a decision is.
pub mod engine;
/// What must be true of a run, and whether it was.
pub mod expect;
/// The limiter as a service: proxy, check API, admin API, gRPC, metrics.
pub mod gateway;
/// Load by a plan, and what it says about a limiter.
pub mod load;
/// What operators do to limiters at work.
pub mod ops;
/// Words and numbers for people, escaping of untrusted text.
pub mod output;
/// Rate-limit behaviour as a test.
pub mod scenario;
/// Traffic against limits in virtual time.
pub mod sim;
/// What arrives when, and for whom.
pub mod traffic;
/// The dashboard of incidents.
pub mod tui;
