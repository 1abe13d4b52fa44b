//! Everything the screen depends on, and how keys and news change it. Knows no terminal: what has
//! to be done outside is handed back as effects.

mod acting;
mod commands;
mod moving;

use std::sync::Arc;

pub use self::commands::COMMANDS;
use super::act::{Act, Where};
use super::data::{Detail, LimitUse, Point, Snapshot};
use super::keys::{Action, Key, action};
use super::rows::{Filter, Mark, Sort};
use super::timeline::Timeline;
use super::verdict::{Does, Situation, Verdict, verdict};

/// A note stands for this long.
const NOTE_FOR_US: u64 = 6_000_000;
/// Nobody types a longer line here.
const MAX_INPUT: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Screen {
    Overview,
    Keys,
    Rules,
    Shards,
    Events,
    Identity(String),
}

impl Screen {
    /// Those that are side by side.
    pub const ALL: [Screen; 5] =
        [Screen::Overview, Screen::Keys, Screen::Rules, Screen::Shards, Screen::Events];

    pub fn name(&self) -> &'static str {
        match self {
            Screen::Overview => "overview",
            Screen::Keys => "keys",
            Screen::Rules => "rules",
            Screen::Shards => "shards",
            Screen::Events => "events",
            Screen::Identity(_) => "identity",
        }
    }
}

/// The parts of the overview that can be walked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pane {
    Who,
    Rules,
    Where,
    Todo,
    Events,
}

impl Pane {
    pub const ALL: [Pane; 5] = [Pane::Who, Pane::Rules, Pane::Where, Pane::Todo, Pane::Events];
}

/// A line that is being typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    pub kind: InputKind,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputKind {
    Filter,
    Command,
}

/// A change that waits for its confirmation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asking {
    pub act: Act,
    /// What was typed so far, where a name has to be.
    pub typed: String,
}

/// Whether anything may be changed from here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Permission {
    #[default]
    Allowed,
    /// The name of the context has to be typed.
    Protected(String),
    /// Why not.
    Never(String),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Theme {
    #[default]
    Dark,
    Light,
    /// For eyes that do not tell red from green (Wong 2011).
    Wong,
    /// No colour at all.
    Mono,
}

impl Theme {
    pub const ALL: [Theme; 4] = [Theme::Dark, Theme::Light, Theme::Wong, Theme::Mono];

    pub fn name(self) -> &'static str {
        match self {
            Theme::Dark => "dark",
            Theme::Light => "light",
            Theme::Wong => "wong",
            Theme::Mono => "mono",
        }
    }
}

/// What is asked for when the dashboard starts.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The context, or what else is watched.
    pub title: String,
    pub permission: Permission,
    pub write: bool,
    pub theme: Theme,
    /// Colours were switched off by the user; no key brings them back.
    pub no_color: bool,
    pub ascii: bool,
    pub at: Where,
    /// Since when it is written down.
    pub recording_since_us: Option<u64>,
}

/// News.
#[derive(Clone, Debug)]
pub enum Message {
    Moment(Box<Snapshot>),
    /// What was before the first moment.
    Past(Vec<Point>),
    Detail(Box<Detail>),
    /// How an act ended.
    Done(Result<String, String>),
    Note(String),
    Key(Key),
    /// Time passes.
    Tick(u64),
    /// A second of a recording passes.
    Play,
}

/// What the model wants done.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Look(String),
    Act(Act),
    Copy(String),
    Dump,
    Mouse(bool),
    Suspend,
    Redraw,
    Quit { keep: bool },
    Interrupt,
}

#[derive(Debug)]
pub struct Model {
    pub options: Options,
    pub timeline: Timeline,
    pub screen: Screen,
    before: Vec<Screen>,
    pub pane: Pane,
    marks: Vec<(String, Mark)>,
    pub filter: Filter,
    pub sort: Sort,
    pub reverse: bool,
    pub input: Option<Input>,
    /// Lines that the help is scrolled by, while it is shown.
    pub help: Option<u16>,
    pub asking: Option<Asking>,
    pub write: bool,
    pub mouse: bool,
    pub ascii: bool,
    pub theme: Theme,
    note: Option<(String, u64)>,
    pub detail: Option<Detail>,
    pub verdict: Verdict,
    pub now_us: u64,
    /// Rows that a page has, as it was last drawn.
    pub page: usize,
}

impl Model {
    pub fn new(options: Options, timeline: Timeline) -> Model {
        let nothing = Snapshot::default();
        let mut model = Model {
            write: options.write && !matches!(options.permission, Permission::Never(_)),
            theme: if options.no_color { Theme::Mono } else { options.theme },
            ascii: options.ascii,
            options,
            timeline,
            screen: Screen::Overview,
            before: Vec::new(),
            pane: Pane::Who,
            marks: Vec::new(),
            filter: Filter::default(),
            sort: Sort::default(),
            reverse: false,
            input: None,
            help: None,
            asking: None,
            mouse: false,
            note: None,
            detail: None,
            verdict: verdict(&Situation { now: &nothing, past: &[] }),
            now_us: 0,
            page: 10,
        };
        model.judge();
        model
    }

    /// Takes in what is new, and says what has to be done.
    pub fn update(&mut self, message: Message) -> Vec<Effect> {
        match message {
            Message::Moment(snapshot) => {
                let was_shown = self.timeline.is_live() || self.timeline.shown().is_none();
                self.timeline.push(*snapshot);
                if was_shown {
                    self.judge();
                }
            }
            Message::Past(points) => {
                self.timeline.put_before(points);
                self.judge();
            }
            Message::Detail(mut detail) => {
                if matches!(&self.screen, Screen::Identity(who) if *who == detail.identity) {
                    // What is most used up is most likely what refuses.
                    let used = |limit: &LimitUse| match limit.used {
                        Some(used) => used as f64 / limit.capacity.max(1) as f64,
                        None => -1.0,
                    };
                    detail.limits.sort_by(|a, b| used(b).total_cmp(&used(a)));
                    self.detail = Some(*detail);
                }
            }
            Message::Done(Ok(text)) => self.note(format!("done: {text}")),
            Message::Done(Err(why)) => self.note(format!("failed: {why}")),
            Message::Note(text) => self.note(text),
            Message::Key(key) => return self.key(key),
            Message::Tick(now_us) => {
                self.now_us = now_us;
                if self.note.as_ref().is_some_and(|(_, until)| *until < now_us) {
                    self.note = None;
                }
            }
            Message::Play => {
                self.timeline.play();
                self.judge();
            }
        }
        Vec::new()
    }

    fn key(&mut self, key: Key) -> Vec<Effect> {
        if self.asking.is_some() {
            return self.answer(key);
        }
        if self.input.is_some() {
            return self.type_in(key);
        }
        if let Some(scrolled) = self.help {
            return self.in_help(action(key), scrolled);
        }
        action(key).map_or_else(Vec::new, |action| self.act(action))
    }

    /// Any key but those that scroll closes it, also `q`: whoever reads help does not want to leave.
    fn in_help(&mut self, action: Option<Action>, scrolled: u16) -> Vec<Effect> {
        use super::keys::Move;
        self.help = match action {
            Some(action @ (Action::Interrupt | Action::Suspend)) => return self.act(action),
            Some(Action::Move(Move::Down)) => Some(scrolled.saturating_add(1).min(100)),
            Some(Action::Move(Move::PageDown)) => Some(scrolled.saturating_add(10).min(100)),
            Some(Action::Move(Move::Up)) => Some(scrolled.saturating_sub(1)),
            Some(Action::Move(Move::PageUp)) => Some(scrolled.saturating_sub(10)),
            Some(Action::Move(_)) => Some(0),
            _ => None,
        };
        Vec::new()
    }

    fn act(&mut self, action: Action) -> Vec<Effect> {
        match action {
            Action::Move(by) => self.move_mark(by),
            Action::NextScreen => self.side(1),
            Action::PreviousScreen => self.side(Screen::ALL.len() - 1),
            Action::NextPane => self.next_pane(1),
            Action::PreviousPane => self.next_pane(Pane::ALL.len() - 1),
            Action::Open => return self.open(),
            Action::Back => self.back(),
            Action::Do(n) => return self.advised(n),
            Action::Filter => {
                let text = self.filter.text().to_string();
                self.input = Some(Input { kind: InputKind::Filter, text });
            }
            Action::Command => {
                self.input = Some(Input { kind: InputKind::Command, text: String::new() });
            }
            Action::Sort => {
                self.sort = self.sort.next();
                self.note(format!("sorted by {}", self.sort.name()));
            }
            Action::Reverse => self.reverse = !self.reverse,
            Action::Pause => self.in_time(Timeline::pause_or_go_on),
            Action::Step(by) => self.in_time(|timeline| timeline.step(by)),
            Action::Live => self.in_time(Timeline::to_end),
            Action::Reset | Action::Override | Action::Block | Action::Mode => {
                self.propose(action);
            }
            Action::Write => self.toggle_write(),
            Action::Copy => return self.copy(),
            Action::Dump => return vec![Effect::Dump],
            Action::Theme => self.next_theme(),
            Action::Mouse => {
                self.mouse = !self.mouse;
                return vec![Effect::Mouse(self.mouse)];
            }
            Action::Help => self.help = Some(0),
            Action::Suspend => return vec![Effect::Suspend],
            Action::Redraw => return vec![Effect::Redraw],
            Action::Quit => return vec![Effect::Quit { keep: false }],
            Action::Interrupt => return vec![Effect::Interrupt],
            Action::QuitAndKeep => return vec![Effect::Quit { keep: true }],
        }
        Vec::new()
    }

    fn in_time(&mut self, go: impl FnOnce(&mut Timeline)) {
        go(&mut self.timeline);
        self.judge();
    }

    fn next_theme(&mut self) {
        if self.options.no_color {
            self.note("colours are off: NO_COLOR is set");
            return;
        }
        let place = Theme::ALL.iter().position(|theme| *theme == self.theme).unwrap_or(0);
        self.theme = Theme::ALL[(place + 1) % Theme::ALL.len()];
        self.note(format!("theme {}", self.theme.name()));
    }

    /// The verdict is that of the moment which is looked at.
    fn judge(&mut self) {
        let Some(now) = self.timeline.shown().cloned() else { return };
        self.verdict = verdict(&Situation { now: &now, past: self.timeline.points() });
    }

    pub fn note(&mut self, text: impl Into<String>) {
        self.note = Some((text.into(), self.now_us.saturating_add(NOTE_FOR_US)));
    }

    pub fn noted(&self) -> Option<&str> {
        self.note.as_ref().map(|(text, _)| text.as_str())
    }

    pub fn shown(&self) -> Option<&Arc<Snapshot>> {
        self.timeline.shown()
    }

    /// The identity that a change would be about.
    pub fn identity(&self) -> Option<String> {
        if let Screen::Identity(who) = &self.screen {
            return Some(who.clone());
        }
        let is_who = matches!(self.screen, Screen::Keys)
            || (self.screen == Screen::Overview && self.pane == Pane::Who);
        is_who.then(|| self.marked_name()).flatten()
    }

    /// The command that stands for what is looked at.
    pub fn command(&self) -> Option<String> {
        if let Some(asking) = &self.asking {
            return Some(asking.act.command(&self.options.at));
        }
        let typed = |command: &str| self.options.at.typed(command);
        let inspect =
            |who: &str| typed(&format!("rlctl inspect {} --explain", super::words::quoted(who)));
        if self.screen == Screen::Overview && self.pane == Pane::Todo {
            let advice = self.verdict.advice.get(self.marked_row())?;
            return match &advice.does {
                Does::Act(act) => Some(act.command(&self.options.at)),
                Does::Command(command) if command.starts_with("rlctl") => Some(typed(command)),
                Does::Command(command) => Some(command.clone()),
                Does::Look(who) => Some(inspect(who)),
                Does::Go(_) => None,
            };
        }
        if let Some(who) = self.identity() {
            return Some(inspect(&who));
        }
        Some(typed(match self.screen {
            Screen::Shards => "rlctl doctor",
            Screen::Rules => "rlctl rules show",
            Screen::Events => "rlctl events --audit",
            _ => "rlctl top --once",
        }))
    }

    fn copy(&mut self) -> Vec<Effect> {
        let Some(command) = self.command() else {
            self.note("there is no command for this");
            return Vec::new();
        };
        self.note(format!("copied: {}", super::words::shown(&command)));
        vec![Effect::Copy(command)]
    }
}
