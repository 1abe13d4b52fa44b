//! `rlctl inspect`: every limit of an identity and how it stands, without touching anything.

use std::io::{self, BufWriter, Write};

use tokio::sync::OnceCell;

use super::inspect_report::{self, Report, in_csv, raw, words};
use super::operate_args::{DialectArgs, Who, identities};
use super::policy::{self, InForce};
use super::printing::WatchArgs;
use super::sites::{Away, NamedStores};
use super::{Context, Exit, Failure, inspect_gateway};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::plan::{Attempt, Origin, Plan, Question, plan};
use crate::engine::registry::Subject;
use crate::engine::rules::Target;
use crate::engine::split::parts;
use crate::engine::store::redis::Deployment;
use crate::ops::bucket::Bucket;
use crate::ops::layout::Layout;
use crate::ops::look::{LookError, Looked, Wanted, look};
use crate::ops::site::Site;
use crate::ops::strangers;
use crate::output::{Format, Rows, json_line, with_schema};

/// Show every limit of an identity: used, left, when, and why
///
/// Answers for a cost of 1 without taking it, in one round trip, and changes nothing, not even a
/// TTL. Needs no rules: what is stored describes itself. With --rules it also shows limits that were
/// not used yet, and where each is from. Where a Redis holds nothing of ours, the layouts of
/// other limiters are tried (docs/dialects.md). Exit 7 when nothing is known and no rule applies.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  rlctl inspect user:123 --redis redis://127.0.0.1:6379
  rlctl inspect user:123 --explain                   which limit decides, and the arithmetic
  rlctl inspect user:123 --rules rules.toml          also limits that were not used yet
  rlctl inspect user:123 ip:203.0.113.7 --watch=1s
  cut -d, -f2 complaints.csv | rlctl inspect - -o ndjson
  rlctl inspect ip:203.0.113.7 --dialect hash-token-bucket --limit 10/1s")]
pub(super) struct Args {
    /// user:123, apikey:ak_9, ip:203.0.113.7, header:x-tenant:acme; - reads them from stdin
    #[arg(required = true, value_name = "IDENTITY")]
    identities: Vec<Who>,
    /// Say in words which limit decides, and the arithmetic
    #[arg(long)]
    explain: bool,
    /// Show what is stored, byte for byte
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    dialect: DialectArgs,
    #[command(flatten)]
    watch: WatchArgs,
}

/// What is needed for every identity.
struct Desk<'a> {
    context: &'a Context,
    args: &'a Args,
    /// The Redis of the context, then the stores that rules name, as far as they answer; none where
    /// a gateway is asked.
    sites: Vec<Site>,
    /// Named layouts; none: ours, then whatever is known.
    foreign: Option<Vec<Layout>>,
    in_force: Option<InForce>,
    ours: OnceCell<bool>,
}

pub(super) async fn run(args: Args, context: &Context) -> Result<Exit, Failure> {
    let through_gateway = context.redis.is_none() && !context.gateways.is_empty();
    if through_gateway && (args.raw || args.dialect.dialect.is_some()) {
        return Err(Failure::usage("--raw and --dialect look into a Redis: give --redis URL"));
    }
    let foreign = match &args.dialect.dialect {
        Some(_) => Some(args.dialect.foreign()?),
        None => None,
    };
    let in_force = match (&context.rules, &foreign) {
        (Some(_), None) if !through_gateway => Some(policy::load(context).await?),
        _ => None,
    };
    if let Some(in_force) = &in_force {
        in_force.note_switches(context);
    }
    let sites = match through_gateway {
        true => Vec::new(),
        false => sites(in_force.as_ref(), &args.dialect, context).await?,
    };
    let ours = OnceCell::new();
    let desk = Desk { context, args: &args, sites, foreign, in_force, ours };
    let reads_stdin = args.identities.iter().any(|who| matches!(who, Who::Stdin));
    if reads_stdin && !args.watch.is_on() {
        let out = BufWriter::new(io::stdout());
        return desk.show(out, identities(args.identities.clone()), false).await.map(|(_, e)| e);
    }
    let all: Vec<Identity> = identities(args.identities.clone()).collect::<Result<_, _>>()?;
    args.watch
        .show(context, async |goes_on| {
            let (text, exit) = desk.show(Vec::new(), all.iter().cloned().map(Ok), goes_on).await?;
            Ok((String::from_utf8(text).map_err(io::Error::other)?, exit))
        })
        .await
}

impl Desk<'_> {
    /// Shows them one after the other, in bounded memory.
    async fn show<W: Write>(
        &self,
        mut out: W,
        identities: impl Iterator<Item = Result<Identity, Failure>>,
        goes_on: bool,
    ) -> Result<(W, Exit), Failure> {
        let look = self.context.look;
        let is_single = matches!(self.args.identities.as_slice(), [Who::One(_)]);
        let mut exit = Exit::NothingMatched;
        if look.format == Format::Json && !is_single {
            let mut rows: Rows<Report, &mut W> = Rows::new(&mut out, look)?;
            for identity in identities {
                rows.push(&self.looked_up(&identity?, &mut exit).await?)?;
            }
            rows.end()?;
            return Ok((out, exit));
        }
        let mut has_header = goes_on;
        for identity in identities {
            let report = self.looked_up(&identity?, &mut exit).await?;
            let text = match look.format {
                Format::Table | Format::Wide => words(&report, self.args.explain, look)?,
                Format::Csv => in_csv(&report, look, std::mem::replace(&mut has_header, true))?,
                Format::Json | Format::Ndjson => with_schema(&json_line(&report)) + "\n",
            };
            out.write_all(text.as_bytes())?;
        }
        out.flush()?;
        Ok((out, exit))
    }

    /// What is known of one; that nothing is, is told.
    async fn looked_up(&self, identity: &Identity, exit: &mut Exit) -> Result<Report, Failure> {
        let report = self.report(identity).await?;
        match report.is_empty() {
            true => self.tell_nothing(&report.identity).await?,
            false => *exit = Exit::Fine,
        }
        Ok(report)
    }

    async fn report(&self, identity: &Identity) -> Result<Report, Failure> {
        let Some(Site { deployment, .. }) = self.sites.first() else {
            return inspect_gateway::report(&self.context.one_gateway()?, identity).await;
        };
        if let Some(layouts) = &self.foreign {
            let limits = strangers::buckets(deployment, layouts, identity).await?;
            return Ok(Report::of(identity, Subject::default(), Micros::ZERO, limits));
        }
        let looked = look(deployment, &self.context.prefix, identity).await?;
        let report = self.of_ours(looked).await?;
        if !report.is_empty() || self.args.raw {
            return Ok(report);
        }
        if self.has_ours(deployment).await? {
            return Ok(report);
        }
        let shipped = self.args.dialect.foreign()?;
        let limits = strangers::buckets(deployment, &shipped, identity).await?;
        Ok(Report { limits, ..report })
    }

    /// Whether our limiter is at work there: then nobody else's is looked for. Asked once.
    async fn has_ours(&self, deployment: &Deployment) -> Result<bool, Failure> {
        let ask = || strangers::has_ours(deployment, &self.context.prefix);
        Ok(*self.ours.get_or_try_init(ask).await?)
    }

    async fn of_ours(&self, looked: Looked) -> Result<Report, Failure> {
        let (now, identity) = (looked.now, looked.identity.clone());
        let mut wanted = Vec::new();
        let mut tier = looked.subject.tier_at(now).map(String::from);
        if let Some(in_force) = &self.in_force {
            let (by_rules, limits) = limits_by_rules(in_force, &identity, &looked.subject, now);
            tier = by_rules.or(tier);
            wanted = limits;
        }
        let of = |name: Option<&str>, who: &Identity| -> Vec<Wanted> {
            let of = wanted.iter().filter(|s| s.store.as_deref() == name && s.identity == *who);
            of.map(|sought| sought.wanted.clone()).collect()
        };
        let mut limits = looked.buckets(&of(None, &identity));
        let mut divided: Vec<&Identity> = Vec::new();
        for Sought { identity: part, .. } in &wanted {
            if *part != identity && !divided.contains(&part) {
                divided.push(part);
            }
        }
        let mut raw = self.args.raw.then(|| raw(&looked, None));
        for Site { store, deployment, prefix } in &self.sites {
            let name = store.as_deref();
            let whole = name.is_some().then_some(&identity);
            for who in whole.into_iter().chain(divided.iter().copied()) {
                let wanted = of(name, who);
                if name.is_none() && wanted.is_empty() {
                    continue;
                }
                let there = look(deployment, prefix, who).await?;
                let buckets = there.buckets(&wanted).into_iter();
                limits.extend(buckets.map(|bucket| Bucket { store: store.clone(), ..bucket }));
                if let Some(raw) = &mut raw {
                    raw.extend(inspect_report::raw(&there, name));
                }
            }
        }
        let unreadable =
            looked.records.as_ref().err().map(|error| {
                format!("{} holds what is no quota of ours: {error}", looked.quota.key)
            });
        let report = Report::of(&identity, looked.subject, now, limits);
        Ok(Report { tier, unreadable, raw, ..report })
    }

    /// Says that nothing is known, and what to do about it.
    async fn tell_nothing(&self, identity: &str) -> Result<(), Failure> {
        let Some(Site { deployment, .. }) = self.sites.first() else {
            self.context.note(format!("no rule of the gateway limits {identity}"));
            return Ok(());
        };
        let mut text = match &self.foreign {
            Some(_) => format!("no key of this layout belongs to {identity}"),
            None => format!(
                "nothing is stored about {identity} under {}: it has used nothing, or all of it is whole again",
                self.context.prefix.as_str()
            ),
        };
        let is_ours = self.foreign.is_none() && self.has_ours(deployment).await?;
        let similar = match is_ours {
            true => Vec::new(),
            false => strangers::similar_keys(deployment, &self.context.prefix, identity).await?,
        };
        if !similar.is_empty() {
            text += &format!(
                "; of a layout that is not known: {}; describe it in a file and give --dialect FILE (docs/dialects.md)",
                similar.join(", ")
            );
        }
        self.context.note(text);
        Ok(())
    }
}

/// A limit that a rule has for an identity, or for a part of it, and the store that counts it.
struct Sought {
    store: Option<String>,
    identity: Identity,
    wanted: Wanted,
}

/// The Redis, and the stores that rules name; of one that does not answer that is said.
async fn sites(
    in_force: Option<&InForce>,
    dialect: &DialectArgs,
    context: &Context,
) -> Result<Vec<Site>, Failure> {
    let named = match in_force {
        Some(in_force) => NamedStores::of(in_force.rules.policy()),
        None => dialect.named_stores(context).await?,
    };
    let sites = context.sites(&named).await?;
    for Away { store, error } in &sites.away {
        context.note(format!("what the store {store} counts is not shown: {error}"));
    }
    Ok(sites.open)
}

/// The tier, and every limit that a rule has for an identity somewhere.
fn limits_by_rules(
    in_force: &InForce,
    identity: &Identity,
    subject: &Subject,
    now: Micros,
) -> (Option<String>, Vec<Sought>) {
    let rules = &in_force.rules;
    let standing = in_force.standing_of(identity, subject, now);
    let identities = [identity.clone()];
    let target = Target { path: None, method: None, only: None };
    let attempt = Attempt { identities: &identities, target, tier: None };
    let Plan::Ask(asked) = plan(rules, &attempt, std::slice::from_ref(&standing), now) else {
        return (None, Vec::new());
    };
    if !asked.exempt.is_empty() {
        return (asked.tier, Vec::new());
    }
    let tier = asked.tier.as_deref();
    let of = |applied| Question::of(rules, applied, identity, tier, &standing, now);
    let mut wanted = Vec::new();
    for question in rules.anywhere(identity, tier, None).map(of) {
        let parts = parts(&question);
        let mut all: Vec<_> = parts
            .iter()
            .enumerate()
            .map(|(n, part)| {
                let which = format!(", part {} of {}", n + 1, parts.len());
                (part.identity.clone(), part.limits.clone(), which)
            })
            .collect();
        if all.is_empty() {
            all.push((identity.clone(), question.limits.to_vec(), String::new()));
        }
        for (who, limits, which) in all {
            for (limit, source) in limits.into_iter().zip(&question.sources) {
                let source = match source.origin {
                    Origin::Rule => "rule",
                    Origin::Tier { .. } => "tier",
                    Origin::Override { .. } => "override",
                };
                let (store, identity) = (question.store.map(String::from), who.clone());
                let wanted_here = Wanted { limit, source: format!("{source}{which}") };
                wanted.push(Sought { store, identity, wanted: wanted_here });
            }
        }
    }
    (asked.tier, wanted)
}

impl From<LookError> for Failure {
    fn from(error: LookError) -> Failure {
        match error {
            LookError::Store(error) => error.into(),
            LookError::Registry(error) => error.into(),
        }
    }
}
