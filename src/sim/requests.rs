//! Requests as rules see them, out of a log or of described traffic, in order of time.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::path::normal_path;
use crate::traffic::log::{Field, InOrder, LogOptions, LogReader, LogReport, Values};
use crate::traffic::{Arrivals, Keys};

use super::policy::Request;
use super::source::{Disorder, More, Opener, START, SourceError};

const BATCH: usize = 4096;
/// Requests are larger than events, so fewer of them wait to be sorted: some 50 MB.
const SORTED_TOGETHER: usize = 1 << 18;
const HEED_EVERY: Duration = Duration::from_millis(50);

/// What of a log's line rules want to know.
#[derive(Clone, Debug)]
pub struct Facts {
    user: Field,
    headers: Vec<String>,
}

impl Facts {
    /// `user` names the field that users are known by, `headers` are those that rules count by.
    pub fn new(user: Option<Field>, headers: Vec<String>) -> Facts {
        Facts { user: user.unwrap_or(Field::User), headers }
    }

    fn wanted(&self) -> Vec<Field> {
        let fixed = [Field::Ip, self.user.clone(), Field::ApiKey, Field::Method, Field::Path];
        let headers = self.headers.iter().map(|name| Field::Named(format!("header:{name}")));
        fixed.into_iter().chain(headers).collect()
    }

    /// The identities of a line: who asks first, everybody last.
    fn identities(&self, values: &Values) -> SmallVec<[Identity; 4]> {
        let text = |place: usize, dimension: &str| {
            values.get(place).and_then(|id| Identity::opaque(&format!("{dimension}:{id}")).ok())
        };
        let ip = values.get(0).and_then(|ip| match ip.parse::<IpAddr>() {
            Ok(address) => Some(Identity::of_ip(address)),
            // Old logs have names of hosts.
            Err(_) => Identity::opaque(&format!("ip:{ip}")).ok(),
        });
        let headers = self.headers.iter().enumerate();
        let headers = headers.filter_map(|(n, name)| text(5 + n, &format!("header:{name}")));
        let mut all: SmallVec<[Identity; 4]> = SmallVec::new();
        all.extend(text(1, "user"));
        all.extend(text(2, "apikey"));
        all.extend(ip);
        all.extend(headers);
        all.push(Identity::everybody());
        all
    }
}

/// Where requests come from.
#[derive(Debug)]
pub enum Requests {
    Described { arrivals: Arrivals, keys: Keys, path: Option<String>, method: Option<String> },
    Log(FromLog),
}

/// Lines are read on a thread of its own, and sorted here.
#[derive(Debug)]
pub struct FromLog {
    batches: Receiver<Result<Vec<Request>, SourceError>>,
    report: Arc<Mutex<LogReport>>,
    order: InOrder<Request>,
    ended: bool,
}

impl Requests {
    pub fn of_log(
        open: &Opener,
        options: LogOptions,
        facts: Facts,
    ) -> Result<Requests, SourceError> {
        let log = LogReader::new(open().map_err(SourceError::Open)?, options, facts.wanted())?;
        let (sender, batches) = sync_channel(8);
        let report = Arc::new(Mutex::new(LogReport::default()));
        let shared = report.clone();
        std::thread::spawn(move || read(log, &facts, &sender, &shared));
        let order = InOrder::new(SORTED_TOGETHER);
        Ok(Requests::Log(FromLog { batches, report, order, ended: false }))
    }

    pub fn fill(&mut self, requests: &mut Vec<Request>) -> Result<More, SourceError> {
        requests.clear();
        match self {
            Requests::Described { arrivals, keys, path, method } => {
                let next = arrivals.by_ref().take(BATCH);
                requests.extend(next.map(|offset| {
                    let key = {
                        let number = keys.draw();
                        keys.name(number).into_owned()
                    };
                    Request {
                        at: START + offset,
                        identities: identities_of(&key),
                        path: path.clone(),
                        method: method.clone(),
                    }
                }));
                Ok(if requests.len() == BATCH { More::Yes } else { More::No })
            }
            Requests::Log(log) => log.fill(requests),
        }
    }

    /// Those that wait to be sorted, for whoever waits no longer.
    pub fn drain(&mut self, requests: &mut Vec<Request>) {
        requests.clear();
        if let Requests::Log(log) = self {
            log.order.end(requests);
        }
    }

    /// What became of the lines so far.
    pub fn read_so_far(&self) -> Option<(LogReport, Disorder)> {
        let Requests::Log(log) = self else { return None };
        let report = log.report.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (steps_back, too_late) = (log.order.steps_back, log.order.too_late);
        Some((report, Disorder { steps_back, too_late, beyond: 0 }))
    }
}

impl FromLog {
    fn fill(&mut self, requests: &mut Vec<Request>) -> Result<More, SourceError> {
        if self.ended {
            return Ok(More::No);
        }
        match self.batches.recv_timeout(HEED_EVERY) {
            Ok(batch) => {
                batch?.into_iter().for_each(|request| self.order.push(request, requests));
                Ok(More::Yes)
            }
            Err(RecvTimeoutError::Timeout) => Ok(More::Later),
            Err(RecvTimeoutError::Disconnected) => {
                self.ended = true;
                self.order.end(requests);
                Ok(More::Yes)
            }
        }
    }
}

fn identities_of(key: &str) -> SmallVec<[Identity; 4]> {
    let own = key.parse().or_else(|_| Identity::opaque(key)).ok();
    own.into_iter().chain([Identity::everybody()]).collect()
}

fn read(
    mut log: LogReader,
    facts: &Facts,
    out: &SyncSender<Result<Vec<Request>, SourceError>>,
    report: &Mutex<LogReport>,
) {
    let mut batch = Vec::new();
    loop {
        let next = log.next_line();
        if let Ok(Some(at)) = &next {
            batch.push(request(*at, log.values(), facts));
        }
        let ended = !matches!(next, Ok(Some(_)));
        if ended || batch.len() == BATCH || !log.has_line() {
            *report.lock().unwrap_or_else(PoisonError::into_inner) = log.report().clone();
            // Nobody may be listening any more.
            if out.send(Ok(std::mem::take(&mut batch))).is_err() {
                return;
            }
            if let Err(error) = next {
                let _ = out.send(Err(error.into()));
            }
            if ended {
                return;
            }
        }
    }
}

fn request(at: Micros, values: &Values, facts: &Facts) -> Request {
    let path = values.get(4).and_then(|path| normal_path(path).ok());
    Request {
        at,
        identities: facts.identities(values),
        path: path.map(|path| path.into_owned()),
        method: values.get(3).map(str::to_ascii_uppercase),
    }
}
