//! Reading a rules file, as every command that takes one does.

use std::io::{self, Read, Write};

use super::{Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::config::{self, ConfigErrors, Finding, MAX_FILE_BYTES, parse_policy};
use crate::engine::policy::Policy;
use crate::output::finding_text;

/// A policy and what to warn of, or what is wrong in the file.
pub(super) type Reading = Result<(Policy, Vec<Finding>), ConfigErrors>;

/// Reads a file that must be usable; what is wrong in it goes to stderr.
pub(super) fn load(file: &str) -> Result<(Policy, Vec<Finding>), Failure> {
    usable(read(file)?)
}

/// What was read, if it can be used; what is wrong in it goes to stderr.
pub(super) fn usable(reading: Reading) -> Result<(Policy, Vec<Finding>), Failure> {
    if reading.is_err() {
        print_findings(&reading);
    }
    // Everything is said by now.
    reading.map_err(|_| Failure::new(Exit::BadFile, ""))
}

/// Reads a file; the outer error is one that cannot be read at all.
pub(super) fn read(file: &str) -> Result<Reading, Failure> {
    Ok(read_text(file)?.and_then(|text| parse_policy(file, &text, Micros::now())))
}

/// The text of a rules file, never more of it than is allowed. `-` is stdin.
pub(super) fn read_text(file: &str) -> Result<Result<String, ConfigErrors>, Failure> {
    let cannot =
        |error: io::Error| Failure::new(Exit::BadFile, format!("{file}: cannot open: {error}"));
    if file == "store" {
        return Err(Failure::usage(
            "this command reads a rules file, not the store; a file of that name is ./store",
        ));
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
