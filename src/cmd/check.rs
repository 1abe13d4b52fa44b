//! `rlctl check`: takes one real decision.

use std::io::{self, Write};
use std::sync::Arc;

use serde::Serialize;

use super::limit_args::LimitArgs;
use super::{Context, Exit, Failure, OPERATOR_DEADLINE, Output, print_json};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::{Cost, Decision, Limit};
use crate::engine::store::{
    Check, DEFAULT_IDEMPOTENCY_TTL, Idempotency, MemoryStore, RuleLimit, Store, StoreError,
};
use crate::output::{SCHEMA, Untrusted, about};

/// The name under which limits given on the command line keep their buckets.
const RULE: &str = "cli";

/// Take a decision for one identity, for real
///
/// Charges the identity and says whether it may pass: exit 0 when allowed, 8 when denied, 5 when
/// Redis cannot be asked. Without --redis the decision is taken in memory and nothing is
/// remembered. Several limits are all charged, or none is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl check user:123 --limit 10/1m --redis redis://127.0.0.1:6379
  rlctl check ip:203.0.113.7 --limit 100/1m --limit 1000/1h --algorithm sliding-window
  rlctl check user:123 --limit 10/1m --cost 0 -o json       look without taking")]
pub(super) struct Args {
    /// Who asks: user:123, apikey:ak_9, ip:203.0.113.7, header:x-tenant:acme
    identity: Identity,
    #[command(flatten)]
    limits: LimitArgs,
    /// How much the request takes; 0 looks without taking
    #[arg(long, value_name = "N", default_value = "1")]
    cost: Cost,
    /// The same key again within 5 minutes gets the first allowed answer, uncharged
    #[arg(long, value_name = "K")]
    idempotency_key: Option<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    identity: &'a str,
    allowed: bool,
    limit: u64,
    capacity: u64,
    remaining: u64,
    retry_after_us: Option<u64>,
    reset_after_us: u64,
    delay_us: u64,
    rule: &'a str,
    algorithm: &'static str,
    state: &'static str,
    degraded: Option<&'static str>,
    shadow: [(); 0],
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let limits: Vec<Arc<RuleLimit>> = args
        .limits
        .limits(context)?
        .into_iter()
        .zip(0u8..)
        .map(|(limit, index)| Arc::new(RuleLimit::new(RULE, index, limit)))
        .collect();
    let idempotency = match &args.idempotency_key {
        Some(key) => Some(Idempotency::new(key, DEFAULT_IDEMPOTENCY_TTL).map_err(Failure::usage)?),
        None => None,
    };
    let check =
        Check { identity: &args.identity, limits: &limits, cost: args.cost, idempotency, at: None };
    if args.cost > Cost::PEEK && context.redis.is_some() {
        context.allow_write()?;
    }
    let store = match &context.redis {
        Some(url) => {
            Store::Redis(context.connect(url, context.prefix.clone(), OPERATOR_DEADLINE).await?)
        }
        None => {
            context.note("decided in memory, so nothing is remembered; give --redis URL to count");
            Store::Memory(MemoryStore::default())
        }
    };
    let answer = store.check(&check).await.map_err(|error| match error {
        StoreError::OtherCost => {
            Failure::usage("this idempotency key was used before with another --cost")
        }
        error => error.into(),
    })?;
    let (index, decision) = answer.deciding().expect("at least one limit is required");
    let decided_by = &limits[index];
    match context.output {
        Output::Json => print_json(&Report {
            schema: SCHEMA,
            identity: args.identity.as_str(),
            allowed: decision.allowed,
            limit: decision.limit,
            capacity: decision.capacity,
            remaining: decision.remaining,
            retry_after_us: decision.retry_after.map(|d| d.0),
            reset_after_us: decision.reset_after.0,
            delay_us: answer.delay().0,
            rule: decided_by.rule(),
            algorithm: decided_by.limit().algorithm().name(),
            state: decision.state().name(),
            degraded: None,
            shadow: [],
        })?,
        Output::Table => {
            let words = in_words(&args, decided_by.limit(), decision, answer.delay());
            write!(io::stdout().lock(), "{words}")?;
        }
    }
    Ok(if decision.allowed { Exit::Fine } else { Exit::AnswerIsNo })
}

fn in_words(args: &Args, limit: &Limit, decision: &Decision, delay: Micros) -> String {
    let verdict = if decision.allowed { "allowed" } else { "denied" };
    let cost = args.cost.get();
    let mut lines = vec![
        format!("{verdict}  {}", Untrusted(args.identity.as_str())),
        format!(
            "  {} {limit}: {} of {} left",
            limit.algorithm(),
            decision.remaining,
            decision.capacity
        ),
    ];
    if let Some(wait) = decision.retry_after {
        lines.push(format!("  a cost of {cost} passes in {}", about(wait)));
    } else if decision.never_passes() {
        let most = decision.capacity;
        lines.push(format!("  a cost of {cost} never passes: at most {most} can be had at once"));
    }
    if delay > Micros::ZERO {
        lines.push(format!("  hold the request for {}", about(delay)));
    }
    if decision.reset_after > Micros::ZERO {
        lines.push(format!("  whole again in {}", about(decision.reset_after)));
    }
    lines.join("\n") + "\n"
}
