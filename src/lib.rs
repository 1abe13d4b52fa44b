//! rlctl: one binary with which people operate and test rate limiters.
//!
//! A module may name only modules below it in this list; tests/tidy.rs holds that.

pub mod cmd; // one file per command: arguments, run, printing
pub mod engine;
pub mod output; // tables, JSON, escaping of untrusted text
pub mod sim; // traffic × limits in virtual time
pub mod traffic; // what arrives when, and for whom // limits, algorithms, stores: what a decision is
