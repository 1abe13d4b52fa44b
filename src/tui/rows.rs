//! The rows of a list as they are shown: filtered and sorted. What is selected is remembered by
//! name, so that a row that moves takes the mark with it.

use super::data::{Event, Rule, Shard, Snapshot, Who};

/// What a list is sorted by; each list has some of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    #[default]
    Rate,
    Used,
    Since,
    Name,
}

impl Sort {
    pub const ALL: [Sort; 4] = [Sort::Rate, Sort::Used, Sort::Since, Sort::Name];

    pub fn next(self) -> Sort {
        let place = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(place + 1) % Sort::ALL.len()]
    }

    pub fn name(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::Used => "used",
            Sort::Since => "since",
            Sort::Name => "name",
        }
    }
}

/// Which rows are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter(String);

impl Filter {
    pub fn new(text: &str) -> Filter {
        Filter(text.to_lowercase())
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// `text` is in it, `!text` is not, `-f text` has its letters in this order.
    pub fn fits(&self, name: &str) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let name = name.to_lowercase();
        if let Some(not) = self.0.strip_prefix('!') {
            return not.is_empty() || !name.contains(not);
        }
        if let Some(letters) = self.0.strip_prefix("-f") {
            let mut rest = name.chars();
            return letters.trim().chars().all(|c| rest.any(|other| other == c));
        }
        name.contains(&self.0)
    }
}

/// How much of its limit somebody has used, where both are known.
pub fn used_share(who: &Who) -> Option<f64> {
    let requests: f64 = who.limit.as_deref()?.split('/').next()?.parse().ok()?;
    Some(who.used? as f64 / requests.max(1.0))
}

pub fn who<'a>(list: &'a [Who], filter: &Filter, sort: Sort, reverse: bool) -> Vec<&'a Who> {
    let fits = |who: &&Who| {
        filter.text().is_empty() || filter.fits(&format!("{} {}", who.identity, who.rule))
    };
    let mut rows: Vec<&Who> = list.iter().filter(fits).collect();
    match sort {
        Sort::Rate => rows.sort_by(|a, b| b.per_second.total_cmp(&a.per_second)),
        Sort::Used => rows.sort_by(|a, b| {
            let used = |who: &Who| used_share(who).unwrap_or(-1.0);
            used(b).total_cmp(&used(a))
        }),
        Sort::Since => rows.sort_by_key(|who| who.since_us.unwrap_or(u64::MAX)),
        Sort::Name => rows.sort_by(|a, b| a.identity.cmp(&b.identity)),
    }
    if reverse {
        rows.reverse();
    }
    rows
}

pub fn rules<'a>(list: &'a [Rule], filter: &Filter, sort: Sort, reverse: bool) -> Vec<&'a Rule> {
    let mut rows: Vec<&Rule> = list.iter().filter(|rule| filter.fits(&rule.name)).collect();
    match sort {
        Sort::Rate => rows.sort_by(|a, b| b.rejected.total_cmp(&a.rejected)),
        Sort::Used | Sort::Since => rows.sort_by(|a, b| {
            let all = |rule: &Rule| rule.allowed + rule.rejected + rule.shadow;
            all(b).total_cmp(&all(a))
        }),
        Sort::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
    }
    if reverse {
        rows.reverse();
    }
    rows
}

pub fn shards<'a>(snapshot: &'a Snapshot, filter: &Filter) -> Vec<&'a Shard> {
    let mut rows: Vec<&Shard> = snapshot.shards.iter().filter(|s| filter.fits(&s.name)).collect();
    // Those that are away first, replicas after those they follow.
    rows.sort_by(|a, b| {
        let key = |s: &&Shard| (!s.is_down, s.role.as_deref() == Some("replica"));
        key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
    });
    rows
}

pub fn events<'a>(snapshot: &'a Snapshot, filter: &Filter) -> Vec<&'a Event> {
    let fits = |event: &&Event| {
        filter.fits(&event.text) || event.who.as_deref().is_some_and(|who| filter.fits(who))
    };
    snapshot.events.iter().filter(fits).collect()
}

/// Without what concerns single identities, unless there is nothing else: quotas that come and go must
/// not drown what happens to all.
pub fn news<'a>(snapshot: &'a Snapshot, filter: &Filter) -> Vec<&'a Event> {
    let mut all = events(snapshot, filter);
    if all.iter().any(|event| event.who.is_none()) {
        all.retain(|event| event.who.is_none());
    }
    all
}

/// Which row of a list is marked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    row: usize,
    name: Option<String>,
}

impl Mark {
    /// Its place among the rows as they are now.
    pub fn place<'a>(&self, names: impl ExactSizeIterator<Item = &'a str>) -> usize {
        let last = names.len().saturating_sub(1);
        let by_name = self.name.as_deref().and_then(|own| names.into_iter().position(|n| n == own));
        by_name.unwrap_or(self.row.min(last))
    }

    pub fn put(&mut self, row: usize, name: Option<&str>) {
        (self.row, self.name) = (row, name.map(String::from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_say_with_without_and_about() {
        let fits = |filter: &str, name: &str| Filter::new(filter).fits(name);
        assert!(fits("", "user:1") && fits("ER:", "user:1") && !fits("ip", "user:1"));
        assert!(fits("!ip", "user:1") && !fits("!user", "user:1") && fits("!", "user:1"));
        assert!(fits("-f uer1", "user:1") && !fits("-f 1u", "user:1"));
    }

    #[test]
    fn what_concerns_all_is_not_drowned_by_single_quotas() {
        let event = |text: &str, who: Option<&str>| Event {
            text: text.into(),
            who: who.map(String::from),
            ..Event::default()
        };
        let quota = || event("normal → warning", Some("user:1"));
        let mut now = Snapshot { events: vec![quota(), quota()], ..Snapshot::default() };
        assert_eq!(news(&now, &Filter::default()).len(), 2);
        now.events.push(event("a server is away", None));
        assert_eq!(news(&now, &Filter::default()), [&now.events[2]]);
        assert_eq!(events(&now, &Filter::default()).len(), 3);
    }

    #[test]
    fn a_mark_moves_with_its_row() {
        let mut mark = Mark::default();
        assert_eq!(mark.place(["a", "b"].into_iter()), 0);
        mark.put(1, Some("b"));
        assert_eq!(mark.place(["b", "a"].into_iter()), 0);
        assert_eq!(mark.place(["x", "y", "z"].into_iter()), 1);
        assert_eq!(mark.place([].into_iter()), 0);
    }
}
