//! Reading a policy by the name it is given, as every command that takes one does: a file, `-` for
//! stdin, `store` for what is published, `store:7` for a version that is kept.

use std::io::{self, Read, Write};
use std::sync::Arc;

use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::config::{
    self, ConfigErrors, Finding, MAX_FILE_BYTES, parse_policy, parse_shown,
};
use crate::engine::policy::Policy;
use crate::engine::registry::{KEPT_VERSIONS, Published, Registry, RegistryError};
use crate::output::finding_text;

/// A policy and what to warn of, or what is wrong in the file.
pub(super) type Reading = Result<(Policy, Vec<Finding>), ConfigErrors>;

/// Reads a policy that must be usable; what is wrong in it goes to stderr.
pub(super) async fn load(
    named: &str,
    context: &Context,
) -> Result<(Policy, Vec<Finding>), Failure> {
    usable(read(named, context).await?)
}

/// What was read, if it can be used; what is wrong in it goes to stderr.
pub(super) fn usable(reading: Reading) -> Result<(Policy, Vec<Finding>), Failure> {
    if reading.is_err() {
        print_findings(&reading);
    }
    // Everything is said by now.
    reading.map_err(|_| Failure::new(Exit::BadFile, ""))
}

/// Reads a policy; the outer error is one that cannot be read at all.
pub(super) async fn read(named: &str, context: &Context) -> Result<Reading, Failure> {
    let Some(version) = in_store(named) else {
        return Ok(read_text(named)?.and_then(|text| parse_shown(named, &text, Micros::now())));
    };
    Ok(parsed(&published(&context.registry().await?, version).await?))
}

pub(super) fn parsed(published: &Published) -> Reading {
    // How places in it begin.
    let name = format!("published version {}", published.version.version);
    parse_policy(&name, &published.text, Micros::now())
}

/// The text of a policy, usable or not.
pub(super) async fn text(named: &str, context: &Context) -> Result<Arc<str>, Failure> {
    if let Some(version) = in_store(named) {
        return Ok(published(&context.registry().await?, version).await?.text);
    }
    match read_text(named)? {
        Ok(text) => Ok(text.into()),
        Err(errors) => Err(Failure::new(Exit::BadFile, errors)),
    }
}

/// Whether the store is meant, and there which version; the inner none is the current one.
pub(super) fn in_store(named: &str) -> Option<Option<u64>> {
    match named.strip_prefix("store")?.strip_prefix(':') {
        None if named == "store" => Some(None),
        None => None,
        Some(number) => number.parse().ok().map(Some),
    }
}

pub(super) async fn published(
    registry: &Registry,
    version: Option<u64>,
) -> Result<Published, Failure> {
    let Some(number) = version else {
        return registry.current().await?.ok_or_else(|| {
            let what = "no policy is published there; see rlctl rules publish";
            Failure::new(Exit::NothingMatched, what)
        });
    };
    let kept = registry.history(KEPT_VERSIONS as usize).await?;
    let version = kept.into_iter().find(|version| version.version == number);
    match (version, registry.text(number).await?) {
        (Some(version), Some(text)) => Ok(Published { version, text }),
        _ => Err(RegistryError::NoVersion(number).into()),
    }
}

/// The text of a rules file, never more of it than is allowed. `-` is stdin.
pub(super) fn read_text(file: &str) -> Result<Result<String, ConfigErrors>, Failure> {
    let cannot =
        |error: io::Error| Failure::new(Exit::BadFile, format!("{file}: cannot open: {error}"));
    if in_store(file).is_some() {
        return Err(Failure::usage(format!(
            "this command reads a rules file, not the store; a file of that name is ./{file}"
        )));
    }
    let mut bytes = Vec::new();
    // One byte more than allowed tells that there is more, also of a pipe or a device.
    if file == "-" {
        io::stdin().take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    } else {
        let open = std::fs::File::open(file).map_err(cannot)?;
        let size = open.metadata().map_err(cannot)?.len();
        if size > MAX_FILE_BYTES {
            return Ok(Err(config::too_large(file, Some(size))));
        }
        open.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
    }
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Ok(Err(config::too_large(file, None)));
    }
    Ok(config::text_of(file, &bytes).map(String::from))
}

pub(super) fn findings_of(reading: &Reading) -> &[Finding] {
    match reading {
        Ok((_, warnings)) => warnings,
        Err(errors) => &errors.errors,
    }
}

pub(super) fn print_findings(reading: &Reading) {
    let mut text: String = findings_of(reading).iter().map(finding_text).collect();
    if let Err(ConfigErrors { more: more @ 1.., .. }) = reading {
        text += &format!("… and {more} more\n");
    }
    // Whoever closed stderr does not want to know; the exit code tells all the same.
    let _ = io::stderr().write_all(text.as_bytes());
}
