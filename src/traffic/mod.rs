//! What arrives when, and for whom.

pub mod trace;
