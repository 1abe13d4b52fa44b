//! The rules that a command works by.

use std::sync::Arc;

use super::{Context, Failure, rules_file};
use crate::engine::identity::Identity;
use crate::engine::plan::Standing;
use crate::engine::rules::Rules;

/// Reads the rules file of the context; what is wrong with it is told on stderr.
pub(super) fn load(context: &Context) -> Result<Rules, Failure> {
    load_file(&context.rules_file(None)?)
}

/// What is on record about an identity.
pub(super) async fn standing(
    _identity: &Identity,
    _context: &Context,
) -> Result<Standing, Failure> {
    Ok(Standing::default())
}

pub(super) fn load_file(file: &str) -> Result<Rules, Failure> {
    let (policy, _warnings) = rules_file::load(file)?;
    Ok(Rules::new(Arc::new(policy)))
}
