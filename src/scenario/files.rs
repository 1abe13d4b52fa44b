//! Files that scenarios are made of, read whole and never more of them than is allowed.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use super::EPOCH;
use crate::engine::config::{self, MAX_FILE_BYTES, parse_policy};
use crate::engine::policy::Policy;
use crate::traffic::trace::{Request, Trace};

/// A trace of more requests is a job for `rlctl simulate`.
const MAX_TRACE: usize = 5_000_000;
/// A folder of more scenarios is some other folder.
const MAX_FILES: usize = 10_000;

/// The text of a file, or why not.
pub(super) fn read_text(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err("it is larger than 8 MiB".into());
    }
    let name = path.display().to_string();
    config::text_of(&name, &bytes).map(String::from).map_err(|error| error.to_string())
}

pub(super) fn read_policy(path: &Path) -> Result<Policy, String> {
    let text = read_text(path).map_err(|why| format!("{}: {why}", path.display()))?;
    let read = parse_policy(&path.display().to_string(), &text, EPOCH);
    read.map(|(policy, _)| policy).map_err(|errors| errors.to_string())
}

pub(super) fn read_trace(path: &Path) -> Result<Vec<Request>, String> {
    let file = File::open(path).map_err(|why| format!("{}: {why}", path.display()))?;
    let trace = Trace::new(BufReader::new(file)).map_err(|error| error.to_string())?;
    let mut requests = Vec::new();
    for request in trace {
        requests.push(request.map_err(|error| error.to_string())?);
        if requests.len() > MAX_TRACE {
            return Err(format!("more than {MAX_TRACE} requests"));
        }
    }
    requests.sort_by_key(|request| request.at);
    Ok(requests)
}

/// The scenario files that a path means: itself, or all below a folder. Files that begin with `_`
/// are there to be imported.
pub fn find(path: &Path) -> Result<Vec<PathBuf>, String> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    collect(path, &mut found)?;
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries =
        std::fs::read_dir(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|why| format!("{}: {why}", folder.display()))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(['_', '.']) {
            continue;
        }
        if path.is_dir() {
            collect(&path, found)?;
        } else if is_scenario(&path, name) {
            found.push(path);
        }
        if found.len() > MAX_FILES {
            return Err(format!("{}: more than {MAX_FILES} files", folder.display()));
        }
    }
    Ok(())
}

/// Rules files and schemas may lie beside scenarios.
fn is_scenario(path: &Path, name: &str) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    let other = name.ends_with(".schema.json") || name.starts_with("rules");
    matches!(ending, Some("toml" | "json")) && !other
}
