//! What a gateway writes down, a line at a time: refusals, and, where asked for, every request, and
//! what happens to itself. A thread of its own writes from a bounded queue: a disk or a pipe that is
//! slow costs lines, which are counted and told, and never holds a request.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::events::Event;
use crate::engine::clock::Micros;
use crate::output::{Untrusted, json_line};

/// Lines that wait may take this much.
const MAX_WAITING_BYTES: usize = 4 << 20;
/// Of a text that a client chose, no more than this.
const MAX_TEXT: usize = 1024;
pub const DEFAULT_VIOLATIONS_PER_SECOND: u32 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Json,
    /// Short lines for eyes.
    Human,
}

#[derive(Clone, Debug)]
pub enum Sink {
    Stderr,
    /// Appended to.
    File(PathBuf),
}

#[derive(Clone, Debug)]
pub struct LogOptions {
    pub format: Format,
    pub sink: Sink,
    /// The id of this gateway.
    pub gateway: String,
    /// More are counted, and told with the next one.
    pub violations_per_second: u32,
    /// Whether every request is written.
    pub access: bool,
}

/// A request that was refused, or would have been.
#[derive(Clone, Copy, Debug)]
pub struct Violation<'a> {
    pub at: Micros,
    pub identity: Option<&'a str>,
    pub endpoint: Option<&'a str>,
    pub method: Option<&'a str>,
    pub rule: Option<&'a str>,
    pub limit: Option<u64>,
    pub used: Option<u64>,
    pub period: Option<Micros>,
    pub mode: &'static str,
    pub reason: &'static str,
    /// It passed all the same, since nothing is enforced.
    pub observed: bool,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a> {
    pub at: Micros,
    pub client: &'a str,
    pub method: &'a str,
    pub path: &'a str,
    pub status: u16,
    pub identity: Option<&'a str>,
    pub rule: Option<&'a str>,
    pub allowed: bool,
    pub degraded: Option<&'a str>,
    pub took: Micros,
    /// Until the upstream's answer began, where it was asked.
    pub upstream: Option<Micros>,
}

/// May be cloned: all write to the same place.
#[derive(Clone, Debug)]
pub struct Log(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    options: LogOptions,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    written: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<String>,
    bytes: usize,
    is_writing: bool,
    is_closed: bool,
    violations: Cap,
    /// Lines that found no room, or that could not be written.
    lost: u64,
    dropped_in_all: u64,
}

/// How many violations were written in the running second, and how many not since the last one.
#[derive(Debug, Default)]
struct Cap {
    second: u64,
    written: u32,
    dropped: u64,
}

impl Log {
    /// Fails if the file cannot be opened.
    pub fn start(options: LogOptions) -> io::Result<Log> {
        let sink: Box<dyn Write + Send> = match &options.sink {
            Sink::Stderr => Box::new(io::stderr()),
            Sink::File(path) => Box::new(OpenOptions::new().create(true).append(true).open(path)?),
        };
        let shared = Arc::new(Shared::default());
        let writer = shared.clone();
        thread::Builder::new().name("log".into()).spawn(move || writer.write_to(sink))?;
        Ok(Log(Arc::new(Handle { options, shared })))
    }

    pub fn writes_access(&self) -> bool {
        self.0.options.access
    }

    pub fn violation(&self, violation: &Violation<'_>) {
        let mut queue = self.0.shared.queue();
        let Some(dropped) =
            queue.pass_violation(violation.at, self.0.options.violations_per_second)
        else {
            return;
        };
        drop(queue);
        let line = match self.0.options.format {
            Format::Json => self.violation_json(violation, dropped),
            Format::Human => violation_text(violation, dropped),
        };
        self.0.shared.push(line);
    }

    pub fn access(&self, access: &Access<'_>) {
        if !self.0.options.access {
            return;
        }
        let line = match self.0.options.format {
            Format::Json => self.access_json(access),
            Format::Human => access_text(access),
        };
        self.0.shared.push(line);
    }

    pub fn event(&self, event: &Event) {
        let line = match self.0.options.format {
            Format::Json => json_line(&serde_json::json!({
                "time": time(event.at),
                "log": "event",
                "level": event.level,
                "kind": event.kind,
                "text": cut(&event.text),
                "identity": event.identity,
                "rule": event.rule,
                "gateway": self.0.options.gateway,
            })),
            Format::Human => {
                let (level, text) = (event.level.name(), cut(&event.text));
                let who = event.identity.as_deref().unwrap_or_default();
                let gap = if who.is_empty() { "" } else { " " };
                let who = Untrusted(who);
                format!("{} {level} {who}{gap}{}", time(event.at), Untrusted(text))
            }
        };
        self.0.shared.push(line);
    }

    /// Lines that were not written: too many violations, or too slow a disk.
    pub fn dropped(&self) -> u64 {
        self.0.shared.queue().dropped_in_all
    }

    /// Waits until everything is written, but no longer than `patience`; false if something is not.
    pub fn flush(&self, patience: Duration) -> bool {
        let queue = self.0.shared.queue();
        let waits = |queue: &mut Queue| queue.is_writing || !queue.lines.is_empty();
        let waited = self.0.shared.written.wait_timeout_while(queue, patience, waits);
        waited.is_ok_and(|(_, timeout)| !timeout.timed_out())
    }

    fn violation_json(&self, v: &Violation<'_>, dropped: u64) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            time: String,
            log: &'static str,
            identity: Option<&'a str>,
            endpoint: Option<&'a str>,
            method: Option<&'a str>,
            rule: Option<&'a str>,
            limit: Option<u64>,
            used: Option<u64>,
            period_us: Option<u64>,
            region: Option<&'a str>,
            gateway: &'a str,
            mode: &'static str,
            reason: &'static str,
            observed: bool,
            #[serde(skip_serializing_if = "is_zero")]
            dropped: u64,
        }
        json_line(&Line {
            time: time(v.at),
            log: "violation",
            identity: v.identity,
            endpoint: v.endpoint.map(cut),
            method: v.method.map(cut),
            rule: v.rule,
            limit: v.limit,
            used: v.used,
            period_us: v.period.map(|period| period.0),
            region: None,
            gateway: &self.0.options.gateway,
            mode: v.mode,
            reason: v.reason,
            observed: v.observed,
            dropped,
        })
    }

    fn access_json(&self, a: &Access<'_>) -> String {
        json_line(&serde_json::json!({
            "time": time(a.at),
            "log": "access",
            "client": cut(a.client),
            "method": cut(a.method),
            "path": cut(a.path),
            "status": a.status,
            "identity": a.identity,
            "rule": a.rule,
            "allowed": a.allowed,
            "degraded": a.degraded,
            "took_us": a.took.0,
            "upstream_us": a.upstream.map(|took| took.0),
            "gateway": self.0.options.gateway,
        }))
    }
}

impl Drop for Handle {
    /// What waits is still written, as long as the process lives.
    fn drop(&mut self) {
        self.shared.queue().is_closed = true;
        self.shared.filled.notify_one();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, mut line: String) {
        let mut queue = self.queue();
        if queue.bytes + line.len() > MAX_WAITING_BYTES {
            queue.lost += 1;
            queue.dropped_in_all += 1;
            return;
        }
        line.push('\n');
        let was_empty = queue.lines.is_empty();
        queue.bytes += line.len();
        queue.lines.push_back(line);
        drop(queue);
        if was_empty {
            self.filled.notify_one();
        }
    }

    /// Until nobody can write any more and everything is written.
    fn write_to(&self, mut sink: Box<dyn Write + Send>) {
        loop {
            let idle = |queue: &mut Queue| queue.lines.is_empty() && !queue.is_closed;
            let mut queue =
                self.filled.wait_while(self.queue(), idle).unwrap_or_else(PoisonError::into_inner);
            if queue.lines.is_empty() {
                return;
            }
            let lines = std::mem::take(&mut queue.lines);
            queue.bytes = 0;
            queue.is_writing = true;
            drop(queue);
            let mut text = String::with_capacity(lines.iter().map(String::len).sum());
            text.extend(lines.iter().map(String::as_str));
            let written = sink.write_all(text.as_bytes()).and_then(|()| sink.flush());
            let mut queue = self.queue();
            queue.is_writing = false;
            if written.is_err() {
                queue.lost += lines.len() as u64;
                queue.dropped_in_all += lines.len() as u64;
            }
            drop(queue);
            self.written.notify_all();
        }
    }
}

impl Queue {
    /// None when there were enough in this second; else how many lines before it were not written.
    fn pass_violation(&mut self, at: Micros, most: u32) -> Option<u64> {
        let cap = &mut self.violations;
        let second = at.0 / Micros::SECOND.0;
        // Two threads may come in the other order: a second that is past is not begun again.
        if second > cap.second {
            (cap.second, cap.written) = (second, 0);
        }
        if cap.written >= most {
            cap.dropped += 1;
            self.dropped_in_all += 1;
            return None;
        }
        cap.written += 1;
        Some(std::mem::take(&mut cap.dropped) + std::mem::take(&mut self.lost))
    }
}

fn violation_text(v: &Violation<'_>, dropped: u64) -> String {
    let mut line = format!("{} {} ", time(v.at), if v.observed { "observed" } else { "refused" });
    let text = |text: Option<&str>| Untrusted(cut(text.unwrap_or("-"))).to_string();
    let number = |n: Option<u64>| n.map_or_else(|| "-".into(), |n| n.to_string());
    // Writing to a string cannot fail.
    let _ = write!(
        line,
        "{} {} {} {} rule={} limit={} used={} period={} mode={}",
        v.reason,
        text(v.identity),
        text(v.method),
        text(v.endpoint),
        text(v.rule),
        number(v.limit),
        number(v.used),
        v.period.map_or_else(|| "-".into(), |period| period.to_string()),
        v.mode,
    );
    if dropped > 0 {
        let _ = write!(line, " ({dropped} more before it were not written)");
    }
    line
}

fn access_text(a: &Access<'_>) -> String {
    let text = |text: &str| Untrusted(cut(text)).to_string();
    let mode = a.degraded.map_or_else(String::new, |mode| format!(" degraded={mode}"));
    format!(
        "{} {} {} {} {} {} {}{mode}",
        time(a.at),
        text(a.client),
        text(a.method),
        text(a.path),
        a.status,
        text(a.identity.unwrap_or("-")),
        a.took,
    )
}

/// To the microsecond, in UTC.
fn time(at: Micros) -> String {
    let us = i64::try_from(at.0).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(us).map_or_else(|_| "-".into(), |time| time.to_string())
}

fn cut(text: &str) -> &str {
    let ends = (0..=MAX_TEXT.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..ends.unwrap_or(0)]
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}
