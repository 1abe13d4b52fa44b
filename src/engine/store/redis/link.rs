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
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{timeout, timeout_at};

use super::address::{At, RedisAddress};
use super::dial::{Connection, MASTER_WITHIN, connect, connect_again};
use super::guard::{BreakerStatus, Guard};
use super::health::Health;
use super::kept::Kept;
use super::meter::Meter;
use super::sentinel::{Sentinels, Watch};
use super::wire::{
    Answered, Call, Failed, Reply, Sent, Waiting, drain, failure, failure_of, read, script_time,
    send,
};
use super::words::in_plain_words;
use crate::engine::clock::Micros;
use crate::engine::policy;
use crate::engine::store::StoreError;

/// Calls that may wait; more is a store that cannot keep up, and said so at once.
pub(super) const MAX_WAITING: usize = 16_384;
const MASTER_LOOKED_UP_EVERY: Duration = Duration::from_millis(250);
const PROBED_EVERY: Duration = Duration::from_millis(250);
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

const NOT_TRIED: &str = "there is no connection yet";

type CallResult = Result<Value, StoreError>;

#[derive(Debug)]
pub(super) struct Link {
    queue: mpsc::Sender<Waiting>,
    kept: Kept,
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) options: RedisOptions,
    /// That of the options at first; a policy may change it.
    deadline_us: AtomicU64,
    pub(super) current: watch::Sender<Current>,
    health: Mutex<Health>,
    meter: Arc<Meter>,
    guard: Arc<Guard>,
    broken: Notify,
}

/// The connection in use, or why there is none.
#[derive(Clone)]
pub(super) enum Current {
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
        let (url, why) = (options.address.to_string(), NOT_TRIED.into());
        let link = Link::with(options, Current::Down(StoreError::Unreachable { url, why }));
        link.shared.broken.notify_one();
        link
    }

    fn with(options: RedisOptions, current: Current) -> Link {
        let meter = Arc::new(Meter::default());
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
            guard: Arc::default(),
            broken: Notify::new(),
        });
        let (queue, waiting) = mpsc::channel(MAX_WAITING);
        tokio::spawn(drain(waiting, shared.clone()));
        tokio::spawn(keep_connected(Arc::downgrade(&shared)));
        tokio::spawn(probe(Arc::downgrade(&shared), shared.guard.clone()));
        if let At::Sentinel(sentinels) = shared.options.address.at() {
            tokio::spawn(watch_master(Arc::downgrade(&shared), sentinels.as_ref().clone()));
        }
        Link { queue, kept: Kept::default(), shared }
    }

    /// From now on no call outlives this.
    pub(super) fn set_deadline(&self, deadline: Micros) {
        self.shared.deadline_us.store(deadline.0, Ordering::Relaxed);
    }

    /// From now on there is a breaker, by these numbers.
    pub(super) fn set_breaker(&self, settings: policy::Breaker) {
        self.shared.guard.set(settings, self.shared.deadline());
    }

    pub(super) fn breaker(&self) -> BreakerStatus {
        self.shared.guard.status()
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

    pub(super) fn meter(&self) -> &Arc<Meter> {
        &self.shared.meter
    }

    /// When a call that begins now has to be over, so much of its time being gone.
    pub(super) fn until(&self, spent: Duration) -> Instant {
        Instant::now() + Duration::from(self.shared.deadline()).saturating_sub(spent)
    }

    /// Waits for the first attempt to connect, whatever comes of it.
    pub(super) async fn tried(&self, until: Instant) {
        let mut changes = self.shared.current.subscribe();
        let is_new = |current: &Current| matches!(current, Current::Down(StoreError::Unreachable { why, .. }) if why == NOT_TRIED);
        if is_new(&changes.borrow_and_update()) {
            let _ = timeout_at(until.into(), changes.changed()).await;
        }
    }

    /// Runs one call, in company with others where there are any.
    pub(super) async fn call(&self, call: Call, until: Instant) -> CallResult {
        let (reply, _) = self.try_call(Sent { call, asking: false }, until).await;
        reply.map_err(|failed| {
            // Where there is no elsewhere, to be sent there is a failure like any other.
            if failure_of(&failed).is_none() {
                self.shared.meter.failed(&failed.error);
            }
            failed.error
        })
    }

    /// The same within a time of the caller's; what has not run comes back.
    pub(super) async fn try_call(&self, sent: Sent, until: Instant) -> Answered {
        if Instant::now() >= until {
            // Others took all the time: nothing was sent, and this server cannot help it.
            return (Err(self.shared.timeout().into()), None);
        }
        let Some(pass) = self.shared.guard.admit() else {
            let why = StoreError::Broken { url: self.url() };
            self.shared.meter.failed(&why);
            return (Err(why.into()), None);
        };
        let (reply, call) = self.call_now(sent, until).await;
        pass.settle(failure(&reply), script_time(&reply));
        (reply, call)
    }

    async fn call_now(&self, sent: Sent, until: Instant) -> Answered {
        if let Current::Down(why) = &*self.shared.current.borrow() {
            self.shared.meter.failed(why);
            return (Err(why.clone().into()), None);
        }
        let (answer, reply) = oneshot::channel();
        let since = Instant::now();
        let waiting = Waiting { since, answer, sent };
        let is_queued = match waiting.sent.call.asks {
            Some(asks) => self.kept.send(&self.shared, asks.confirm, waiting),
            None => self.queue.try_send(waiting).is_ok(),
        };
        if !is_queued {
            let why = StoreError::Overloaded { url: self.url(), waiting: MAX_WAITING };
            self.shared.meter.failed(&why);
            return (Err(why.into()), None);
        }
        let (reply, call) = self
            .wait_for(reply, since, until)
            .await
            .unwrap_or_else(|error| (Err(Failed::from(error)), None));
        self.shared.met(since, &reply);
        (reply, call)
    }

    /// Runs calls one after the other in a pipeline of their own; they come back with what was said
    /// to each, unless nothing was in time.
    pub(super) async fn call_in_order(
        &self,
        calls: Vec<Sent>,
        until: Instant,
    ) -> (Vec<Reply>, Vec<Sent>) {
        let count = calls.len();
        let all = |error: StoreError| vec![Err(Failed::from(error)); count];
        let connection = match self.shared.current.borrow().clone() {
            _ if calls.is_empty() => return (Vec::new(), calls),
            Current::Up(connection) => connection,
            Current::Down(why) => return (all(why), calls),
        };
        let (answer, reply) = oneshot::channel();
        let (shared, since) = (self.shared.clone(), Instant::now());
        // Beside the caller, so that replies are also heard when they come too late.
        tokio::spawn(async move {
            let replies = send(&shared, &connection, &calls, true).await;
            if let Err((replies, _)) = answer.send((replies, calls)) {
                replies.iter().for_each(|reply| shared.too_late(since, reply));
            }
        });
        let (replies, calls) = self
            .wait_for(reply, since, until)
            .await
            .unwrap_or_else(|error| (all(error), Vec::new()));
        replies.iter().for_each(|reply| self.shared.met(since, reply));
        (replies, calls)
    }

    /// No longer than the deadline.
    async fn wait_for<T>(
        &self,
        reply: oneshot::Receiver<T>,
        since: Instant,
        until: Instant,
    ) -> Result<T, StoreError> {
        match timeout_at(until.into(), reply).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(_closed)) => Err(self.shared.lost("it was closed")),
            Err(_elapsed) => Err(self.shared.timed_out(since)),
        }
    }

    /// An ordinary command, for what is not a check.
    pub(super) async fn command(&self, command: &redis::Cmd) -> CallResult {
        self.try_command(command, false, self.until(Duration::ZERO))
            .await
            .map_err(|failed| failed.error)
    }

    pub(super) async fn try_command(
        &self,
        command: &redis::Cmd,
        asking: bool,
        until: Instant,
    ) -> Reply {
        let Some(pass) = self.shared.guard.admit() else {
            return Err(StoreError::Broken { url: self.url() }.into());
        };
        let reply = self.shared.command_now(command, asking, until).await;
        pass.settle(failure(&reply), None);
        reply
    }
}

impl Shared {
    async fn command_now(
        self: &Arc<Shared>,
        command: &redis::Cmd,
        asking: bool,
        until: Instant,
    ) -> Reply {
        let connection = match self.current.borrow().clone() {
            Current::Up(connection) => connection,
            Current::Down(why) => return Err(why.into()),
        };
        let began = Instant::now();
        let mut redis = connection.redis.clone();
        let said = async {
            if !asking {
                return redis.send_packed_command(command).await;
            }
            let mut pipeline = Pipeline::new();
            pipeline.cmd("ASKING").add_command(command.clone());
            let mut said = redis.send_packed_commands(&pipeline, 1, 1).await?;
            Ok(said.pop().unwrap_or(Value::Nil))
        };
        match timeout_at(until.into(), said).await {
            Ok(Ok(value)) => {
                self.health().reply();
                read(self, &connection, value)
            }
            Ok(Err(error)) => Err(self.failed(&connection, &error).into()),
            Err(_elapsed) => Err(self.timed_out(began).into()),
        }
    }

    fn url(&self) -> String {
        self.options.address.to_string()
    }

    pub(super) fn deadline(&self) -> Micros {
        Micros(self.deadline_us.load(Ordering::Relaxed))
    }

    fn lost(&self, why: &str) -> StoreError {
        StoreError::Lost { url: self.url(), why: why.into() }
    }

    pub(super) fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a caller got. That another server is to be asked is neither an answer nor an error.
    fn met(&self, since: Instant, reply: &Reply) {
        let error = failure(reply);
        if reply.is_ok() || error.is_some() {
            let took = script_time(reply).unwrap_or_else(|| since.elapsed());
            self.meter.answered(took, error);
        }
    }

    /// A caller who waited since then has given up before this came.
    pub(super) fn too_late(&self, since: Instant, reply: &Reply) {
        if matches!(reply, Ok(_) | Err(Failed { error: StoreError::Refused { .. }, .. })) {
            self.meter.late(since.elapsed());
        }
    }

    pub(super) fn timed_out(&self, began: Instant) -> StoreError {
        if self.health().timeout(began, Instant::now()) {
            self.give_up(None, "it no longer answers");
        }
        self.timeout()
    }

    fn timeout(&self) -> StoreError {
        StoreError::Timeout { url: self.url(), deadline: self.deadline() }
    }

    /// What a whole pipeline came to grief with.
    pub(super) fn failed(&self, connection: &Arc<Connection>, error: &RedisError) -> StoreError {
        if error.is_timeout() {
            return self.timeout();
        }
        self.give_up(Some(connection), "it was lost");
        self.lost(&error.to_string())
    }

    /// What the server said to one call.
    pub(super) fn refused(&self, connection: &Arc<Connection>, error: &RedisError) -> StoreError {
        if error.kind() == redis::ErrorKind::Server(ServerErrorKind::ReadOnly) {
            self.became_replica(connection);
        }
        let code = error.code().unwrap_or("ERR").to_string();
        let why = in_plain_words(&code, error);
        StoreError::Refused { url: self.url(), code, why }
    }

    /// The address now leads to a replica; connecting anew may lead to the master.
    pub(super) fn became_replica(&self, connection: &Arc<Connection>) {
        if self.give_up(Some(connection), "it became a replica") {
            self.meter.failed_over();
        }
    }

    /// From now on callers are told at once, until there is a connection again. A connection that
    /// was replaced meanwhile has nothing left to say. True when it was the one in use.
    pub(super) fn give_up(&self, failed: Option<&Arc<Connection>>, why: &str) -> bool {
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

/// Connects again whenever the connection was given up, until nobody wants one any more.
async fn keep_connected(shared: Weak<Shared>) {
    loop {
        let Some(live) = shared.upgrade() else { return };
        // Looking up now and then lets this task end with its link.
        let _ = timeout(Duration::from_secs(1), live.broken.notified()).await;
        let is_down = |s: &Shared| matches!(&*s.current.borrow(), Current::Down(_));
        let mut attempt = 0;
        while is_down(&live) && Arc::strong_count(&live) > 1 {
            match connect_again(&live.options).await {
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

/// Finds out whether a server that is left alone would answer: with a PING on the connection that
/// calls would take, so that one that has gone silent is found out, too.
async fn probe(shared: Weak<Shared>, guard: Arc<Guard>) {
    loop {
        // Looking up now and then lets this task end with its link.
        if !guard.wants_probe() {
            let _ = timeout(Duration::from_secs(1), guard.opened()).await;
        }
        let Some(live) = shared.upgrade() else { return };
        if guard.wants_probe() {
            // A new connection is news worth a question at once.
            let mut changes = live.current.subscribe();
            drop(live);
            let _ = timeout(PROBED_EVERY, changes.changed()).await;
        }
        let Some(live) = shared.upgrade() else { return };
        if guard.wants_probe() {
            let until = Instant::now() + Duration::from(live.deadline());
            if live.command_now(&redis::cmd("PING"), false, until).await.is_ok() {
                guard.probed();
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
