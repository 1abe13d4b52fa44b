//! `rlctl check --gateway`: the decision is taken by a gateway, by its rules.

use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::json;

use super::check::{Args, Report, headline, replicas_line};
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::engine::durability::Confirmed;
use crate::engine::limiter::Shadow;
use crate::output::{SCHEMA, Tone, Untrusted, about};

/// What a gateway answers; a charge can be given back through its API only.
#[derive(Debug, Deserialize)]
struct Told {
    allowed: bool,
    outcome: String,
    limit: Option<u64>,
    capacity: Option<u64>,
    remaining: Option<u64>,
    retry_after_us: Option<u64>,
    reset_after_us: Option<u64>,
    delay_us: u64,
    rule: Option<String>,
    algorithm: Option<String>,
    state: Option<String>,
    degraded: Option<String>,
    replicas: Option<Confirmed>,
    shadow: Vec<Shadow>,
}

pub(super) async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    if args.cost.get() > 0 {
        context.allow_write()?;
    }
    let gateway = context.one_gateway()?;
    let question = json!({
        "identity": args.identity.as_str(),
        "endpoint": args.target.endpoint,
        "method": args.target.method,
        "cost": args.cost.get(),
        "idempotency_key": args.idempotency_key,
    });
    let expected = [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
    let path = "/api/v1/rate-limit/check";
    let (_, answer) = gateway.ask(Method::POST, path, Some(&question), &expected).await?;
    let told: Told = serde_json::from_value(answer).map_err(|error| {
        let at = gateway.at();
        let what = format!("{at} answers no decision ({error}); is it the --admin address?");
        Failure::new(Exit::Unreachable, what)
    })?;
    context.print_one(&report(args, &told), || in_words(args, &told, context))?;
    Ok(if told.allowed { Exit::Fine } else { Exit::AnswerIsNo })
}

fn report<'a>(args: &'a Args, told: &'a Told) -> Report<'a> {
    let without_a_rule = if told.allowed { "normal" } else { "throttled" };
    Report {
        schema: SCHEMA,
        identity: args.identity.as_str(),
        allowed: told.allowed,
        limit: told.limit,
        capacity: told.capacity,
        remaining: told.remaining,
        retry_after_us: told.retry_after_us,
        reset_after_us: told.reset_after_us,
        delay_us: told.delay_us,
        rule: told.rule.as_deref(),
        algorithm: told.algorithm.as_deref(),
        state: told.state.as_deref().unwrap_or(without_a_rule),
        degraded: told.degraded.as_deref(),
        replicas: told.replicas.as_ref(),
        shadow: &told.shadow,
    }
}

fn in_words(args: &Args, told: &Told, context: &Context) -> String {
    let mut lines = vec![headline(args, told.allowed, context)];
    match (&told.rule, &told.algorithm, told.remaining, told.capacity) {
        (Some(rule), Some(algorithm), Some(left), Some(most)) => lines.push(format!(
            "  rule {}, {}: {left} of {most} left",
            Untrusted(rule),
            Untrusted(algorithm)
        )),
        (Some(rule), ..) => lines.push(format!("  rule {}", Untrusted(rule))),
        (None, ..) if told.outcome == "blocked" => lines.push("  blocked".into()),
        (None, ..) => lines.push("  no rule limits this request".into()),
    }
    let cost = args.cost.get();
    if let Some(wait) = told.retry_after_us {
        lines.push(format!("  a cost of {cost} passes in {}", about(Micros(wait))));
    } else if told.outcome == "limited" {
        lines.push(format!("  a cost of {cost} never passes"));
    }
    if told.delay_us > 0 {
        lines.push(format!("  hold the request for {}", about(Micros(told.delay_us))));
    }
    if let Some(whole) = told.reset_after_us.filter(|whole| *whole > 0) {
        lines.push(format!("  whole again in {}", about(Micros(whole))));
    }
    if let Some(mode) = &told.degraded {
        let degraded = context.paint(Tone::Bad, &format!("DEGRADED ({})", Untrusted(mode)));
        lines.push(format!("  {degraded}: the gateway's store does not answer"));
    }
    lines.extend(told.replicas.as_ref().map(replicas_line));
    for shadow in &told.shadow {
        let would = if shadow.allowed { "would let it pass" } else { "would refuse it" };
        lines.push(format!("  shadow rule {} {would}", Untrusted(&shadow.rule)));
    }
    lines.join("\n") + "\n"
}
