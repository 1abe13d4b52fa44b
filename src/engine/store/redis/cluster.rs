//! A cluster: every primary has a connection of its own, with its own queue, deadline and health,
//! and a call goes to the one that has its slot.
//!
//! Who has what is asked in the background, every second and at once when there is a sign that it
//! has changed. A server that sends a call elsewhere has not run it, so it goes there; a call whose
//! fate is unknown goes nowhere. All of that happens within the deadline of the call.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{Cmd, ConnectionInfo, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout, timeout_at};

use super::address::RedisAddress;
use super::link::{Link, RedisOptions};
use super::map::{Map, Node};
use super::slots::{Place, slot_of};
use super::survey::{Survey, View};
use super::wire::{Call, Elsewhere, Failed, Sent};
use crate::engine::clock::Micros;
use crate::engine::policy;
use crate::engine::store::StoreError;

/// Without any sign of change.
const LOOKED_UP_EVERY: Duration = Duration::from_secs(1);
/// While a primary is away, until another takes its place.
const LOOKED_UP_IN_TROUBLE: Duration = Duration::from_millis(100);
/// Between two looks, however many signs there are.
const PAUSE: Duration = Duration::from_millis(20);
/// Nodes of a cluster are near each other; one that hangs must not delay the others.
const NODE_WITHIN: Micros = Micros(400_000);
/// How long a call waits for a look that may tell where to send it.
const WAIT_FOR_LOOK: Duration = Duration::from_millis(25);
/// So many times a call is sent elsewhere before somebody is wrong.
const MAX_HOPS: u32 = 16;

#[derive(Debug)]
pub(super) struct Cluster {
    inner: Arc<Inner>,
}

struct Inner {
    options: RedisOptions,
    seeds: Vec<ConnectionInfo>,
    deadline_us: AtomicU64,
    /// What nodes that are new are told.
    breaker: Mutex<Option<policy::Breaker>>,
    map: watch::Sender<Arc<Map>>,
    /// Every node that is connected to, also those that calls were only sent to from elsewhere.
    nodes: Mutex<HashMap<Place, Arc<Node>>>,
    /// Why nobody could be asked at the last look.
    trouble: Mutex<Option<StoreError>>,
    /// Something may have changed.
    wanted: Notify,
    /// When it was last asked who has what.
    looked: watch::Sender<Option<Instant>>,
    redirects: [AtomicU64; REDIRECTS.len()],
}

pub(super) const REDIRECTS: [&str; 3] = ["moved", "ask", "tryagain"];

/// Where a call goes next.
struct Way {
    node: Arc<Node>,
    asking: bool,
}

impl Cluster {
    /// Learns who has what and connects to all of them, as far as they answer.
    pub(super) async fn open(
        options: RedisOptions,
        seeds: &[ConnectionInfo],
    ) -> Result<Cluster, StoreError> {
        let patience = options.connect_timeout.into();
        let inner = Inner::new(options, seeds);
        let mut survey = Survey::new(seeds.to_vec());
        inner.look(&mut survey, patience).await;
        let cluster = Cluster { inner: Arc::new(inner) };
        if let Some(trouble) = cluster.trouble() {
            return Err(trouble);
        }
        tokio::spawn(keep_looking(Arc::downgrade(&cluster.inner), survey));
        Ok(cluster)
    }

    /// The same without waiting: until somebody has answered, callers are told so at once.
    pub(super) fn start(options: RedisOptions, seeds: &[ConnectionInfo]) -> Cluster {
        let cluster = Cluster { inner: Arc::new(Inner::new(options, seeds)) };
        cluster.inner.wanted.notify_one();
        let survey = Survey::new(seeds.to_vec());
        tokio::spawn(keep_looking(Arc::downgrade(&cluster.inner), survey));
        cluster
    }

    pub(super) fn set_deadline(&self, deadline: Micros) {
        self.inner.deadline_us.store(deadline.0, Ordering::Relaxed);
        self.inner.nodes().values().for_each(|node| node.link.set_deadline(deadline));
    }

    pub(super) fn set_breaker(&self, settings: policy::Breaker) {
        *self.inner.breaker.lock().unwrap_or_else(PoisonError::into_inner) = Some(settings);
        self.inner.nodes().values().for_each(|node| node.link.set_breaker(settings));
    }

    /// Waits for the first look, whatever comes of it.
    pub(super) async fn tried(&self, until: Instant) {
        let mut looked = self.inner.looked.subscribe();
        if looked.borrow_and_update().is_none() {
            let _ = timeout_at(until.into(), looked.changed()).await;
        }
    }

    /// Why no call can be answered, if so: one primary of several is no trouble of all.
    pub(super) fn trouble(&self) -> Option<StoreError> {
        let map = self.inner.map.borrow().clone();
        if !map.is_known() {
            let unknown = || self.inner.unreachable("it was not asked yet who has which keys");
            let trouble = self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner);
            return Some(trouble.clone().unwrap_or_else(unknown));
        }
        let mut troubles = Vec::new();
        for node in &map.nodes {
            troubles.push(node.link.trouble()?);
        }
        let nobody = || self.inner.unreachable("nobody in it has any slots");
        Some(troubles.into_iter().next().unwrap_or_else(nobody))
    }

    pub(super) fn options(&self) -> &RedisOptions {
        &self.inner.options
    }

    pub(super) fn map(&self) -> Arc<Map> {
        self.inner.map.borrow().clone()
    }

    /// How often calls were sent elsewhere, by what they were told.
    pub(super) fn redirects(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.inner.redirects.each_ref().map(|count| count.load(Ordering::Relaxed));
        REDIRECTS.into_iter().zip(counts)
    }

    /// When a call that begins now has to be over, so much of its time being gone.
    pub(super) fn until(&self, spent: Duration) -> Instant {
        self.inner.until(spent)
    }

    /// Runs one call wherever its keys are.
    pub(super) async fn call(&self, mut call: Call, until: Instant) -> Result<Value, StoreError> {
        let slot = slot_of_call(&call);
        let (mut way, mut hops) = (self.inner.way(slot)?, 0);
        loop {
            let sent = Sent { call, asking: way.asking };
            let (reply, back) = way.node.link.try_call(sent, until).await;
            let failed = match (reply, back) {
                (Ok(value), _) => return Ok(value),
                (Err(failed), None) => {
                    self.inner.noticed(&failed);
                    return Err(failed.error);
                }
                (Err(failed), Some(back)) => {
                    call = *back;
                    failed
                }
            };
            hops += 1;
            way = self.inner.next(slot, way, failed, hops, until).await?;
        }
    }

    /// An ordinary command that concerns this key.
    pub(super) async fn command(&self, key: &str, command: &Cmd) -> Result<Value, StoreError> {
        let (until, slot) = (self.inner.until(Duration::ZERO), slot_of(key));
        let (mut way, mut hops) = (self.inner.way(slot)?, 0);
        loop {
            match way.node.link.try_command(command, way.asking, until).await {
                Ok(value) => return Ok(value),
                Err(failed) => {
                    hops += 1;
                    way = self.inner.next(slot, way, failed, hops, until).await?;
                }
            }
        }
    }

    /// Runs calls so that those of one key keep their order; of different keys they may change it.
    pub(super) async fn call_in_order(&self, calls: Vec<Call>) -> Vec<Result<Value, StoreError>> {
        let (until, map, count) = (self.inner.until(Duration::ZERO), self.map(), calls.len());
        let mut groups: HashMap<&Place, (&Node, Vec<usize>, Vec<Sent>)> = HashMap::new();
        let mut results: Vec<Result<Value, StoreError>> =
            vec![Err(self.inner.unreachable("it did not answer")); count];
        for (index, call) in calls.into_iter().enumerate() {
            match self.inner.owner(&map, slot_of_call(&call)) {
                Ok(node) => {
                    let (_, indices, sent) =
                        groups.entry(&node.place).or_insert_with(|| (node, vec![], vec![]));
                    indices.push(index);
                    sent.push(Sent { call, asking: false });
                }
                Err(error) => results[index] = Err(error),
            }
        }
        let each = groups.into_values().map(|(node, indices, sent)| async move {
            let (replies, sent) = node.link.call_in_order(sent, until).await;
            (indices, replies, sent)
        });
        let mut elsewhere: Vec<(usize, Call)> = Vec::new();
        for (indices, replies, sent) in join_all(each).await {
            let sent = sent.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
            for ((index, reply), sent) in indices.into_iter().zip(replies).zip(sent) {
                match (reply, sent) {
                    (Err(failed), Some(sent)) if failed.elsewhere.is_some() => {
                        self.inner.noticed(&failed);
                        elsewhere.push((index, sent.call));
                    }
                    (reply, _) => results[index] = reply.map_err(|failed| failed.error),
                }
            }
        }
        // One that was sent away has none of its key behind it that was not.
        elsewhere.sort_by_key(|(index, _)| *index);
        for (index, call) in elsewhere {
            results[index] = self.call(call, until).await;
        }
        results
    }
}

impl Inner {
    fn new(options: RedisOptions, seeds: &[ConnectionInfo]) -> Inner {
        Inner {
            deadline_us: AtomicU64::new(options.deadline.0),
            options,
            breaker: Mutex::default(),
            seeds: seeds.to_vec(),
            map: watch::Sender::new(Arc::default()),
            nodes: Mutex::default(),
            trouble: Mutex::default(),
            wanted: Notify::new(),
            looked: watch::Sender::new(None),
            redirects: Default::default(),
        }
    }

    fn nodes(&self) -> std::sync::MutexGuard<'_, HashMap<Place, Arc<Node>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn until(&self, spent: Duration) -> Instant {
        let deadline = Duration::from_micros(self.deadline_us.load(Ordering::Relaxed));
        Instant::now() + deadline.saturating_sub(spent)
    }

    fn unreachable(&self, why: &str) -> StoreError {
        StoreError::Unreachable { url: self.options.address.to_string(), why: why.into() }
    }

    fn owner<'a>(&self, map: &'a Map, slot: u16) -> Result<&'a Arc<Node>, StoreError> {
        map.node(slot).ok_or_else(|| {
            self.wanted.notify_one();
            let trouble = || self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match map.is_known() {
                true => self.unreachable(&format!("nobody in it has slot {slot}")),
                false => trouble()
                    .unwrap_or_else(|| self.unreachable("it was not asked yet who has which keys")),
            }
        })
    }

    fn way(&self, slot: u16) -> Result<Way, StoreError> {
        let map = self.map.borrow().clone();
        Ok(Way { node: self.owner(&map, slot)?.clone(), asking: false })
    }

    /// A sign that the map may be out of date.
    fn noticed(&self, failed: &Failed) {
        let redirect = match &failed.elsewhere {
            Some(Elsewhere::Moved(_)) => Some(0),
            Some(Elsewhere::Ask(_)) => Some(1),
            Some(Elsewhere::TryAgain) => Some(2),
            Some(Elsewhere::Unknown) | None => None,
        };
        if let Some(redirect) = redirect {
            self.redirects[redirect].fetch_add(1, Ordering::Relaxed);
        }
        // A slot that is on its way is where it was until it has arrived.
        let is_moving = matches!(failed.elsewhere, Some(Elsewhere::Ask(_) | Elsewhere::TryAgain));
        if !is_moving && failed.error.is_of_the_store() {
            self.wanted.notify_one();
        }
    }

    /// Where to send a call that was not run, if that is certain and there is time; else the error.
    async fn next(
        &self,
        slot: u16,
        last: Way,
        failed: Failed,
        hops: u32,
        until: Instant,
    ) -> Result<Way, StoreError> {
        self.noticed(&failed);
        let Failed { error, elsewhere } = failed;
        if hops > MAX_HOPS || Instant::now() >= until {
            return Err(error);
        }
        let asked = &last.node.place.host;
        match elsewhere {
            None => Err(error),
            Some(Elsewhere::Moved(place)) => match Place::parse(&place, asked) {
                Some(place) => Ok(Way { node: self.node_at(&place, until).await, asking: false }),
                None => Err(error),
            },
            Some(Elsewhere::Ask(place)) => match Place::parse(&place, asked) {
                Some(place) => Ok(Way { node: self.node_at(&place, until).await, asking: true }),
                None => Err(error),
            },
            Some(Elsewhere::TryAgain) => {
                let pause = Duration::from_millis(1 << hops.min(3));
                if Instant::now() + pause >= until {
                    return Err(error);
                }
                sleep(pause).await;
                self.way(slot)
            }
            Some(Elsewhere::Unknown) => {
                self.wait_for_look(until).await;
                match self.way(slot) {
                    Ok(way) if way.node.place != last.node.place => Ok(way),
                    _ => Err(error),
                }
            }
        }
    }

    /// Waits for the next look at the cluster, unless the last one is recent: then the map is as
    /// good as it gets.
    async fn wait_for_look(&self, until: Instant) {
        let mut looked = self.looked.subscribe();
        let last = *looked.borrow_and_update();
        if last.is_none_or(|last| last.elapsed() > LOOKED_UP_IN_TROUBLE) {
            let until = until.min(Instant::now() + WAIT_FOR_LOOK);
            let _ = timeout_at(until.into(), looked.changed()).await;
        }
    }

    /// A server that calls are sent to; if it is new, once it was tried to connect to it.
    async fn node_at(&self, place: &Place, until: Instant) -> Arc<Node> {
        let node = self.nodes().entry(place.clone()).or_insert_with(|| self.connect(place)).clone();
        node.link.tried(until).await;
        node
    }

    fn connect(&self, place: &Place) -> Arc<Node> {
        let address = RedisAddress::beside(&self.seeds[0], place);
        let deadline = Micros(self.deadline_us.load(Ordering::Relaxed));
        let connect_timeout = self.options.connect_timeout.min(NODE_WITHIN);
        let link = Link::start(RedisOptions { address, deadline, connect_timeout });
        let breaker = *self.breaker.lock().unwrap_or_else(PoisonError::into_inner);
        breaker.into_iter().for_each(|settings| link.set_breaker(settings));
        Arc::new(Node { place: place.clone(), name: place.to_string().into(), link })
    }

    /// Asks who has what, and goes by it from now on.
    async fn look(&self, survey: &mut Survey, within: Duration) {
        let before = self.map.borrow().clone();
        let seen = survey.look(before.places().into_iter(), within).await;
        let trouble = match seen {
            Ok(view) if view.ranges == before.ranges && before.is_known() => None,
            Ok(view) => {
                self.adopt(view, &before).await;
                None
            }
            Err(why) => Some(self.unreachable(&why)),
        };
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        self.looked.send_replace(Some(Instant::now()));
    }

    async fn adopt(&self, view: View, before: &Map) {
        let mut places: Vec<&Place> = view.ranges.iter().map(|range| &range.primary).collect();
        places.sort();
        places.dedup();
        let until = Instant::now() + Duration::from(NODE_WITHIN);
        // First the connections, then the map that leads there: nobody is told to wait for them.
        let nodes = join_all(places.into_iter().map(|place| self.node_at(place, until))).await;
        let map = Map::new(nodes, view.ranges);
        map.promoted(before).iter().for_each(|node| node.link.meter().failed_over());
        self.nodes().retain(|_, node| map.nodes.iter().any(|known| known.place == node.place));
        self.map.send_replace(Arc::new(map));
    }

    fn is_in_trouble(&self) -> bool {
        let map = self.map.borrow();
        !map.is_known() || map.nodes.iter().any(|node| node.link.trouble().is_some())
    }
}

/// Asks again and again who has what, until nobody wants to know any more.
async fn keep_looking(inner: Weak<Inner>, mut survey: Survey) {
    loop {
        let Some(live) = inner.upgrade() else { return };
        let every = if live.is_in_trouble() { LOOKED_UP_IN_TROUBLE } else { LOOKED_UP_EVERY };
        let _ = timeout(every, live.wanted.notified()).await;
        if Arc::strong_count(&live) > 1 {
            live.look(&mut survey, NODE_WITHIN.into()).await;
        }
        drop(live);
        sleep(PAUSE).await;
    }
}

/// All keys of a call share a slot.
fn slot_of_call(call: &Call) -> u16 {
    call.keys.first().map_or(0, |key| slot_of(key))
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("options", &self.options).field("map", &self.map).finish()
    }
}
