//! A worker with many connections and one loop: sends what is due, reads what came, and between the
//! two waits for whichever is first.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use mio::{Events, Poll, Token};

use super::reader::{Reader, Whole};
use super::stream::Stream;
use super::target::Target;
use super::template::Template;
use crate::load::answer::{Answer, Outcome};
use crate::load::feed::Shot;
use crate::load::keys::{KeyTable, MAX_KEYS_SEEN};
use crate::load::pace::{Alarm, Watchfulness};
use crate::load::worker::Desk;
use crate::traffic::Keys;

const ALARM: Token = Token(usize::MAX - 1);
const BUFFER: usize = 64 * 1024;
/// How long a connection that could not be made is left alone.
const CONNECT_AGAIN_NS: u64 = 100_000_000;
/// How often answers that do not come are looked for.
const PATROL_NS: u64 = 20_000_000;
/// Longest sleep: somebody may want to stop.
const MAX_SLEEP_NS: u64 = 20_000_000;

/// Connections that are made, ready to work.
#[derive(Debug)]
pub struct Crew<'t> {
    target: &'t Target,
    template: Template,
    keys: Keys,
    /// Keys as they stand in requests, once they were needed.
    spelled: Vec<Option<Box<[u8]>>>,
    poll: Poll,
    alarm: Alarm,
    lines: Vec<Line>,
    /// Those that can take a request.
    free: VecDeque<usize>,
    /// Those that have bytes to write.
    dirty: Vec<usize>,
    buffer: Vec<u8>,
    under_way: usize,
    watchfulness: Watchfulness,
}

/// One connection and what is under way on it.
#[derive(Debug)]
struct Line {
    stream: Option<Stream>,
    ready: bool,
    reader: Reader,
    flights: VecDeque<Flight>,
    out: Vec<u8>,
    written: usize,
    is_free: bool,
    /// Whether it has brought an answer.
    served: bool,
    connect_again_ns: u64,
    /// It was lost, or could not be made, since it last was ready.
    failed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    shot: Shot,
    sent_ns: u64,
}

impl Line {
    fn new() -> Line {
        Line {
            stream: None,
            ready: false,
            reader: Reader::default(),
            flights: VecDeque::new(),
            out: Vec::new(),
            written: 0,
            is_free: false,
            served: false,
            connect_again_ns: 0,
            failed: false,
        }
    }
}

impl<'t> Crew<'t> {
    /// Connects; an error when not one connection could be made.
    pub fn connect(target: &'t Target, connections: usize, keys: Keys) -> io::Result<Crew<'t>> {
        let poll = Poll::new()?;
        let alarm = Alarm::new()?;
        alarm.register(poll.registry(), ALARM)?;
        let mut crew = Crew {
            target,
            template: Template::new(&target.parts),
            keys,
            spelled: Vec::new(),
            poll,
            alarm,
            lines: (0..connections.max(1)).map(|_| Line::new()).collect(),
            free: VecDeque::new(),
            dirty: Vec::new(),
            buffer: vec![0; BUFFER],
            under_way: 0,
            watchfulness: Watchfulness::default(),
        };
        crew.connect_all()?;
        Ok(crew)
    }

    fn connect_all(&mut self) -> io::Result<()> {
        let until = std::time::Instant::now() + self.target.patience;
        let mut trouble: Option<io::Error> = None;
        let mut open: Vec<usize> = Vec::new();
        for at in 0..self.lines.len() {
            match Stream::open(self.target, self.poll.registry(), Token(at)) {
                Ok(stream) => {
                    self.lines[at].stream = Some(stream);
                    open.push(at);
                }
                Err(error) => trouble = Some(error),
            }
        }
        let mut events = Events::with_capacity(1_024);
        while !open.is_empty() && std::time::Instant::now() < until {
            self.poll.poll(&mut events, Some(Duration::from_millis(50)))?;
            open.retain(|at| {
                let line = &mut self.lines[*at];
                match line.stream.as_mut().map(Stream::is_ready) {
                    Some(Ok(false)) => true,
                    Some(Ok(true)) => {
                        (line.ready, line.is_free) = (true, true);
                        self.free.push_back(*at);
                        false
                    }
                    Some(Err(error)) => {
                        line.stream = None;
                        trouble = Some(error);
                        false
                    }
                    None => false,
                }
            });
        }
        if self.free.is_empty() {
            return Err(trouble.unwrap_or_else(|| io::ErrorKind::TimedOut.into()));
        }
        Ok(())
    }

    /// Sends until it is over, and waits for the last answers.
    pub fn work(mut self, mut desk: Desk) -> io::Result<KeyTable> {
        let mut events = Events::with_capacity(1_024);
        let mut patrol_ns = 0;
        let patience_ns = self.target.patience.as_nanos() as u64;
        loop {
            let now = desk.watch.ns();
            let over = desk.is_over(now);
            if !over {
                self.pump(&mut desk, now);
            } else if self.under_way == 0 || now > desk.end_ns.saturating_add(patience_ns) {
                break;
            }
            if now >= patrol_ns {
                self.patrol(&mut desk, now);
                patrol_ns = now + PATROL_NS;
            }
            desk.tick(now, self.under_way);
            let before = desk.watch.ns();
            desk.recorder.busy(before - now);
            self.sleep(&mut events, &desk, before, over)?;
            if events.is_empty() {
                continue;
            }
            let woken = desk.watch.ns();
            for event in &events {
                if event.token() != ALARM {
                    let at = event.token().0;
                    self.look_at(at, &mut desk, event.is_readable(), event.is_read_closed());
                }
            }
            desk.recorder.busy(desk.watch.ns() - woken);
        }
        let now = desk.watch.ns();
        for at in 0..self.lines.len() {
            self.give_up(at, &mut desk, now, Outcome::Timeout);
        }
        Ok(desk.finish())
    }

    /// Until something comes or is due; not at all when that is soon.
    fn sleep(&mut self, events: &mut Events, desk: &Desk, now: u64, over: bool) -> io::Result<()> {
        let due = desk.feed.due_ns().filter(|_| !over && !self.free.is_empty());
        let wait = due.map_or(MAX_SLEEP_NS, |due| due.saturating_sub(now));
        let margin = self.watchfulness.margin_ns(now);
        let timeout = if due == Some(0) && now > 0 {
            // A closed loop with a free connection: every client is silent.
            Duration::from_millis(1)
        } else if wait <= margin {
            Duration::ZERO
        } else if due.is_none() {
            // Only answers are waited for: the poll's own timer is exact enough, and saves a call.
            Duration::from_nanos(MAX_SLEEP_NS)
        } else {
            let nap = (wait - margin).min(MAX_SLEEP_NS);
            Duration::from_nanos(if self.alarm.ring_in(nap)? { MAX_SLEEP_NS } else { nap })
        };
        let polled = self.poll.poll(events, Some(timeout));
        if timeout.is_zero() {
            self.watchfulness.looked(now, desk.watch.ns());
        }
        match polled {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            polled => polled,
        }
    }

    /// Sends everything that is due, as far as there are connections for it.
    fn pump(&mut self, desk: &mut Desk, now: u64) {
        while desk.feed.due_ns().is_some_and(|due| due <= now) {
            let Some(at) = self.free.front().copied() else {
                desk.starved_ns = Some(now);
                if self.is_cut_off() && !desk.feed.is_closed() {
                    self.fail_all_due(desk, now);
                }
                break;
            };
            let Some(shot) = desk.feed.take(now) else { break };
            self.send(at, desk, shot, now);
        }
        while let Some(at) = self.dirty.pop() {
            self.write(at, desk, now);
        }
    }

    /// Nobody takes connections any more.
    fn is_cut_off(&self) -> bool {
        self.lines.iter().all(|line| line.failed && !line.ready)
    }

    /// What is due fails, as it would for any other client.
    fn fail_all_due(&mut self, desk: &mut Desk, now: u64) {
        while desk.feed.due_ns().is_some_and(|due| due <= now) {
            let Some(shot) = desk.feed.take(now) else { break };
            desk.recorder.sent(&shot, now, false);
            land(desk, &Flight { shot, sent_ns: now }, now, &Answer::plain(Outcome::Error));
        }
    }

    fn send(&mut self, at: usize, desk: &mut Desk, shot: Shot, now: u64) {
        let line = &mut self.lines[at];
        if line.out.is_empty() {
            self.dirty.push(at);
        }
        if self.template.has_key() {
            let spelled = spelled(&mut self.spelled, &self.template, &self.keys, shot.key);
            self.template.write(&mut line.out, &spelled);
        } else {
            self.template.write(&mut line.out, &[]);
        }
        line.flights.push_back(Flight { shot, sent_ns: now });
        self.under_way += 1;
        let at_once = desk.is_at_once(&shot);
        desk.recorder.sent(&shot, now, at_once);
        if line.flights.len() >= self.target.pipeline {
            line.is_free = false;
            self.free.pop_front();
        }
    }

    fn write(&mut self, at: usize, desk: &mut Desk, now: u64) {
        let line = &mut self.lines[at];
        let Some(stream) = &mut line.stream else { return };
        while line.written < line.out.len() {
            match stream.write(&line.out[line.written..]) {
                Ok(0) => break,
                Ok(written) => line.written += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.lose(at, desk, now, &error.to_string()),
            }
        }
        line.out.clear();
        line.written = 0;
    }

    /// Something happened on a connection.
    fn look_at(&mut self, at: usize, desk: &mut Desk, readable: bool, closed: bool) {
        let Some(line) = self.lines.get_mut(at) else { return };
        let Some(stream) = &mut line.stream else { return };
        if !line.ready {
            match stream.is_ready() {
                Ok(false) => return,
                Ok(true) => {
                    (line.ready, line.failed) = (true, false);
                    self.release(at);
                    let now = desk.watch.ns();
                    if !desk.is_over(now) {
                        self.pump(desk, now);
                    }
                }
                Err(error) => {
                    let now = desk.watch.ns();
                    return self.lose(at, desk, now, &error.to_string());
                }
            }
        } else {
            let flushed = stream.flush();
            let waits = !line.out.is_empty();
            if let Err(error) = flushed {
                let now = desk.watch.ns();
                return self.lose(at, desk, now, &error.to_string());
            }
            if waits {
                let now = desk.watch.ns();
                self.write(at, desk, now);
            }
        }
        if readable || closed {
            self.read(at, desk, closed);
        }
    }

    fn read(&mut self, at: usize, desk: &mut Desk, closed: bool) {
        loop {
            let line = &mut self.lines[at];
            let Some(stream) = &mut line.stream else { return };
            let read = match stream.read(&mut self.buffer) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let now = desk.watch.ns();
                    return self.lose(at, desk, now, &error.to_string());
                }
            };
            let all = stream.short_read_is_all() && read < self.buffer.len() && !closed;
            let now = desk.watch.ns();
            if read == 0 {
                return self.hung_up(at, desk, now);
            }
            if let Err(why) = self.answers(at, desk, now, read) {
                return self.lose(at, desk, now, &why);
            }
            if !desk.is_over(now) {
                self.pump(desk, now);
            }
            if all {
                return;
            }
        }
    }

    /// Reads the answers in the first `read` bytes of the buffer.
    fn answers(&mut self, at: usize, desk: &mut Desk, now: u64, read: usize) -> Result<(), String> {
        let line = &mut self.lines[at];
        let (mut unasked, mut ends) = (false, false);
        let wall_s = desk.wall_s(now);
        let (flights, under_way) = (&mut line.flights, &mut self.under_way);
        let each = |whole: Whole| match flights.pop_front() {
            Some(flight) => {
                *under_way -= 1;
                ends |= !whole.keep_alive;
                land(desk, &flight, now, &whole.answer);
            }
            None => unasked = true,
        };
        let taken = line.reader.take(&self.buffer[..read], self.template.bodiless, wall_s, each);
        taken.map_err(|why| why.to_string())?;
        if unasked {
            return Err("the server answered what was not asked".into());
        }
        line.served = true;
        if ends {
            // Said beforehand, so it is no trouble; what was sent behind it is lost.
            self.give_up(at, desk, now, Outcome::Error);
            self.reconnect(at, now);
        } else {
            self.release(at);
        }
        Ok(())
    }

    /// The line can take a request again.
    fn release(&mut self, at: usize) {
        let line = &mut self.lines[at];
        if line.ready && !line.is_free && line.flights.len() < self.target.pipeline {
            line.is_free = true;
            self.free.push_back(at);
        }
    }

    fn hung_up(&mut self, at: usize, desk: &mut Desk, now: u64) {
        let line = &mut self.lines[at];
        if let Some(whole) = line.reader.close()
            && let Some(flight) = line.flights.pop_front()
        {
            self.under_way -= 1;
            land(desk, &flight, now, &whole.answer);
        }
        let line = &self.lines[at];
        if line.flights.is_empty() && line.served {
            // An idle connection may be closed at any time.
            self.reconnect(at, now);
        } else {
            self.lose(at, desk, now, "the server closed the connection");
        }
    }

    /// A connection that is of no use any more; what was under way on it failed.
    fn lose(&mut self, at: usize, desk: &mut Desk, now: u64, why: &str) {
        desk.recorder.trouble(1, Some(why.to_owned()));
        self.give_up(at, desk, now, Outcome::Error);
        let was_ready = self.lines[at].ready;
        if desk.feed.is_closed()
            && !was_ready
            && let Some(shot) = desk.feed.take(now)
        {
            // A client that always has one request under way has failed with it.
            desk.recorder.sent(&shot, now, false);
            land(desk, &Flight { shot, sent_ns: now }, now, &Answer::plain(Outcome::Error));
        }
        self.lines[at].failed = true;
        self.lines[at].connect_again_ns = now + CONNECT_AGAIN_NS;
        self.hang_up(at);
    }

    /// No answers will come to what is under way.
    fn give_up(&mut self, at: usize, desk: &mut Desk, now: u64, outcome: Outcome) {
        while let Some(flight) = self.lines[at].flights.pop_front() {
            self.under_way -= 1;
            land(desk, &flight, now, &Answer::plain(outcome));
        }
    }

    fn hang_up(&mut self, at: usize) {
        let line = &mut self.lines[at];
        if let Some(mut stream) = line.stream.take() {
            stream.close(self.poll.registry());
        }
        if line.is_free {
            self.free.retain(|free| *free != at);
        }
        let (again, failed) = (line.connect_again_ns, line.failed);
        *line = Line { connect_again_ns: again, failed, ..Line::new() };
    }

    fn reconnect(&mut self, at: usize, now: u64) {
        self.hang_up(at);
        let opened = Stream::open(self.target, self.poll.registry(), Token(at));
        match opened {
            Ok(stream) => self.lines[at].stream = Some(stream),
            Err(_) => {
                let line = &mut self.lines[at];
                (line.connect_again_ns, line.failed) = (now + CONNECT_AGAIN_NS, true);
            }
        }
    }

    /// Gives up on answers that take too long, and connects again where that failed.
    fn patrol(&mut self, desk: &mut Desk, now: u64) {
        let patience = self.target.patience.as_nanos() as u64;
        for at in 0..self.lines.len() {
            let line = &self.lines[at];
            let late = line.flights.front().is_some_and(|f| f.sent_ns + patience < now);
            if late {
                self.give_up(at, desk, now, Outcome::Timeout);
                self.reconnect(at, now);
            } else if line.stream.is_none() && now >= line.connect_again_ns && !desk.is_over(now) {
                self.reconnect(at, now);
            }
        }
    }
}

fn land(desk: &mut Desk, flight: &Flight, now: u64, answer: &Answer) {
    desk.recorder.done(&flight.shot, flight.sent_ns, now, answer);
    desk.feed.answered(&flight.shot, answer, now);
}

/// A key as it stands in a request.
fn spelled<'s>(
    known: &'s mut Vec<Option<Box<[u8]>>>,
    template: &Template,
    keys: &Keys,
    key: u32,
) -> std::borrow::Cow<'s, [u8]> {
    let at = key as usize;
    if at >= MAX_KEYS_SEEN {
        return template.escaped(&keys.name(key)).into();
    }
    if known.len() <= at {
        known.resize(at + 1, None);
    }
    let spelled = known[at].get_or_insert_with(|| template.escaped(&keys.name(key)).into());
    (&spelled[..]).into()
}
