//! What a decision is, and the stores that take it. Names nothing outside itself.

pub mod algo;
pub mod breaker;
pub mod clock;
pub mod concurrency;
pub mod config;
pub mod durability;
pub mod failure;
pub mod histogram;
pub mod hot;
pub mod identity;
pub mod limit;
pub mod limiter;
pub mod live;
pub mod path;
pub mod patterns;
pub mod plan;
pub mod policy;
pub mod quota_watch;
pub mod registry;
pub mod rules;
pub mod split;
pub mod store;
pub mod units;
