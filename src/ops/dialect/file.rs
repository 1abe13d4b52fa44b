//! A dialect as people write it: TOML, one `[[layout]]` for each kind of key.

use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use super::pattern::KeyPattern;
use super::{Dialect, Layout, Unit, Value};
use crate::engine::limit::{Algorithm, Limit, Quota};

const MAX_FILE_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum DialectError {
    #[error(
        "there is no dialect `{name}`; shipped are {known}, or name a file (docs/dialects.md says what to write)"
    )]
    Unknown { name: String, known: String },
    #[error("{file}: cannot read it: {why}")]
    Read { file: String, why: String },
    #[error("{file}: {why}")]
    Form { file: String, why: String },
    #[error("{file}: layout `{layout}`: {why}")]
    Layout { file: String, layout: String, why: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    layout: Vec<Written>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    key: String,
    identity: Option<String>,
    #[serde(rename = "type")]
    kind: String,
    algorithm: String,
    limit: Option<String>,
    #[serde(default)]
    fields: Fields,
    unit: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    tokens: Option<String>,
    last: Option<String>,
}

pub(super) fn read(path: &Path) -> Result<Dialect, DialectError> {
    let file = path.display().to_string();
    let cannot = |why: String| DialectError::Read { file: file.clone(), why };
    let mut text = String::new();
    let open = std::fs::File::open(path).map_err(|error| cannot(error.to_string()))?;
    let read = open.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
    match read.map_err(|error| cannot(error.to_string()))? as u64 > MAX_FILE_BYTES {
        true => Err(cannot("it has over a megabyte".into())),
        false => parse(&file, &text),
    }
}

pub(super) fn parse(file: &str, text: &str) -> Result<Dialect, DialectError> {
    let form = |why: String| DialectError::Form { file: file.into(), why };
    let File { layout } = toml::from_str(text).map_err(|error| form(error.to_string()))?;
    if layout.is_empty() {
        return Err(form("it has no [[layout]]; docs/dialects.md shows one".into()));
    }
    let each = |written: Written| {
        let name = written.name.clone();
        understood(written).map_err(|why| DialectError::Layout {
            file: file.into(),
            layout: name,
            why,
        })
    };
    Ok(Dialect { layouts: layout.into_iter().map(each).collect::<Result<_, _>>()? })
}

fn understood(written: Written) -> Result<Layout, String> {
    let key = KeyPattern::parse_pattern(&written.key).map_err(|why| format!("key: {why}"))?;
    let algorithm: Algorithm = written.algorithm.parse().map_err(|e| format!("algorithm: {e}"))?;
    let Fields { tokens, last } = written.fields;
    let is_bucket = algorithm.is_bucket();
    let value = match (written.kind.as_str(), tokens, last) {
        ("hash", Some(tokens), Some(last)) if is_bucket => Value::TokenHash { tokens, last },
        ("hash", ..) => {
            return Err("a hash is read as a bucket: algorithm = \"token-bucket\", fields = { tokens = \"…\", last = \"…\" }".into());
        }
        (_, Some(_), _) | (_, _, Some(_)) => return Err("fields belong to type = \"hash\"".into()),
        ("string", ..) if is_bucket => Value::Tokens,
        ("string", ..) if algorithm == Algorithm::SlidingLog => {
            return Err("a sliding-log is a zset of times".into());
        }
        ("string", ..) => Value::Count,
        ("zset", ..) if algorithm == Algorithm::SlidingLog => Value::Log,
        ("zset", ..) => return Err("a zset of times is read as algorithm = \"sliding-log\"".into()),
        (other, ..) => return Err(format!("type: `{other}` is not known; hash, string or zset")),
    };
    if algorithm == Algorithm::SlidingWindow && !key.has_start() {
        return Err("a sliding-window keeps a count per window: its key needs {start}".into());
    }
    let quota = match &written.limit {
        Some(text) => {
            let quota: Quota = text.parse().map_err(|e| format!("limit: {e}"))?;
            Limit::new(algorithm, quota).map_err(|e| format!("limit: {e}"))?;
            Some(quota)
        }
        None => None,
    };
    let identity = written.identity.unwrap_or_else(|| "{id}".into());
    if !identity.contains("{id}") {
        return Err("identity: it needs {id}, e.g. \"user:{id}\"".into());
    }
    let unit = match written.unit.as_deref() {
        None => None,
        Some(name) => Some(Unit::named(name).ok_or("unit: s, ms, us or ns")?),
    };
    Ok(Layout { name: written.name, key, identity, value, algorithm, quota, unit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_with_what_to_write() {
        let layout = |lines: &str| format!("[[layout]]\nname = \"a\"\n{lines}");
        for (text, words) in [
            ("".to_owned(), "missing field `layout`"),
            (layout("key = \"x\"\ntype = \"hash\"\nalgorithm = \"gcra\""), "needs {id} once"),
            (layout("key = \"{id}\"\ntype = \"hash\"\nalgorithm = \"token-bucket\""), "fields = {"),
            (
                layout("key = \"{id}\"\ntype = \"list\"\nalgorithm = \"gcra\""),
                "hash, string or zset",
            ),
            (layout("key = \"{id}\"\ntype = \"zset\"\nalgorithm = \"gcra\""), "sliding-log"),
            (
                layout("key = \"{id}\"\ntype = \"string\"\nalgorithm = \"sliding-window\""),
                "{start}",
            ),
            (
                layout(
                    "key = \"{id}\"\ntype = \"string\"\nalgorithm = \"fixed-window\"\nlimit = \"x\"",
                ),
                "is not a limit",
            ),
            (
                layout(
                    "key = \"{id}\"\ntype = \"string\"\nalgorithm = \"fixed-window\"\nburst = 3",
                ),
                "unknown field",
            ),
        ] {
            let error = parse("d.toml", &text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
