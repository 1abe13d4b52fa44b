//! `rlctl rules diff --log`: both policies meet the same requests; who would newly be denied, and
//! how often.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;

use super::simulate_policy::{LogArgs, each_request};
use super::simulate_run::{ReadSoFar, exit_of, notes, nothing_read, until_done};
use super::{Context, Exit, Failure};
use crate::engine::policy::Policy;
use crate::output::{Column, Row, Untrusted, count};
use crate::sim::outcome::Ending;
use crate::sim::policy::{PolicyRun, Request, Said};
use crate::sim::run::Span;
use crate::sim::so_what::percent;
use crate::traffic::log::Names;

/// As many clients are named.
const NAMED: usize = 10;

/// What a log says about two policies.
#[derive(Debug, Serialize)]
pub(super) struct OnLog {
    requests: u64,
    clients: u64,
    /// Requests that pass by the first policy and not by the second.
    newly_denied: u64,
    newly_allowed: u64,
    denied_before: u64,
    denied_after: u64,
    /// Clients with at least one request that is newly denied.
    clients_newly_denied: u64,
    clients_newly_allowed: u64,
    interrupted: bool,
    /// Why the log could not be read to its end; null when it was.
    broken_off: Option<String>,
    unreadable_lines: u64,
    /// The rules of the second policy that newly deny, and how often.
    by_rule: Vec<RuleEffect>,
    /// Those who are newly denied most often.
    most_newly_denied: Vec<ClientEffect>,
    #[serde(skip)]
    notes: Vec<String>,
    /// Everybody who is decided about otherwise at least once, the most newly denied first.
    #[serde(skip)]
    clients_affected: Vec<ClientEffect>,
    #[serde(skip)]
    ending: Ending,
}

#[derive(Debug, Serialize)]
struct RuleEffect {
    rule: String,
    newly_denied: u64,
}

#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct ClientEffect {
    client: String,
    requests: u64,
    denied_before: u64,
    denied_after: u64,
    newly_denied: u64,
    newly_allowed: u64,
}

impl Row for ClientEffect {
    /// People get sentences instead.
    fn columns() -> Vec<Column<ClientEffect>> {
        Vec::new()
    }

    const FIELDS: &'static [&'static str] =
        &["client", "requests", "denied_before", "denied_after", "newly_denied", "newly_allowed"];
}

/// Runs both policies over the log.
pub(super) async fn on_log(
    args: &LogArgs,
    path: &str,
    before: Policy,
    after: Policy,
    context: &Context,
) -> Result<OnLog, Failure> {
    let (old, new) = (
        PolicyRun::new("before", before, Span::default()),
        PolicyRun::new("after", after, Span::default()),
    );
    let (mut requests, progress) = args.requests(path, &[old.rules(), new.rules()], context)?;
    let enough = Arc::new(AtomicBool::new(false));
    let heed = enough.clone();
    let task = tokio::task::spawn_blocking(move || {
        let mut both = Both::new(old, new);
        let ending = each_request(&mut requests, &heed, |request| both.decide(request));
        let read = requests.read_so_far();
        Ok((both, ending, read))
    });
    let done = until_done(task, &enough).await;
    progress.finish_and_clear();
    let (both, ending, read) = done?;
    if both.old.requests() == 0 {
        nothing_read(&read, &ending)?;
    }
    Ok(both.on_log(ending, &read))
}

/// Two policies side by side.
struct Both {
    old: PolicyRun,
    new: PolicyRun,
    names: Names,
    clients: Vec<ClientEffect>,
    by_rule: BTreeMap<String, u64>,
}

impl Both {
    fn new(old: PolicyRun, new: PolicyRun) -> Both {
        Both { old, new, names: Names::default(), clients: Vec::new(), by_rule: BTreeMap::new() }
    }

    fn decide(&mut self, request: &Request) {
        let (old, new) = (self.old.decide(request), self.new.decide(request));
        let number = self.names.number(request.client()) as usize;
        if number >= self.clients.len() {
            self.clients.resize(number + 1, ClientEffect::default());
        }
        let client = &mut self.clients[number];
        client.requests += 1;
        client.denied_before += u64::from(!old.allowed);
        client.denied_after += u64::from(!new.allowed);
        match (old.allowed, new) {
            (true, Said { allowed: false, by }) => {
                client.newly_denied += 1;
                *self.by_rule.entry(by.unwrap_or_default()).or_default() += 1;
            }
            (false, Said { allowed: true, .. }) => client.newly_allowed += 1,
            _ => {}
        }
    }

    fn on_log(self, ending: Ending, read: &ReadSoFar) -> OnLog {
        let sum = |of: fn(&ClientEffect) -> u64| self.clients.iter().map(of).sum::<u64>();
        let hit = |of: fn(&ClientEffect) -> u64| {
            self.clients.iter().filter(|client| of(client) > 0).count() as u64
        };
        let mut affected: Vec<ClientEffect> = Vec::new();
        for (number, client) in (0..).zip(&self.clients) {
            if client.newly_denied + client.newly_allowed > 0 {
                affected.push(ClientEffect {
                    client: self.names.name(number).into(),
                    ..client.clone()
                });
            }
        }
        affected.sort_by_key(|client| Reverse((client.newly_denied, client.newly_allowed)));
        let most = affected.iter().filter(|client| client.newly_denied > 0).take(NAMED).cloned();
        let mut by_rule: Vec<RuleEffect> = self
            .by_rule
            .iter()
            .map(|(rule, count)| RuleEffect { rule: rule.clone(), newly_denied: *count })
            .collect();
        by_rule.sort_by_key(|rule| Reverse(rule.newly_denied));
        OnLog {
            requests: self.old.requests(),
            clients: self.clients.len() as u64,
            newly_denied: sum(|c| c.newly_denied),
            newly_allowed: sum(|c| c.newly_allowed),
            denied_before: sum(|c| c.denied_before),
            denied_after: sum(|c| c.denied_after),
            clients_newly_denied: hit(|c| c.newly_denied),
            clients_newly_allowed: hit(|c| c.newly_allowed),
            interrupted: ending.is_interrupted(),
            broken_off: ending.broken_off().map(String::from),
            unreadable_lines: read.as_ref().map_or(0, |(report, _)| report.unreadable),
            by_rule,
            most_newly_denied: most.collect(),
            notes: notes(read, &ending),
            clients_affected: affected,
            ending,
        }
    }
}

impl OnLog {
    pub(super) fn clients_affected(&self) -> &[ClientEffect] {
        &self.clients_affected
    }

    /// What the run is worth; `fine` when it saw the whole log.
    pub(super) fn exit(&self, fine: Exit) -> Result<Exit, Failure> {
        let exit = exit_of(&self.ending)?;
        Ok(if self.interrupted { exit } else { fine })
    }

    pub(super) fn in_words(&self) -> String {
        let mut text = format!(
            "\n{}{} requests of {} clients\n",
            if self.interrupted { "interrupted after " } else { "" },
            count(self.requests),
            count(self.clients)
        );
        for note in &self.notes {
            text += &format!("  {}\n", Untrusted(note));
        }
        text += &format!(
            "denied: {} -> {} requests\n",
            count(self.denied_before),
            count(self.denied_after)
        );
        if self.newly_denied == 0 {
            text += "nobody is newly denied\n";
        } else {
            let share = self.newly_denied as f64 / self.requests.max(1) as f64;
            text += &format!(
                "newly denied: {} requests ({}) of {} clients\n",
                count(self.newly_denied),
                percent(share),
                count(self.clients_newly_denied)
            );
            for rule in &self.by_rule {
                text += &format!("  by {}: {}\n", Untrusted(&rule.rule), count(rule.newly_denied));
            }
            for client in &self.most_newly_denied {
                text += &format!(
                    "  {}  {} of {} requests\n",
                    Untrusted(&client.client),
                    count(client.newly_denied),
                    count(client.requests)
                );
            }
            let more = self.clients_newly_denied as usize - self.most_newly_denied.len();
            if more > 0 {
                text += &format!("  … and {more} more\n");
            }
        }
        if self.newly_allowed > 0 {
            text += &format!(
                "newly allowed: {} requests of {} clients\n",
                count(self.newly_allowed),
                count(self.clients_newly_allowed)
            );
        }
        text
    }
}
