//! What was started, in a file of its folder, so that a later command finds it again.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::LocalRedisError;

const FILE: &str = "local-redis.json";
/// No state is longer; something else lies there by that name.
const MAX_FILE_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Single,
    Sentinel,
    Cluster,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub port: u16,
    pub pid: u32,
    pub is_sentinel: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) kind: Kind,
    pub(super) nodes: Vec<Node>,
    /// How long a silent server counts as alive.
    pub(super) node_timeout_ms: u64,
}

impl State {
    pub(super) fn read(folder: &Path) -> Result<Option<State>, LocalRedisError> {
        let path = folder.join(FILE);
        let size = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(LocalRedisError::io(&path, error)),
        };
        let unreadable = |why: String| LocalRedisError::State { path: path.clone(), why };
        if size > MAX_FILE_BYTES {
            return Err(unreadable(format!("{size} bytes are too many")));
        }
        let text = fs::read_to_string(&path).map_err(|e| LocalRedisError::io(&path, e))?;
        serde_json::from_str(&text).map(Some).map_err(|e| unreadable(e.to_string()))
    }

    /// Whole or not at all.
    pub(super) fn write(&self, folder: &Path) -> Result<(), LocalRedisError> {
        let (path, next) = (folder.join(FILE), folder.join(format!("{FILE}.new")));
        let text = serde_json::to_string_pretty(self)
            .map_err(|e| LocalRedisError::State { path: path.clone(), why: e.to_string() })?;
        fs::write(&next, text).map_err(|e| LocalRedisError::io(&next, e))?;
        fs::rename(&next, &path).map_err(|e| LocalRedisError::io(&path, e))
    }

    pub(super) fn forget(folder: &Path) {
        let _ = fs::remove_file(folder.join(FILE));
    }

    pub(super) fn folder_of(folder: &Path, port: u16) -> PathBuf {
        folder.join(port.to_string())
    }
}
