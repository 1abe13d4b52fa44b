//! What operators do to limiters at work.

pub mod admin;
