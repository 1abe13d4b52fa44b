//! A rules file under watch. Looked at by its path again each time, so that a file renamed over it
//! and a symlink that leads elsewhere are seen like a file that was written to.

use std::fs::{self, File, Metadata};
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use super::{LivePolicy, Source};
use crate::engine::clock::Micros;
use crate::engine::config::{MAX_FILE_BYTES, text_of, too_large};

#[derive(Debug)]
pub(super) struct Watched {
    path: PathBuf,
    source: Source,
    read: Option<Stamp>,
    /// Seen once: if the next look finds the same, nobody is writing any more.
    seen: Option<Stamp>,
}

/// What tells that a file is another one or has another content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: Option<Duration>,
    #[cfg(unix)]
    unix: (u64, u64, i64, i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Settled,
    /// It changed a moment ago; look again soon.
    Changing,
}

impl Watched {
    pub(super) fn new(path: PathBuf) -> Watched {
        let name: Arc<str> = path.display().to_string().into();
        Watched { path, source: Source::File(name), read: None, seen: None }
    }

    /// Reads it as it is, for a start without delay; the next look reads once more.
    pub(super) fn load(&mut self, live: &LivePolicy, now: Micros) {
        self.seen = self.stamp(live, now);
        if self.seen.is_some() {
            self.offer(live, now);
        }
    }

    /// One look; a file that changed and is left alone since is read. Half a file may well be a
    /// valid policy with half of the rules, so one that is being written is not.
    pub(super) fn look(&mut self, live: &LivePolicy, now: Micros) -> Look {
        let stamp = self.stamp(live, now);
        if stamp.is_none() {
            // When it comes back it is read, also if it is the same.
            (self.read, self.seen) = (None, None);
            return Look::Settled;
        }
        if stamp == self.read {
            return Look::Settled;
        }
        if stamp != self.seen {
            self.seen = stamp;
            return Look::Changing;
        }
        self.read = if self.offer(live, now) { stamp } else { None };
        Look::Settled
    }

    fn stamp(&self, live: &LivePolicy, now: Micros) -> Option<Stamp> {
        match fs::metadata(&self.path) {
            Ok(metadata) if metadata.is_file() => Some(Stamp::of(&metadata)),
            // To open a pipe could wait for ever.
            Ok(_) => {
                live.cannot_read(&format!("{} is not a file", self.source), now);
                None
            }
            Err(error) => {
                live.cannot_read(&format!("{}: cannot open: {error}", self.source), now);
                None
            }
        }
    }

    /// False when it could not be read.
    fn offer(&self, live: &LivePolicy, now: Micros) -> bool {
        let mut bytes = Vec::new();
        // One byte more than allowed tells that there is more.
        let read = File::open(&self.path)
            .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes));
        if let Err(error) = read {
            live.cannot_read(&format!("{}: cannot read: {error}", self.source), now);
            return false;
        }
        let name = self.source.to_string();
        let text = if bytes.len() as u64 > MAX_FILE_BYTES {
            Err(too_large(&name, None))
        } else {
            text_of(&name, &bytes)
        };
        match text {
            // A refusal is kept with the policy, and told from there.
            Ok(text) => drop(live.offer(text, &self.source, now)),
            Err(why) => drop(live.refuse(&self.source, why, now)),
        }
        true
    }
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        let modified = metadata.modified().ok();
        Stamp {
            bytes: metadata.len(),
            modified: modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok()),
            // A tool may set the time of writing back, but not that of the change.
            #[cfg(unix)]
            unix: (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}
