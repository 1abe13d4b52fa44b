//! `rlctl scenario run --live`: in real time, against gateways, a Redis, or one that is started for it.

use std::rc::Rc;

use super::scenario_run::{Ran, RunArgs, Spawn, Telling, chosen};
use super::simulate_trace::Interruption;
use super::{Context, Exit, Failure, OPERATOR_DEADLINE};
use crate::engine::clock::Micros;
use crate::engine::store::redis::without_secrets;
use crate::ops::local_redis::{self, LocalRedis, LocalRedisError, Plan};
use crate::output::Untrusted;
use crate::scenario::Scenario;
use crate::scenario::run::live::{self, Ended, Live, LiveError, Spawned, Target};

/// Whatever was started for it is ended, also after Ctrl-C.
pub(super) async fn run(args: &RunArgs, context: &Context) -> Result<Exit, Failure> {
    if args.spawn.is_some() && (context.gateway_flag || context.redis_flag.is_some()) {
        return Err(Failure::usage("--spawn starts a Redis of its own: leave out the other one"));
    }
    if context.gateway_flag && context.redis_flag.is_some() {
        return Err(Failure::usage("--redis or --gateway: which of them decides?"));
    }
    let scenarios = chosen(args, context)?;
    match (args.spawn, &context.redis) {
        (Some(spawn), _) => on_spawned(&scenarios, spawn, args, context).await,
        (None, Some(url)) if !context.gateway_flag => {
            context.allow_write()?;
            let address = context.options(url, OPERATOR_DEADLINE)?.address;
            let options = format!("--live --redis {}", without_secrets(url));
            each(&scenarios, args, context, &Live::on(Target::Given(address), options)).await
        }
        _ if !context.gateways.is_empty() => {
            context.allow_write()?;
            let (mut gateways, mut options) = (Vec::new(), "--live".to_owned());
            for url in &context.gateways {
                let gateway = context.gateway(url)?;
                options += &format!(" --gateway {}", gateway.at());
                gateways.push(Rc::new(gateway));
            }
            each(&scenarios, args, context, &Live::on(Target::Gateways(gateways), options)).await
        }
        _ => Err(Failure::usage(
            "--live needs somebody who decides: --gateway URL, --redis URL, or --spawn single to start a Redis",
        )),
    }
}

async fn on_spawned(
    scenarios: &[Scenario],
    spawn: Spawn,
    args: &RunArgs,
    context: &Context,
) -> Result<Exit, Failure> {
    let (kind, name, masters, replicas) = match spawn {
        Spawn::Single => (local_redis::Kind::Single, "single", 1, 0),
        Spawn::Sentinel => (local_redis::Kind::Sentinel, "sentinel", 1, 2),
        Spawn::Cluster => (local_redis::Kind::Cluster, "cluster", 3, 1),
    };
    let node_timeout = Micros::SECOND;
    let plan = Plan { kind, masters, replicas, base_port: 0, node_timeout, config: Vec::new() };
    let folder = std::env::temp_dir().join(format!("rlctl-scenario-{}", std::process::id()));
    context.note(format!("starting a Redis in {}", folder.display()));
    let cannot = |error: LocalRedisError| Failure::new(Exit::Unreachable, error);
    let tell = |words: &str| context.detail(words);
    let local = tokio::select! {
        up = LocalRedis::up(&folder, &plan, &tell) => up.map_err(cannot)?,
        _ = tokio::signal::ctrl_c() => {
            // What runs by now is ended; perhaps nothing does.
            if let Ok(mut begun) = LocalRedis::open(&folder) {
                begun.down().await.map_err(cannot)?;
            }
            return Ok(Exit::Interrupted);
        }
    };
    let ours = Target::Spawned(Box::new(Spawned::new(local)));
    let live = Live::on(ours, format!("--live --spawn {name}"));
    let ended = each(scenarios, args, context, &live).await;
    if let Target::Spawned(ours) = live.into_target() {
        ours.down().await.map_err(cannot)?;
    }
    ended
}

/// One after the other.
async fn each(
    scenarios: &[Scenario],
    args: &RunArgs,
    context: &Context,
    on: &Live,
) -> Result<Exit, Failure> {
    let mut interruption = Interruption::new()?;
    let mut telling = Telling::new(args, context, scenarios.len())?;
    let note = |words: &str| context.note(Untrusted(words));
    for scenario in scenarios {
        let ran = match on.refuses(scenario) {
            Some(why) => Ran::Skipped(why),
            None => {
                context.note(format!("{} takes {}", Untrusted(&scenario.title()), scenario.run));
                let stop = interruption.come();
                match live::run(scenario, args.seed, on, stop, &note).await {
                    Ok(Ended::Outcome(outcome)) => Ran::Ended(*outcome),
                    Ok(Ended::Skipped(why)) => Ran::Skipped(why),
                    Ok(Ended::Stopped) => {
                        telling.finish()?;
                        return Ok(Exit::Interrupted);
                    }
                    Err(LiveError::Gateway(error)) => return Err(error.into()),
                    Err(error) => return Err(Failure::new(Exit::Unreachable, error)),
                }
            }
        };
        let failed = matches!(&ran, Ran::Ended(outcome) if !outcome.passed());
        telling.tell(scenario, ran)?;
        if failed && args.fail_fast {
            break;
        }
    }
    telling.finish()
}
