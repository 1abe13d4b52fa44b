//! `rlctl top`: who is refused most, and who asks most.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::printing::WatchArgs;
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::ops::admin::{Admin, AdminError};
use crate::ops::fleet::{GatewayStats, Standout, ask_all, merged};
use crate::output::{Column, List, Row, Tone, Untrusted, about, moment};
use crate::tui::glance::{Said, glance};
use crate::tui::verdict::Cause;

/// Show who is refused most, or who asks most
///
/// From all gateways named with --gateway, together, over the last minute or so, under the verdict of
/// the dashboard: traffic, Redis, config, clock, fail-open or nothing wrong. Refreshes until
/// interrupted; --once prints one snapshot. Gateways that do not answer are named; exit 5 when none
/// does.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl top --gateway http://127.0.0.1:9090
  rlctl top --once --by used --rows 5
  rlctl top --once --rule per-user -o json | jq -r '.items[].identity'
  rlctl top --watch=5s -o ndjson                     a line for each, every 5 s")]
pub(super) struct Args {
    /// Print one snapshot and end
    #[arg(long, conflicts_with = "watch")]
    once: bool,
    /// Ranked by what
    #[arg(long, value_enum, default_value_t = By::Rejected)]
    by: By,
    /// Only those whom this rule refuses
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,
    /// Most rows
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=100))]
    rows: u16,
    #[command(flatten)]
    watch: WatchArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum By {
    /// Requests that were refused
    Rejected,
    /// Requests
    Used,
}

#[derive(Serialize)]
struct Head {
    at_us: u64,
    by: By,
    /// Null: all rules.
    rule: Option<String>,
    gateways: Vec<Asked>,
    verdict: Judged,
}

/// The dashboard's first sentence.
#[derive(Serialize)]
struct Judged {
    cause: &'static str,
    headline: String,
    /// What it means for requests, where limits are not enforced.
    shout: Option<String>,
    because: Vec<String>,
    since_us: Option<u64>,
    who: Option<String>,
    rule: Option<String>,
    what_to_do: Vec<String>,
}

/// A gateway that was asked.
#[derive(Serialize)]
struct Asked {
    address: String,
    gateway: Option<String>,
    allowed_per_second: Option<f64>,
    rejected_per_second: Option<f64>,
    degraded_since_us: Option<u64>,
    /// Why it does not answer; null where it does.
    trouble: Option<String>,
}

#[derive(Deserialize)]
struct Top {
    items: Vec<Standout>,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    if context.gateways.is_empty() {
        return Err(without_gateways(context).await);
    }
    if args.by == By::Used && args.rule.is_some() {
        return Err(Failure::usage("only who is refused is counted by rule: leave out --by used"));
    }
    let gateways = context.all_gateways()?;
    let watch = if args.once { args.watch } else { args.watch.or_usual() };
    let frame = async |goes_on: bool| {
        let (head, items) = look(&args, &gateways).await?;
        let list = List::new(&items).head(&head).above(in_words(&head, context));
        if items.is_empty() && !goes_on && context.look.format.is_for_people() {
            context.note(match args.by {
                By::Rejected => "nobody was refused of late",
                By::Used => "nobody asked of late",
            });
        }
        Ok((list.render(context.look, goes_on)?, Exit::Fine))
    };
    watch.show(context, frame).await
}

/// Counts of refusals are kept by gateways only; the store may know where they are.
async fn without_gateways(context: &Context) -> Failure {
    let wanted = "who asks and who is refused is counted by gateways: name them with --gateway URL";
    if context.redis.is_none() {
        return Failure::usage(wanted);
    }
    let members = match context.registry().await {
        Ok(registry) => registry.known_members().await.map_err(Failure::from),
        Err(failure) => Err(failure),
    };
    let admin = |about: &serde_json::Value| about["listening"]["admin"].as_str().map(String::from);
    match members {
        Err(failure) => failure,
        Ok(members) => {
            let known: Vec<String> =
                members.iter().filter_map(|member| admin(&member.about)).collect();
            let known = known.iter().map(|at| format!("--gateway http://{at}")).collect::<Vec<_>>();
            let wanted = format!("{wanted}; rlctl keys --sort used shows what is used up");
            match known.is_empty() {
                true => Failure::usage(format!("{wanted}; this Redis knows of none")),
                false => {
                    Failure::usage(format!("{wanted}; this Redis knows of {}", known.join(" ")))
                }
            }
        }
    }
}

async fn look(args: &Args, gateways: &[Admin]) -> Result<(Head, Vec<Standout>), Failure> {
    let by = match args.by {
        By::Rejected => "rejected",
        By::Used => "seen",
    };
    let rule = args.rule.as_ref();
    let rule = rule.map(|name| format!("&rule={}", utf8_percent_encode(name, NON_ALPHANUMERIC)));
    let path = format!("/api/v1/top?by={by}&limit=100{}", rule.unwrap_or_default());
    let (tops, stats) =
        tokio::join!(ask_all::<Top>(gateways, &path), ask_all::<Value>(gateways, "/api/v1/stats"));
    let now_us = Micros::now().0;
    let verdict = Judged::of(gateways, &stats, now_us);
    let asked = gateways.iter().zip(&tops).zip(&stats);
    let asked: Vec<Asked> = asked.map(|((at, top), stats)| Asked::of(at, top, stats)).collect();
    let mut lists = Vec::new();
    let mut first_error = None;
    for top in tops {
        match top {
            Ok(top) => lists.push(top.items),
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    }
    if let (true, Some(error)) = (lists.is_empty(), first_error) {
        return Err(error.into());
    }
    let items = merged(lists, args.rows.into());
    let head =
        Head { at_us: now_us, by: args.by, rule: args.rule.clone(), gateways: asked, verdict };
    Ok((head, items))
}

impl Judged {
    fn of(gateways: &[Admin], stats: &[Result<Value, AdminError>], now_us: u64) -> Judged {
        let said = |(gateway, stats): (&Admin, &Result<Value, AdminError>)| {
            let text = stats.as_ref().map(Value::to_string).map_err(AdminError::why);
            (gateway.at(), text)
        };
        let said: Vec<Said> = gateways.iter().zip(stats).map(said).collect();
        let verdict = glance(&said, now_us);
        Judged {
            cause: verdict.cause.name(),
            headline: verdict.headline,
            shout: verdict.shout,
            because: verdict.because,
            since_us: verdict.since_us,
            who: verdict.who,
            rule: verdict.rule,
            what_to_do: verdict.advice.into_iter().map(|advice| advice.text).collect(),
        }
    }

    fn in_words(&self, now_us: u64, context: &Context) -> String {
        let tone = if self.cause == Cause::NothingWrong.name() { Tone::Good } else { Tone::Bad };
        let headline = context.paint(tone, &self.headline);
        let since = self.since_us.map(|since| {
            let lasts = about(Micros(now_us).saturating_sub(Micros(since)));
            format!("  since {} ({lasts})", moment(Micros(since)))
        });
        let shout = self.shout.as_ref().map(|text| format!("{}\n", context.paint(Tone::Bad, text)));
        format!("{headline}{}\n{}", since.unwrap_or_default(), shout.unwrap_or_default())
    }
}

impl Asked {
    fn of(
        gateway: &Admin,
        top: &Result<Top, AdminError>,
        stats: &Result<Value, AdminError>,
    ) -> Asked {
        let known = stats.as_ref().ok().and_then(|stats| GatewayStats::deserialize(stats).ok());
        let known = known.as_ref();
        let trouble = top.as_ref().err().or(stats.as_ref().err());
        let rate = |of: fn(&GatewayStats) -> f64| known.map(of);
        Asked {
            address: gateway.at(),
            gateway: known.map(|stats| stats.gateway.clone()),
            allowed_per_second: rate(|stats| stats.rates.last_10_seconds.allowed),
            rejected_per_second: rate(|stats| stats.rates.last_10_seconds.rejected),
            degraded_since_us: known.and_then(|stats| stats.degraded_since_us),
            trouble: trouble.map(AdminError::why),
        }
    }
}

fn in_words(head: &Head, context: &Context) -> String {
    let answering = head.gateways.iter().filter(|asked| asked.trouble.is_none()).count();
    let sum = |of: fn(&Asked) -> Option<f64>| head.gateways.iter().filter_map(of).sum::<f64>();
    let (allowed, rejected) =
        (sum(|asked| asked.allowed_per_second), sum(|asked| asked.rejected_per_second));
    let gateways = if answering == 1 { "gateway" } else { "gateways" };
    let mut text = head.verdict.in_words(head.at_us, context);
    text += &format!("{answering} {gateways}: {allowed:.1}/s allowed, {rejected:.1}/s rejected\n");
    for asked in &head.gateways {
        let at = Untrusted(&asked.address);
        if let Some(since) = asked.degraded_since_us {
            let for_ = about(Micros(head.at_us).saturating_sub(Micros(since)));
            let degraded = context.paint(Tone::Bad, "DEGRADED");
            text += &format!("{degraded}: {at} decides without its store for {for_}\n");
        }
        if let Some(why) = &asked.trouble {
            text +=
                &format!("{}: {at} {}\n", context.paint(Tone::Bad, "no answer"), Untrusted(why));
        }
    }
    text
}

impl Row for Standout {
    fn columns() -> Vec<Column<Standout>> {
        fn or_none(text: &Option<String>) -> String {
            text.clone().unwrap_or_else(|| "-".into())
        }
        vec![
            Column::new("IDENTITY", |one: &Standout| one.identity.clone()),
            Column::number("PER S", |one| format!("{:.1}", one.per_second)),
            Column::number("SHARE", |one| format!("{:.1} %", one.share * 100.0)),
            Column::new("RULE", |one| or_none(&one.rule)),
            Column::new("REASON", |one| or_none(&one.reason)),
            Column::new("LIMIT", |one| or_none(&one.limit)),
            Column::number("USED", |one| one.used.map_or("-".into(), |used| used.to_string())),
            Column::new("LAST", |one| moment(Micros(one.last_us))),
            Column::wide("WEIGHT", |one| format!("{:.0}", one.weight)),
            Column::wide("TOO HIGH BY", |one| format!("{:.0}", one.too_high_by)),
            Column::wide("GATEWAYS", |one| one.gateways.to_string()),
        ]
    }

    const FIELDS: &'static [&'static str] = &[
        "identity",
        "per_second",
        "share",
        "weight",
        "too_high_by",
        "rule",
        "reason",
        "limit",
        "used",
        "last_us",
        "gateways",
    ];
}
