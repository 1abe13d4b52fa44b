//! A scenario as it happens: every limiter sees the same traffic, in a world of its own, and is then
//! held against what was expected.

mod arrivals;
mod asking;
mod breaking;
mod client;
mod gateway;
mod give;
mod hot;
pub mod live;
mod picture;
mod record;
mod stalls;
mod time;
mod told;
mod trouble;
mod watched;
mod world;

use std::ops::Range;

use super::model::{Expectation, Scenario};
use crate::engine::clock::Micros;
use crate::engine::policy::Place;
use crate::expect::{self, Unit, Value};
pub use record::{Recording, Totals};
pub use watched::{Asked, Calls, Tally, Watched, watched};

/// What became of a scenario.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub title: String,
    pub file: String,
    pub seed: u64,
    pub run: Micros,
    pub tags: Vec<String>,
    /// Which values of the matrix it has.
    pub variant: Vec<(String, String)>,
    pub limiters: Vec<LimiterOutcome>,
    /// In the order of the file; an assertion for each limiter has one case for each.
    pub cases: Vec<Case>,
    /// None: time was virtual.
    pub live: Option<LiveOutcome>,
}

/// What is to be known of a run in real time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveOutcome {
    /// The options that it ran with.
    pub options: String,
    /// How long the machine stood still, in all and at most at once.
    pub stood_still: Micros,
    pub longest: Micros,
    /// Requests that were under way meanwhile.
    pub met: u64,
}

impl Outcome {
    pub fn passed(&self) -> bool {
        self.count(CaseResult::Failed) == 0
    }

    pub fn count(&self, result: CaseResult) -> usize {
        self.cases.iter().filter(|case| case.result == result).count()
    }
}

#[derive(Clone, Debug)]
pub struct LimiterOutcome {
    pub name: String,
    pub totals: Totals,
    /// Two runs that differ anywhere differ in it.
    pub digest: u64,
}

/// One assertion about one limiter.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub limiter: String,
    pub place: Place,
    pub text: String,
    pub result: CaseResult,
    /// What was measured and what was wanted.
    pub words: String,
    pub measured: Option<Value>,
    pub unit: Unit,
    pub at: Option<Range<Micros>>,
    /// For a failure: the metric over the run, small.
    pub picture: Option<String>,
    /// For a failure: why, if that can be known.
    pub why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseResult {
    Passed,
    Failed,
    Skipped,
}

impl CaseResult {
    pub fn name(self) -> &'static str {
        match self {
            CaseResult::Passed => "passed",
            CaseResult::Failed => "failed",
            CaseResult::Skipped => "skipped",
        }
    }
}

/// Lets a scenario happen in virtual time; `seed` in place of its own.
pub fn run(scenario: &Scenario, seed: Option<u64>) -> Result<Outcome, String> {
    let seed = seed.unwrap_or(scenario.seed);
    let mut recordings = Vec::new();
    for limiter in &scenario.limiters {
        recordings.push((limiter.name.as_str(), world::run(scenario, limiter, seed)?));
    }
    Ok(judged(scenario, seed, &recordings, &[]))
}

/// Holds what was recorded against what was expected; `absent` are limiters that did not run, each
/// with the reason.
fn judged(
    scenario: &Scenario,
    seed: u64,
    recordings: &[(&str, Recording)],
    absent: &[(&str, String)],
) -> Outcome {
    let mut cases = Vec::new();
    for expectation in &scenario.expectations {
        let wanted = &expectation.assertion.limiter;
        let is_meant = |name: &str| wanted.as_deref().is_none_or(|wanted| wanted == name);
        for (name, recording) in recordings.iter().filter(|(name, _)| is_meant(name)) {
            cases.push(case(expectation, name, recording, scenario));
        }
        for (name, why) in absent.iter().filter(|(name, _)| is_meant(name)) {
            cases.push(Case { words: why.clone(), ..Case::skipped(expectation, name) });
        }
    }
    let of = |(name, recording): &(&str, Recording)| LimiterOutcome {
        name: (*name).to_owned(),
        totals: recording.totals(),
        digest: recording.digest(),
    };
    Outcome {
        title: scenario.title(),
        file: scenario.file.display().to_string(),
        seed,
        run: scenario.run,
        tags: scenario.tags.clone(),
        variant: scenario.variant.clone(),
        limiters: recordings.iter().map(of).collect(),
        cases,
        live: None,
    }
}

impl Case {
    fn skipped(expectation: &Expectation, limiter: &str) -> Case {
        Case {
            name: expectation.name.clone(),
            limiter: limiter.to_owned(),
            place: expectation.place.clone(),
            text: expectation.assertion.text.clone(),
            result: CaseResult::Skipped,
            words: String::new(),
            measured: None,
            unit: expectation.assertion.metric.unit(),
            at: None,
            picture: None,
            why: None,
        }
    }
}

fn case(
    expectation: &Expectation,
    limiter: &str,
    recording: &Recording,
    scenario: &Scenario,
) -> Case {
    let assertion = &expectation.assertion;
    let judged = expect::judge(assertion, recording);
    let case = Case { result: CaseResult::Failed, ..Case::skipped(expectation, limiter) };
    let no_evidence = match &judged {
        Ok(verdict) if verdict.holds && !verdict.is_given => None,
        Ok(verdict) => {
            let during = verdict.at.clone().unwrap_or(Micros::ZERO..scenario.run);
            recording.is_no_evidence(&assertion.labels, &during)
        }
        // Nobody could see it from where they stood.
        Err(not_measured) => recording.sees_answers_only().then(|| not_measured.to_string()),
    };
    if let Some(words) = no_evidence {
        return Case { result: CaseResult::Skipped, words, ..case };
    }
    match judged {
        Ok(verdict) if verdict.holds => Case {
            result: CaseResult::Passed,
            words: verdict.words,
            measured: verdict.measured,
            unit: verdict.unit,
            at: verdict.at,
            ..case
        },
        Ok(verdict) => Case {
            picture: picture::of(assertion, recording, verdict.at.as_ref()),
            why: picture::why(assertion, recording, verdict.at.as_ref(), scenario),
            words: verdict.words,
            measured: verdict.measured,
            unit: verdict.unit,
            at: verdict.at,
            ..case
        },
        Err(not_measured) => Case { words: not_measured.to_string(), ..case },
    }
}
