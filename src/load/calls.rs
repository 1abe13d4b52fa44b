//! A worker for what is asked by futures (the engine on Redis, HTTP/2): one task that sends what is
//! due and takes answers as they come.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::answer::{Answer, Outcome};
use super::feed::Shot;
use super::keys::KeyTable;
use super::worker::Desk;

const MAX_SLEEP_NS: u64 = 20_000_000;
/// The runtime's timer knows milliseconds, and wakes one late: closer to a moment the clock is
/// watched, and everybody else gets a turn in between.
const WATCH_NS: u64 = 2_500_000;

/// Something that can be asked many times at once.
pub trait Calls {
    /// Asks for a key.
    fn call(&mut self, key: u32, wall_s: u64) -> impl Future<Output = Answer> + 'static;

    /// Why calls failed since this was last asked.
    fn troubles(&self) -> &Troubles;
}

/// Why calls failed: noted by them, taken by their worker.
#[derive(Clone, Debug, Default)]
pub struct Troubles(Rc<RefCell<Trouble>>);

#[derive(Debug, Default)]
pub struct Trouble {
    pub connections_lost: u64,
    pub last: Option<String>,
}

impl Troubles {
    pub fn note(&self, why: impl std::fmt::Display) {
        self.0.borrow_mut().last = Some(why.to_string());
    }

    pub fn connection_lost(&self, why: impl std::fmt::Display) {
        self.0.borrow_mut().connections_lost += 1;
        self.note(why);
    }

    fn take(&self) -> Trouble {
        self.0.take()
    }
}

/// A runtime on this thread that looks at sockets often.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().event_interval(7).build()
}

/// Asks until it is over, with at most so many under way.
pub async fn work(
    mut calls: impl Calls,
    mut desk: Desk,
    at_most: usize,
    patience: Duration,
) -> io::Result<KeyTable> {
    let mut under_way = FuturesUnordered::new();
    loop {
        let now = desk.watch.ns();
        let over = desk.is_over(now);
        if over && under_way.is_empty() {
            return Ok(desk.finish());
        }
        while !over && desk.feed.due_ns().is_some_and(|due| due <= now) {
            if under_way.len() >= at_most {
                desk.starved_ns = Some(now);
                break;
            }
            let Some(shot) = desk.feed.take(now) else { break };
            let at_once = desk.is_at_once(&shot);
            desk.recorder.sent(&shot, now, at_once);
            let call = calls.call(shot.key, desk.wall_s(now));
            under_way.push(in_time(call, shot, now, patience));
        }
        desk.tick(now, under_way.len());
        let asked = desk.watch.ns();
        desk.recorder.busy(asked - now);
        let wait = wait_ns(&desk, asked, over || under_way.len() >= at_most);
        tokio::select! {
            biased;
            Some((shot, sent, answer)) = under_way.next() => {
                let now = desk.watch.ns();
                desk.recorder.done(&shot, sent, now, &answer);
                desk.feed.answered(&shot, &answer, now);
                if answer.outcome == Outcome::Error {
                    let Trouble { connections_lost, last } = calls.troubles().take();
                    desk.recorder.trouble(connections_lost, last);
                }
                desk.recorder.busy(desk.watch.ns() - now);
            }
            () = pause(wait) => {}
        }
    }
}

async fn in_time(
    call: impl Future<Output = Answer>,
    shot: Shot,
    sent_ns: u64,
    patience: Duration,
) -> (Shot, u64, Answer) {
    let answer = tokio::time::timeout(patience, call).await;
    (shot, sent_ns, answer.unwrap_or_else(|_| Answer::plain(Outcome::Timeout)))
}

fn wait_ns(desk: &Desk, now: u64, only_answers: bool) -> u64 {
    match desk.feed.due_ns().filter(|_| !only_answers) {
        Some(0) => 1_000_000,
        Some(due) => due.saturating_sub(now),
        None => MAX_SLEEP_NS,
    }
}

/// Until shortly before the moment.
async fn pause(wait_ns: u64) {
    if wait_ns < WATCH_NS {
        std::thread::yield_now();
        tokio::task::yield_now().await;
    } else {
        tokio::time::sleep(Duration::from_nanos((wait_ns - WATCH_NS).min(MAX_SLEEP_NS))).await;
    }
}
