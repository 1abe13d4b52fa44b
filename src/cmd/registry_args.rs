//! What the commands that work on the registry share: their arguments, and how they tell what
//! changed.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Context, Exit, Failure, rules_file};
use crate::engine::clock::Micros;
use crate::engine::config::parse_policy;
use crate::engine::config::read::did_you_mean;
use crate::engine::identity::{Identity, IdentityError, Pattern, names_a_dimension};
use crate::engine::policy::Policy;
use crate::engine::registry::{
    Change, Event, Intent, Lasts, ListChange, Outcome, Override, OverrideLimit, Registry, Terms,
};
use crate::engine::units;
use crate::output::{SCHEMA, Untrusted, counted, moment};

#[derive(Debug, clap::Args)]
pub(super) struct WriteArgs {
    /// Why; kept with the change and in the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Say what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
}

impl WriteArgs {
    /// Who wants it and why, if it may be written at all.
    pub(super) fn intent(&self, context: &Context) -> Result<Intent, Failure> {
        let intent = Intent::new(&context.actor, &self.reason)?.dry_run(self.dry_run);
        if !self.dry_run {
            context.allow_write()?;
        }
        Ok(intent)
    }

    /// What was changed and into what; exit 7 when there was nothing to remove.
    pub(super) fn report(&self, context: &Context, outcome: &Outcome) -> Result<Exit, Failure> {
        let nothing = outcome.was_nothing();
        if self.dry_run {
            context.note("a dry run: nothing was changed");
        }
        let Outcome { event, written } = outcome;
        if nothing && context.look.format.is_for_people() {
            let subject = Untrusted(&event.subject);
            // It may have others: only the one for this rule is not there.
            let state = match event.action.as_str() {
                "override rm" => "without such an override".into(),
                _ => state(event, &event.before),
            };
            return Err(Failure::new(
                Exit::NothingMatched,
                format!("nothing to change: {subject} is {state} already"),
            ));
        }
        let report = Report { schema: SCHEMA, dry_run: self.dry_run, written: *written, event };
        context.print_one(&report, || {
            let was = format!("{}{}", state(event, &event.before), by_whom(&event.before));
            let (subject, now) = (Untrusted(&event.subject), state(event, &event.after));
            format!("{}  {subject}\n  was  {was}\n  now  {now}\n", event.action)
        })?;
        Ok(if nothing { Exit::NothingMatched } else { Exit::Fine })
    }
}

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    dry_run: bool,
    written: bool,
    #[serde(flatten)]
    event: &'a Event,
}

/// `--for`: a duration, or `forever`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holds(pub(super) Lasts);

impl FromStr for Holds {
    type Err = String;

    fn from_str(text: &str) -> Result<Holds, String> {
        if text == "forever" {
            return Ok(Holds(None));
        }
        match units::parse_duration(text) {
            Ok(Micros::ZERO) => Err("it would end at once; write a duration or forever".into()),
            Ok(duration) => Ok(Holds(Some(duration))),
            Err(error) => Err(format!("{error}; or forever")),
        }
    }
}

/// Who is blocked or exempt: one identity, or all that fit a pattern.
#[derive(Clone, Debug)]
pub(super) enum Target {
    One(Identity),
    Many(Pattern),
}

impl FromStr for Target {
    type Err = TargetError;

    /// Addresses and networks may stand without `ip:`.
    fn from_str(text: &str) -> Result<Target, TargetError> {
        let is_network = text.parse::<IpNet>().is_ok() || text.parse::<IpAddr>().is_ok();
        let text = if is_network { format!("ip:{text}") } else { text.into() };
        match text.parse()? {
            Pattern::Exact(identity) => Ok(Target::One(of_dimension(identity)?)),
            Pattern::Network(network) => of_network(network),
            glob @ Pattern::Glob(_) => {
                let shown = glob.to_string();
                // A star may stand for the dimension too.
                let known = names_a_dimension(&shown) || shown.starts_with('*');
                if known { Ok(Target::Many(glob)) } else { Err(TargetError::NoDimension(shown)) }
            }
        }
    }
}

/// An identity that some rule can be about. `bob` is nobody's: no request would ever be asked as
/// that, and a block of it would block nobody.
#[derive(Clone, Debug)]
pub(super) struct Known(pub(super) Identity);

impl FromStr for Known {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Known, TargetError> {
        of_dimension(text.parse()?).map(Known)
    }
}

fn of_dimension(identity: Identity) -> Result<Identity, TargetError> {
    if names_a_dimension(identity.as_str()) {
        return Ok(identity);
    }
    Err(TargetError::NoDimension(identity.to_string()))
}

/// IPv4 clients are told apart by their address, IPv6 clients by their /64.
fn of_network(network: IpNet) -> Result<Target, TargetError> {
    let finest = match network {
        IpNet::V4(_) => 32,
        IpNet::V6(_) => 64,
    };
    match network.prefix_len() {
        length if length > finest => Err(TargetError::TooFine(network)),
        length if length == finest => Ok(Target::One(format!("ip:{}", network.addr()).parse()?)),
        _ => Ok(Target::Many(Pattern::Network(network))),
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum TargetError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(
        "`{0}` has no dimension, so no request is ever counted as that; write user:…, apikey:…, ip:…, header:NAME:… or global:all"
    )]
    NoDimension(String),
    #[error("`{0}` is finer than clients are told apart; IPv6 clients are counted by their /64")]
    TooFine(IpNet),
}

/// Makes a change to one identity, and tells it.
pub(super) async fn change_identity(
    identity: &Identity,
    change: &Change,
    write: &WriteArgs,
    context: &Context,
) -> Result<Exit, Failure> {
    let intent = write.intent(context)?;
    let registry = context.registry().await?;
    match change {
        Change::SetTier { tier, .. } => check_name(context, &registry, Named::Tier(tier)).await?,
        Change::SetOverride { rule, .. } => {
            check_name(context, &registry, Named::Rule(rule)).await?;
        }
        _ => {}
    }
    let outcome = registry.change(identity, change, &intent).await?;
    write.report(context, &outcome)
}

/// Makes a change to one identity, or the same to a pattern, and tells it.
pub(super) async fn change_target(
    target: &Target,
    write: &WriteArgs,
    context: &Context,
    of_one: Change,
    of_many: impl FnOnce(Pattern) -> ListChange,
) -> Result<Exit, Failure> {
    let pattern = match target {
        Target::One(identity) => return change_identity(identity, &of_one, write, context).await,
        Target::Many(pattern) => pattern.clone(),
    };
    let intent = write.intent(context)?;
    let outcome = context.registry().await?.change_lists(&of_many(pattern), &intent).await?;
    write.report(context, &outcome)
}

/// A name that is about to be used, and what for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Named<'a> {
    Rule(&'a str),
    Tier(&'a str),
}

impl Named<'_> {
    /// Why the policy does not know this name, if so.
    fn unknown_to(self, policy: &Policy, called: &str) -> Option<String> {
        fn names<'p>(all: impl Iterator<Item = &'p str>, name: &str) -> (bool, Option<String>) {
            let all: Vec<&str> = all.collect();
            (all.contains(&name), did_you_mean(name, all.into_iter()))
        }
        let (what, name, (is_known, hint)) = match self {
            Named::Rule(name) => {
                ("rule", name, names(policy.rules.iter().map(|rule| rule.name.as_str()), name))
            }
            Named::Tier(name) => {
                ("tier", name, names(policy.tiers.iter().map(|tier| tier.name.as_str()), name))
            }
        };
        let hint = hint.map_or(String::new(), |hint| format!("; {hint}"));
        (!is_known).then(|| format!("{called} has no {what} `{}`{hint}", Untrusted(name)))
    }
}

/// Refuses a name that the rules of the context do not have. Where there are none, a name that the
/// published policy does not have is only noted: gateways may work by a file of their own, and a
/// policy may be published later.
pub(super) async fn check_name(
    context: &Context,
    registry: &Registry,
    named: Named<'_>,
) -> Result<(), Failure> {
    if let Some(rules) = &context.rules {
        let (policy, _) = rules_file::load(rules, context).await?;
        let called = match rules_file::in_store(rules) {
            Some(_) => "the published policy",
            None => rules.as_str(),
        };
        return match named.unknown_to(&policy, called) {
            Some(why) => Err(Failure::usage(why)),
            None => Ok(()),
        };
    }
    let Some(published) = registry.current().await? else { return Ok(()) };
    let Ok((policy, _)) = parse_policy("published", &published.text, published.version.at) else {
        return Ok(());
    };
    let called = format!("version {} of the policy", published.version.version);
    if let Some(why) = named.unknown_to(&policy, &called) {
        context.note(why);
    }
    Ok(())
}

/// What an event is about, before or after it, in words.
pub(super) fn state(event: &Event, value: &Value) -> String {
    let (present, absent) = match event.action.as_str() {
        "block" | "unblock" => ("blocked", "not blocked"),
        "exempt" | "unexempt" => ("exempt", "not exempt"),
        "rules enable" | "rules disable" => ("disabled", "enabled"),
        "rules observe on" | "rules observe off" => ("only observed", "enforced"),
        "rules mode" => ("", "as the policy says"),
        "reset" | "undo" => ("", "whole"),
        "doctor fix" => ("", "broken"),
        "tier set" | "tier rm" => ("", "without a tier"),
        "override set" | "override rm" => ("", "without an override"),
        _ => ("", "nothing"),
    };
    if value.is_null() {
        return absent.into();
    }
    if let Some(limits) = value["limits"].as_u64() {
        return format!("used in {}", counted(limits, "limit"));
    }
    if let Some(keys) = value["keys"].as_u64() {
        return format!("{} brought back", counted(keys, "key"));
    }
    if value["mended"].is_array() {
        return "mended".into();
    }
    if let Some(version) = value["version"].as_u64() {
        let hash = value["hash"].as_str().unwrap_or_default();
        return format!("version {version} ({})", Untrusted(hash.get(..12).unwrap_or(hash)));
    }
    if let Ok(of) = Override::deserialize(value) {
        let limits = limits(&of.limits);
        return format!("{limits} for {} {}", Untrusted(&of.rule), until(&of.terms));
    }
    let Ok(terms) = Terms::deserialize(value) else {
        return Untrusted(&value.to_string()).to_string();
    };
    let what = value["value"].as_str().unwrap_or(present);
    // A switch has no end, and need not say so.
    match event.action.starts_with("rules ") {
        true => what.into(),
        false => format!("{} {}", Untrusted(what), until(&terms)),
    }
}

fn by_whom(value: &Value) -> String {
    match Terms::deserialize(value) {
        Ok(terms) => {
            let (by, reason) = (Untrusted(&terms.by), Untrusted(&terms.reason));
            format!(", by {by} at {}: {reason}", moment(terms.at))
        }
        Err(_) => String::new(),
    }
}

pub(super) fn until(terms: &Terms) -> String {
    terms.until.map_or("for ever".into(), |until| format!("until {}", moment(until)))
}

pub(super) fn limits(limits: &[OverrideLimit]) -> String {
    let one = |limit: &OverrideLimit| match &limit.algorithm {
        Some(algorithm) => format!("{} {}", Untrusted(&limit.limit), Untrusted(algorithm)),
        None => Untrusted(&limit.limit).to_string(),
    };
    limits.iter().map(one).collect::<Vec<_>>().join(", ")
}
