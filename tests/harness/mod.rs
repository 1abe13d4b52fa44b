//! Everything that happens to Redis, on real processes with traffic running: every call is recorded,
//! and one checker holds the whole history to what was promised.

mod cluster;
mod history;
mod proof;
mod proxy;
mod run;
mod sentinel;
mod single;
