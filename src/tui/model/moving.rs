//! From row to row, pane to pane, screen to screen, and back.

use super::{Effect, Mark, Model, Pane, Screen};
use crate::tui::keys::Move;
use crate::tui::rows;

/// As many screens can be gone back.
const MAX_BEFORE: usize = 20;

impl Model {
    /// The names of the rows that are walked through.
    pub fn names(&self) -> Vec<String> {
        let Some(now) = self.shown() else { return Vec::new() };
        let who = |list| {
            rows::who(list, &self.filter, self.sort, self.reverse)
                .into_iter()
                .map(|who| who.identity.clone())
                .collect()
        };
        let rules = || {
            let rules = rows::rules(&now.rules, &self.filter, self.sort, self.reverse);
            rules.into_iter().map(|rule| rule.name.clone()).collect()
        };
        let shards = || {
            let shards = rows::shards(now, &self.filter);
            shards.into_iter().map(|shard| shard.name.clone()).collect()
        };
        let numbered = |n: usize| (0..n).map(|n| n.to_string()).collect();
        match (&self.screen, self.pane) {
            (Screen::Overview, Pane::Who) => who(&now.rejected),
            (Screen::Keys, _) => who(&now.seen),
            (Screen::Overview, Pane::Rules) | (Screen::Rules, _) => rules(),
            (Screen::Overview, Pane::Where) | (Screen::Shards, _) => shards(),
            (Screen::Overview, Pane::Todo) => numbered(self.verdict.advice.len()),
            (Screen::Overview, Pane::Events) => numbered(rows::news(now, &self.filter).len()),
            (Screen::Events, _) => numbered(rows::events(now, &self.filter).len()),
            (Screen::Identity(_), _) => {
                numbered(self.detail.as_ref().map_or(0, |d| d.limits.len()))
            }
        }
    }

    /// Which list has the mark.
    fn list(&self) -> String {
        match self.screen {
            Screen::Overview => format!("overview {:?}", self.pane),
            _ => self.screen.name().into(),
        }
    }

    fn mark(&self, list: &str) -> Mark {
        let found = self.marks.iter().find(|(name, _)| name == list);
        found.map(|(_, mark)| mark.clone()).unwrap_or_default()
    }

    pub fn marked_row(&self) -> usize {
        let names = self.names();
        self.mark(&self.list()).place(names.iter().map(String::as_str))
    }

    /// Its row in a list of the overview, for those who draw it.
    pub fn marked_in<'a>(
        &self,
        pane: Pane,
        names: impl ExactSizeIterator<Item = &'a str>,
    ) -> usize {
        self.mark(&format!("overview {pane:?}")).place(names)
    }

    pub fn marked_name(&self) -> Option<String> {
        let names = self.names();
        let place = self.mark(&self.list()).place(names.iter().map(String::as_str));
        names.into_iter().nth(place)
    }

    pub(super) fn move_mark(&mut self, by: Move) {
        let names = self.names();
        let last = names.len().saturating_sub(1);
        let row = self.mark(&self.list()).place(names.iter().map(String::as_str));
        let to = match by {
            Move::Up => row.saturating_sub(1),
            Move::Down => (row + 1).min(last),
            Move::PageUp => row.saturating_sub(self.page.max(1)),
            Move::PageDown => (row + self.page.max(1)).min(last),
            Move::Top => 0,
            Move::Bottom => last,
        };
        let list = self.list();
        let mut mark = Mark::default();
        // At the top it stays at the top, whoever comes there.
        let by_name = to > 0 && !matches!(self.pane, Pane::Todo | Pane::Events);
        mark.put(to, names.get(to).map(String::as_str).filter(|_| by_name));
        match self.marks.iter_mut().find(|(name, _)| *name == list) {
            Some((_, known)) => *known = mark,
            None => self.marks.push((list, mark)),
        }
    }

    pub(super) fn next_pane(&mut self, by: usize) {
        if self.screen != Screen::Overview {
            return self.side(by);
        }
        let place = Pane::ALL.iter().position(|pane| *pane == self.pane).unwrap_or(0);
        self.pane = Pane::ALL[(place + by) % Pane::ALL.len()];
    }

    /// To the screen beside this one.
    pub(super) fn side(&mut self, by: usize) {
        let place = Screen::ALL.iter().position(|screen| *screen == self.screen).unwrap_or(1);
        self.screen = Screen::ALL[(place + by) % Screen::ALL.len()].clone();
        self.before.clear();
    }

    pub(super) fn go(&mut self, screen: Screen) -> Vec<Effect> {
        if screen == self.screen {
            return Vec::new();
        }
        if self.before.len() == MAX_BEFORE {
            self.before.remove(0);
        }
        self.before.push(std::mem::replace(&mut self.screen, screen));
        match &self.screen {
            Screen::Identity(who) => {
                self.detail = None;
                vec![Effect::Look(who.clone())]
            }
            _ => Vec::new(),
        }
    }

    pub(super) fn back(&mut self) {
        if !self.filter.text().is_empty() {
            self.filter = rows::Filter::default();
        } else if let Some(before) = self.before.pop() {
            self.screen = before;
        } else if self.screen != Screen::Overview {
            self.screen = Screen::Overview;
        }
    }

    pub(super) fn open(&mut self) -> Vec<Effect> {
        match (&self.screen, self.pane) {
            (Screen::Overview, Pane::Who) | (Screen::Keys, _) => match self.marked_name() {
                Some(who) => self.go(Screen::Identity(who)),
                None => Vec::new(),
            },
            (Screen::Overview, Pane::Rules) => self.go(Screen::Rules),
            (Screen::Overview, Pane::Where) => self.go(Screen::Shards),
            (Screen::Overview, Pane::Events) => self.go(Screen::Events),
            (Screen::Overview, Pane::Todo) => {
                let row = self.marked_row();
                self.advised(row)
            }
            (Screen::Events, _) => self.open_event(),
            (Screen::Rules | Screen::Shards | Screen::Identity(_), _) => Vec::new(),
        }
    }

    /// Who an event is about.
    fn open_event(&mut self) -> Vec<Effect> {
        let row = self.marked_row();
        let Some(now) = self.shown() else { return Vec::new() };
        let who = rows::events(now, &self.filter).get(row).and_then(|event| event.who.clone());
        who.map_or_else(Vec::new, |who| self.go(Screen::Identity(who)))
    }
}
