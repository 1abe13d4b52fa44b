//! The whole path of a decision: who asks, which limits apply, what the store says, who answers.

mod alone;
mod away;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};

use super::clock::Micros;
use super::concurrency::{Busy, Concurrency, Place};
use super::durability::{self, Confirmed, OnShort};
use super::failure::{Degraded, OnFailure};
use super::hot::{self, HotKeys, Put};
use super::identity::Identity;
use super::limit::{Cost, Decision, deciding};
use super::plan::{Attempt, Entry, Plan, Question, Questions, Source, Standing, plan};
use super::policy::OnStoreError;
use super::rules::Rules;
use super::store::{Charge, Check, Confirm, Idempotency, RuleLimit, Settlement, Store, StoreError};

pub use super::hot::By;

/// Takes decisions by a policy, on a store.
#[derive(Debug)]
pub struct Limiter {
    pub rules: Arc<Rules>,
    pub store: Arc<Store>,
    pub on_failure: OnFailure,
    /// Decides about keys that very much is asked about; none: the store decides everything.
    pub hot: Option<Arc<HotKeys>>,
}

type Puts = SmallVec<[Put; 2]>;

/// The answer to a request, and how it was reached.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub allowed: bool,
    /// Observe-only was on: it passes whatever was reached, see [`Verdict::would_refuse`].
    pub observed: bool,
    pub reached: Reached,
    /// The store could not answer for all of it.
    pub degraded: Option<Degraded>,
    /// What replicas said of the charge, where a rule waits for them.
    pub replicas: Option<Confirmed>,
    /// The tier the request was given.
    pub tier: Option<String>,
    /// What shadow rules would have said; empty when the enforced ones refused.
    pub shadow: Vec<Shadow>,
    /// What was charged, to be given back if need be.
    pub charges: Vec<Charge>,
    /// To be held for as long as the request is under way.
    pub places: Vec<Place>,
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
    /// Too many requests of one identity are under way.
    Busy(Busy),
    /// The store did not answer, and the rule says what then; this limit would have been asked.
    Unanswered {
        identity: Identity,
        limit: Arc<RuleLimit>,
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
    pub by: By,
}

impl Asked {
    fn is_overdue(&self) -> bool {
        self.decision.delay > self.limit.max_delay()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
    /// Where what is under way is counted, by whoever knows when it ends.
    pub under_way: Option<&'a Arc<Concurrency>>,
}

/// What became of earlier questions to the store for the same request.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// The one that names no other is known not to answer, so that nobody waits for it twice.
    pub(super) unreachable: Option<StoreError>,
    /// So much of the time that the store has for a request is gone.
    pub(super) spent: Duration,
}

impl Demand<'_> {
    /// Wants this much now.
    pub fn of(cost: Cost) -> Demand<'static> {
        Demand { cost, idempotency: None, at: None, under_way: None }
    }
}

/// What a limiter is made of, lent for one decision: to count one more owner of each part would
/// cost every request some turns of memory that all threads share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lent<'a> {
    pub(super) rules: &'a Rules,
    pub(super) store: &'a Store,
    pub(super) on_failure: &'a OnFailure,
    pub(super) hot: Option<&'a HotKeys>,
}

impl Limiter {
    /// Decides a request. `standings` is what is on record about its identities, in their order.
    pub async fn check(
        &self,
        attempt: &Attempt<'_>,
        standings: &[Standing],
        demand: Demand<'_>,
    ) -> Result<Verdict, StoreError> {
        self.lent().check_after(attempt, standings, demand, Asking::default()).await
    }

    pub(super) fn lent(&self) -> Lent<'_> {
        let Limiter { rules, store, on_failure, hot } = self;
        Lent { rules, store, on_failure, hot: hot.as_deref() }
    }
}

impl Lent<'_> {
    /// Decides after the store was asked for something else already.
    pub(super) async fn check_after(
        &self,
        attempt: &Attempt<'_>,
        standings: &[Standing],
        demand: Demand<'_>,
        asking: Asking,
    ) -> Result<Verdict, StoreError> {
        let now = demand.at.unwrap_or_else(Micros::now);
        let questions = match plan(self.rules, attempt, standings, now) {
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
        let (places, demand) = match demand.under_way {
            None => (Vec::new(), demand),
            Some(under_way) => {
                let began = demand.at.map(|at| (at, under_way.now()));
                match under_way.enter(&questions.enforced).await {
                    Ok(places) => {
                        // Whoever gave the time gave it before the wait.
                        let at = began.map(|(at, began)| at + (under_way.now() - began));
                        (places, Demand { at, ..demand })
                    }
                    Err(busy) => return Ok(Verdict::refused(Reached::Busy(busy))),
                }
            }
        };
        let spent = asking.spent;
        let mut verdict = match self.decide_alone(&questions, demand) {
            Some(decided) => decided?,
            // Boxed: it is large, and would weigh on every request.
            None => Box::pin(self.ask_all(&questions, demand, asking)).await?,
        };
        verdict.places = places;
        verdict.tier.clone_from(&questions.tier);
        if verdict.allowed && verdict.degraded.is_none() && !questions.shadow.is_empty() {
            verdict.shadow = Box::pin(self.ask_shadows(&questions, demand, spent)).await;
        }
        Ok(verdict)
    }

    /// All identities at once; when one refuses, what the others charged is given back.
    async fn ask_all(
        &self,
        questions: &Questions<'_>,
        demand: Demand<'_>,
        asking: Asking,
    ) -> Result<Verdict, StoreError> {
        let checks: SmallVec<[Check<'_>; 2]> =
            questions.enforced.iter().map(|q| check(q, demand)).collect();
        if let Some(refusal) = self.known_refusal(questions, &checks, demand) {
            return Ok(refusal);
        }
        let put = |(question, check)| {
            self.put(question, check, demand, &asking, Question::confirm(question))
        };
        let both = questions.enforced.iter().zip(&checks);
        let mut puts: Puts = match (questions.enforced.as_slice(), checks.as_slice()) {
            ([question], [check]) => smallvec![put((question, check)).await],
            _ => join_all(both.map(put)).await.into_iter().collect(),
        };
        let answers = || puts.iter().map(|put| &put.answer);
        let rejected = answers().any(|answer| answer.as_ref().is_ok_and(|a| !a.allowed()));
        let failed = answers().find_map(|answer| answer.as_ref().err().cloned());
        let verdict = match failed {
            // A real rejection stands, whatever became of the others.
            Some(error) if !rejected => match self.on_failure {
                OnFailure::ByRule(local) if error.is_of_the_store() => {
                    Ok(away::without_store(questions, &puts, demand, local, error))
                }
                _ => Err(error),
            },
            _ => Ok(Verdict::by(!rejected, reached(questions, &puts))),
        };
        let verdict = match (verdict, durability::outcome(&questions.enforced, answers())) {
            (Ok(passed), Some((short, OnShort::Fail))) if passed.allowed && short.is_short() => {
                for (question, put) in questions.enforced.iter().zip(&mut puts) {
                    // Nobody knows which replicas will have it in the end, so it stands.
                    let is_short = put.answer.as_ref().is_ok_and(|a| question.is_short(a));
                    put.charge = put.charge.take().filter(|_| !is_short);
                }
                self.refuse_short(questions, short)
            }
            (Ok(passed), replicas) if passed.allowed => {
                let charges = puts.into_iter().filter_map(|put| put.charge).collect();
                return Ok(Verdict { charges, replicas: replicas.map(|(told, _)| told), ..passed });
            }
            (verdict, _) => verdict,
        };
        self.take_back(&puts, &checks, demand).await;
        verdict
    }

    /// One question, by whoever can answer it, and what replicas shall confirm.
    async fn put(
        &self,
        question: &Question<'_>,
        check: &Check<'_>,
        demand: Demand<'_>,
        asking: &Asking,
        confirm: Option<Confirm>,
    ) -> Put {
        match self.hot_of(question) {
            Some((hot, settings)) if asking.unreachable.is_none() => {
                let now = check.at.unwrap_or_else(Micros::now);
                // Boxed: it is large, and only of rules that may have hot keys.
                Box::pin(hot.put(self.store, check, settings, now, asking.spent)).await
            }
            _ => Put::said(self.ask(question, demand, asking, confirm).await),
        }
    }

    /// Leases are of the store that most rules share; not of others, nor of parts, nor where each
    /// charge waits for replicas.
    fn hot_of(&self, question: &Question<'_>) -> Option<(&HotKeys, hot::Settings)> {
        let is_plain =
            question.store.is_none() && !question.is_split() && question.confirm().is_none();
        Some((self.hot.filter(|_| is_plain)?, hot::Settings::of(question)?))
    }

    /// Too few replicas have a charge whose rule cannot have that.
    fn refuse_short(
        &self,
        questions: &Questions<'_>,
        short: Confirmed,
    ) -> Result<Verdict, StoreError> {
        let why = short.error();
        let of_rule = |question: &Question<'_>| {
            let limit = question.limits.iter().find(|limit| limit.rule() == short.rule)?;
            Some(Reached::Unanswered { identity: question.identity.clone(), limit: limit.clone() })
        };
        match (self.on_failure, questions.enforced.iter().find_map(of_rule)) {
            (OnFailure::ByRule(_), Some(reached)) => Ok(Verdict {
                degraded: Some(Degraded { mode: OnStoreError::Closed, why }),
                replicas: Some(short),
                ..Verdict::by(false, reached)
            }),
            _ => Err(why),
        }
    }

    /// Of several identities one that is known to be refused speaks for all: the others need not be
    /// charged and given back.
    fn known_refusal(
        &self,
        questions: &Questions<'_>,
        checks: &[Check<'_>],
        demand: Demand<'_>,
    ) -> Option<Verdict> {
        let hot = self.hot.filter(|_| checks.len() > 1)?;
        let now = demand.at.unwrap_or_else(Micros::now);
        let both = questions.enforced.iter().zip(checks);
        let known = both.filter_map(|(question, check)| Some((question, hot.refusal(check, now)?)));
        let asked = known.flat_map(|(question, put)| asked_of(question, &put)).collect();
        decide_among(asked).map(|reached| Verdict::by(false, reached))
    }

    /// Gives back what was charged in vain. What cannot be given back stays charged: the safe side,
    /// and no reason to answer anything else.
    async fn take_back(&self, puts: &Puts, checks: &[Check<'_>], demand: Demand<'_>) {
        let stays = |(put, check): &(&Put, &Check<'_>)| {
            !self.hot.is_some_and(|hot| hot.put_back(check, put))
        };
        let charges =
            puts.iter().zip(checks).filter(stays).filter_map(|(put, _)| put.charge.as_ref());
        let refunds = charges.map(|c| self.store.settle(c, Settlement::Refund, demand.at));
        drop(join_all(refunds).await);
    }

    /// A shadow that cannot be asked is not heard: it never changes the answer.
    async fn ask_shadows(
        &self,
        questions: &Questions<'_>,
        demand: Demand<'_>,
        spent: Duration,
    ) -> Vec<Shadow> {
        let demand = Demand { idempotency: None, ..demand };
        let asked = questions.shadow.iter().map(|question| async move {
            let asking = Asking { unreachable: None, spent };
            let put = self.put(question, &check(question, demand), demand, &asking, None).await;
            let rule = question.sources.first()?.rule.name.clone();
            Some(Shadow { rule, allowed: put.answer.ok()?.allowed() })
        });
        join_all(asked).await.into_iter().flatten().collect()
    }
}

pub(super) fn check<'a>(question: &'a Question<'_>, demand: Demand<'a>) -> Check<'a> {
    Check {
        identity: question.identity,
        limits: &question.limits,
        cost: demand.cost,
        idempotency: demand.idempotency.filter(|idempotency| {
            let honour = |source: &Source<'_>| source.rule.honours_idempotency;
            !idempotency.is_of_client() || question.sources.iter().all(honour)
        }),
        at: demand.at,
    }
}

fn reached(questions: &Questions<'_>, puts: &[Put]) -> Reached {
    decide_among(asked(questions, puts)).unwrap_or(Reached::NoLimit)
}

fn asked(questions: &Questions<'_>, puts: &[Put]) -> Vec<Asked> {
    questions
        .enforced
        .iter()
        .zip(puts)
        .flat_map(|(question, put)| asked_of(question, put))
        .collect()
}

fn asked_of(question: &Question<'_>, put: &Put) -> Vec<Asked> {
    let Ok(answer) = &put.answer else { return Vec::new() };
    let each = question.limits.iter().zip(&answer.decisions);
    let of = |(limit, decision): (&Arc<RuleLimit>, &Decision)| Asked {
        identity: question.identity.clone(),
        limit: limit.clone(),
        decision: *decision,
        by: put.by,
    };
    each.map(of).collect()
}

fn decide_among(asked: Vec<Asked>) -> Option<Reached> {
    let decisions: SmallVec<[Decision; 4]> = asked.iter().map(|a| a.decision).collect();
    deciding(&decisions).map(|decided| Reached::Limits { decided, asked })
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
            degraded: None,
            replicas: None,
            tier: None,
            shadow: Vec::new(),
            charges: Vec::new(),
            places: Vec::new(),
        }
    }

    /// Who decided: the store, or this process by what it had from there.
    pub fn decided_by(&self) -> By {
        match &self.reached {
            Reached::Limits { decided, asked } => {
                asked.get(*decided).map_or(By::Store, |asked| asked.by)
            }
            _ => By::Store,
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
                Reached::Blocked { .. } | Reached::Missing { .. } | Reached::Busy(_) => true,
                Reached::Unanswered { .. } => {
                    self.degraded.as_ref().is_some_and(|d| d.mode == OnStoreError::Closed)
                }
                Reached::NoLimit | Reached::NoPolicy => false,
            }
    }

    /// Whether a request that passes would have to be held longer than its limit allows.
    pub fn is_overdue(&self) -> bool {
        match &self.reached {
            Reached::Limits { asked, .. } => self.allowed && asked.iter().any(Asked::is_overdue),
            _ => false,
        }
    }

    /// The same request refused: it may come again when it need not be held too long. What was
    /// charged is the caller's to give back.
    pub fn refuse_overdue(self) -> Verdict {
        self.refuse(|asked| {
            let over = asked.decision.delay.saturating_sub(asked.limit.max_delay());
            (over > Micros::ZERO).then_some(over)
        })
    }

    /// The same request refused because nobody can hold it; it may come again when it need not be.
    pub fn out_of_room(self) -> Verdict {
        self.refuse(|asked| Some(asked.decision.delay).filter(|delay| *delay > Micros::ZERO))
    }

    fn refuse(mut self, wait: impl Fn(&Asked) -> Option<Micros>) -> Verdict {
        if let Reached::Limits { decided, asked } = &mut self.reached {
            for one in asked.iter_mut() {
                if let Some(wait) = wait(one) {
                    let decision = &mut one.decision;
                    (decision.allowed, decision.retry_after) = (false, Some(wait));
                }
                one.decision.delay = Micros::ZERO;
            }
            let decisions: SmallVec<[Decision; 4]> = asked.iter().map(|a| a.decision).collect();
            *decided = deciding(&decisions).unwrap_or(*decided);
        }
        Verdict { allowed: false, charges: Vec::new(), shadow: Vec::new(), ..self }
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
