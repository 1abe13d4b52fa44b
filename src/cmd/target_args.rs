//! `--endpoint` and `--method`: what a request asks for, as rules see it.

use super::Failure;
use crate::engine::identity::Identity;
use crate::engine::policy::Rule;
use crate::engine::rules::{Rules, Target, normal_path};

#[derive(Debug, clap::Args)]
pub(super) struct TargetArgs {
    /// The path that is asked for, by which rules are chosen
    #[arg(long, value_name = "PATH")]
    pub(super) endpoint: Option<String>,
    /// The method of the request
    #[arg(long, value_name = "M")]
    pub(super) method: Option<String>,
}

/// The same in the one spelling that rules are matched against.
pub(super) struct Place {
    path: Option<String>,
    method: Option<String>,
}

impl TargetArgs {
    pub(super) fn is_given(&self) -> bool {
        self.endpoint.is_some() || self.method.is_some()
    }

    pub(super) fn read(&self) -> Result<Place, Failure> {
        let path = self.endpoint.as_deref().map(normal_path).transpose();
        let path = path.map_err(|e| Failure::usage(format!("--endpoint: {e}")))?;
        let method = self.method.as_ref().map(|m| m.to_ascii_uppercase());
        Ok(Place { path: path.map(|path| path.into_owned()), method })
    }
}

impl Place {
    pub(super) fn target(&self) -> Target<'_> {
        Target { path: self.path.as_deref(), method: self.method.as_deref(), only: None }
    }

    /// Rules that this endpoint has for some methods, where no method was said.
    pub(super) fn left_out(&self, rules: &Rules, identity: &Identity) -> Option<String> {
        let path = self.path.as_deref().filter(|_| self.method.is_none())?;
        let here = |rule: &&Rule| {
            rule.enabled
                && !rule.methods.is_empty()
                && rule.dimension.holds(identity)
                && rule.endpoint.matches(Some(path))
        };
        let left: Vec<String> = rules
            .policy()
            .rules
            .iter()
            .filter(here)
            .map(|rule| format!("{} ({})", rule.name, rule.methods.join(", ")))
            .collect();
        let names = left.join(", ");
        (!left.is_empty()).then(|| format!("without --method these rules are left out: {names}"))
    }
}
