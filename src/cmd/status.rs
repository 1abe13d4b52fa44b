//! `rlctl status`: the gateways, what they enforce, and what troubles them.

use serde::Serialize;
use serde_json::Value;

use super::printing::WatchArgs;
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::registry::{HEARD_WITHIN, Member, Registry, Switches, Version};
use crate::ops::admin::{Admin, AdminError};
use crate::ops::fleet::{GatewayStats, Shard, ask_all};
use crate::output::{Column, List, Row, Tone, Untrusted, about, moment};

/// Show the gateways: versions, policy, mode, and what troubles them
///
/// Every gateway named with --gateway is asked; with --redis also all that have told the store of
/// themselves, and the policy that is published there. Who does not answer is shown with what was
/// last heard. Exit 5 when nobody answers.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl status --gateway http://127.0.0.1:9090
  rlctl status --redis redis://127.0.0.1:6379        all gateways on this Redis
  rlctl status --gateway http://10.0.0.6:9090 --gateway http://10.0.0.7:9090 --watch
  rlctl status -o json | jq '.items[] | select(.ready | not)'")]
pub(super) struct Args {
    #[command(flatten)]
    watch: WatchArgs,
}

/// What holds for all of them.
#[derive(Default, Serialize)]
struct Head {
    at_us: u64,
    /// What is published; null without --redis, and where nothing is.
    policy: Option<Version>,
    /// Null without --redis.
    observe_only: Option<bool>,
    disabled_rules: Vec<String>,
    /// How many were asked or have told of themselves, and how many of them are there.
    known: usize,
    present: usize,
}

#[derive(Default, Serialize)]
struct Item {
    /// One run of a process; null where it never answered.
    gateway: Option<String>,
    /// Its admin address.
    address: Option<String>,
    /// Who tells this: the `gateway` itself, or the `store`, to which it last told.
    source: &'static str,
    /// Whether it is there: it answers, or has told the store so within ten seconds.
    present: bool,
    seen_us: Option<u64>,
    version: Option<String>,
    uptime_us: Option<u64>,
    ready: Option<bool>,
    /// `enforcing`, `observing` or `degraded`.
    mode: Option<&'static str>,
    degraded_since_us: Option<u64>,
    policy_version: Option<u64>,
    policy_hash: Option<String>,
    policy_age_us: Option<u64>,
    /// Whether it obeys what is published; null where that is not known.
    policy_current: Option<bool>,
    allowed_per_second: Option<f64>,
    rejected_per_second: Option<f64>,
    store: Vec<Shard>,
    /// Everything that is wrong, in words.
    trouble: Vec<String>,
    /// By us, and not only heard of by the store.
    #[serde(skip)]
    asked: bool,
    #[serde(skip)]
    now: Micros,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    if context.gateways.is_empty() && context.redis.is_none() {
        return Err(Failure::usage(
            "whose? give --gateway URL (may repeat), or --redis URL for all gateways on it",
        ));
    }
    let gateways = context.all_gateways()?;
    let frame = async |goes_on: bool| {
        let (head, items) = look(&gateways, context).await?;
        let list = List::new(&items).head(&head).above(in_words(&head));
        if items.is_empty() && !goes_on {
            context.note("no gateway on this Redis was heard of within an hour");
        }
        Ok((list.render(context.look, goes_on)?, Exit::Fine))
    };
    args.watch.show(context, frame).await
}

/// What the store knows.
#[derive(Default)]
struct InStore {
    members: Vec<Member>,
    policy: Option<Version>,
    switches: Option<Switches>,
}

async fn in_store(registry: &Registry) -> Result<InStore, Failure> {
    Ok(InStore {
        members: registry.known_members().await?,
        policy: registry.version().await?,
        switches: Some(registry.switches().await?),
    })
}

async fn look(gateways: &[Admin], context: &Context) -> Result<(Head, Vec<Item>), Failure> {
    let store = async {
        match context.redis {
            Some(_) => in_store(&context.registry().await?).await.map(Some),
            None => Ok(None),
        }
    };
    let (answers, store) = tokio::join!(ask_all::<GatewayStats>(gateways, "/api/v1/stats"), store);
    let answered = answers.iter().any(Result::is_ok);
    let (store, store_failed) = match store {
        Ok(store) => (store.unwrap_or_default(), None),
        Err(failure) => (InStore::default(), Some(failure)),
    };
    // Nobody at all: then why not is the answer.
    match (answered, store_failed, answers.iter().find_map(|answer| answer.as_ref().err())) {
        (false, Some(failure), _) => return Err(failure),
        (false, None, Some(error)) if context.redis.is_none() => {
            let count = answers.len();
            let what = if count > 1 { format!("none of {count} answers: ") } else { String::new() };
            return Err(Failure::new(Exit::Unreachable, format!("{what}{error}")));
        }
        (true, Some(failure), _) => context.note(failure.what),
        _ => {}
    }
    let now = Micros::now();
    let mut items = told_by_all(gateways, answers, &store.members, now);
    for item in &mut items {
        item.judge(&store);
    }
    let head = Head {
        at_us: now.0,
        observe_only: store.switches.as_ref().map(|switches| switches.observe.is_some()),
        disabled_rules: store.switches.iter().flat_map(|s| s.disabled.keys().cloned()).collect(),
        policy: store.policy,
        known: items.len(),
        present: items.iter().filter(|item| item.present).count(),
    };
    Ok((head, items))
}

/// Those that were asked first, then those that only the store knows.
fn told_by_all(
    gateways: &[Admin],
    answers: Vec<Result<GatewayStats, AdminError>>,
    members: &[Member],
    now: Micros,
) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for (gateway, answer) in gateways.iter().zip(answers) {
        items.push(match answer {
            Ok(stats) => Item::asked(gateway, stats, now),
            Err(error) => {
                let known = members.iter().find(|member| is_at(member, gateway));
                let known = known.map_or_else(Item::default, |member| Item::heard(member, now));
                let source = if known.gateway.is_some() { "store" } else { "gateway" };
                let address = Some(gateway.at());
                let trouble = vec![error.why()];
                Item { address, source, present: false, asked: true, trouble, now, ..known }
            }
        });
    }
    let is_new = |member: &&Member| {
        !items.iter().any(|item| item.gateway.as_deref() == Some(member.id.as_str()))
    };
    let heard: Vec<Item> = members.iter().filter(is_new).map(|m| Item::heard(m, now)).collect();
    items.extend(heard);
    items
}

/// Whether a member of the store's list is the gateway that was asked.
fn is_at(member: &Member, gateway: &Admin) -> bool {
    let listening = member.about["listening"]["admin"].as_str();
    listening.is_some_and(|at| gateway.at().trim_end_matches('/').ends_with(&format!("//{at}")))
}

impl Item {
    fn asked(gateway: &Admin, stats: GatewayStats, now: Micros) -> Item {
        let trouble = stats.policy.trouble().map(|why| format!("policy: {why}"));
        let rates = stats.rates.last_10_seconds;
        Item {
            address: Some(gateway.at()),
            source: "gateway",
            present: true,
            seen_us: Some(now.0),
            uptime_us: Some(stats.uptime_us),
            ready: Some(stats.ready),
            mode: Some(match (stats.degraded_since_us, stats.observe_only) {
                (Some(_), _) => "degraded",
                (None, true) => "observing",
                (None, false) => "enforcing",
            }),
            degraded_since_us: stats.degraded_since_us,
            policy_version: stats.policy.version,
            policy_hash: stats.policy.hash,
            policy_age_us: stats.policy.age_us,
            allowed_per_second: Some(rates.allowed),
            rejected_per_second: Some(rates.rejected),
            trouble: trouble.into_iter().collect(),
            gateway: Some(stats.gateway),
            version: Some(stats.version),
            store: stats.store,
            policy_current: None,
            asked: true,
            now,
        }
    }

    /// As it told the store.
    fn heard(member: &Member, now: Micros) -> Item {
        let about = &member.about;
        let text = |value: &Value| value.as_str().map(String::from);
        let degraded_since_us = about["degraded_since_us"].as_u64();
        let silent = now.saturating_sub(member.seen);
        Item {
            gateway: Some(member.id.clone()),
            address: text(&about["listening"]["admin"]).map(|at| format!("http://{at}")),
            source: "store",
            present: silent < HEARD_WITHIN,
            seen_us: Some(member.seen.0),
            version: text(&about["version"]),
            uptime_us: about["started_us"].as_u64().map(|at| now.saturating_sub(Micros(at)).0),
            ready: about["ready"].as_bool(),
            mode: degraded_since_us.map(|_| "degraded"),
            degraded_since_us,
            policy_version: about["policy_version"].as_u64(),
            policy_hash: text(&about["policy_hash"]),
            now,
            ..Item::default()
        }
    }

    /// What is wrong with it, beyond what it says itself.
    fn judge(&mut self, store: &InStore) {
        if let (Some(published), Some(hash)) = (&store.policy, &self.policy_hash) {
            self.policy_current = Some(published.hash.starts_with(hash.as_str()));
        }
        // Whoever is there obeys the switch within a second.
        if let (true, None, Some(switches)) = (self.present, self.mode, &store.switches) {
            self.mode = Some(if switches.observe.is_some() { "observing" } else { "enforcing" });
        }
        let silent = self.seen_us.map(|at| self.now.saturating_sub(Micros(at)));
        if let (false, Some(silent)) = (self.present, silent) {
            self.trouble.push(format!("last heard of {} ago", about(silent)));
        }
        if let Some(since) = self.degraded_since_us {
            let since = about(self.now.saturating_sub(Micros(since)));
            self.trouble.push(format!("decides without the store for {since}"));
        }
        for shard in &self.store {
            if let Some(why) = &shard.trouble {
                self.trouble.push(format!("store {}: {why}", shard.shard));
            }
        }
        if self.policy_current == Some(false) {
            self.trouble.push("obeys another policy than the one that is published".into());
        }
    }

    fn is(&self) -> &'static str {
        match (self.present, self.ready) {
            (false, _) if self.asked => "unreachable",
            (false, _) => "silent",
            (true, Some(true)) => "ready",
            (true, Some(false)) => "not ready",
            (true, None) => "there",
        }
    }
}

fn in_words(head: &Head) -> String {
    let policy = head.policy.as_ref().map(|version| {
        let (number, hash) = (version.version, Untrusted(version.short_hash()));
        let (by, reason) = (Untrusted(&version.by), Untrusted(&version.reason));
        let at = moment(version.at);
        format!("policy {number} ({hash}), published by {by} at {at}: {reason}\n")
    });
    let observe = (head.observe_only == Some(true))
        .then(|| "observe-only is on: nothing is enforced\n".into());
    let disabled = (!head.disabled_rules.is_empty())
        .then(|| format!("switched off: {}\n", Untrusted(&head.disabled_rules.join(", "))));
    [policy, observe, disabled].into_iter().flatten().collect()
}

impl Row for Item {
    fn columns() -> Vec<Column<Item>> {
        fn or_none(text: Option<String>) -> String {
            text.unwrap_or_else(|| "-".into())
        }
        fn span(us: Option<u64>) -> String {
            or_none(us.map(|us| about(Micros(us))))
        }
        let is_tone = |item: &Item| if item.is() == "ready" { Tone::Good } else { Tone::Bad };
        let mode_tone = |item: &Item| match item.mode {
            Some("degraded") => Tone::Bad,
            Some("observing") => Tone::Warning,
            _ => Tone::Plain,
        };
        let policy = |item: &Item| match (item.policy_version, &item.policy_hash) {
            (Some(version), Some(hash)) => format!("{version} ({hash})"),
            (None, Some(hash)) => format!("({hash})"),
            _ => "-".into(),
        };
        let store = |item: &Item| {
            let open = item.store.iter().filter(|shard| shard.breaker != "closed").count();
            match (item.source, item.store.len(), open) {
                ("store", ..) => "-".into(),
                (_, 0, _) if item.present => "memory".into(),
                (_, 0, _) => "-".into(),
                (_, _, 0) => "closed".into(),
                (_, all, open) => format!("{open} of {all} open"),
            }
        };
        let trouble = |item: &Item| item.trouble.join("; ");
        vec![
            Column::new("GATEWAY", |item: &Item| or_none(item.gateway.clone())),
            Column::new("ADDRESS", |item| or_none(item.address.clone())),
            Column::new("IS", |item: &Item| item.is().into()).tone(is_tone),
            Column::new("VERSION", |item| or_none(item.version.clone())),
            Column::wide("UP", |item| span(item.uptime_us)),
            Column::new("POLICY", policy),
            Column::wide("AGE", |item| span(item.policy_age_us)),
            Column::new("MODE", |item: &Item| item.mode.unwrap_or("-").into()).tone(mode_tone),
            Column::new("BREAKER", store),
            Column::number("ALLOWED/S", |item| per_second(item.allowed_per_second)),
            Column::number("REJECTED/S", |item| per_second(item.rejected_per_second)),
            Column::new("TROUBLE", trouble).tone(|_| Tone::Bad),
        ]
    }

    const FIELDS: &'static [&'static str] = &[
        "gateway",
        "address",
        "source",
        "present",
        "seen_us",
        "version",
        "uptime_us",
        "ready",
        "mode",
        "degraded_since_us",
        "policy_version",
        "policy_hash",
        "policy_age_us",
        "policy_current",
        "allowed_per_second",
        "rejected_per_second",
        "store",
        "trouble",
    ];
}

fn per_second(rate: Option<f64>) -> String {
    rate.map_or("-".into(), |rate| format!("{rate:.1}"))
}
