//! Keys on their way to a file and back, bit for bit: what DUMP gives and the moment each expires.
//!
//! One JSON object a line. The first says what this is, the last how many keys there are: a file
//! that was cut off is known as such before anything is restored from it. It is on the disk before
//! anything is removed.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

/// Of this format.
const VERSION: u32 = 1;
/// The same with keys of stores that rules name: who knows only the first would bring them back to
/// another Redis than they are of.
const VERSION_WITH_STORES: u32 = 2;
/// A value that Redis keeps has up to 512 MiB; what limiters keep is far below this.
const MAX_LINE_BYTES: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("cannot write the backup {}: {error}; nothing was removed; --backup names another file", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot read the backup {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{} is no backup of rlctl: {why}", path.display())]
    Form { path: PathBuf, why: String },
    #[error("{} is cut off after {keys} keys; nothing was restored", path.display())]
    Cut { path: PathBuf, keys: u64 },
}

/// What was backed up, by whom and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub rlctl_backup: u32,
    pub at_us: u64,
    /// Without secrets.
    pub redis: String,
    /// The identities or the pattern.
    pub what: String,
    pub rule: Option<String>,
    /// It was of our own layout.
    pub ours: bool,
    pub by: String,
    pub reason: String,
    /// The stores that rules name, as far as there may be keys of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stores: Vec<OfStore>,
}

/// A store, and where it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfStore {
    pub name: String,
    /// Without secrets.
    pub redis: String,
}

impl Header {
    pub fn new(at_us: u64, redis: String, what: String, rule: Option<String>) -> Header {
        let (by, reason, stores) = (String::new(), String::new(), Vec::new());
        Header { rlctl_backup: VERSION, at_us, redis, what, rule, ours: true, by, reason, stores }
    }

    fn names(&self, store: &str) -> bool {
        self.stores.iter().any(|named| named.name == store)
    }

    pub fn with_stores(self, stores: Vec<OfStore>) -> Header {
        let rlctl_backup = if stores.is_empty() { VERSION } else { VERSION_WITH_STORES };
        Header { rlctl_backup, stores, ..self }
    }
}

/// One key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// None: the Redis that counts what names no store.
    pub store: Option<String>,
    pub key: Vec<u8>,
    /// As DUMP gives it.
    pub dump: Vec<u8>,
    /// Milliseconds since 1970; none: never.
    pub expires_ms: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    /// Where it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_base64: Option<String>,
    expires_ms: Option<u64>,
    dump_base64: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    keys: u64,
}

#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    out: BufWriter<File>,
    keys: u64,
}

impl Writer {
    /// A new file, for its owner only: an old one is never overwritten.
    pub fn create(path: &Path, header: &Header) -> Result<Writer, BackupError> {
        let failed = |error| BackupError::Write { path: path.into(), error };
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let out = BufWriter::new(options.open(path).map_err(failed)?);
        let mut writer = Writer { path: path.into(), out, keys: 0 };
        writer.line(header)?;
        Ok(writer)
    }

    pub fn push(&mut self, entry: &Entry) -> Result<(), BackupError> {
        self.keys += 1;
        let text = String::from_utf8(entry.key.clone());
        let key_base64 = text.as_ref().err().map(|error| STANDARD.encode(error.as_bytes()));
        self.line(&Line {
            store: entry.store.clone(),
            key: text.ok(),
            key_base64,
            expires_ms: entry.expires_ms,
            dump_base64: STANDARD.encode(&entry.dump),
        })
    }

    /// Everything is on the disk when this returns, the name of the file, too.
    pub fn finish(mut self) -> Result<u64, BackupError> {
        let keys = self.keys;
        self.line(&End { keys })?;
        let synced = self.sync();
        synced.map_err(|error| BackupError::Write { path: self.path, error })?;
        Ok(keys)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }

    fn line(&mut self, value: &impl Serialize) -> Result<(), BackupError> {
        let text = serde_json::to_string(value).map_err(io::Error::from);
        let written = text.and_then(|text| writeln!(self.out, "{text}"));
        written.map_err(|error| BackupError::Write { path: self.path.clone(), error })
    }
}

/// The keys of a backup on their way.
pub type Entries<'a> = Box<dyn Iterator<Item = Result<Entry, BackupError>> + Send + 'a>;

/// A backup that is whole.
#[derive(Debug)]
pub struct Backup {
    path: PathBuf,
    pub header: Header,
    pub keys: u64,
}

impl Backup {
    /// Reads all of it once: every line must be understood, and the end must be there.
    pub fn open(path: &Path) -> Result<Backup, BackupError> {
        let (header, lines) = begin(path)?;
        let mut backup = Backup { path: path.into(), header, keys: 0 };
        let mut ended = None;
        for line in lines {
            let line = line?;
            match serde_json::from_str::<End>(&line) {
                Ok(end) => ended = Some(end.keys),
                Err(_) if ended.is_some() => return Err(backup.wrong("something follows its end")),
                Err(_) => {
                    backup.entry(&line)?;
                    backup.keys += 1;
                }
            }
        }
        match ended {
            Some(keys) if keys == backup.keys => Ok(backup),
            _ => Err(BackupError::Cut { path: backup.path, keys: backup.keys }),
        }
    }

    /// The keys, one after the other.
    pub fn entries(&self) -> Result<Entries<'_>, BackupError> {
        let (_, lines) = begin(&self.path)?;
        Ok(Box::new(lines.take(self.keys as usize).map(|line| self.entry(&line?))))
    }

    fn entry(&self, line: &str) -> Result<Entry, BackupError> {
        let line: Line = serde_json::from_str(line)
            .map_err(|error| self.wrong(&format!("line {}: {error}", self.keys + 2)))?;
        let bytes = |text: &str| STANDARD.decode(text).map_err(|e| self.wrong(&e.to_string()));
        let key = match (line.key, line.key_base64) {
            (Some(key), None) => key.into_bytes(),
            (None, Some(key)) => bytes(&key)?,
            _ => return Err(self.wrong("a line has no key")),
        };
        let (store, dump) = (line.store, bytes(&line.dump_base64)?);
        if let Some(store) = store.as_ref().filter(|store| !self.header.names(store)) {
            return Err(self.wrong(&format!("its head does not name the store {store}")));
        }
        Ok(Entry { store, key, dump, expires_ms: line.expires_ms })
    }

    fn wrong(&self, why: &str) -> BackupError {
        BackupError::Form { path: self.path.clone(), why: why.into() }
    }
}

type Lines = Box<dyn Iterator<Item = Result<String, BackupError>> + Send>;

fn begin(path: &Path) -> Result<(Header, Lines), BackupError> {
    let failed = |error| BackupError::Read { path: path.into(), error };
    let reader = BufReader::new(File::open(path).map_err(failed)?);
    let own = path.to_owned();
    let mut lines: Lines = Box::new(
        bounded_lines(reader)
            .map(move |line| line.map_err(|error| BackupError::Read { path: own.clone(), error })),
    );
    let form = |why: String| BackupError::Form { path: path.into(), why };
    let first = lines.next().ok_or_else(|| form("it is empty".into()))??;
    let header: Header = serde_json::from_str(&first).map_err(|error| form(error.to_string()))?;
    match header.rlctl_backup {
        VERSION..=VERSION_WITH_STORES => Ok((header, lines)),
        other => {
            let known = VERSION_WITH_STORES;
            Err(form(format!("it has version {other} of the format, known is up to {known}")))
        }
    }
}

/// Lines, none of which is longer than anything of ours.
fn bounded_lines(mut reader: BufReader<File>) -> impl Iterator<Item = io::Result<String>> + Send {
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        let read = io::Read::take(&mut reader, MAX_LINE_BYTES).read_until(b'\n', &mut line);
        match read {
            Ok(0) => None,
            Ok(_) => Some(String::from_utf8(line).map_err(io::Error::other)),
            Err(error) => Some(Err(error)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let gold = OfStore { name: "gold".into(), redis: "redis://h:2".into() };
        Header::new(5, "redis://h:1".into(), "user:1".into(), None).with_stores(vec![gold])
    }

    fn entries() -> Vec<Entry> {
        let entry = |store: Option<&str>, key: &[u8], dump: &[u8], expires_ms| {
            let (store, key, dump) = (store.map(String::from), key.to_vec(), dump.to_vec());
            Entry { store, key, dump, expires_ms }
        };
        vec![
            entry(None, b"rl1:{a}", &[0, 255, 10], Some(7)),
            entry(Some("gold"), &[255, 10, 0], &[], None),
        ]
    }

    fn written(folder: &Path) -> PathBuf {
        let path = folder.join("b");
        let mut writer = Writer::create(&path, &header()).unwrap();
        entries().iter().for_each(|entry| writer.push(entry).unwrap());
        assert_eq!(writer.finish().unwrap(), 2);
        path
    }

    #[test]
    fn what_is_written_is_read_again_and_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = written(folder.path());
        let backup = Backup::open(&path).unwrap();
        assert_eq!((&backup.header, backup.keys), (&header(), 2));
        let read: Vec<Entry> = backup.entries().unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(read, entries());
        let again = Writer::create(&path, &header()).unwrap_err();
        assert!(again.to_string().contains("nothing was removed"), "{again}");
    }

    #[test]
    fn what_is_cut_off_or_something_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let whole = std::fs::read(written(folder.path())).unwrap();
        let path = folder.path().join("c");
        for length in 0..whole.len() - 1 {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(Backup::open(&path).is_err(), "{length} bytes");
        }
        std::fs::write(&path, [&whole[..], b"more\n"].concat()).unwrap();
        assert!(Backup::open(&path).is_err());
        std::fs::write(&path, "{\"rlctl_backup\":9,\"at_us\":0,\"redis\":\"\",\"what\":\"\",\"rule\":null,\"ours\":true,\"by\":\"\",\"reason\":\"\"}\n").unwrap();
        assert!(Backup::open(&path).unwrap_err().to_string().contains("version 9"));
    }
}
