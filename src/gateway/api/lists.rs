//! Who is blocked and who is exempt: identities, networks and families of them.

use axum::extract::State;
use http::StatusCode;
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::{Value, json};

use super::input::{self, Answered, For, Json, Params, Writer};
use super::policy::changed;
use super::problem::Problem;
use super::rules::ReasonBody;
use super::{Api, Shared};
use crate::engine::clock::Micros;
use crate::engine::identity::{Identity, Pattern};
use crate::engine::policy;
use crate::engine::registry::{Change, Lasts, ListChange, Listed, Subject, Terms};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListBody {
    /// An identity, a network or a family: `user:1`, `ip:10.0.0.0/8`, `apikey:trial-*`.
    target: String,
    #[serde(rename = "for")]
    lasts: For,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListParams {
    target: String,
}

/// The two lists.
#[derive(Clone, Copy, Debug)]
enum List {
    Blocks,
    Exemptions,
}

pub(super) async fn blocks(State(api): State<Shared>) -> Answered {
    api.list(List::Blocks).await
}

pub(super) async fn exemptions(State(api): State<Shared>) -> Answered {
    api.list(List::Exemptions).await
}

pub(super) async fn block(
    State(api): State<Shared>,
    writer: Writer,
    Json(body): Json<ListBody>,
) -> Answered {
    api.put(List::Blocks, &writer, body).await
}

pub(super) async fn exempt(
    State(api): State<Shared>,
    writer: Writer,
    Json(body): Json<ListBody>,
) -> Answered {
    api.put(List::Exemptions, &writer, body).await
}

pub(super) async fn unblock(
    State(api): State<Shared>,
    Params(params): Params<ListParams>,
    writer: Writer,
    Json(body): Json<ReasonBody>,
) -> Answered {
    api.take(List::Blocks, &writer, &params.target, body.reason.as_deref()).await
}

pub(super) async fn unexempt(
    State(api): State<Shared>,
    Params(params): Params<ListParams>,
    writer: Writer,
    Json(body): Json<ReasonBody>,
) -> Answered {
    api.take(List::Exemptions, &writer, &params.target, body.reason.as_deref()).await
}

/// One identity, or all that fit a pattern.
enum Target {
    One(Identity),
    Many(Pattern),
}

fn target(text: &str) -> Result<Target, Problem> {
    let wrong = |why: String| Problem::impossible(format!("target: {why}"));
    match text.parse::<Pattern>().map_err(|error| wrong(error.to_string()))? {
        Pattern::Exact(_) => input::identity(text).map(Target::One),
        // Clients are told apart by their IPv4 address or their IPv6 /64.
        Pattern::Network(network) => match (network, network.prefix_len()) {
            (IpNet::V4(_), 32) | (IpNet::V6(_), 64) => {
                input::identity(&format!("ip:{}", network.addr())).map(Target::One)
            }
            (IpNet::V6(_), 65..) => Err(wrong("IPv6 clients are counted by their /64".into())),
            _ => Ok(Target::Many(Pattern::Network(network))),
        },
        glob @ Pattern::Glob(_) => Ok(Target::Many(glob)),
    }
}

impl Api {
    async fn put(&self, list: List, writer: &Writer, body: ListBody) -> Answered {
        let intent = writer.intent(body.reason.as_deref())?;
        let For(lasts) = body.lasts;
        let registry = &self.gateway.registry;
        let outcome = match target(&body.target)? {
            Target::One(identity) => {
                registry.change(&identity, &list.add_one(lasts), &intent).await?
            }
            Target::Many(pattern) => {
                registry.change_lists(&list.add_many(pattern, lasts), &intent).await?
            }
        };
        Ok(changed(&outcome))
    }

    async fn take(
        &self,
        list: List,
        writer: &Writer,
        from: &str,
        reason: Option<&str>,
    ) -> Answered {
        let intent = writer.intent(reason)?;
        let registry = &self.gateway.registry;
        let outcome = match target(from)? {
            Target::One(identity) => {
                let change = match list {
                    List::Blocks => Change::Unblock,
                    List::Exemptions => Change::Unexempt,
                };
                registry.change(&identity, &change, &intent).await?
            }
            Target::Many(pattern) => {
                let change = match list {
                    List::Blocks => ListChange::Unblock { pattern },
                    List::Exemptions => ListChange::Unexempt { pattern },
                };
                registry.change_lists(&change, &intent).await?
            }
        };
        if outcome.was_nothing() {
            if let Some(place) = self.place_in_policy(list, from) {
                return Err(Problem::conflict(format!(
                    "{from} stands in the rules, at {place}: remove it there"
                )));
            }
            return Err(Problem::not_found(format!("{from} is not on this list")));
        }
        Ok(changed(&outcome))
    }

    /// Where the policy has just that entry, which is not an operator's to take away.
    fn place_in_policy(&self, list: List, target: &str) -> Option<policy::Place> {
        let current = self.gateway.limiter.policy.current()?;
        let wanted = target.parse::<Pattern>().ok()?.to_string();
        let is_it = |pattern: &Pattern| pattern.to_string() == wanted;
        let listed = list.of_policy(current.rules.policy());
        listed.iter().find(|one| one.matches.iter().any(is_it)).map(|one| one.place.clone())
    }

    /// Those that operators put there, and those of the policy.
    async fn list(&self, list: List) -> Answered {
        let registry = &self.gateway.registry;
        let (now, lists) = (registry.now().await?, registry.lists().await?);
        let mut items: Vec<Value> = Vec::new();
        let add = |identity: Identity, subject: Subject| {
            if let Some(terms) = list.of_subject(&subject, now) {
                items.push(shown(identity.as_str(), terms));
            }
        };
        registry.subjects(add).await?;
        items.sort_by(|a, b| a["target"].as_str().cmp(&b["target"].as_str()));
        let patterns = list.of_patterns(&lists).iter().filter(|listed| listed.terms.hold(now));
        items.extend(patterns.map(|listed| shown(&listed.pattern.to_string(), &listed.terms)));
        if let Some(current) = self.gateway.limiter.policy.current() {
            let of_policy = list.of_policy(current.rules.policy()).iter();
            items.extend(of_policy.flat_map(shown_of_policy));
        }
        Ok(super::json(StatusCode::OK, &json!({ "items": items })))
    }
}

impl List {
    fn add_one(self, lasts: Lasts) -> Change {
        match self {
            List::Blocks => Change::Block { lasts },
            List::Exemptions => Change::Exempt { lasts },
        }
    }

    fn add_many(self, pattern: Pattern, lasts: Lasts) -> ListChange {
        match self {
            List::Blocks => ListChange::Block { pattern, lasts },
            List::Exemptions => ListChange::Exempt { pattern, lasts },
        }
    }

    fn of_subject(self, subject: &Subject, now: Micros) -> Option<&Terms> {
        match self {
            List::Blocks => subject.block_at(now),
            List::Exemptions => subject.exempt_at(now),
        }
    }

    fn of_patterns(self, lists: &crate::engine::registry::Lists) -> &[Listed] {
        match self {
            List::Blocks => &lists.block,
            List::Exemptions => &lists.exempt,
        }
    }

    fn of_policy(self, policy: &policy::Policy) -> &[policy::Listed] {
        match self {
            List::Blocks => &policy.block,
            List::Exemptions => &policy.exempt,
        }
    }
}

fn shown(target: &str, terms: &Terms) -> Value {
    json!({
        "target": target,
        "reason": terms.reason,
        "until_us": terms.until.map(|until| until.0),
        "by": terms.by,
        "at_us": terms.at.0,
        "place": null,
    })
}

fn shown_of_policy(listed: &policy::Listed) -> impl Iterator<Item = Value> {
    listed.matches.iter().map(|pattern| {
        json!({
            "target": pattern.to_string(),
            "reason": listed.reason,
            "until_us": listed.until.map(|until| until.0),
            "by": null,
            "at_us": null,
            "place": listed.place.to_string(),
        })
    })
}
