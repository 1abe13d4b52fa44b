//! Changes: proposed with their plan, confirmed, and never by accident.

use super::{Asking, Effect, Model, Pane, Permission, Screen};
use crate::tui::act::{Act, raised};
use crate::tui::data::Who;
use crate::tui::keys::{Action, Key};
use crate::tui::verdict::Does;

impl Model {
    pub(super) fn toggle_write(&mut self) {
        if let Permission::Never(why) = &self.options.permission {
            let why = why.clone();
            self.note(why);
            return;
        }
        self.write = !self.write;
        self.note(if self.write { "write mode: changes ask first" } else { "read-only" });
    }

    /// Does the numbered thing of what to do.
    pub(super) fn advised(&mut self, n: usize) -> Vec<Effect> {
        let Some(advice) = self.verdict.advice.get(n).cloned() else { return Vec::new() };
        match advice.does {
            Does::Act(act) => {
                self.ask(act);
                Vec::new()
            }
            Does::Look(who) => self.go(Screen::Identity(who)),
            Does::Go(name) => match Screen::ALL.iter().find(|screen| screen.name() == name) {
                Some(screen) => self.go(screen.clone()),
                None => Vec::new(),
            },
            Does::Command(_) => {
                self.go(Screen::Overview);
                self.pane = Pane::Todo;
                (0..n + 1).for_each(|_| self.move_mark(crate::tui::keys::Move::Up));
                (0..n).for_each(|_| self.move_mark(crate::tui::keys::Move::Down));
                self.copy()
            }
        }
    }

    /// Plans the change that a key stands for, about what is marked.
    pub(super) fn propose(&mut self, action: Action) {
        let act = match action {
            Action::Mode => self.failure_mode(),
            _ => self.of_identity(action),
        };
        match act {
            Some(act) => self.ask(act),
            None => self.note(match action {
                Action::Mode => "mark a rule first (screen rules)",
                Action::Override => "its limit is not known here",
                _ => "mark an identity first",
            }),
        }
    }

    fn of_identity(&self, action: Action) -> Option<Act> {
        let identity = self.identity()?;
        match action {
            Action::Reset => Some(Act::Reset { identity, rule: None }),
            Action::Block => Some(Act::Block { identity }),
            _ => {
                let now = self.shown()?;
                let find = |list: &[Who]| list.iter().find(|who| who.identity == identity).cloned();
                let who = find(&now.rejected).or_else(|| find(&now.seen))?;
                let limit = raised(who.limit.as_deref()?)?;
                Some(Act::Override { identity, rule: who.rule, limit })
            }
        }
    }

    fn marked_rule(&self) -> Option<String> {
        let is_rules = self.screen == Screen::Rules
            || (self.screen == Screen::Overview && self.pane == Pane::Rules);
        self.marked_name().filter(|_| is_rules)
    }

    /// What was typed after `:mode`.
    pub(super) fn mode_named(&mut self, name: &str) {
        let known = ["open", "closed", "local", "policy"].into_iter().find(|mode| *mode == name);
        match (self.marked_rule(), known) {
            (Some(rule), Some(mode)) => self.ask(Act::Mode { rule, mode }),
            (None, _) => self.note("mark a rule first (screen rules)"),
            (_, None) => self.note("modes are open, closed, local and policy"),
        }
    }

    /// The one after the mode that the marked rule has.
    fn failure_mode(&self) -> Option<Act> {
        let rule = self.marked_rule()?;
        let now = self.shown()?;
        let known = now.rules.iter().find(|known| known.name == rule)?;
        let mode = match known.on_store_error.as_deref() {
            Some("open") => "local",
            Some("local") => "closed",
            _ => "open",
        };
        Some(Act::Mode { rule, mode })
    }

    /// The plan is shown to anybody; it can be confirmed in write mode only.
    fn ask(&mut self, act: Act) {
        self.asking = Some(Asking { act, typed: String::new() });
    }

    /// A key while a change waits for its confirmation.
    pub(super) fn answer(&mut self, key: Key) -> Vec<Effect> {
        let Some(asking) = &mut self.asking else { return Vec::new() };
        let name = match (&self.options.permission, self.write) {
            (Permission::Protected(name), true) => Some(name.clone()),
            _ => None,
        };
        match (key, name) {
            (Key::Esc | Key::Ctrl('c'), _) => {
                self.asking = None;
                self.note("nothing was changed");
            }
            (Key::Char(c), Some(_)) if asking.typed.len() < super::MAX_INPUT => {
                asking.typed.push(c);
            }
            (Key::Backspace, Some(_)) => {
                asking.typed.pop();
            }
            (Key::Enter, Some(name)) if asking.typed == name => return self.confirmed(),
            (Key::Enter, Some(_)) => {
                self.asking = None;
                self.note("that is not the name of the context: nothing was changed");
            }
            (Key::Char('c'), None) => return self.copy(),
            (Key::Char('W'), None) if !self.write => self.toggle_write(),
            (Key::Char('y'), None) if self.write => return self.confirmed(),
            (Key::Char('y'), None) => self.note(match &self.options.permission {
                Permission::Never(why) => why.clone(),
                _ => "nothing was changed: it is read-only, W allows changes".into(),
            }),
            (Key::Char('n' | 'N' | 'q') | Key::Enter, None) => {
                self.asking = None;
                self.note("nothing was changed");
            }
            _ => {}
        }
        Vec::new()
    }

    fn confirmed(&mut self) -> Vec<Effect> {
        let asking = self.asking.take();
        asking.map_or_else(Vec::new, |asking| {
            self.note("on its way ..");
            vec![Effect::Act(asking.act)]
        })
    }
}
