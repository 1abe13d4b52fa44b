//! The connection to one Redis: commands leave in batches, every call has a deadline, and a
//! connection that has gone silent is replaced.
//!
//! Callers put a call into a queue and wait no longer than their deadline. One task drains the
//! queue into pipelines: a script costs the server ten times an INCR, but a packet of its own costs
//! it as much again, so what waits together travels together. A second task replaces the
//! connection when [`Health`] says so. No call that may have run is ever sent twice.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use redis::{Pipeline, RedisError, ServerErrorKind, Value};
use smallvec::SmallVec;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::timeout;

use super::address::{At, RedisAddress};
use super::dial::{Connection, MASTER_WITHIN, connect};
use super::health::Health;
use super::meter::Meter;
use super::scripts::Script;
use super::sentinel::{Sentinels, Watch};
use super::words::in_plain_words;
use crate::engine::clock::Micros;
use crate::engine::store::StoreError;

/// Calls in one pipeline: enough to fill packets, few enough to keep the first one's wait short.
const MAX_BATCH: usize = 64;
/// Calls that may wait; more is a store that cannot keep up, and said so at once.
const MAX_WAITING: usize = 16_384;
const MASTER_LOOKED_UP_EVERY: Duration = Duration::from_millis(250);
/// Between attempts to connect again: short, for everybody is waiting.
const RECONNECT_PAUSE: [u64; 4] = [10, 50, 100, 200];

/// How to speak to a Redis.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    pub address: RedisAddress,
    /// No check outlives it.
    pub deadline: Micros,
    pub connect_timeout: Micros,
}

/// One script call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) script: &'static Script,
    pub(super) keys: SmallVec<[String; 3]>,
    pub(super) args: SmallVec<[Vec<u8>; 2]>,
}

type CallResult = Result<Value, StoreError>;

struct Waiting {
    call: Call,
    answer: oneshot::Sender<CallResult>,
    since: Instant,
}

#[derive(Debug)]
pub(super) struct Link {
    queue: mpsc::Sender<Waiting>,
    shared: Arc<Shared>,
}

struct Shared {
    options: RedisOptions,
    /// That of the options at first; a policy may change it.
    deadline_us: AtomicU64,
    current: watch::Sender<Current>,
    health: Mutex<Health>,
    meter: Meter,
    broken: Notify,
}

/// The connection in use, or why there is none.
#[derive(Clone)]
enum Current {
    Up(Arc<Connection>),
    Down(StoreError),
}

impl Link {
    /// Connects, and keeps a connection from then on for as long as it lives.
    pub(super) async fn open(options: RedisOptions) -> Result<Link, StoreError> {
        let connection = connect(&options).await?;
        Ok(Link::with(options, Current::Up(connection)))
    }

    /// The same without waiting for the first connection: until there is one, callers are told so
    /// at once.
    pub(super) fn start(options: RedisOptions) -> Link {
        let (url, why) = (options.address.to_string(), "there is no connection yet".into());
        let link = Link::with(options, Current::Down(StoreError::Unreachable { url, why }));
        link.shared.broken.notify_one();
        link
    }

    fn with(options: RedisOptions, current: Current) -> Link {
        let meter = Meter::default();
        match current {
            Current::Up(_) => meter.connected(),
            Current::Down(_) => meter.disconnected(Micros::now()),
        }
        let shared = Arc::new(Shared {
            deadline_us: AtomicU64::new(options.deadline.0),
            options,
            current: watch::Sender::new(current),
            health: Mutex::default(),
            meter,
            broken: Notify::new(),
        });
        let (queue, waiting) = mpsc::channel(MAX_WAITING);
        tokio::spawn(drain(waiting, shared.clone()));
        tokio::spawn(keep_connected(Arc::downgrade(&shared)));
        if let At::Sentinel(sentinels) = shared.options.address.at() {
            tokio::spawn(watch_master(Arc::downgrade(&shared), sentinels.as_ref().clone()));
        }
        Link { queue, shared }
    }

    /// From now on no call outlives this.
    pub(super) fn set_deadline(&self, deadline: Micros) {
        self.shared.deadline_us.store(deadline.0, Ordering::Relaxed);
    }

    /// Why there is no connection, if so.
    pub(super) fn trouble(&self) -> Option<StoreError> {
        match &*self.shared.current.borrow() {
            Current::Up(_) => None,
            Current::Down(why) => Some(why.clone()),
        }
    }

    pub(super) fn url(&self) -> String {
        self.shared.options.address.to_string()
    }

    pub(super) fn address(&self) -> &RedisAddress {
        &self.shared.options.address
    }

    pub(super) fn meter(&self) -> &Meter {
        &self.shared.meter
    }

    /// Runs one call, in company with others where there are any.
    pub(super) async fn call(&self, call: Call) -> CallResult {
        if let Current::Down(why) = &*self.shared.current.borrow() {
            self.shared.meter.failed(why);
            return Err(why.clone());
        }
        let (answer, reply) = oneshot::channel();
        let since = Instant::now();
        if self.queue.try_send(Waiting { call, answer, since }).is_err() {
            let why = StoreError::Overloaded { url: self.url(), waiting: MAX_WAITING };
            self.shared.meter.failed(&why);
            return Err(why);
        }
        let result = self.wait_for(reply, since).await.and_then(|result| result);
        self.shared.meter.answered(since.elapsed(), &result);
        result
    }

    /// Runs calls one after the other in a pipeline of their own.
    pub(super) async fn call_in_order(&self, calls: Vec<Call>) -> Vec<CallResult> {
        let count = calls.len();
        let connection = match self.shared.current.borrow().clone() {
            _ if calls.is_empty() => return Vec::new(),
            Current::Up(connection) => connection,
            Current::Down(why) => return vec![Err(why); count],
        };
        let (answer, reply) = oneshot::channel();
        let (shared, since) = (self.shared.clone(), Instant::now());
        // Beside the caller, so that replies are also heard when they come too late.
        tokio::spawn(async move {
            let results = send(&shared, &connection, &calls, true).await;
            if let Err(results) = answer.send(results) {
                results.iter().for_each(|result| shared.too_late(since, result));
            }
        });
        let results =
            self.wait_for(reply, since).await.unwrap_or_else(|error| vec![Err(error); count]);
        results.iter().for_each(|result| self.shared.meter.answered(since.elapsed(), result));
        results
    }

    /// No longer than the deadline.
    async fn wait_for<T>(
        &self,
        reply: oneshot::Receiver<T>,
        since: Instant,
    ) -> Result<T, StoreError> {
        match timeout(self.shared.deadline().into(), reply).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_closed)) => Err(self.shared.lost("it was closed")),
            Err(_elapsed) => Err(self.shared.timed_out(since)),
        }
    }

    /// An ordinary command, for what is not a check.
    pub(super) async fn command(&self, command: &redis::Cmd) -> CallResult {
        let connection = match self.shared.current.borrow().clone() {
            Current::Up(connection) => connection,
            Current::Down(why) => return Err(why),
        };
        let began = Instant::now();
        let mut redis = connection.redis.clone();
        match timeout(self.shared.deadline().into(), redis.send_packed_command(command)).await {
            Ok(Ok(Value::ServerError(error))) => {
                Err(self.shared.refused(&connection, &error.into()))
            }
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.shared.failed(&connection, &error)),
            Err(_elapsed) => Err(self.shared.timed_out(began)),
        }
    }
}

impl Shared {
    fn url(&self) -> String {
        self.options.address.to_string()
    }

    fn deadline(&self) -> Micros {
        Micros(self.deadline_us.load(Ordering::Relaxed))
    }

    fn lost(&self, why: &str) -> StoreError {
        StoreError::Lost { url: self.url(), why: why.into() }
    }

    fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A caller who waited since then has given up before this came.
    fn too_late(&self, since: Instant, result: &CallResult) {
        if matches!(result, Ok(_) | Err(StoreError::Refused { .. })) {
            self.meter.late(since.elapsed());
        }
    }

    fn timed_out(&self, began: Instant) -> StoreError {
        if self.health().timeout(began, Instant::now()) {
            self.give_up(None, "it no longer answers");
        }
        StoreError::Timeout { url: self.url(), deadline: self.deadline() }
    }

    /// What a whole pipeline came to grief with.
    fn failed(&self, connection: &Arc<Connection>, error: &RedisError) -> StoreError {
        if error.is_timeout() {
            return StoreError::Timeout { url: self.url(), deadline: self.deadline() };
        }
        self.give_up(Some(connection), "it was lost");
        self.lost(&error.to_string())
    }

    /// What the server said to one call.
    fn refused(&self, connection: &Arc<Connection>, error: &RedisError) -> StoreError {
        if error.kind() == redis::ErrorKind::Server(ServerErrorKind::ReadOnly) {
            // The address now leads to a replica; connecting anew may lead to the master.
            if self.give_up(Some(connection), "it became a replica") {
                self.meter.failed_over();
            }
        }
        let code = error.code().unwrap_or("ERR").to_string();
        let why = in_plain_words(&code, error);
        StoreError::Refused { url: self.url(), code, why }
    }

    /// From now on callers are told at once, until there is a connection again. A connection that
    /// was replaced meanwhile has nothing left to say. True when it was the one in use.
    fn give_up(&self, failed: Option<&Arc<Connection>>, why: &str) -> bool {
        let down = StoreError::Unreachable { url: self.url(), why: format!("{why}; reconnecting") };
        let was_up = self.current.send_if_modified(|current| {
            let concerned = match (&*current, failed) {
                (Current::Up(now), Some(failed)) => Arc::ptr_eq(now, failed),
                (Current::Up(_), None) => true,
                (Current::Down(_), _) => false,
            };
            if concerned {
                *current = Current::Down(down);
            }
            concerned
        });
        if was_up {
            self.meter.disconnected(Micros::now());
            self.broken.notify_one();
        }
        was_up
    }
}

/// Moves calls from the queue onto the wire, as many together as are waiting.
async fn drain(mut waiting: mpsc::Receiver<Waiting>, shared: Arc<Shared>) {
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
                batch.into_iter().for_each(|w| drop(w.answer.send(Err(why.clone()))));
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
    let each = |w: Waiting| (w.call, (w.answer, w.since));
    let (calls, callers): (Vec<_>, Vec<_>) = batch.into_iter().map(each).unzip();
    let results = send(&shared, &connection, &calls, false).await;
    for ((answer, since), result) in callers.into_iter().zip(results) {
        if let Err(result) = answer.send(result) {
            shared.too_late(since, &result);
        }
    }
}

/// One pipeline. A script that the server does not have has not run, so those calls, and only
/// those, go again with their text, in the same order and to the same server. `in_order` the first
/// call of each script brings its text along: one that had to go again would come after the others.
async fn send(
    shared: &Shared,
    connection: &Arc<Connection>,
    calls: &[Call],
    in_order: bool,
) -> Vec<CallResult> {
    let mut known: SmallVec<[&str; 4]> = SmallVec::new();
    let is_first = |call: &Call| {
        let is_new = in_order && !known.contains(&call.script.sha.as_str());
        if is_new {
            known.push(&call.script.sha);
        }
        is_new
    };
    let mut results = send_once(shared, connection, calls.iter(), is_first).await;
    let missing: Vec<usize> =
        (0..calls.len()).filter(|i| is_missing_script(&results[*i])).collect();
    if !missing.is_empty() {
        let again = missing.iter().map(|i| &calls[*i]);
        let replies = send_once(shared, connection, again, |_| true).await;
        missing.into_iter().zip(replies).for_each(|(i, reply)| results[i] = reply);
    }
    results
}

async fn send_once<'a>(
    shared: &Shared,
    connection: &Arc<Connection>,
    calls: impl Iterator<Item = &'a Call>,
    mut with_text: impl FnMut(&Call) -> bool,
) -> Vec<CallResult> {
    let mut pipeline = Pipeline::new();
    for call in calls {
        match with_text(call) {
            true => pipeline.cmd("EVAL").arg(&call.script.text),
            false => pipeline.cmd("EVALSHA").arg(&call.script.sha),
        };
        pipeline.arg(call.keys.len()).arg(call.keys.as_slice());
        for arg in &call.args {
            pipeline.arg(arg.as_slice());
        }
    }
    let count = pipeline.len();
    let mut redis = connection.redis.clone();
    match redis.send_packed_commands(&pipeline, 0, count).await {
        Ok(values) => {
            shared.health().reply();
            let each = |value| match value {
                Value::ServerError(error) => Err(shared.refused(connection, &error.into())),
                value => Ok(value),
            };
            values.into_iter().map(each).collect()
        }
        Err(error) => {
            let error = shared.failed(connection, &error);
            (0..count).map(|_| Err(error.clone())).collect()
        }
    }
}

fn is_missing_script(result: &CallResult) -> bool {
    matches!(result, Err(StoreError::Refused { code, .. }) if code == "NOSCRIPT")
}

/// Connects again whenever the connection was given up, until nobody wants one any more.
async fn keep_connected(shared: Weak<Shared>) {
    loop {
        let Some(live) = shared.upgrade() else { return };
        // Looking up now and then lets this task end with its link.
        let _ = timeout(Duration::from_secs(1), live.broken.notified()).await;
        let is_down = |s: &Shared| matches!(&*s.current.borrow(), Current::Down(_));
        let mut attempt = 0;
        while is_down(&live) && Arc::strong_count(&live) > 1 {
            match connect(&live.options).await {
                Ok(connection) => {
                    live.health().reply();
                    live.meter.connected();
                    live.current.send_replace(Current::Up(connection));
                }
                Err(error) => {
                    live.current.send_replace(Current::Down(error));
                    let pause = RECONNECT_PAUSE[attempt.min(RECONNECT_PAUSE.len() - 1)];
                    tokio::time::sleep(Duration::from_millis(pause + jitter(pause))).await;
                    attempt += 1;
                }
            }
        }
    }
}

/// Leaves a connection as soon as the sentinels call another server the master: the old one may
/// still take writes that nobody will ever see.
async fn watch_master(shared: Weak<Shared>, sentinels: Sentinels) {
    let mut watch = Watch::new(sentinels);
    loop {
        tokio::time::sleep(MASTER_LOOKED_UP_EVERY).await;
        let found = watch.find(MASTER_WITHIN).await;
        let Some(live) = shared.upgrade() else { return };
        let now = live.current.borrow().clone();
        if let (Ok(found), Current::Up(connection)) = (found, now)
            && *found.addr() != connection.server
            && live.give_up(Some(&connection), "another server became master")
        {
            live.meter.failed_over();
        }
    }
}

/// Up to half as much again, so that many processes do not come back at one instant.
fn jitter(pause_ms: u64) -> u64 {
    let mut byte = [0];
    let _ = getrandom::fill(&mut byte);
    pause_ms * u64::from(byte[0]) / 512
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("options", &self.options).finish_non_exhaustive()
    }
}
