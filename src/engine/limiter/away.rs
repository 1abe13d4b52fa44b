//! What a request is answered while the store is away: as its rules say.

use std::sync::Arc;

use super::{Asked, By, Demand, Put, Reached, Verdict, asked, decide_among};
use crate::engine::failure::{Degraded, Local};
use crate::engine::limit::Decision;
use crate::engine::plan::{Question, Questions};
use crate::engine::policy::OnStoreError;
use crate::engine::store::{Charge, Check, RuleLimit, Settlement, StoreError};

/// Decides by what each rule says of a store that does not answer: closed before local before open.
pub(super) fn without_store(
    questions: &Questions<'_>,
    puts: &[Put],
    demand: Demand<'_>,
    local: &Local,
    why: StoreError,
) -> Verdict {
    let both = || questions.enforced.iter().zip(puts);
    let unanswered = || both().filter(|(_, put)| put.answer.is_err()).map(|(question, _)| question);
    let modes = || unanswered().flat_map(|q| &q.sources).map(|source| source.rule.on_store_error);
    let mode = modes().max().unwrap_or(OnStoreError::Open);
    let mut asked = asked(questions, puts);
    if mode == OnStoreError::Local {
        let here: Vec<_> = unanswered().filter_map(|q| ask_here(q, demand, local)).collect();
        if here.iter().any(|(_, charge)| charge.is_none()) {
            let charges = here.iter().filter_map(|(_, charge)| charge.as_ref());
            for charge in charges {
                local.store.settle(charge, Settlement::Refund, demand.at);
            }
        }
        asked.extend(here.into_iter().flat_map(|(asked, _)| asked));
    }
    let first = unanswered().find_map(|question| {
        let limit = question.sources.iter().position(|s| s.rule.on_store_error == mode)?;
        Some((question.identity.clone(), question.limits[limit].clone()))
    });
    let reached = match (first, decide_among(asked)) {
        (_, Some(reached)) if mode != OnStoreError::Closed => reached,
        (Some((identity, limit)), _) => Reached::Unanswered { identity, limit },
        (None, reached) => reached.unwrap_or(Reached::NoLimit),
    };
    let refused_here = match &reached {
        Reached::Limits { asked, .. } => asked.iter().any(|a| !a.decision.allowed),
        _ => mode == OnStoreError::Closed,
    };
    Verdict { degraded: Some(Degraded { mode, why }), ..Verdict::by(!refused_here, reached) }
}

/// The limits of the rules that decide locally, on this process's share; and what was charged,
/// unless that was refused.
fn ask_here(
    question: &Question<'_>,
    demand: Demand<'_>,
    local: &Local,
) -> Option<(Vec<Asked>, Option<Charge>)> {
    let ours = question.limits.iter().zip(&question.sources);
    let ours = ours.filter(|(_, source)| source.rule.on_store_error == OnStoreError::Local);
    let limits: Vec<_> = ours.map(|(limit, source)| local.share(source.rule, limit)).collect();
    let identity = question.identity;
    let (cost, at) = (demand.cost, demand.at);
    let check = Check { identity, limits: &limits, cost, idempotency: None, at };
    let answer = local.store.check(&check).ok().filter(|_| !limits.is_empty())?;
    let charge = answer.charge(&check);
    let each = limits.iter().zip(&answer.decisions);
    let of = |(limit, decision): (&Arc<RuleLimit>, &Decision)| Asked {
        identity: identity.clone(),
        limit: limit.clone(),
        decision: *decision,
        by: By::Store,
    };
    Some((each.map(of).collect(), charge))
}
