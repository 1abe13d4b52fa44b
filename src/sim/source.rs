//! Where events come from: described traffic, an access log, or a trace. Each can be opened again
//! from its beginning, for those who look at it more than once.

use std::io::{self, Read};
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::traffic::gzip;
use crate::traffic::log::{
    Field, InOrder, LogError, LogOptions, LogReader, LogReport, Names, Timed,
};
use crate::traffic::shape::SpecError;
use crate::traffic::trace::{Trace, TraceError};
use crate::traffic::{Arrivals, KeySpec, Keys, Traffic};

use super::Event;
use super::run::{BATCH, Span};

/// A midnight of our days, so that windows of any usual length begin with the run.
pub const START: Micros = Micros(20_454 * Micros::DAY.0);
/// Events of a log that wait to be sorted: 16 MB of them.
pub const SORTED_TOGETHER: usize = 1 << 20;
/// Batches that may wait between reading and deciding.
const WAITING_BATCHES: usize = 8;
const HEED_EVERY: Duration = Duration::from_millis(50);

/// Opens what is read; once for each pass.
pub type Opener = Box<dyn Fn() -> io::Result<Box<dyn Read + Send>> + Send + Sync>;

/// What can be opened.
pub enum SourceSpec {
    Described { traffic: Traffic, keys: KeySpec, run: Micros, seed: u64 },
    Log { open: Opener, options: LogOptions, key: Field },
    Trace { open: Opener },
}

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("cannot open: {0}")]
    Open(io::Error),
}

impl std::fmt::Debug for SourceSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            SourceSpec::Described { .. } => "described",
            SourceSpec::Log { .. } => "log",
            SourceSpec::Trace { .. } => "trace",
        })
    }
}

impl SourceSpec {
    pub fn span(&self) -> Span {
        match self {
            SourceSpec::Described { run, .. } => Span { start: Some(START), length: Some(*run) },
            _ => Span::default(),
        }
    }

    pub fn open(&self) -> Result<Source, SourceError> {
        Ok(match self {
            SourceSpec::Described { traffic, keys, run, seed } => Source::Described {
                arrivals: traffic.arrivals(*run, *seed),
                keys: keys.load(*seed)?,
            },
            SourceSpec::Log { open, options, key } => {
                let source = open().map_err(SourceError::Open)?;
                let log = LogReader::new(source, options.clone(), vec![key.clone()])?;
                let (dimension, key) = (key.dimension(), key.clone());
                Source::Read(Reading::start(dimension, true, move |out| read_log(log, &key, &out)))
            }
            SourceSpec::Trace { open } => {
                let source = open().and_then(gzip::unzipped).map_err(SourceError::Open)?;
                let trace = Trace::new(source)?;
                Source::Read(Reading::start("", false, move |out| read_trace(trace, &out)))
            }
        })
    }
}

/// Something that events come out of.
#[derive(Debug)]
pub enum Source {
    Described { arrivals: Arrivals, keys: Keys },
    Read(Reading),
}

/// Whether there is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum More {
    Yes,
    /// Nothing came for a while, but may still.
    Later,
    No,
}

impl Source {
    /// The events that wait to be sorted, for whoever waits no longer.
    pub fn drain(&mut self, events: &mut Vec<Event>) {
        events.clear();
        if let Source::Read(reading) = self {
            reading.order.end(events);
        }
    }

    /// The next events.
    pub fn fill(&mut self, events: &mut Vec<Event>) -> Result<More, SourceError> {
        events.clear();
        match self {
            Source::Described { arrivals, keys } => {
                let next = arrivals.by_ref().take(BATCH);
                events.extend(next.map(|offset| Event {
                    at: START + offset,
                    key: keys.draw(),
                    cost: 1,
                }));
                Ok(if events.len() == BATCH { More::Yes } else { More::No })
            }
            Source::Read(reading) => reading.fill(events),
        }
    }

    pub fn name(&self, key: u32) -> String {
        match self {
            Source::Described { keys, .. } => keys.name(key).into_owned(),
            Source::Read(reading) => {
                let so_far = reading.so_far();
                format!("{}{}", reading.dimension, so_far.names.name(key))
            }
        }
    }

    /// What became of the lines so far.
    pub fn read_so_far(&self) -> Option<(LogReport, Disorder)> {
        match self {
            Source::Described { .. } => None,
            Source::Read(reading) => {
                let so_far = reading.so_far();
                let disorder = Disorder {
                    steps_back: reading.order.steps_back,
                    too_late: reading.order.too_late,
                    beyond: so_far.names.beyond(),
                };
                Some((so_far.report.clone(), disorder))
            }
        }
    }
}

/// How far a log was from being in order, and what did not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disorder {
    pub steps_back: u64,
    pub too_late: u64,
    /// Requests of keys beyond the most that are told apart.
    pub beyond: u64,
}

/// Reading on a thread of its own: a pipe that nobody writes to must not keep anyone from
/// interrupting, and reading and deciding share the work.
#[derive(Debug)]
pub struct Reading {
    batches: Receiver<Result<Vec<Event>, SourceError>>,
    so_far: Arc<Mutex<SoFar>>,
    dimension: &'static str,
    /// A trace is decided as it stands.
    sorts: bool,
    order: InOrder<Event>,
    ended: bool,
}

#[derive(Debug, Default)]
struct SoFar {
    names: Names,
    report: LogReport,
}

/// The end that the reading thread holds.
struct Out {
    batches: SyncSender<Result<Vec<Event>, SourceError>>,
    so_far: Arc<Mutex<SoFar>>,
}

impl Reading {
    fn start(
        dimension: &'static str,
        sorts: bool,
        read: impl FnOnce(Out) + Send + 'static,
    ) -> Reading {
        let (batches, receiver) = sync_channel(WAITING_BATCHES);
        let so_far = Arc::new(Mutex::new(SoFar::default()));
        let out = Out { batches, so_far: so_far.clone() };
        std::thread::spawn(move || read(out));
        let order = InOrder::new(SORTED_TOGETHER);
        Reading { batches: receiver, so_far, dimension, sorts, order, ended: false }
    }

    fn so_far(&self) -> MutexGuard<'_, SoFar> {
        lock(&self.so_far)
    }

    fn fill(&mut self, events: &mut Vec<Event>) -> Result<More, SourceError> {
        if self.ended {
            return Ok(More::No);
        }
        match self.batches.recv_timeout(HEED_EVERY) {
            Ok(batch) if self.sorts => {
                batch?.into_iter().for_each(|event| self.order.push(event, events));
                Ok(More::Yes)
            }
            Ok(batch) => {
                *events = batch?;
                Ok(More::Yes)
            }
            Err(RecvTimeoutError::Timeout) => Ok(More::Later),
            Err(RecvTimeoutError::Disconnected) => {
                self.ended = true;
                self.order.end(events);
                Ok(More::Yes)
            }
        }
    }
}

fn lock(so_far: &Mutex<SoFar>) -> MutexGuard<'_, SoFar> {
    so_far.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Timed for Event {
    fn at(&self) -> Micros {
        self.at
    }

    fn set_at(&mut self, at: Micros) {
        self.at = at;
    }
}

/// Lines that are read before what they say is shared.
const LINES_AT_ONCE: usize = 8192;

/// Nothing is locked while one waits for a line.
fn read_log(mut log: LogReader, key: &Field, out: &Out) {
    // Times, and where in `keys` each one's key ends.
    let mut times: Vec<(Micros, usize)> = Vec::new();
    let mut keys = String::new();
    loop {
        let next = log.next_line();
        if let Ok(Some(at)) = &next {
            match log.values().get(0) {
                Some(value) => {
                    keys.push_str(value);
                    times.push((*at, keys.len()));
                }
                None => log.no_key(),
            }
        }
        let ended = !matches!(next, Ok(Some(_)));
        if ended || times.len() == LINES_AT_ONCE || !log.has_line() {
            let mut so_far = lock(&out.so_far);
            so_far.report = log.report().clone();
            let mut from = 0;
            let batch = times.drain(..).map(|(at, to)| {
                let value = &keys[std::mem::replace(&mut from, to)..to];
                Event { at, key: key_number(&mut so_far.names, key, value), cost: 1 }
            });
            let batch: Vec<Event> = batch.collect();
            drop(so_far);
            keys.clear();
            // Nobody may be listening any more.
            if out.batches.send(Ok(batch)).is_err() {
                return;
            }
            if let Err(error) = next {
                let _ = out.batches.send(Err(error.into()));
            }
            if ended {
                return;
            }
        }
    }
}

/// An IPv6 address counts by its prefix, as everywhere.
fn key_number(names: &mut Names, key: &Field, value: &str) -> u32 {
    if *key == Field::Ip
        && value.contains(':')
        && let Ok(address) = value.parse::<IpAddr>()
    {
        let identity = Identity::of_ip(address);
        return names.number(identity.as_str().trim_start_matches("ip:"));
    }
    names.number(value)
}

fn read_trace(trace: Trace<impl io::BufRead>, out: &Out) {
    let mut batch = Vec::with_capacity(BATCH);
    for request in trace {
        let event = request.map(|request| Event {
            at: request.at,
            key: lock(&out.so_far).names.number(request.key.as_str()),
            cost: u32::try_from(request.cost.get()).unwrap_or(u32::MAX),
        });
        let failed = match event {
            Ok(event) => {
                batch.push(event);
                None
            }
            Err(error) => Some(error),
        };
        if batch.len() == BATCH || failed.is_some() {
            let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH));
            if out.batches.send(Ok(full)).is_err() {
                return;
            }
        }
        if let Some(error) = failed {
            let _ = out.batches.send(Err(error.into()));
            return;
        }
    }
    let _ = out.batches.send(Ok(batch));
}
