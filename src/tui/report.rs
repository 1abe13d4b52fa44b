//! What a recording tells afterwards: the text for a post-mortem.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;

use super::data::{Event, Point};
use super::record::Recording;
use super::verdict::{Cause, Situation, verdict};
use super::words::{count, lasts, percent, time, took};
use crate::engine::clock::Micros;
use crate::output::{SCHEMA, Untrusted, moment};

/// What verdicts look back on.
const PAST: usize = 600;
const MOST_WHO: usize = 20;

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    schema: &'static str,
    of: String,
    from_us: u64,
    to_us: u64,
    is_cut: bool,
    verdicts: Vec<Stretch>,
    peak_per_second: f64,
    peak_rejected_share: f64,
    /// Time in which requests passed unlimited.
    open_us: u64,
    /// Decisions that were taken without the store.
    uncounted: f64,
    who: Vec<Refused>,
    rules: Vec<RuleTold>,
    servers: Vec<ServerTold>,
    events: Vec<Told>,
}

/// A verdict for as long as it stood.
#[derive(Clone, Debug, Serialize)]
struct Stretch {
    from_us: u64,
    to_us: u64,
    cause: &'static str,
    headline: String,
    shout: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct Refused {
    identity: String,
    rule: String,
    peak_per_second: f64,
    first_us: u64,
    last_us: u64,
}

#[derive(Clone, Debug, Serialize)]
struct RuleTold {
    rule: String,
    rejected: f64,
    decided: f64,
}

#[derive(Clone, Debug, Serialize)]
struct ServerTold {
    server: String,
    worst_p99_us: Option<u64>,
    down_us: u64,
    roles: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
struct Told {
    at_us: u64,
    level: String,
    text: String,
}

pub fn report(recording: &Recording) -> Report {
    let moments = &recording.moments;
    let at = |n: usize| moments.get(n).map_or(0, |moment| moment.at_us);
    let last = moments.len().saturating_sub(1);
    let mut report = Report {
        schema: SCHEMA,
        of: recording.of.clone(),
        from_us: at(0),
        to_us: at(last),
        is_cut: recording.is_cut,
        verdicts: stretches(recording),
        peak_per_second: 0.0,
        peak_rejected_share: 0.0,
        open_us: 0,
        uncounted: 0.0,
        who: who(recording),
        rules: rules(recording),
        servers: servers(recording),
        events: events(recording),
    };
    for (n, moment) in moments.iter().enumerate() {
        let held = held_us(recording, n);
        report.peak_per_second = report.peak_per_second.max(moment.rates.all());
        report.peak_rejected_share = report.peak_rejected_share.max(moment.rates.rejected_share());
        report.uncounted += moment.rates.degraded() * held as f64 / 1e6;
        report.open_us += if moment.rates.open > 0.0 { held } else { 0 };
    }
    report
}

/// How long a moment stood for what went on: until the one before it, two seconds at most.
fn held_us(recording: &Recording, n: usize) -> u64 {
    let at = |n: usize| recording.moments[n].at_us;
    n.checked_sub(1).map_or(1_000_000, |before| at(n).saturating_sub(at(before)).min(2_000_000))
}

fn stretches(recording: &Recording) -> Vec<Stretch> {
    let mut points: Vec<Point> = recording.past.clone();
    let mut all: Vec<Stretch> = Vec::new();
    for moment in &recording.moments {
        points.push(Point::of(moment));
        let past = &points[points.len().saturating_sub(PAST)..];
        let now = verdict(&Situation { now: moment, past });
        let cause = now.cause.name();
        match all.last_mut().filter(|last| last.cause == cause) {
            Some(last) => {
                last.to_us = moment.at_us;
                // Who it was is better known at the end, which server at the beginning.
                if now.cause == Cause::Traffic {
                    last.headline = now.headline;
                }
                last.shout = now.shout.or(last.shout.take());
            }
            None => all.push(Stretch {
                from_us: moment.at_us,
                to_us: moment.at_us,
                cause,
                headline: now.headline,
                shout: now.shout,
            }),
        }
    }
    all
}

fn who(recording: &Recording) -> Vec<Refused> {
    let mut all: BTreeMap<&str, Refused> = BTreeMap::new();
    for moment in &recording.moments {
        for who in &moment.rejected {
            let known = all.entry(&who.identity).or_insert_with(|| Refused {
                identity: who.identity.clone(),
                rule: who.rule.clone(),
                peak_per_second: 0.0,
                first_us: who.since_us.unwrap_or(moment.at_us),
                last_us: who.last_us,
            });
            known.peak_per_second = known.peak_per_second.max(who.per_second);
            known.last_us = known.last_us.max(who.last_us);
        }
    }
    let mut all: Vec<Refused> = all.into_values().collect();
    all.sort_by(|a, b| b.peak_per_second.total_cmp(&a.peak_per_second));
    all.truncate(MOST_WHO);
    all
}

fn rules(recording: &Recording) -> Vec<RuleTold> {
    let mut all: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
    for (n, moment) in recording.moments.iter().enumerate() {
        let held = held_us(recording, n) as f64 / 1e6;
        for rule in &moment.rules {
            let known = all.entry(&rule.name).or_default();
            known.0 += rule.rejected * held;
            known.1 += (rule.allowed + rule.rejected + rule.shadow) * held;
        }
    }
    let told = |(rule, (rejected, decided)): (&str, (f64, f64))| RuleTold {
        rule: rule.into(),
        rejected: rejected.round(),
        decided: decided.round(),
    };
    let mut all: Vec<RuleTold> = all.into_iter().map(told).collect();
    all.sort_by(|a, b| b.rejected.total_cmp(&a.rejected));
    all
}

fn servers(recording: &Recording) -> Vec<ServerTold> {
    let mut all: Vec<ServerTold> = Vec::new();
    for (n, moment) in recording.moments.iter().enumerate() {
        for shard in &moment.shards {
            let place = all.iter().position(|known| known.server == shard.name);
            let place = place.unwrap_or_else(|| {
                let server = shard.name.clone();
                all.push(ServerTold { server, worst_p99_us: None, down_us: 0, roles: Vec::new() });
                all.len() - 1
            });
            let known = &mut all[place];
            known.worst_p99_us = known.worst_p99_us.max(shard.latency_us());
            known.down_us += if shard.is_down { held_us(recording, n) } else { 0 };
            if let Some(role) = &shard.role
                && known.roles.last() != Some(role)
                && known.roles.len() < 8
            {
                known.roles.push(role.clone());
            }
        }
    }
    all
}

/// What happened, once; of an identity whose quota comes and goes only when it first did.
fn events(recording: &Recording) -> Vec<Told> {
    let all = recording.moments.iter().flat_map(|moment| &moment.events);
    let all: BTreeMap<(u64, &str), &Event> =
        all.map(|event| ((event.at_us, event.text.as_str()), event)).collect();
    let mut known = BTreeSet::new();
    let told = |event: &Event| {
        let text = match &event.who {
            Some(who) if !known.insert(who.clone()) => return None,
            Some(who) => format!("{who}: {}", event.text),
            None => event.text.clone(),
        };
        Some(Told { at_us: event.at_us, level: event.level.clone(), text })
    };
    all.into_values().filter_map(told).collect()
}

impl Report {
    pub fn markdown(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        let duration = lasts(self.to_us.saturating_sub(self.from_us));
        writeln!(to, "# Incident report: {}\n", cell(&self.of))?;
        writeln!(
            to,
            "Recorded {} to {} ({duration}), all times UTC.{}\n",
            moment(Micros(self.from_us)),
            moment(Micros(self.to_us)),
            if self.is_cut { " The end of the recording is cut off." } else { "" }
        )?;
        writeln!(to, "## In short\n")?;
        for stretch in self.verdicts.iter().filter(|s| s.cause != Cause::NothingWrong.name()) {
            let duration = lasts(stretch.to_us.saturating_sub(stretch.from_us));
            let (from, to_time) = (time(stretch.from_us), time(stretch.to_us));
            writeln!(to, "- **{from} to {to_time}** ({duration}): {}", cell(&stretch.headline))?;
            if let Some(shout) = &stretch.shout {
                writeln!(to, "  - {}", cell(shout))?;
            }
        }
        if self.verdicts.iter().all(|s| s.cause == Cause::NothingWrong.name()) {
            writeln!(to, "- Nothing was wrong.")?;
        }
        let peak = count(self.peak_per_second);
        writeln!(
            to,
            "- At most {peak} decisions/s, of which up to {} were refused.",
            percent(self.peak_rejected_share)
        )?;
        match self.open_us {
            0 => writeln!(to, "- Limits were enforced all the time.")?,
            us => writeln!(
                to,
                "- Limits were **not enforced for {}**; {} decisions were taken without the store.",
                lasts(us),
                count(self.uncounted)
            )?,
        }
        self.tables(to)
    }

    fn tables(&self, to: &mut String) -> std::fmt::Result {
        writeln!(to, "\n## Timeline\n\n| time | what |\n| --- | --- |")?;
        let mut lines: Vec<(u64, String)> = self
            .verdicts
            .iter()
            .map(|s| (s.from_us, format!("**verdict:** {}", cell(&s.headline))))
            .chain(self.events.iter().map(|e| (e.at_us, format!("{} {}", e.level, cell(&e.text)))))
            .collect();
        lines.sort_by_key(|(at, _)| *at);
        for (at, what) in lines {
            writeln!(to, "| {} | {what} |", time(at))?;
        }
        writeln!(to, "\n## Who was refused\n")?;
        if self.who.is_empty() {
            writeln!(to, "Nobody.")?;
        } else {
            writeln!(
                to,
                "| identity | rule | peak/s | from | to |\n| --- | --- | --- | --- | --- |"
            )?;
        }
        for who in &self.who {
            let (identity, rule) = (cell(&who.identity), cell(&who.rule));
            let (peak, from, until) =
                (count(who.peak_per_second), time(who.first_us), time(who.last_us));
            writeln!(to, "| {identity} | {rule} | {peak} | {from} | {until} |")?;
        }
        writeln!(to, "\n## Rules\n\n| rule | decided | refused |\n| --- | --- | --- |")?;
        for rule in &self.rules {
            let refused = percent(super::data::share(rule.rejected, rule.decided));
            let (name, all, no) = (cell(&rule.rule), count(rule.decided), count(rule.rejected));
            writeln!(to, "| {name} | {all} | {no} ({refused}) |")?;
        }
        if self.servers.is_empty() {
            return Ok(());
        }
        writeln!(
            to,
            "\n## Servers\n\n| server | role | away | worst p99 |\n| --- | --- | --- | --- |"
        )?;
        for server in &self.servers {
            let (name, roles) = (cell(&server.server), cell(&server.roles.join(" -> ")));
            writeln!(
                to,
                "| {name} | {roles} | {} | {} |",
                lasts(server.down_us),
                took(server.worst_p99_us)
            )?;
        }
        Ok(())
    }
}

/// Text that others chose, in a table of Markdown.
fn cell(text: &str) -> String {
    let harmless = Untrusted(text).to_string();
    let mut escaped = String::with_capacity(harmless.len());
    for c in harmless.chars() {
        if matches!(c, '|' | '<' | '>' | '`' | '[' | ']' | '*' | '\\') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::demo::{BEFORE, Demo, Story};
    use super::*;

    #[test]
    fn the_story_is_found_in_its_recording() {
        let mut demo = Demo::new(Story::named("incident").unwrap()).unwrap();
        let past = (0..BEFORE).map(|_| Point::of(&demo.tick())).collect();
        let moments = (0..90).map(|_| demo.tick()).collect();
        let of = "the demo | <b>".into();
        let report = report(&Recording { of, past, moments, is_cut: false });
        let causes: Vec<&str> = report.verdicts.iter().map(|s| s.cause).collect();
        assert_eq!(causes, ["NOTHING WRONG", "TRAFFIC", "NOTHING WRONG", "REDIS", "NOTHING WRONG"]);
        let text = report.markdown();
        assert!(text.contains("One client makes"), "{text}");
        assert!(text.contains("not enforced for 22s"), "{text}");
        assert!(text.contains("apikey:ak\\_7f3c2") || text.contains("apikey:ak_7f3c2"), "{text}");
        assert!(text.starts_with("# Incident report: the demo \\| \\<b\\>\n"), "{text}");
        assert!(text.contains("| 10.0.0.5:6379 | primary -\\> replica -\\> primary |"), "{text}");
    }
}
