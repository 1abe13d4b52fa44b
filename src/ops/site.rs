//! A Redis that operators work on: the one that counts what names no other, or one that rules name.

use crate::engine::store::keys::Prefix;
use crate::engine::store::redis::Deployment;

#[derive(Debug)]
pub struct Site {
    /// What rules call it (`[stores.premium]`); none: the one that counts what names no other.
    pub store: Option<String>,
    pub deployment: Deployment,
    pub prefix: Prefix,
}
