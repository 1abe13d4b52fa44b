//! `rlctl check`: takes one real decision.

use std::sync::Arc;

use serde::Serialize;

use super::limit_args::LimitArgs;
use super::target_args::TargetArgs;
use super::{Context, Exit, Failure, OPERATOR_DEADLINE, check_gateway, policy};
use crate::engine::clock::Micros;
use crate::engine::durability::Confirmed;
use crate::engine::failure::OnFailure;
use crate::engine::identity::Identity;
use crate::engine::limit::Cost;
use crate::engine::limiter::{Asked, By, Demand, Limiter, Reached, Shadow, Verdict};
use crate::engine::plan::{Attempt, Entry, Plan, plan};
use crate::engine::store::{
    Check, DEFAULT_IDEMPOTENCY_TTL, Idempotency, MemoryStore, RuleLimit, Several, Store, StoreError,
};
use crate::output::{SCHEMA, Tone, Untrusted, about, explain};

/// The name under which limits given on the command line keep their buckets.
const RULE: &str = "cli";

/// Take a decision for one identity, for real
///
/// Charges the identity and says whether it may pass, by the limits given or by a rules file: exit
/// 0 when allowed, 8 when denied, 5 when Redis or the gateway cannot be asked. Without --redis the decision is
/// taken in memory and nothing is remembered. Several limits are all charged, or none is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl check user:123 --limit 10/1m --redis redis://127.0.0.1:6379
  rlctl check user:123 --rules rules.toml --endpoint /api/v1/orders --method POST -v
  rlctl check ip:203.0.113.7 --limit 100/1m --limit 1000/1h --algorithm sliding-window
  rlctl check user:123 --gateway http://127.0.0.1:9090 --endpoint /api/v1/orders
  rlctl check user:123 --limit 10/1m --cost 0 -o json       look without taking")]
pub(super) struct Args {
    /// Who asks: user:123, apikey:ak_9, ip:203.0.113.7, header:x-tenant:acme
    pub(super) identity: Identity,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// How much the request takes; 0 looks without taking
    #[arg(long, value_name = "N", default_value = "1")]
    pub(super) cost: Cost,
    /// The same key again within 5 minutes gets the first allowed answer, uncharged
    #[arg(long, value_name = "K")]
    pub(super) idempotency_key: Option<String>,
}

#[derive(Serialize)]
pub(super) struct Report<'a> {
    pub(super) schema: &'static str,
    pub(super) identity: &'a str,
    pub(super) allowed: bool,
    pub(super) limit: Option<u64>,
    pub(super) capacity: Option<u64>,
    pub(super) remaining: Option<u64>,
    pub(super) retry_after_us: Option<u64>,
    pub(super) reset_after_us: Option<u64>,
    pub(super) delay_us: u64,
    pub(super) rule: Option<&'a str>,
    pub(super) algorithm: Option<&'a str>,
    pub(super) state: &'a str,
    pub(super) degraded: Option<&'a str>,
    pub(super) replicas: Option<&'a Confirmed>,
    pub(super) shadow: &'a [Shadow],
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let is_otherwise_said = args.limits.are_given() || context.rules.is_some();
    if context.gateway_flag || (!context.gateways.is_empty() && !is_otherwise_said) {
        if args.limits.are_given() {
            return Err(Failure::usage("a gateway decides by its own rules: leave out --limit"));
        }
        return check_gateway::run(&args, context).await;
    }
    let idempotency = match &args.idempotency_key {
        Some(key) => Some(Idempotency::new(key, DEFAULT_IDEMPOTENCY_TTL).map_err(Failure::usage)?),
        None => None,
    };
    let demand = Demand { idempotency, ..Demand::of(args.cost) };
    let (verdict, exempt) = if args.limits.are_given() {
        by_limits(&args, demand, context).await.map(|verdict| (verdict, None))
    } else if context.rules.is_some() {
        by_rules(&args, demand, context).await
    } else {
        Err(Failure::usage("give --limit, e.g. --limit 10/1m, --rules FILE, or --gateway URL"))
    }?;
    let words = || in_words(&args, &verdict, exempt.as_ref(), context);
    context.print_one(&report(&args, &verdict), words)?;
    Ok(if verdict.allowed { Exit::Fine } else { Exit::AnswerIsNo })
}

/// By the limits of the command line, as one rule called `cli`.
async fn by_limits(args: &Args, demand: Demand<'_>, context: &Context) -> Result<Verdict, Failure> {
    if args.target.is_given() {
        return Err(Failure::usage(
            "--endpoint and --method choose among rules; they need --rules, not --limit",
        ));
    }
    let limits = args.limits.limits(context)?;
    let named = |(limit, index)| Arc::new(RuleLimit::new(RULE, index, limit));
    let limits: Vec<Arc<RuleLimit>> = limits.into_iter().zip(0u8..).map(named).collect();
    let Demand { cost, idempotency, at, .. } = demand;
    let check = Check { identity: &args.identity, limits: &limits, cost, idempotency, at };
    let answer = open_store(args, context).await?.check(&check).await;
    let answer = answer.map_err(|error| store_failure(error, cost))?;
    let (decided, _) = answer.deciding().expect("there is at least one limit");
    let asked = limits.iter().zip(&answer.decisions).map(|(limit, decision)| Asked {
        identity: args.identity.clone(),
        limit: limit.clone(),
        decision: *decision,
        by: By::Store,
    });
    let reached = Reached::Limits { decided, asked: asked.collect() };
    Ok(Verdict::by(answer.allowed(), reached))
}

/// By the policy in force; also why the one who asks is exempt, if that is so.
async fn by_rules(
    args: &Args,
    demand: Demand<'_>,
    context: &Context,
) -> Result<(Verdict, Option<Entry>), Failure> {
    let in_force = policy::load(context).await?;
    let place = args.target.read()?;
    let identities = policy::identities_of(&args.identity);
    let attempt = Attempt { identities: &identities, target: place.target(), tier: None };
    let standings = in_force.standings(&identities).await?;
    let exempt = match plan(&in_force.rules, &attempt, &standings, Micros::now()) {
        Plan::Ask(mut questions) => {
            questions.exempt.retain(|(identity, _)| **identity == args.identity);
            questions.exempt.pop().map(|(_, entry)| entry)
        }
        _ => None,
    };
    let others = Several::new(open_store(args, context).await?).with_deadline(OPERATOR_DEADLINE);
    let store = Arc::new(Store::Several(others));
    let on_failure = OnFailure::Tell;
    let limiter = Limiter { rules: in_force.rules.clone(), store, on_failure, hot: None };
    let cost = demand.cost;
    let verdict = limiter.check(&attempt, &standings, demand).await;
    let verdict = verdict.map_err(|error| store_failure(error, cost))?;
    in_force.note_switches(context);
    if let Some(note) = place.left_out(&in_force.rules, &args.identity) {
        context.note(note);
    }
    let observed = in_force.observe.is_some();
    Ok((if observed { verdict.observed() } else { verdict }, exempt))
}

async fn open_store(args: &Args, context: &Context) -> Result<Store, Failure> {
    let Some(url) = &context.redis else {
        context.note("decided in memory, so nothing is remembered; give --redis URL to count");
        return Ok(Store::Memory(MemoryStore::default()));
    };
    if args.cost > Cost::PEEK {
        context.allow_write()?;
    }
    Ok(Store::Redis(context.connect(url, context.prefix.clone(), OPERATOR_DEADLINE).await?))
}

fn store_failure(error: StoreError, cost: Cost) -> Failure {
    match error {
        error if cost == Cost::PEEK => error.of_a_read().into(),
        StoreError::OtherCost => {
            Failure::usage("this idempotency key was used before with another --cost")
        }
        error => error.into(),
    }
}

fn decided(verdict: &Verdict) -> Option<&Asked> {
    match &verdict.reached {
        Reached::Limits { decided, asked } => asked.get(*decided),
        _ => None,
    }
}

fn report<'a>(args: &'a Args, verdict: &'a Verdict) -> Report<'a> {
    let by = decided(verdict);
    let decision = by.map(|asked| &asked.decision);
    let ban_ends = match &verdict.reached {
        Reached::Blocked { entry, .. } => {
            entry.until.map(|until| until.saturating_sub(Micros::now()))
        }
        _ => None,
    };
    Report {
        schema: SCHEMA,
        identity: args.identity.as_str(),
        allowed: verdict.allowed,
        limit: decision.map(|d| d.limit),
        capacity: decision.map(|d| d.capacity),
        remaining: decision.map(|d| d.remaining),
        retry_after_us: decision.and_then(|d| d.retry_after).or(ban_ends).map(|d| d.0),
        reset_after_us: decision.map(|d| d.reset_after.0),
        delay_us: verdict.delay().0,
        rule: by.map(|asked| asked.limit.rule()),
        algorithm: by.map(|asked| asked.limit.limit().algorithm().name()),
        state: decision
            .map_or(if verdict.allowed { "normal" } else { "throttled" }, |d| d.state().name()),
        degraded: None,
        replicas: verdict.replicas.as_ref(),
        shadow: &verdict.shadow,
    }
}

/// The first line of an answer.
pub(super) fn headline(args: &Args, allowed: bool, context: &Context) -> String {
    let (tone, outcome) = if allowed { (Tone::Good, "allowed") } else { (Tone::Bad, "denied") };
    format!("{}  {}", context.paint(tone, outcome), Untrusted(args.identity.as_str()))
}

fn in_words(args: &Args, verdict: &Verdict, exempt: Option<&Entry>, context: &Context) -> String {
    let mut lines = vec![headline(args, verdict.allowed, context)];
    if let Some(entry) = exempt {
        lines.push(format!("  exempt {}: {}", lasts(entry), Untrusted(&entry.reason)));
    }
    match &verdict.reached {
        Reached::Limits { decided, asked } => {
            lines.extend(limit_lines(args, &asked[*decided], verdict.delay()));
            if context.verbose {
                lines.extend(verbose_lines(args, asked, *decided));
            }
        }
        Reached::Blocked { entry, .. } => {
            lines.push(format!("  blocked {}: {}", lasts(entry), Untrusted(&entry.reason)));
        }
        Reached::Missing { rule } => {
            lines
                .push(format!("  rule {rule} asks for an identity that the request does not have"));
        }
        Reached::Busy(busy) => {
            lines.push(format!("  rule {} has too much of it under way", busy.rule));
        }
        Reached::Unanswered { limit, .. } => {
            lines.push(format!("  the store did not answer for rule {}", limit.rule()));
        }
        Reached::NoLimit if exempt.is_some() => {}
        Reached::NoLimit | Reached::NoPolicy => lines.push("  no rule limits this request".into()),
    }
    lines.extend(verdict.replicas.as_ref().map(replicas_line));
    for shadow in &verdict.shadow {
        let would = if shadow.allowed { "would let it pass" } else { "would refuse it" };
        lines.push(format!("  shadow rule {} {would}", shadow.rule));
    }
    lines.join("\n") + "\n"
}

pub(super) fn replicas_line(told: &Confirmed) -> String {
    let Confirmed { rule, wanted, confirmed } = told;
    let (few, rule) = (if told.is_short() { "only " } else { "" }, Untrusted(rule));
    format!("  {few}{confirmed} of {wanted} replicas that rule {rule} waits for have the charge")
}

fn lasts(entry: &Entry) -> String {
    entry.until.map_or("for ever".into(), |until| {
        format!("for another {}", about(until.saturating_sub(Micros::now())))
    })
}

fn limit_lines(args: &Args, by: &Asked, delay: Micros) -> Vec<String> {
    let Asked { limit: of, decision, .. } = by;
    let (limit, left, most) = (of.limit(), decision.remaining, decision.capacity);
    let rule = if of.rule() == RULE { String::new() } else { format!("rule {}, ", of.rule()) };
    let mut lines = vec![format!("  {rule}{} {limit}: {left} of {most} left", limit.algorithm())];
    let (asked, taken) = (args.cost.get(), of.cost(args.cost).get());
    let cost = match asked == taken {
        true => format!("a cost of {asked}"),
        false => format!("a cost of {asked}, {taken} by this rule,"),
    };
    if let Some(wait) = decision.retry_after {
        lines.push(format!("  {cost} passes in {}", about(wait)));
    } else if decision.never_passes() {
        lines.push(format!("  {cost} never passes: at most {most} can be had at once"));
    }
    if delay > Micros::ZERO {
        lines.push(format!("  hold the request for {}", about(delay)));
    }
    if decision.reset_after > Micros::ZERO {
        lines.push(format!("  whole again in {}", about(decision.reset_after)));
    }
    lines
}

fn verbose_lines(args: &Args, asked: &[Asked], decided: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let taken = asked.iter().all(|asked| asked.decision.allowed);
    for (number, Asked { limit, decision, .. }) in asked.iter().enumerate() {
        let role = match (number == decided, decision.allowed) {
            (true, _) => "decided by",
            (false, true) => "agreed:",
            (false, false) => "refused too:",
        };
        lines.push(format!(
            "  {role} rule {}, {} {}",
            limit.rule(),
            limit.limit().algorithm(),
            limit.limit()
        ));
        let cost = limit.cost(args.cost).get();
        let told = explain(limit.limit(), decision, cost, taken);
        lines.extend(told.into_iter().map(|line| format!("    {line}")));
    }
    lines
}
