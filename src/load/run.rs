//! A run: workers on threads of their own that connect, start together, and hand over what they
//! measure.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::Duration;

use super::calls::{self, Troubles};
use super::feed::{Clients, Feed};
use super::h2::Http2;
use super::http::{Crew, Target};
use super::keys::{KeyTable, KeysSetup, Reference};
use super::local::{Identities, Local};
use super::pace::Stopwatch;
use super::plan::{Part, Plan};
use super::record::{Recorder, Tick, Wanted};
use super::stored::Stored;
use super::worker::Desk;
use crate::engine::clock::Micros;
use crate::engine::store::keys::Prefix;
use crate::engine::store::redis::RedisOptions;
use crate::engine::store::{RedisStore, RuleLimit, StoreError};

/// Ticks that wait to be read, per worker.
const WAITING_TICKS: usize = 8;
/// Keys are dealt out to workers when each gets at least so many.
const KEYS_PER_WORKER: usize = 16;
/// How long a run may take to remove what it left in a Redis.
const CLEAN_UP_WITHIN: Duration = Duration::from_secs(5);

/// What is asked.
#[derive(Clone, Debug)]
pub enum Aim {
    Http(Target),
    Http2(Target),
    Engine(Local),
    Redis(Box<RedisAim>),
}

#[derive(Clone, Debug)]
pub struct RedisAim {
    pub options: RedisOptions,
    pub prefix: Prefix,
    pub limits: Arc<[Arc<RuleLimit>]>,
    pub at_most: usize,
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub plan: Plan,
    pub clients: Clients,
    pub workers: u32,
    pub aim: Aim,
    /// Lengths of windows that admissions are counted in.
    pub windows: Vec<Micros>,
    pub reference: Option<Reference>,
    pub wanted: Wanted,
}

/// Why a run could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Connect(io::Error),
    #[error(transparent)]
    Store(StoreError),
}

/// Everything that is at work.
#[derive(Debug)]
pub struct Running {
    workers: Vec<Worker>,
    pub stop: Arc<AtomicBool>,
    pub watch: Stopwatch,
    pub started: Micros,
}

#[derive(Debug)]
struct Worker {
    ticks: Receiver<Box<Tick>>,
    used: Sender<Box<Tick>>,
    thread: JoinHandle<io::Result<KeyTable>>,
}

/// What a worker waits for after it has connected.
type Go = (Stopwatch, Micros);

impl Running {
    /// Connects with all workers, then starts them together.
    pub fn start(setup: &Setup) -> Result<Running, StartError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (ready, is_ready) = mpsc::channel();
        let mut waiting: Vec<SyncSender<Go>> = Vec::new();
        let mut workers = Vec::new();
        for number in 0..setup.workers {
            let (go, on_go) = mpsc::sync_channel(1);
            let (ticks, read_ticks) = mpsc::sync_channel(WAITING_TICKS);
            let (used, take_used) = mpsc::channel();
            let hired = Hired {
                setup: setup.clone(),
                number,
                ready: ready.clone(),
                on_go,
                stop: stop.clone(),
                ticks,
                used: take_used,
            };
            let thread = std::thread::Builder::new().name(format!("load-{number}"));
            let thread = thread.spawn(move || hired.work()).map_err(StartError::Connect)?;
            workers.push(Worker { ticks: read_ticks, used, thread });
            waiting.push(go);
        }
        drop(ready);
        for _ in 0..setup.workers {
            let gone = || Err(StartError::Connect(io::Error::other("a worker ended too early")));
            is_ready.recv().unwrap_or_else(|_| gone())?;
        }
        let go = (Stopwatch::start(), Micros::now());
        for waiting in waiting {
            // A worker that is gone is noticed at the end.
            let _ = waiting.send(go);
        }
        Ok(Running { workers, stop, watch: go.0, started: go.1 })
    }

    /// Hands on what workers have gathered since.
    pub fn read(&self, mut each: impl FnMut(usize, &mut Tick)) {
        for (number, worker) in self.workers.iter().enumerate() {
            while let Ok(mut tick) = worker.ticks.try_recv() {
                each(number, &mut tick);
                // It may have ended meanwhile.
                let _ = worker.used.send(tick);
            }
        }
    }

    pub fn is_over(&self) -> bool {
        self.workers.iter().all(|worker| worker.thread.is_finished())
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// What every worker knows about keys; after the last tick was read.
    pub fn finish(self) -> io::Result<Vec<KeyTable>> {
        let lost = || io::Error::other("a worker of the load generator broke down");
        let end = |worker: Worker| worker.thread.join().map_err(|_| lost())?;
        self.workers.into_iter().map(end).collect()
    }
}

/// A worker before it works.
struct Hired {
    setup: Setup,
    number: u32,
    ready: Sender<Result<(), StartError>>,
    on_go: Receiver<Go>,
    stop: Arc<AtomicBool>,
    ticks: SyncSender<Box<Tick>>,
    used: Receiver<Box<Tick>>,
}

impl Hired {
    fn work(self) -> io::Result<KeyTable> {
        let aim = self.setup.aim.clone();
        let keys = self.setup.plan.keys.clone();
        match &aim {
            Aim::Engine(local) => {
                let desk = self.begin(Ok(()))?;
                Ok(local.work(keys, desk))
            }
            Aim::Http(target) => {
                match Crew::connect(target, self.connections(target.connections), keys) {
                    Ok(crew) => crew.work(self.begin(Ok(()))?),
                    Err(error) => self.fail(StartError::Connect(error)),
                }
            }
            Aim::Http2(target) => {
                let runtime = calls::runtime()?;
                let local = tokio::task::LocalSet::new();
                local.block_on(&runtime, async {
                    let connections = self.connections(target.connections);
                    match Http2::connect(target, connections, keys).await {
                        Ok(http2) => {
                            let at_most = connections * target.pipeline;
                            let desk = self.begin(Ok(()))?;
                            calls::work(http2, desk, at_most, target.patience).await
                        }
                        Err(error) => self.fail(StartError::Connect(error)),
                    }
                })
            }
            Aim::Redis(redis) => calls::runtime()?.block_on(self.work_on_redis(redis)),
        }
    }

    async fn work_on_redis(self, redis: &RedisAim) -> io::Result<KeyTable> {
        let connected = RedisStore::connect(redis.options.clone(), redis.prefix.clone()).await;
        let store = match connected {
            Ok(store) => Arc::new(store),
            Err(error) => return self.fail(StartError::Store(error)),
        };
        let identities = Identities::new(self.setup.plan.keys.clone());
        let at_most = self.connections(redis.at_most);
        let desk = self.begin(Ok(()))?;
        let limits = redis.limits.clone();
        let troubles = Troubles::default();
        let mut stored = Stored { store: store.clone(), limits, identities, troubles };
        // The store has a deadline of its own; this one is for its bugs.
        let patience = Duration::from(redis.options.deadline) + Duration::from_secs(1);
        let table = calls::work(&mut stored, desk, at_most, patience).await;
        let left: Vec<_> = stored.identities.known().collect();
        // What cannot be removed expires.
        let _ = tokio::time::timeout(CLEAN_UP_WITHIN, store.remove(left.iter())).await;
        table
    }

    /// This worker's share of so many.
    fn connections(&self, all: usize) -> usize {
        let (workers, number) = (self.setup.workers as usize, self.number as usize);
        (all / workers + usize::from(number < all % workers)).max(1)
    }

    fn fail(&self, error: StartError) -> io::Result<KeyTable> {
        // Whoever started this has given up, if nobody listens.
        let _ = self.ready.send(Err(error));
        Err(io::ErrorKind::NotConnected.into())
    }

    /// Says that it is ready, and waits for the start.
    fn begin(self, ready: Result<(), StartError>) -> io::Result<Desk> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.ready.send(ready).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let (watch, started) = self.on_go.recv().map_err(gone)?;
        let Setup { plan, workers, .. } = &self.setup;
        let by_key = plan.keys.count() >= KEYS_PER_WORKER * *workers as usize;
        let part = Part { worker: self.number, of: *workers, by_key };
        let keys = KeyTable::new(KeysSetup {
            keys: plan.keys.clone(),
            windows: self.setup.windows.clone(),
            reference: self.setup.reference.clone(),
            exclusive: by_key || *workers == 1,
            started,
        });
        Ok(Desk {
            feed: Feed::new(plan, part, self.setup.clients),
            recorder: Recorder::new(keys, plan.warmup.0 * 1_000, self.setup.wanted),
            watch,
            started,
            end_ns: plan.end().0 * 1_000,
            starved_ns: None,
            stop: self.stop,
            ticks: self.ticks,
            used: self.used,
        })
    }
}
