//! `rlctl check --gateway`: the decision is taken by a gateway, by its rules.

use super::check::{Args, Report, headline, replicas_line};
use super::{Context, Exit, Failure};
use crate::engine::clock::Micros;
use crate::ops::checks::{Answer as Told, Question};
use crate::output::{SCHEMA, Tone, Untrusted, about};

pub(super) async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    if args.cost.get() > 0 {
        context.allow_write()?;
    }
    let gateway = context.one_gateway()?;
    let question = Question {
        identity: args.identity.as_str(),
        endpoint: args.target.endpoint.as_deref(),
        method: args.target.method.as_deref(),
        cost: args.cost.get(),
        idempotency_key: args.idempotency_key.as_deref(),
        ..Question::default()
    };
    let told = gateway.check(&question).await?;
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
