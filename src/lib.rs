//! rlctl: one binary with which people operate and test rate limiters.
//!
//! A module may name only modules to its right: `cmd → sim → gateway → ops → traffic → output →
//! engine`; tests/tidy.rs holds that.

/// One file per command: arguments, run, printing.
pub mod cmd;
/// Limits, algorithms, policies, stores: what a decision is.
pub mod engine;
/// The limiter as a service: proxy, check API, admin API, gRPC, metrics.
pub mod gateway;
/// What operators do to limiters at work.
pub mod ops;
/// Words and numbers for people, escaping of untrusted text.
pub mod output;
/// Traffic against limits in virtual time.
pub mod sim;
/// What arrives when, and for whom.
pub mod traffic;
