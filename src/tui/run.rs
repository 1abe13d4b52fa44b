//! The loop: news and keys in, pictures out, at most four a second unless somebody types.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Duration, Instant, MissedTickBehavior, interval};

use super::feed::Ask;
use super::keys::Key;
use super::model::{Effect, Message, Model, Screen};
use super::record::Recorder;
use super::term::{Term, key_of, panicked};
use crate::engine::clock::Micros;

/// Four pictures a second.
const TICK: Duration = Duration::from_millis(250);
/// Whom somebody looks at is asked for again this often.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(100);

/// All that runs beside the screen.
#[derive(Debug)]
pub struct Session {
    pub model: Model,
    pub news: Receiver<Message>,
    pub asks: Sender<Ask>,
    pub recorder: Option<Recorder>,
    /// Where pictures are saved.
    pub folder: PathBuf,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// By a signal, or by ctrl-c.
    pub interrupted: bool,
    /// The last picture, to be left in the scrollback.
    pub picture: Option<String>,
}

struct Signals {
    term: Signal,
    hup: Signal,
    int: Signal,
    stop: Signal,
}

impl Signals {
    fn new() -> io::Result<Signals> {
        // 20 is SIGTSTP on every system there is a build for.
        Ok(Signals {
            term: signal(SignalKind::terminate())?,
            hup: signal(SignalKind::hangup())?,
            int: signal(SignalKind::interrupt())?,
            stop: signal(SignalKind::from_raw(20))?,
        })
    }
}

/// What is read from the terminal.
enum Input {
    Key(Key),
    Resized,
}

/// Reads the terminal on a thread of its own: it blocks.
fn read_terminal(to: Sender<Input>, ended: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) && !to.is_closed() {
            match crossterm::event::poll(POLL) {
                Ok(false) => continue,
                Ok(true) => {}
                Err(_) => return,
            }
            let Ok(event) = crossterm::event::read() else { return };
            let input = match key_of(&event) {
                Some(key) => Input::Key(key),
                None if matches!(event, crossterm::event::Event::Resize(..)) => Input::Resized,
                None => continue,
            };
            if to.blocking_send(input).is_err() {
                return;
            }
        }
    });
}

pub async fn run(mut session: Session) -> io::Result<End> {
    let mut signals = Signals::new()?;
    let mut term = Term::enter()?;
    let ended = Arc::new(AtomicBool::new(false));
    let (input_to, mut input) = channel(256);
    read_terminal(input_to, ended.clone());
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut played = Instant::now();
    let mut looked = Instant::now();
    let mut is_new = true;
    let end = loop {
        if panicked() {
            break End { interrupted: true, picture: None };
        }
        tokio::select! {
            read = input.recv() => {
                let Some(read) = read else { break End { interrupted: true, picture: None } };
                if let Input::Key(key) = read {
                    let effects = session.model.update(Message::Key(key));
                    if let Some(end) = session.carry_out(effects, &mut term).await? {
                        break end;
                    }
                }
                term.draw(&mut session.model)?;
                is_new = false;
            }
            Some(message) = session.news.recv() => {
                session.write_down(&message);
                session.model.update(message);
                is_new = true;
            }
            _ = ticks.tick() => {
                session.model.update(Message::Tick(Micros::now().0));
                if session.model.timeline.is_recording() && played.elapsed() >= Duration::from_secs(1) {
                    played = Instant::now();
                    session.model.update(Message::Play);
                    is_new = true;
                }
                if looked.elapsed() >= LOOK_EVERY {
                    looked = Instant::now();
                    session.look_again();
                }
                if is_new || session.model.options.recording_since_us.is_some() {
                    term.draw(&mut session.model)?;
                    is_new = false;
                }
            }
            _ = signals.stop.recv() => {
                term.suspend(false)?;
                is_new = true;
            }
            _ = signals.term.recv() => break End { interrupted: true, picture: None },
            _ = signals.hup.recv() => break End { interrupted: true, picture: None },
            _ = signals.int.recv() => break End { interrupted: true, picture: None },
        }
    };
    ended.store(true, Ordering::Relaxed);
    Ok(end)
}

impl Session {
    /// Does what the model wants done; says so if that is to end.
    async fn carry_out(
        &mut self,
        effects: Vec<Effect>,
        term: &mut Term,
    ) -> io::Result<Option<End>> {
        for effect in effects {
            match effect {
                Effect::Look(who) => self.ask(Ask::Look(who)),
                Effect::Act(act) => self.ask(Ask::Act(act)),
                Effect::Copy(text) => term.copy(&text)?,
                Effect::Dump => {
                    let picture = term.picture(&self.model)?;
                    self.save(&picture);
                }
                Effect::Mouse(on) => {
                    term.set_mouse(on)?;
                    let word =
                        if on { "mouse on: the wheel moves" } else { "mouse off: select text" };
                    self.model.note(word);
                }
                Effect::Suspend => term.suspend(true)?,
                Effect::Redraw => term.redraw()?,
                Effect::Interrupt => return Ok(Some(End { interrupted: true, picture: None })),
                Effect::Quit { keep } => {
                    let picture = if keep { Some(term.picture(&self.model)?) } else { None };
                    return Ok(Some(End { interrupted: false, picture }));
                }
            }
        }
        Ok(None)
    }

    fn ask(&mut self, ask: Ask) {
        if self.asks.try_send(ask).is_err() && !self.model.timeline.is_recording() {
            self.model.note("too much is asked at once; try again");
        }
    }

    /// Whoever is looked at goes on being used.
    fn look_again(&mut self) {
        if let Screen::Identity(who) = &self.model.screen
            && self.model.timeline.is_live()
        {
            let _ = self.asks.try_send(Ask::Look(who.clone()));
        }
    }

    fn write_down(&mut self, message: &Message) {
        let Some(recorder) = &mut self.recorder else { return };
        let written = match message {
            Message::Moment(snapshot) => recorder.moment(snapshot),
            Message::Past(points) => recorder.past(points),
            _ => Ok(()),
        };
        if let Err(error) = written {
            self.recorder = None;
            self.model.options.recording_since_us = None;
            self.model.note(format!("the recording has ended: {error}"));
        }
    }

    /// The picture and its figures.
    fn save(&mut self, picture: &str) {
        let Some(now) = self.model.shown().cloned() else { return };
        let stamp = super::words::time(now.at_us).replace(':', "");
        let base = self.folder.join(format!("rlctl-tui-{stamp}"));
        let saved = save_both(&base, picture, &now);
        self.model.note(match saved {
            Ok(()) => format!("saved {}.txt and .json", base.display()),
            Err(error) => format!("cannot save {}.txt: {error}", base.display()),
        });
    }
}

fn save_both(base: &Path, picture: &str, now: &super::data::Snapshot) -> io::Result<()> {
    std::fs::write(base.with_extension("txt"), picture)?;
    let json = serde_json::to_string_pretty(now)?;
    std::fs::write(base.with_extension("json"), json + "\n")
}
