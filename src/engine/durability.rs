//! Rules whose charges replicas have to confirm before they are answered for: what a request asks of
//! them, and what it means when too few answer. Pure; a store does the waiting.
//!
//! Redis copies what was written after it has answered, so a charge may be lost with its master. A
//! rule that cannot have that waits: `replicas = { n = 1, timeout = "10ms" }`. Whatever comes of it,
//! the charge stands: nobody knows which replicas will have it in the end.

use super::clock::Micros;
use super::plan::{Question, Source};
use super::store::{Answer, Confirm, StoreError};

/// How long is waited for replicas, unless configured.
pub const DEFAULT_TIMEOUT: Micros = Micros(10 * Micros::MILLISECOND.0);

/// What a rule asks of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    pub n: u32,
    pub timeout: Micros,
    pub on_short: OnShort,
}

/// What becomes of a request when too few replicas confirm its charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnShort {
    /// It passes, and the answer says so.
    Mark,
    /// It is refused, like one that the store did not answer.
    Fail,
}

/// What came of waiting, for the rule that got the least of what it asked for.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Confirmed {
    pub rule: String,
    pub wanted: u32,
    pub confirmed: u32,
}

impl Confirmed {
    pub fn is_short(&self) -> bool {
        self.confirmed < self.wanted
    }

    pub(super) fn error(&self) -> StoreError {
        let (rule, wanted, confirmed) = (self.rule.clone(), self.wanted, self.confirmed);
        StoreError::Short { rule, wanted, confirmed }
    }
}

/// What came of it for a whole request, and whether a rule refuses it for that.
pub(super) fn outcome<'a, 'b>(
    questions: &'a [Question<'a>],
    answers: impl IntoIterator<Item = &'b Result<Answer, StoreError>>,
) -> Option<(Confirmed, OnShort)> {
    let each = questions.iter().zip(answers).filter_map(|(question, answer)| {
        let confirmed = answer.as_ref().ok()?.confirmed?;
        Some(question.sources.iter().filter_map(move |source| of_rule(source, confirmed)))
    });
    each.flatten().max_by_key(|(confirmed, on_short)| {
        let missing = confirmed.wanted.saturating_sub(confirmed.confirmed);
        (missing > 0 && *on_short == OnShort::Fail, missing)
    })
}

impl Question<'_> {
    /// What the limits of one identity ask for together: they are charged in one step, so it is
    /// waited once, for the most that any of them wants.
    pub(super) fn confirm(&self) -> Option<Confirm> {
        let all = || self.sources.iter().filter_map(|source| source.rule.replicas);
        let replicas = all().map(|replicas| replicas.n).max()?;
        let within = all().map(|replicas| replicas.timeout).max()?;
        Some(Confirm { replicas, within })
    }

    /// Whether too few replicas have what was charged by this answer, for any of its rules.
    pub(super) fn is_short(&self, answer: &Answer) -> bool {
        answer.confirmed.is_some_and(|confirmed| {
            let mut all = self.sources.iter().filter_map(|source| of_rule(source, confirmed));
            all.any(|(told, _)| told.is_short())
        })
    }
}

fn of_rule(source: &Source<'_>, confirmed: u32) -> Option<(Confirmed, OnShort)> {
    let Replicas { n: wanted, on_short, .. } = source.rule.replicas?;
    Some((Confirmed { rule: source.rule.name.clone(), wanted, confirmed }, on_short))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::config::parse_policy;
    use crate::engine::identity::Identity;
    use crate::engine::plan::{Attempt, Plan, Standing, plan};
    use crate::engine::rules::{Rules, Target};

    /// Rules that all apply, each with what it asks of replicas.
    fn rules(asks: &[Option<(u32, u64, bool)>]) -> Rules {
        let mut text = String::new();
        for (n, ask) in asks.iter().enumerate() {
            text += &format!(
                "[[rule]]\nname = \"r{n}\"\ndimension = \"ip\"\nalso = true\nlimits = [\"9/1m\"]\n"
            );
            if let Some((replicas, ms, fail)) = ask {
                let on_short = if *fail { "fail" } else { "mark" };
                text += &format!(
                    "replicas = {{ n = {replicas}, timeout = \"{ms}ms\", on_short = \"{on_short}\" }}\n"
                );
            }
        }
        let (policy, _) = parse_policy("r.toml", &text, Micros::ZERO).unwrap();
        Rules::new(Arc::new(policy))
    }

    fn with_question<T>(rules: &Rules, then: impl FnOnce(&[Question<'_>]) -> T) -> T {
        let identities: [Identity; 1] = ["ip:192.0.2.1".parse().unwrap()];
        let attempt = Attempt { identities: &identities, target: Target::default(), tier: None };
        match plan(rules, &attempt, &[Standing::default()], Micros(1)) {
            Plan::Ask(questions) => then(&questions.enforced),
            other => panic!("{other:?}"),
        }
    }

    proptest! {
        /// It is waited for the most that any rule asks; a rule that has what it wants refuses
        /// nobody; one that lacks any does, if it says so.
        #[test]
        fn every_rule_gets_what_it_asks_for_or_says_so(
            asks in proptest::collection::vec(
                proptest::option::of((1..5u32, 1..500u64, any::<bool>())), 1..5),
            confirmed in 0..6u32,
        ) {
            let rules = rules(&asks);
            let asking: Vec<_> = asks.iter().flatten().copied().collect();
            with_question(&rules, |questions| {
                let wanted = questions[0].confirm();
                prop_assert_eq!(wanted.is_some(), !asking.is_empty());
                if let Some(wanted) = wanted {
                    prop_assert!(asking.iter().all(|(n, _, _)| wanted.replicas >= *n));
                    prop_assert!(asking.iter().any(|(n, _, _)| wanted.replicas == *n));
                    prop_assert!(asking.iter().all(|(_, ms, _)| wanted.within.0 >= ms * 1000));
                }
                let mut answer = Answer::decided([].into_iter().collect());
                answer.confirmed = Some(confirmed);
                let short = questions[0].is_short(&answer);
                let outcome = outcome(questions, &[Ok(answer)]);
                prop_assert_eq!(short, asking.iter().any(|(n, _, _)| *n > confirmed));
                prop_assert_eq!(outcome.is_some(), !asking.is_empty());
                if let Some((told, on_short)) = outcome {
                    prop_assert_eq!(told.is_short(), short);
                    let refuses = told.is_short() && on_short == OnShort::Fail;
                    prop_assert_eq!(refuses, asking.iter().any(|(n, _, fail)| *fail && *n > confirmed));
                }
                Ok(())
            })?;
        }
    }

    #[test]
    fn who_was_not_asked_confirms_nothing_and_lacks_nothing() {
        let rules = rules(&[Some((1, 5, true))]);
        with_question(&rules, |questions| {
            let answer = Answer::decided([].into_iter().collect());
            assert!(!questions[0].is_short(&answer));
            assert_eq!(outcome(questions, &[Ok(answer)]), None);
        });
    }
}
