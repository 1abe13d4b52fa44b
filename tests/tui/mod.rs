//! The dashboard: what it says about recorded situations, what it draws at every size, what keys do
//! without drawing, and the real program on a terminal.

mod cost;
mod keys;
mod screens;
mod sources;
mod terminal;
mod verdict;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use rlctl::tui::data::{Detail, Point, Snapshot};
use rlctl::tui::demo::{BEFORE, Demo, Story};
use rlctl::tui::keys::Key;
use rlctl::tui::model::{Effect, Message, Model, Options, Theme};
use rlctl::tui::timeline::Timeline;
use rlctl::tui::verdict::{Situation, Verdict, verdict};

/// A story so many seconds after its beginning.
fn told(story: &str, seconds: u64) -> (Demo, Vec<Point>, Vec<Snapshot>) {
    let mut demo = Demo::new(Story::named(story).unwrap()).unwrap();
    let past = (0..BEFORE).map(|_| Point::of(&demo.tick())).collect();
    let moments = (0..seconds).map(|_| demo.tick()).collect();
    (demo, past, moments)
}

/// What is said of a moment that nothing is known before.
fn judged(now: &Snapshot) -> Verdict {
    verdict(&Situation { now, past: &[Point::of(now)] })
}

fn options() -> Options {
    Options { title: "demo".into(), theme: Theme::Mono, ascii: true, ..Options::default() }
}

/// A dashboard that has watched a story for so long, and the story.
fn watching_on(story: &str, seconds: u64) -> (Demo, Model) {
    let (demo, past, moments) = told(story, seconds);
    (demo, shown(past, moments))
}

fn shown(past: Vec<Point>, moments: Vec<Snapshot>) -> Model {
    let mut model = Model::new(options(), Timeline::default());
    model.update(Message::Past(past));
    for mut moment in moments {
        // Since when somebody has stood out before the first picture is told differently by a second
        // or two from run to run.
        let at_us = moment.at_us;
        for who in moment.rejected.iter_mut().chain(&mut moment.seen) {
            who.since_us = Some(at_us - 10_000_000);
        }
        model.update(Message::Moment(Box::new(moment)));
    }
    model
}

type Kept = (Vec<Point>, Vec<Snapshot>, Detail);

/// The same without the story, which is told only once however often it is looked at; with what is
/// known of the one it is about.
fn watching(story: &'static str, seconds: u64) -> (Detail, Model) {
    static TOLD: Mutex<BTreeMap<(&str, u64), Kept>> = Mutex::new(BTreeMap::new());
    let mut all = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let (past, moments, detail) = all.entry((story, seconds)).or_insert_with(|| {
        let (demo, past, moments) = told(story, seconds);
        (past, moments, demo.detail("apikey:ak_7f3c2"))
    });
    (detail.clone(), shown(past.clone(), moments.clone()))
}

/// Types, as `jj<enter>` with names in angle brackets.
fn press(model: &mut Model, text: &str) -> Vec<Effect> {
    let mut effects = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let named = rest.strip_prefix('<').and_then(|r| r.split_once('>'));
        let (key, after) = match named {
            Some((name, after)) => (special(name), after),
            None => (Key::Char(c), &rest[c.len_utf8()..]),
        };
        effects.extend(model.update(Message::Key(key)));
        rest = after;
    }
    effects
}

fn special(name: &str) -> Key {
    match name {
        "enter" => Key::Enter,
        "esc" => Key::Esc,
        "tab" => Key::Tab,
        "back" => Key::Backspace,
        "down" => Key::Down,
        "up" => Key::Up,
        "ctrl-c" => Key::Ctrl('c'),
        other => panic!("<{other}> is no key"),
    }
}
