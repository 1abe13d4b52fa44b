//! Where news comes from: gateways, a Redis, or the demo. Each runs beside the screen, sends what it
//! hears, and does what it is asked.

mod gateway;
mod live;
mod redis;

use tokio::sync::mpsc::{Receiver, Sender};
use tokio::time::{Duration, MissedTickBehavior, interval};

pub use self::live::Live;
pub use self::redis::Store;
use super::act::Act;
use super::data::{Detail, Point, Snapshot};
use super::demo::{BEFORE, Demo};
use super::model::Message;

/// What the screen wants from outside.
#[derive(Clone, Debug)]
pub enum Ask {
    /// Every limit of somebody.
    Look(String),
    Act(Act),
}

/// Tells the story, a second a second.
pub async fn run_demo(mut demo: Demo, to: Sender<Message>, mut asks: Receiver<Ask>) {
    let past: Vec<Point> = (0..BEFORE).map(|_| Point::of(&demo.tick())).collect();
    if to.send(Message::Past(past)).await.is_err() {
        return;
    }
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let message = tokio::select! {
            _ = ticks.tick() => Message::Moment(Box::new(demo.tick())),
            ask = asks.recv() => match ask {
                Some(Ask::Look(who)) => Message::Detail(Box::new(demo.detail(&who))),
                Some(Ask::Act(act)) => Message::Done(demo.act(&act)),
                None => return,
            },
        };
        if to.send(message).await.is_err() {
            return;
        }
    }
}

/// Plays moments that are known already, a second a second, again and again.
pub async fn run_moments(moments: Vec<Snapshot>, to: Sender<Message>, mut asks: Receiver<Ask>) {
    let mut ticks = interval(Duration::from_secs(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Time goes on when it begins anew.
    let lasts = moments.len() as u64 * 1_000_000;
    let mut told = 0;
    loop {
        let message = tokio::select! {
            _ = ticks.tick() => {
                let Some(moment) = moments.get(told % moments.len().max(1)) else { return };
                let round = (told / moments.len()) as u64;
                told += 1;
                Message::Moment(Box::new(moment.later(round * lasts)))
            }
            ask = asks.recv() => match ask {
                Some(Ask::Look(identity)) => {
                    let trouble = Some("a scenario is shown, which keeps nothing to look at".into());
                    Message::Detail(Box::new(Detail { identity, trouble, ..Detail::default() }))
                }
                Some(Ask::Act(_)) => {
                    Message::Done(Err("a scenario happens as it is written".into()))
                }
                None => return,
            },
        };
        if to.send(message).await.is_err() {
            return;
        }
    }
}
