//! Incidents on disk: one JSON object a line, so that what was written before a crash can be read.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::data::{Point, Snapshot};
use super::timeline::Timeline;
use crate::output::SCHEMA;

/// A day of a busy fleet; a file that is larger is not one of ours.
const MAX_BYTES: u64 = 2 << 30;
const MAX_MOMENTS: usize = 100_000;
const FORMAT: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot open {path}: {why}")]
    Open { path: PathBuf, why: io::Error },
    #[error("{path}:{line}: this is not a recording of rlctl tui: {why}")]
    NotARecording { path: PathBuf, line: usize, why: String },
    #[error("{path} holds no moment; it was ended before the first one came")]
    Empty { path: PathBuf },
    #[error("{path} is too large to be a recording")]
    TooLarge { path: PathBuf },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Recording { schema: String, format: u32, of: String },
    Past(Vec<Point>),
    Moment(Box<Snapshot>),
}

/// Writes moments down as they come.
#[derive(Debug)]
pub struct Recorder {
    file: BufWriter<File>,
    written: u64,
}

impl Recorder {
    /// Never over what is there: it may be the only trace of an incident.
    pub fn create(path: &Path, of: &str) -> Result<Recorder, RecordError> {
        let open = OpenOptions::new().write(true).create_new(true).open(path);
        let file = open.map_err(|why| RecordError::Open { path: path.into(), why })?;
        let mut recorder = Recorder { file: BufWriter::new(file), written: 0 };
        let head = Line::Recording { schema: SCHEMA.into(), format: FORMAT, of: of.into() };
        recorder.line(&head).map_err(|why| RecordError::Open { path: path.into(), why })?;
        Ok(recorder)
    }

    pub fn past(&mut self, points: &[Point]) -> io::Result<()> {
        self.line(&Line::Past(points.to_vec()))
    }

    pub fn moment(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        self.line(&Line::Moment(Box::new(snapshot.clone())))
    }

    fn line(&mut self, line: &Line) -> io::Result<()> {
        if self.written > MAX_BYTES {
            return Err(io::Error::other("the recording has become too large"));
        }
        let text = serde_json::to_string(line)?;
        self.written += text.len() as u64 + 1;
        writeln!(self.file, "{text}")?;
        // Whoever looks at it after a crash finds all of it.
        self.file.flush()
    }
}

/// What was recorded.
#[derive(Debug)]
pub struct Recording {
    /// What was watched.
    pub of: String,
    pub past: Vec<Point>,
    pub moments: Vec<Snapshot>,
    /// The last line was cut off.
    pub is_cut: bool,
}

impl Recording {
    pub fn read(path: &Path) -> Result<Recording, RecordError> {
        let open = |why| RecordError::Open { path: path.into(), why };
        let file = File::open(path).map_err(open)?;
        if file.metadata().map_err(open)?.len() > MAX_BYTES {
            return Err(RecordError::TooLarge { path: path.into() });
        }
        let mut lines = BufReader::new(file).lines().enumerate().peekable();
        let mut found =
            Recording { of: String::new(), past: Vec::new(), moments: Vec::new(), is_cut: false };
        while let Some((n, line)) = lines.next() {
            let wrong =
                |why: String| RecordError::NotARecording { path: path.into(), line: n + 1, why };
            let line = line.map_err(|why| wrong(why.to_string()))?;
            match serde_json::from_str(&line) {
                Ok(Line::Recording { format, .. }) if format > FORMAT => {
                    return Err(wrong(format!("its format {format} is of a newer rlctl")));
                }
                Ok(Line::Recording { of, .. }) => found.of = of,
                Ok(_) if n == 0 => return Err(wrong("it does not say that it is one".into())),
                Ok(Line::Past(points)) => found.past = points,
                Ok(Line::Moment(moment)) if found.moments.len() < MAX_MOMENTS => {
                    found.moments.push(*moment);
                }
                Ok(Line::Moment(_)) => return Err(RecordError::TooLarge { path: path.into() }),
                // The program was ended while it wrote.
                Err(_) if n > 0 && lines.peek().is_none() => found.is_cut = true,
                Err(error) => return Err(wrong(error.to_string())),
            }
        }
        if found.moments.is_empty() {
            return Err(RecordError::Empty { path: path.into() });
        }
        Ok(found)
    }

    pub fn into_timeline(self) -> Timeline {
        Timeline::recorded(self.moments, self.past)
    }
}
