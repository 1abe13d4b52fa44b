//! What operators do to limiters at work, and a Redis of this machine, started, broken and ended.

pub mod admin;
pub mod local_redis;
