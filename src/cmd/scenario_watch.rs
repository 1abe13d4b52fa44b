//! What `rlctl scenario run --watch` looks at: the files that scenarios are made of, and never those
//! that the run itself writes.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::scenario::files;
use crate::scenario::read::sources;

/// Files that a run writes: its reports, and what stdout and stderr were sent to.
pub(super) struct Outputs(Vec<(u64, u64)>);

impl Outputs {
    /// Those that exist by now; a report that does not cannot be taken for a scenario either.
    pub(super) fn of<'p>(reports: impl Iterator<Item = &'p Path>) -> Outputs {
        let (stdout, stderr) = (io::stdout(), io::stderr());
        let streams = [stdout.as_fd().try_clone_to_owned(), stderr.as_fd().try_clone_to_owned()];
        let about = |stream: io::Result<_>| File::from(stream.ok()?).metadata().ok();
        let streams = streams.into_iter().filter_map(about);
        let reports = reports.filter_map(|path| fs::metadata(path).ok());
        Outputs(streams.chain(reports).filter(Metadata::is_file).map(|file| same(&file)).collect())
    }

    pub(super) fn contain(&self, path: &Path) -> bool {
        fs::metadata(path).is_ok_and(|about| self.0.contains(&same(&about)))
    }
}

/// Equal for two names of one file.
fn same(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

/// A file, when it was changed last, and how large it is.
pub(super) type Stamp = (PathBuf, Option<(i64, i64, u64)>);

/// One for each scenario file and for each file that one names, also for those that are missing.
pub(super) fn stamps(paths: &[PathBuf], outputs: &Outputs) -> Vec<Stamp> {
    let scenarios = paths.iter().flat_map(|path| files::find(path).unwrap_or_default());
    let mut found: Vec<PathBuf> =
        scenarios.filter(|path| !outputs.contain(path)).flat_map(|path| sources(&path)).collect();
    found.sort();
    found.dedup();
    let stamp = |path: PathBuf| {
        let about = fs::metadata(&path).ok().filter(|about| about.is_file());
        let stamp = about.map(|about| (about.mtime(), about.mtime_nsec(), about.len()));
        (path, stamp)
    };
    found.into_iter().filter(|path| !outputs.contain(path)).map(stamp).collect()
}
