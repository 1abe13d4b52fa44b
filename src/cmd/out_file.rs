//! A file that is written at the end and tried at the start: a path that cannot be written is told
//! in the first second, and a run that fails leaves what was there before.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct OutFile {
    path: PathBuf,
    file: File,
    /// It was made here.
    is_new: bool,
    is_begun: bool,
}

impl OutFile {
    pub(super) fn open(path: &Path) -> io::Result<OutFile> {
        let is_new = !path.exists();
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
        Ok(OutFile { path: path.to_owned(), file, is_new, is_begun: false })
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_begun {
            self.is_begun = true;
            // Pipes and terminals have no length.
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
            }
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for OutFile {
    fn drop(&mut self) {
        if self.is_new && !self.is_begun {
            // Nobody asked for an empty file.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_stays_until_there_is_something_better() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old"), folder.path().join("new"));
        std::fs::write(&old, "a baseline").unwrap();
        drop((OutFile::open(&old).unwrap(), OutFile::open(&new).unwrap()));
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "a baseline");
        assert!(!new.exists());
        OutFile::open(&old).unwrap().write_all(b"better").unwrap();
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "better");
        assert!(OutFile::open(folder.path()).is_err());
    }
}
