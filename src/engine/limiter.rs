//! The whole path of a decision: who asks, which limits apply, what the store says, who answers.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::clock::Micros;
use super::identity::Identity;
use super::limit::{Cost, Decision, deciding};
use super::plan::{Attempt, Entry, Plan, Question, Questions, Standing, plan};
use super::rules::Rules;
use super::store::{Answer, Charge, Check, Idempotency, RuleLimit, Settlement, Store, StoreError};

/// Takes decisions by a policy, on a store.
#[derive(Debug)]
pub struct Limiter {
    pub rules: Arc<Rules>,
    pub store: Arc<Store>,
}

/// The answer to a request, and how it was reached.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub allowed: bool,
    /// Observe-only was on: it passes whatever was reached, see [`Verdict::would_refuse`].
    pub observed: bool,
    pub reached: Reached,
    /// The tier the request was given.
    pub tier: Option<String>,
    /// What shadow rules would have said; empty when the enforced ones refused.
    pub shadow: Vec<Shadow>,
    /// What was charged, to be given back if need be.
    pub charges: Vec<Charge>,
}

#[derive(Clone, Debug)]
pub enum Reached {
    /// By a limit; `decided` is the one that speaks, `asked` are all that were asked.
    Limits {
        decided: usize,
        asked: Vec<Asked>,
    },
    Blocked {
        identity: Identity,
        entry: Entry,
    },
    Missing {
        rule: String,
    },
    /// Nobody limits this request: no rule applies, or it is exempt.
    NoLimit,
    /// There is no policy yet; whoever lets it pass has to say so.
    NoPolicy,
}

/// One limit that was asked.
#[derive(Clone, Debug)]
pub struct Asked {
    pub identity: Identity,
    pub limit: Arc<RuleLimit>,
    pub decision: Decision,
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Shadow {
    pub rule: String,
    pub allowed: bool,
}

/// What a request wants to take, and perhaps under which idempotency key.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    pub cost: Cost,
    pub idempotency: Option<Idempotency<'a>>,
    /// The time to decide at; none for the store's own clock.
    pub at: Option<Micros>,
}

impl Limiter {
    /// Decides a request. `standings` is what is on record about its identities, in their order.
    pub async fn check(
        &self,
        attempt: &Attempt<'_>,
        standings: &[Standing],
        demand: Demand<'_>,
    ) -> Result<Verdict, StoreError> {
        let now = demand.at.unwrap_or_else(Micros::now);
        let questions = match plan(&self.rules, attempt, standings, now) {
            Plan::Blocked { identity, entry } => {
                return Ok(Verdict::refused(Reached::Blocked {
                    identity: identity.clone(),
                    entry,
                }));
            }
            Plan::Missing { rule } => {
                return Ok(Verdict::refused(Reached::Missing { rule: rule.name.clone() }));
            }
            Plan::Ask(questions) => questions,
        };
        let mut verdict = self.ask_all(&questions, demand).await?;
        verdict.tier.clone_from(&questions.tier);
        if verdict.allowed {
            verdict.shadow = self.ask_shadows(&questions, demand).await;
        }
        Ok(verdict)
    }

    /// All identities at once; when one refuses, what the others charged is given back.
    async fn ask_all(
        &self,
        questions: &Questions<'_>,
        demand: Demand<'_>,
    ) -> Result<Verdict, StoreError> {
        let checks: SmallVec<[Check<'_>; 2]> =
            questions.enforced.iter().map(|q| check(q, demand)).collect();
        let answers: Vec<Result<Answer, StoreError>> = match checks.as_slice() {
            [only] => vec![self.store.check(only).await],
            several => join_all(several.iter().map(|check| self.store.check(check))).await,
        };
        let rejected = answers.iter().any(|answer| answer.as_ref().is_ok_and(|a| !a.allowed()));
        let failed = answers.iter().find_map(|answer| answer.as_ref().err().cloned());
        let charges: Vec<Charge> = answers
            .iter()
            .zip(&checks)
            .filter_map(|(answer, check)| answer.as_ref().ok()?.charge_unless_replayed(check))
            .collect();
        if rejected || failed.is_some() {
            let refunds =
                charges.iter().map(|c| self.store.settle(c, Settlement::Refund, demand.at));
            // What could not be given back stays charged: the safe side, and no reason to answer
            // anything else.
            drop(join_all(refunds).await);
        }
        match failed {
            // A real rejection stands, whatever became of the others.
            Some(error) if !rejected => return Err(error),
            _ => {}
        }
        let reached = reached(questions, &answers);
        let charges = if rejected { Vec::new() } else { charges };
        Ok(Verdict { charges, ..Verdict::by(!rejected, reached) })
    }

    /// A shadow that cannot be asked is not heard: it never changes the answer.
    async fn ask_shadows(&self, questions: &Questions<'_>, demand: Demand<'_>) -> Vec<Shadow> {
        let demand = Demand { idempotency: None, ..demand };
        let asked = questions.shadow.iter().map(|question| async move {
            let answer = self.store.check(&check(question, demand)).await.ok()?;
            let rule = question.sources.first()?.rule.name.clone();
            Some(Shadow { rule, allowed: answer.allowed() })
        });
        join_all(asked).await.into_iter().flatten().collect()
    }
}

fn check<'a>(question: &'a Question<'_>, demand: Demand<'a>) -> Check<'a> {
    Check {
        identity: question.identity,
        limits: &question.limits,
        cost: demand.cost,
        idempotency: demand.idempotency,
        at: demand.at,
    }
}

fn reached(questions: &Questions<'_>, answers: &[Result<Answer, StoreError>]) -> Reached {
    let mut asked = Vec::new();
    for (question, answer) in questions.enforced.iter().zip(answers) {
        let Ok(answer) = answer else { continue };
        for (limit, decision) in question.limits.iter().zip(&answer.decisions) {
            asked.push(Asked {
                identity: question.identity.clone(),
                limit: limit.clone(),
                decision: *decision,
            });
        }
    }
    let decisions: SmallVec<[Decision; 4]> = asked.iter().map(|a| a.decision).collect();
    match deciding(&decisions) {
        Some(decided) => Reached::Limits { decided, asked },
        None => Reached::NoLimit,
    }
}

impl Verdict {
    fn refused(reached: Reached) -> Verdict {
        Verdict::by(false, reached)
    }

    /// One that nothing was charged for.
    pub fn by(allowed: bool, reached: Reached) -> Verdict {
        Verdict {
            allowed,
            observed: false,
            reached,
            tier: None,
            shadow: Vec::new(),
            charges: Vec::new(),
        }
    }

    pub(super) fn without_policy() -> Verdict {
        Verdict::by(true, Reached::NoPolicy)
    }

    /// The same where nothing is enforced.
    pub fn observed(self) -> Verdict {
        Verdict { allowed: true, observed: true, ..self }
    }

    /// It passed only because nothing is enforced.
    pub fn would_refuse(&self) -> bool {
        self.observed
            && match &self.reached {
                Reached::Limits { asked, .. } => asked.iter().any(|a| !a.decision.allowed),
                Reached::Blocked { .. } | Reached::Missing { .. } => true,
                Reached::NoLimit | Reached::NoPolicy => false,
            }
    }

    /// How long to hold the request: the longest that any limit asks for.
    pub fn delay(&self) -> Micros {
        match &self.reached {
            Reached::Limits { asked, .. } if self.allowed && !self.observed => {
                asked.iter().map(|a| a.decision.delay).max().unwrap_or_default()
            }
            _ => Micros::ZERO,
        }
    }
}
