//! Connections that are kept for charges which replicas have to confirm. `WAIT` speaks only of what
//! was written on its own connection, and holds up whatever comes behind it there; so it must not be
//! the one that all other checks share.
//!
//! There is one for each pair of numbers that rules ask with (usually one pair). Whoever waits goes
//! together: the scripts of all, and when the answers are there one `WAIT` for all that was charged.
//! So a group begins when the one before has been waited for, and whoever comes in between is in the
//! next one.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::dial::{Connection, connect};
use super::link::{Current, MAX_WAITING, RedisOptions, Shared};
use super::scripts::is_charge;
use super::wire::{Call, Failed, Reply, Sent, Waiting, send};
use crate::engine::store::{Confirm, StoreError};

/// Some ten milliseconds of scripts: all of them are answered before any is waited for.
const MAX_GROUP: usize = 512;
/// An old policy's connections are let go.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// A server ends a wait itself; one that is later than this has gone silent.
const LATE: Duration = Duration::from_millis(50);
/// A server that nobody else speaks to sees only ten times a second that a wait is over. Whatever it
/// hears makes it look, so once the time is up it is spoken to this often.
const NUDGE_EVERY: Duration = Duration::from_millis(2);

/// What a call asks of replicas, and how to tell from the reply that anything was charged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asks {
    pub(super) confirm: Confirm,
    pub(super) limits: usize,
    pub(super) idempotent: bool,
}

#[derive(Debug, Default)]
pub(super) struct Kept(Mutex<Vec<(Confirm, mpsc::Sender<Waiting>)>>);

impl Kept {
    /// False when too many wait already.
    pub(super) fn send(&self, shared: &Arc<Shared>, confirm: Confirm, waiting: Waiting) -> bool {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|(_, line)| !line.is_closed());
        if let Some((_, line)) = lines.iter().find(|(of, _)| *of == confirm) {
            return line.try_send(waiting).is_ok();
        }
        let (line, calls) = mpsc::channel(MAX_WAITING);
        let sent = line.try_send(waiting).is_ok();
        lines.push((confirm, line));
        tokio::spawn(serve(Line { shared: shared.clone(), confirm, open: None }, calls));
        sent
    }
}

/// What a caller may wait for altogether beyond its deadline: the group before it, and its own.
pub(super) fn patience(confirm: Confirm) -> Duration {
    Duration::from(confirm.within) * 2
}

struct Line {
    shared: Arc<Shared>,
    confirm: Confirm,
    /// With the shared connection that it was opened beside: when that is replaced, so is this.
    open: Option<(Arc<Connection>, Arc<Connection>)>,
}

async fn serve(mut line: Line, mut calls: mpsc::Receiver<Waiting>) {
    let mut group = Vec::with_capacity(MAX_GROUP);
    loop {
        match timeout(KEPT_FOR, calls.recv_many(&mut group, MAX_GROUP)).await {
            Ok(0) => return,
            Ok(_) => line.answer(&mut group).await,
            // Who was quick enough to come in this moment is still heard.
            Err(_idle) => calls.close(),
        }
    }
}

impl Line {
    async fn answer(&mut self, group: &mut Vec<Waiting>) {
        // Whoever has given up waiting is not charged either.
        let group = group.drain(..).filter(|waiting| !waiting.answer.is_closed());
        let each = |waiting: Waiting| (waiting.sent, (waiting.answer, waiting.since));
        let (sent, callers): (Vec<_>, Vec<_>) = group.map(each).unzip();
        if sent.is_empty() {
            return;
        }
        let replies = self.run(&sent).await;
        for ((sent, (answer, since)), reply) in sent.into_iter().zip(callers).zip(replies) {
            let may_go_elsewhere = matches!(&reply, Err(Failed { elsewhere: Some(_), .. }));
            let call = may_go_elsewhere.then(|| Box::new(sent.call));
            if let Err((reply, _)) = answer.send((reply, call)) {
                self.shared.too_late(since, &reply);
            }
        }
    }

    async fn run(&mut self, sent: &[Sent]) -> Vec<Reply> {
        let all = |error: StoreError| vec![Err(Failed::from(error)); sent.len()];
        let (beside, own) = match self.open().await {
            Ok(open) => open,
            Err(error) => return all(error),
        };
        let (began, deadline) = (Instant::now(), self.shared.deadline().into());
        let Ok(replies) = timeout(deadline, send(&self.shared, &own, sent, false)).await else {
            self.open = None;
            return all(self.shared.timed_out(began));
        };
        let took = began.elapsed();
        if let Some(Failed { error, .. }) = replies.iter().find_map(|reply| reply.as_ref().err()) {
            self.learn_of(error, &beside);
        }
        let charged: Vec<bool> = sent.iter().zip(&replies).map(was_charged).collect();
        let confirmed = match charged.contains(&true) {
            true => self.wait(&own, &beside).await,
            false => 0,
        };
        let told = |(reply, charged): (Reply, bool)| {
            reply.map(|said| Told { said, took, confirmed: charged.then_some(confirmed) }.into())
        };
        replies.into_iter().zip(charged).map(told).collect()
    }

    /// The shared connection and the own one beside it.
    async fn open(&mut self) -> Result<(Arc<Connection>, Arc<Connection>), StoreError> {
        let now = match self.shared.current.borrow().clone() {
            Current::Up(connection) => connection,
            Current::Down(why) => return Err(why),
        };
        if let Some((beside, own)) = self.open.take_if(|(beside, _)| Arc::ptr_eq(beside, &now)) {
            self.open = Some((beside.clone(), own.clone()));
            return Ok((beside, own));
        }
        let options = &self.shared.options;
        // The connection itself must not give up before the server does.
        let deadline = options.deadline + self.confirm.within;
        let own = connect(&RedisOptions { deadline, ..options.clone() }).await?;
        self.open = Some((now.clone(), own.clone()));
        Ok((now, own))
    }

    /// What befell this connection is true of the server, and the shared one may have no calls that
    /// would find it out.
    fn learn_of(&mut self, error: &StoreError, beside: &Arc<Connection>) {
        match error {
            StoreError::Lost { .. } => {
                self.open = None;
                self.shared.give_up(Some(beside), "it was lost");
            }
            StoreError::Timeout { .. } => self.open = None,
            StoreError::Refused { code, .. } if code == "READONLY" => {
                self.open = None;
                self.shared.became_replica(beside);
            }
            _ => {}
        }
    }

    /// How many replicas have all that was written here; none where nobody can say.
    async fn wait(&mut self, own: &Connection, beside: &Connection) -> u32 {
        let within = Duration::from(self.confirm.within);
        let millis = self.confirm.within.0.div_ceil(1_000).max(1);
        let mut command = redis::cmd("WAIT");
        command.arg(self.confirm.replicas).arg(millis);
        let mut redis = own.redis.clone();
        let answer = timeout(within + LATE, redis.send_packed_command(&command));
        let answer = tokio::select! {
            answer = answer => answer,
            never = nudge(beside, within) => match never {},
        };
        match answer {
            Ok(Ok(Value::Int(count))) => u32::try_from(count).unwrap_or_default(),
            // It became a replica meanwhile, or is not allowed to be asked.
            Ok(Ok(_)) => 0,
            Ok(Err(_)) | Err(_) => {
                self.open = None;
                0
            }
        }
    }
}

/// Makes a server look whether a wait is over, from when it should be.
async fn nudge(beside: &Connection, after: Duration) -> Infallible {
    tokio::time::sleep(after).await;
    let mut redis = beside.redis.clone();
    loop {
        tokio::time::sleep(NUDGE_EVERY).await;
        // What it says to that matters to nobody.
        let _ = redis.send_packed_command(&redis::cmd("PING")).await;
    }
}

fn was_charged((sent, reply): (&Sent, &Reply)) -> bool {
    match (&sent.call, reply) {
        (Call { asks: Some(asks), .. }, Ok(Value::BulkString(bytes))) => {
            is_charge(bytes, asks.limits, asks.idempotent)
        }
        _ => false,
    }
}

/// What is told of a call that was made here: a value of its own form, so that it takes the ways of
/// all others.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) said: Value,
    /// The script alone: the rest is no fault of the server that is asked.
    pub(super) took: Duration,
    /// None: nothing was charged, so nothing was waited for.
    pub(super) confirmed: Option<u32>,
}

impl From<Told> for Value {
    fn from(Told { said, took, confirmed }: Told) -> Value {
        let took = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        Value::Array(vec![said, Value::Int(took), Value::Int(confirmed.map_or(-1, i64::from))])
    }
}

impl Told {
    /// Checks answer with strings, so a list is ours.
    pub(super) fn of(value: &Value) -> Option<Told> {
        let Value::Array(parts) = value else { return None };
        let [said @ Value::BulkString(_), Value::Int(took), Value::Int(confirmed)] = &parts[..]
        else {
            return None;
        };
        let took = Duration::from_micros(u64::try_from(*took).ok()?);
        Some(Told { said: said.clone(), took, confirmed: u32::try_from(*confirmed).ok() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_call_is_read_again_and_nothing_else_is() {
        let said = Value::BulkString(vec![1, 2]);
        for confirmed in [None, Some(0), Some(3)] {
            let took = Duration::from_micros(250);
            let value = Value::from(Told { said: said.clone(), took, confirmed });
            let told = Told::of(&value).unwrap();
            assert_eq!((told.said, told.took, told.confirmed), (said.clone(), took, confirmed));
        }
        let of = |parts: Vec<Value>| Told::of(&Value::Array(parts));
        assert!(of(vec![]).is_none() && of(vec![said.clone()]).is_none());
        assert!(of(vec![Value::Int(1), Value::Int(1), Value::Int(1)]).is_none());
        assert!(of(vec![said.clone(), Value::Int(-1), Value::Int(1)]).is_none());
        assert!(Told::of(&said).is_none());
    }
}
