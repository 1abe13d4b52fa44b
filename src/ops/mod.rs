//! What operators do to limiters at work, and a Redis of this machine, started, broken and ended.

pub mod admin;
pub mod backup;
pub mod bucket;
pub mod checks;
pub mod dialect;
pub mod doctor;
pub mod fleet;
pub mod layout;
pub mod local_redis;
pub mod look;
pub mod reset;
pub mod site;
pub mod strangers;
pub mod undo;
pub mod walk;
