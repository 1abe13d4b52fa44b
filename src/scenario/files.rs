//! Files that scenarios are made of, read whole and never more of them than is allowed.

use std::fs::File;
use std::io::{BufRead, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use super::EPOCH;
use crate::engine::config::{self, MAX_FILE_BYTES, parse_policy};
use crate::engine::identity::Identity;
use crate::engine::limit::Cost;
use crate::engine::policy::Policy;
use crate::output::SCHEMA;
use crate::traffic::gzip;
use crate::traffic::log::{Field, LogOptions, LogReader};
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

/// A trace, or an access log whose requests count by their addresses; in order of time.
pub(super) fn read_requests(path: &Path) -> Result<Vec<Request>, String> {
    let file = File::open(path).map_err(|why| format!("{}: {why}", path.display()))?;
    let mut file = gzip::unzipped(Box::new(file)).map_err(|error| error.to_string())?;
    let beginning = file.fill_buf().map_err(|error| error.to_string())?;
    let mut requests = if Trace::is_one(beginning) {
        let trace = Trace::new(file).map_err(|error| error.to_string())?;
        let requests = trace.map(|request| request.map_err(|error| error.to_string()));
        all_of(requests)?
    } else {
        let log = LogReader::new(Box::new(file), LogOptions::default(), vec![Field::Ip]);
        all_of(Logged(log.map_err(|error| error.to_string())?))?
    };
    requests.sort_by_key(|request| request.at);
    Ok(requests)
}

fn all_of(requests: impl Iterator<Item = Result<Request, String>>) -> Result<Vec<Request>, String> {
    let all: Vec<Request> = requests.take(MAX_TRACE + 1).collect::<Result<_, _>>()?;
    match all.len() {
        0 => Err("there is no request in it".into()),
        n if n > MAX_TRACE => Err(format!("more than {MAX_TRACE} requests")),
        _ => Ok(all),
    }
}

/// The lines of an access log that name a client.
struct Logged(LogReader);

impl Iterator for Logged {
    type Item = Result<Request, String>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = match self.0.next_line() {
                Ok(at) => at?,
                Err(error) => return Some(Err(error.to_string())),
            };
            let named = self.0.values().get(0).and_then(|client| match client.parse::<IpAddr>() {
                Ok(address) => Some(Identity::of_ip(address)),
                // Old logs have names of hosts.
                Err(_) => Identity::opaque(&format!("ip:{client}")).ok(),
            });
            if let Some(key) = named {
                return Some(Ok(Request { at, key, cost: Cost::ONE }));
            }
        }
    }
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

/// Rules files, schemas and reports of earlier runs may lie beside scenarios.
fn is_scenario(path: &Path, name: &str) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    let other = name.ends_with(".schema.json") || name.starts_with("rules");
    match ending {
        Some("toml") => !other,
        Some("json") => !other && !is_report(path),
        _ => false,
    }
}

/// What rlctl itself has written says so in `schema`.
fn is_report(path: &Path) -> bool {
    let text = read_text(path).unwrap_or_default();
    let json: Option<serde_json::Value> = serde_json::from_str(&text).ok();
    let schema = json.as_ref().and_then(|json| json.get("schema"));
    schema.and_then(|schema| schema.as_str()).is_some_and(|schema| schema == SCHEMA)
}
