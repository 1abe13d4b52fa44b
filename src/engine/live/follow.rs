//! The tasks that keep a [`LivePolicy`] up to date: the one place of it that waits. Reading and
//! building take their time with ten thousand rules, so both are done beside the runtime.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::file::{Look, Watched};
use super::{LivePolicy, Source};
use crate::engine::clock::Micros;
use crate::engine::registry::{Snapshot, View};

/// How often a file is looked at.
pub const FILE_EVERY: Micros = Micros(250 * Micros::MILLISECOND.0);
/// How often the view is, beside which a change has waited already; it is one comparison.
pub const REGISTRY_EVERY: Micros = Micros(50 * Micros::MILLISECOND.0);
/// How long a file must be left alone: longer than its time of writing is coarse.
const SETTLES_IN: Micros = Micros(50 * Micros::MILLISECOND.0);

impl LivePolicy {
    /// The policy of a file, for as long as it lives. Whether that could be used at once is in its
    /// status: refused is a broken file, trouble is none.
    pub async fn follow_file(path: &Path, view: &Arc<View>) -> Arc<LivePolicy> {
        let live = Arc::new(LivePolicy::default());
        let snapshot = view.snapshot();
        live.switch(&snapshot.switches);
        let first = live.clone();
        let watched = Watched::new(path.into());
        let loaded = beside(watched, move |file| file.load(&first, Micros::now())).await;
        let watched = loaded.map_or_else(|| Watched::new(path.into()), |(file, ())| file);
        tokio::spawn(watch_file(Arc::downgrade(&live), path.into(), watched));
        let switch = |live: &LivePolicy, snapshot: &Snapshot| live.switch(&snapshot.switches);
        tokio::spawn(watch_registry(Arc::downgrade(&live), view.clone(), snapshot, switch));
        live
    }

    /// A policy that stays as it is given; rules in it can still be switched off.
    pub fn given(name: &str, text: &str, view: &Arc<View>) -> Arc<LivePolicy> {
        let live = Arc::new(LivePolicy::default());
        // Whether it could be used is in its status.
        drop(live.offer(text, &Source::File(name.into()), Micros::now()));
        let snapshot = view.snapshot();
        live.switch(&snapshot.switches);
        let switch = |live: &LivePolicy, snapshot: &Snapshot| live.switch(&snapshot.switches);
        tokio::spawn(watch_registry(Arc::downgrade(&live), view.clone(), snapshot, switch));
        live
    }

    /// Reads a file once more, whether or not it looks changed.
    pub async fn reread(self: &Arc<LivePolicy>, path: &Path) {
        let live = self.clone();
        let watched = Watched::new(path.into());
        beside(watched, move |file| file.load(&live, Micros::now())).await;
    }

    /// The policy that is published in the registry of `view`, for as long as it lives.
    pub async fn follow_published(view: &Arc<View>) -> Arc<LivePolicy> {
        let live = Arc::new(LivePolicy::default());
        let follow = |live: &LivePolicy, now: &Snapshot| live.follow_snapshot(now, Micros::now());
        let (first, snapshot) = (live.clone(), view.snapshot());
        let snapshot = beside(snapshot.clone(), move |now| follow(&first, now))
            .await
            .map_or(snapshot, |(seen, ())| seen);
        tokio::spawn(watch_registry(Arc::downgrade(&live), view.clone(), snapshot, follow));
        live
    }
}

async fn watch_file(live: Weak<LivePolicy>, path: PathBuf, mut watched: Watched) {
    let mut pause = FILE_EVERY;
    loop {
        sleep(pause.into()).await;
        let Some(live) = live.upgrade() else { return };
        let looked = beside(watched, move |file| file.look(&live, Micros::now())).await;
        pause = match looked {
            Some((_, Look::Changing)) => SETTLES_IN,
            _ => FILE_EVERY,
        };
        // A text that no reader survives must not end the watch for the next one.
        watched = looked.map_or_else(|| Watched::new(path.clone()), |(file, _)| file);
    }
}

async fn watch_registry(
    live: Weak<LivePolicy>,
    view: Arc<View>,
    mut seen: Arc<Snapshot>,
    follow: impl Fn(&LivePolicy, &Snapshot) + Copy + Send + 'static,
) {
    loop {
        sleep(REGISTRY_EVERY.into()).await;
        let Some(live) = live.upgrade() else { return };
        let snapshot = view.snapshot();
        if !Arc::ptr_eq(&snapshot, &seen) {
            seen = snapshot.clone();
            beside(snapshot, move |now| follow(&live, now)).await;
        }
    }
}

/// Does work with `what` where it holds up nobody, and hands it back; none when it panicked, or the
/// process ends.
async fn beside<T, R>(
    mut what: T,
    work: impl FnOnce(&mut T) -> R + Send + 'static,
) -> Option<(T, R)>
where
    T: Send + 'static,
    R: Send + 'static,
{
    let done = spawn_blocking(move || {
        let result = work(&mut what);
        (what, result)
    });
    done.await.ok()
}
