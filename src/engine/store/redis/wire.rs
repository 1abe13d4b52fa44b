//! Calls on their way to one server: as many together as are waiting, each with an answer of its
//! own, and none that may have run ever sent twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Pipeline, RedisError, ServerErrorKind, Value};
use smallvec::SmallVec;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::dial::Connection;
use super::kept::{Asks, Told};
use super::link::{Current, Shared};
use super::scripts::Script;
use crate::engine::store::StoreError;

/// Calls in one pipeline: enough to fill packets, few enough to keep the first one's wait short.
const MAX_BATCH: usize = 64;

/// One script call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) script: &'static Script,
    pub(super) keys: SmallVec<[String; 3]>,
    pub(super) args: SmallVec<[Vec<u8>; 2]>,
    /// What replicas shall confirm; that takes a way of its own.
    pub(super) asks: Option<Asks>,
}

impl Call {
    pub(super) fn new(
        script: &'static Script,
        keys: SmallVec<[String; 3]>,
        args: SmallVec<[Vec<u8>; 2]>,
    ) -> Call {
        Call { script, keys, args, asks: None }
    }
}

/// Why there is no answer, and what that proves.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) error: StoreError,
    /// Nothing ran, and this may be why: where to try again, if anywhere.
    pub(super) elsewhere: Option<Elsewhere>,
}

/// What a server of a cluster says of a call that it did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Elsewhere {
    /// Another has this slot, from now on.
    Moved(String),
    /// Another has this key, or will; only this call goes there.
    Ask(String),
    /// Some of its keys have moved already, others have not: in a moment.
    TryAgain,
    /// It cannot say; perhaps another can by now.
    Unknown,
}

impl Elsewhere {
    fn of(error: &RedisError) -> Option<Elsewhere> {
        let redis::ErrorKind::Server(kind) = error.kind() else { return None };
        let place = || error.redirect_node().map(|(place, _)| place.to_owned());
        match kind {
            ServerErrorKind::Moved => place().map(Elsewhere::Moved),
            ServerErrorKind::Ask => place().map(Elsewhere::Ask),
            ServerErrorKind::TryAgain => Some(Elsewhere::TryAgain),
            ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::ReadOnly => Some(Elsewhere::Unknown),
            _ => None,
        }
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed { error, elsewhere: None }
    }
}

pub(super) type Reply = Result<Value, Failed>;

/// A call that goes to one server, with the word that lets it in where its slot is only arriving.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) call: Call,
    pub(super) asking: bool,
}

/// The answer; of a call that has not run also the call itself, to be sent elsewhere.
pub(super) type Answered = (Reply, Option<Box<Call>>);

pub(super) struct Waiting {
    pub(super) sent: Sent,
    pub(super) answer: oneshot::Sender<Answered>,
    pub(super) since: Instant,
}

/// Moves calls from the queue onto the wire.
pub(super) async fn drain(mut waiting: mpsc::Receiver<Waiting>, shared: Arc<Shared>) {
    let mut batch = Vec::with_capacity(MAX_BATCH);
    loop {
        let place = place_on_the_wire(&shared).await;
        if waiting.recv_many(&mut batch, MAX_BATCH).await == 0 {
            return;
        }
        // Whoever has given up waiting is not charged either.
        let batch: Vec<Waiting> = batch.drain(..).filter(|w| !w.answer.is_closed()).collect();
        if batch.is_empty() {
            continue;
        }
        let now = shared.current.borrow().clone();
        match (place, now) {
            (Some((connection, permit)), Current::Up(now)) if Arc::ptr_eq(&connection, &now) => {
                tokio::spawn(send_batch(shared.clone(), connection, permit, batch));
            }
            (_, Current::Up(connection)) => {
                let permit = connection.batches.clone().try_acquire_owned().ok();
                tokio::spawn(send_batch(shared.clone(), connection, permit, batch));
            }
            (_, Current::Down(why)) => {
                let told = |w: Waiting| drop(w.answer.send((Err(why.clone().into()), None)));
                batch.into_iter().for_each(told);
            }
        }
    }
}

type Place = (Arc<Connection>, Option<OwnedSemaphorePermit>);

/// Waits until another batch may be sent; none as soon as the connection is given up.
async fn place_on_the_wire(shared: &Shared) -> Option<Place> {
    let mut changes = shared.current.subscribe();
    let connection = match changes.borrow_and_update().clone() {
        Current::Up(connection) => connection,
        Current::Down(_) => return None,
    };
    tokio::select! {
        permit = connection.batches.clone().acquire_owned() => Some((connection, permit.ok())),
        _ = changes.changed() => None,
    }
}

async fn send_batch(
    shared: Arc<Shared>,
    connection: Arc<Connection>,
    _permit: Option<OwnedSemaphorePermit>,
    batch: Vec<Waiting>,
) {
    let each = |w: Waiting| (w.sent, (w.answer, w.since));
    let (sent, callers): (Vec<_>, Vec<_>) = batch.into_iter().map(each).unzip();
    let replies = send(&shared, &connection, &sent, false).await;
    for ((sent, (answer, since)), reply) in sent.into_iter().zip(callers).zip(replies) {
        let may_go_elsewhere = matches!(&reply, Err(Failed { elsewhere: Some(_), .. }));
        let call = may_go_elsewhere.then(|| Box::new(sent.call));
        if let Err((reply, _)) = answer.send((reply, call)) {
            shared.too_late(since, &reply);
        }
    }
}

/// One pipeline. A script that the server does not have has not run, so those calls, and only
/// those, go again with their text, in the same order and to the same server. `in_order` the first
/// call of each script brings its text along: one that had to go again would come after the others.
pub(super) async fn send(
    shared: &Shared,
    connection: &Arc<Connection>,
    calls: &[Sent],
    in_order: bool,
) -> Vec<Reply> {
    let mut known: SmallVec<[&str; 4]> = SmallVec::new();
    let is_first = |call: &Call| {
        let is_new = in_order && !known.contains(&call.script.sha.as_str());
        if is_new {
            known.push(&call.script.sha);
        }
        is_new
    };
    let mut replies = send_once(shared, connection, calls.iter(), is_first).await;
    let missing: Vec<usize> =
        (0..calls.len()).filter(|i| is_missing_script(&replies[*i])).collect();
    if !missing.is_empty() {
        let again = missing.iter().map(|i| &calls[*i]);
        let second = send_once(shared, connection, again, |_| true).await;
        missing.into_iter().zip(second).for_each(|(i, reply)| replies[i] = reply);
    }
    replies
}

async fn send_once<'a>(
    shared: &Shared,
    connection: &Arc<Connection>,
    calls: impl Iterator<Item = &'a Sent>,
    mut with_text: impl FnMut(&Call) -> bool,
) -> Vec<Reply> {
    let mut pipeline = Pipeline::new();
    // What is said before a call has an answer of its own, which tells nothing.
    let mut is_call: SmallVec<[bool; 2 * MAX_BATCH]> = SmallVec::new();
    for Sent { call, asking } in calls {
        if *asking {
            pipeline.cmd("ASKING");
            is_call.push(false);
        }
        match with_text(call) {
            true => pipeline.cmd("EVAL").arg(&call.script.text),
            false => pipeline.cmd("EVALSHA").arg(&call.script.sha),
        };
        pipeline.arg(call.keys.len()).arg(call.keys.as_slice());
        for arg in &call.args {
            pipeline.arg(arg.as_slice());
        }
        is_call.push(true);
    }
    let mut redis = connection.redis.clone();
    match redis.send_packed_commands(&pipeline, 0, pipeline.len()).await {
        Ok(values) => {
            shared.health().reply();
            let of_calls = values.into_iter().zip(is_call).filter(|(_, is_call)| *is_call);
            of_calls.map(|(value, _)| read(shared, connection, value)).collect()
        }
        Err(error) => {
            let error = shared.failed(connection, &error);
            let calls = is_call.into_iter().filter(|is_call| *is_call);
            calls.map(|_| Err(error.clone().into())).collect()
        }
    }
}

/// What the server said to one call.
pub(super) fn read(shared: &Shared, connection: &Arc<Connection>, value: Value) -> Reply {
    match value {
        Value::ServerError(error) => {
            let error = RedisError::from(error);
            let elsewhere = Elsewhere::of(&error);
            Err(Failed { error: shared.refused(connection, &error), elsewhere })
        }
        value => Ok(value),
    }
}

fn is_missing_script(reply: &Reply) -> bool {
    matches!(reply, Err(Failed { error: StoreError::Refused { code, .. }, .. }) if code == "NOSCRIPT")
}

/// What a reply tells of the server: to be sent elsewhere is an answer.
pub(super) fn failure(reply: &Reply) -> Option<&StoreError> {
    reply.as_ref().err().and_then(failure_of)
}

/// How long the server was at it, where more time than that went by.
pub(super) fn script_time(reply: &Reply) -> Option<Duration> {
    Told::of(reply.as_ref().ok()?).map(|told| told.took)
}

pub(super) fn failure_of(failed: &Failed) -> Option<&StoreError> {
    match failed {
        Failed { elsewhere: None | Some(Elsewhere::Unknown), error } => Some(error),
        _ => None,
    }
}
