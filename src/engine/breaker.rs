//! When a store that fails is no longer asked. Pure: told what happened and when.
//!
//! Closed, all calls are made. After many failures in a row, or too large a share of the recent
//! ones, it opens: no calls, so that nobody waits for what will fail and a struggling server gets
//! rest. A probe from outside that succeeds, or else the end of a pause, makes it half-open: one
//! call at a time shows whether the store is back. A call that was slow has failed.
//!
//! ```text
//! closed ──failures──▶ open ──probe succeeds, or pause is over──▶ half-open ──success──▶ closed
//!                       ▲                                            │
//!                       └──────────────────failure───────────────────┘
//! ```

use super::clock::Micros;
use super::policy;

/// The window is kept in so many parts: it is between nine and ten of them long.
const PARTS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Closed,
    HalfOpen,
    Open,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Closed => "closed",
            State::HalfOpen => "half-open",
            State::Open => "open",
        }
    }
}

/// A call that may be made; what becomes of it is to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Which of the times between two changes of state it belongs to: what comes back later tells
    /// of the past.
    era: u64,
}

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Went {
    pub failed: bool,
    pub took: Micros,
}

#[derive(Clone, Debug)]
pub struct Breaker {
    settings: policy::Breaker,
    /// Slower is failed.
    slow: Micros,
    state: State,
    since: Micros,
    era: u64,
    in_a_row: u32,
    parts: [Part; PARTS],
    /// Half-open: the one call is on its way.
    on_trial: bool,
    opened: u64,
}

/// Calls of one part of the window.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    number: u64,
    calls: u32,
    failed: u32,
}

impl Breaker {
    /// `deadline` is that of the calls.
    pub fn new(settings: policy::Breaker, deadline: Micros, now: Micros) -> Breaker {
        Breaker {
            slow: slow(&settings, deadline),
            settings,
            state: State::Closed,
            since: now,
            era: 0,
            in_a_row: 0,
            parts: Default::default(),
            on_trial: false,
            opened: 0,
        }
    }

    /// Goes by other numbers from now on; its state stays.
    pub fn set(&mut self, settings: policy::Breaker, deadline: Micros) {
        self.slow = slow(&settings, deadline);
        self.settings = settings;
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Since when it is in this state.
    pub fn since(&self) -> Micros {
        self.since
    }

    /// How often it has opened.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// Whether somebody should find out if the store is back.
    pub fn wants_probe(&self) -> bool {
        self.state == State::Open && self.settings.background_probe
    }

    /// Leave to make one call, or none.
    pub fn admit(&mut self, now: Micros) -> Option<Pass> {
        if self.state == State::Open && now.saturating_sub(self.since) >= self.settings.open_for {
            self.change(State::HalfOpen, now);
        }
        let admitted = match self.state {
            State::Closed => true,
            State::Open => false,
            State::HalfOpen => !std::mem::replace(&mut self.on_trial, true),
        };
        admitted.then_some(Pass { era: self.era })
    }

    /// What became of a call that was let through.
    pub fn settle(&mut self, pass: Pass, went: Went, now: Micros) {
        if pass.era != self.era {
            return;
        }
        let failed = went.failed || went.took > self.slow;
        match self.state {
            State::Closed => {
                self.count(failed, now);
                if self.is_too_much(now) {
                    self.change(State::Open, now);
                }
            }
            State::HalfOpen if failed => self.change(State::Open, now),
            State::HalfOpen => self.change(State::Closed, now),
            State::Open => {}
        }
    }

    /// The same for a call of which nothing was learned: its caller went away.
    pub fn abandon(&mut self, pass: Pass) {
        if pass.era == self.era {
            self.on_trial = false;
        }
    }

    /// The store answered a question that is no call.
    pub fn probed(&mut self, now: Micros) {
        if self.wants_probe() {
            self.change(State::HalfOpen, now);
        }
    }

    fn count(&mut self, failed: bool, now: Micros) {
        let number = self.number(now);
        let part = &mut self.parts[(number % PARTS as u64) as usize];
        if part.number != number {
            *part = Part { number, ..Part::default() };
        }
        part.calls = part.calls.saturating_add(1);
        part.failed = part.failed.saturating_add(u32::from(failed));
        self.in_a_row = if failed { self.in_a_row.saturating_add(1) } else { 0 };
    }

    fn is_too_much(&self, now: Micros) -> bool {
        let number = self.number(now);
        let recent = self.parts.iter().filter(|part| part.number + PARTS as u64 > number);
        let (calls, failed) = recent.fold((0u64, 0u64), |(calls, failed), part| {
            (calls + u64::from(part.calls), failed + u64::from(part.failed))
        });
        let share = failed as f64 / calls.max(1) as f64;
        self.in_a_row >= self.settings.consecutive
            || calls >= u64::from(self.settings.min_calls) && share > self.settings.failure_ratio
    }

    fn number(&self, now: Micros) -> u64 {
        now.0 / (self.settings.window.0 / PARTS as u64).max(1)
    }

    fn change(&mut self, state: State, now: Micros) {
        self.opened += u64::from(state == State::Open);
        (self.state, self.since) = (state, now);
        self.era += 1;
        (self.in_a_row, self.on_trial) = (0, false);
        self.parts = Default::default();
    }
}

/// What the settings say, else 0.8 of the deadline.
fn slow(settings: &policy::Breaker, deadline: Micros) -> Micros {
    settings.slow.unwrap_or(Micros(deadline.0 / 5 * 4))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEADLINE: Micros = Micros(50_000);
    const OK: Went = Went { failed: false, took: Micros(1_000) };
    const FAILED: Went = Went { failed: true, took: Micros(50_000) };
    const SLOW: Went = Went { failed: false, took: Micros(40_001) };

    fn new() -> Breaker {
        Breaker::new(policy::Breaker::default(), DEADLINE, Micros::ZERO)
    }

    fn call(breaker: &mut Breaker, went: Went, now: u64) -> bool {
        let pass = breaker.admit(Micros(now));
        pass.inspect(|pass| breaker.settle(*pass, went, Micros(now))).is_some()
    }

    #[test]
    fn ten_failures_in_a_row_open_it_and_a_slow_call_is_one() {
        let mut breaker = new();
        // Long ago it answered often, so that the share of failures stays small.
        (0..100).for_each(|n| assert!(call(&mut breaker, OK, n)));
        for n in 0..9 {
            assert!(call(&mut breaker, if n % 2 == 0 { FAILED } else { SLOW }, 200 + n));
        }
        assert!(call(&mut breaker, OK, 300));
        (0..9).for_each(|n| assert!(call(&mut breaker, FAILED, 400 + n)));
        assert_eq!(breaker.state(), State::Closed);
        assert!(call(&mut breaker, SLOW, 500));
        assert_eq!((breaker.state(), breaker.opened()), (State::Open, 1));
        assert!(!call(&mut breaker, OK, 60_000_499));
        // Without a probe it takes a minute, and then one call at a time.
        let trial = breaker.admit(Micros(60_000_500)).unwrap();
        assert_eq!(breaker.state(), State::HalfOpen);
        assert_eq!(breaker.admit(Micros(60_000_501)), None);
        breaker.settle(trial, OK, Micros(60_000_600));
        assert_eq!(breaker.state(), State::Closed);
    }

    #[test]
    fn more_than_half_of_ten_recent_calls_open_it() {
        let mut breaker = new();
        for n in 0..4 {
            call(&mut breaker, OK, n);
            call(&mut breaker, FAILED, n);
        }
        call(&mut breaker, OK, 8);
        call(&mut breaker, FAILED, 9);
        assert_eq!(breaker.state(), State::Closed, "half is not more than half");
        call(&mut breaker, FAILED, 10);
        assert_eq!(breaker.state(), State::Open);
        let mut breaker = new();
        assert!((0..5).all(|n| call(&mut breaker, FAILED, n)));
        call(&mut breaker, OK, 6);
        // Ten seconds later those are forgotten.
        assert!((0..4).all(|n| call(&mut breaker, FAILED, 11_000_000 + n)));
        assert_eq!(breaker.state(), State::Closed);
    }

    #[test]
    fn a_probe_shortens_the_pause_and_a_failed_trial_starts_it_again() {
        let mut breaker = new();
        assert!((0..10).all(|n| call(&mut breaker, FAILED, n)));
        assert!(breaker.wants_probe());
        breaker.probed(Micros(250_000));
        assert_eq!(breaker.state(), State::HalfOpen);
        assert!(call(&mut breaker, FAILED, 250_001));
        assert_eq!((breaker.state(), breaker.opened()), (State::Open, 2));
        breaker.probed(Micros(500_000));
        let gone = breaker.admit(Micros(500_001)).unwrap();
        breaker.abandon(gone);
        assert!(call(&mut breaker, OK, 500_002), "who went away does not block the others");
        assert_eq!(breaker.state(), State::Closed);
        let plain = policy::Breaker { background_probe: false, ..policy::Breaker::default() };
        let mut breaker = Breaker::new(plain, DEADLINE, Micros::ZERO);
        assert!((0..10).all(|n| call(&mut breaker, FAILED, n)));
        breaker.probed(Micros(250_000));
        assert_eq!(breaker.state(), State::Open);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Wait(u64),
        Admit,
        Settle(usize, bool, u64),
        Abandon(usize),
        Probe,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => (0..3_000_000u64).prop_map(Step::Wait),
            6 => Just(Step::Admit),
            6 => (any::<usize>(), any::<bool>(), 0..60_000u64).prop_map(|(n, f, t)| Step::Settle(n, f, t)),
            1 => any::<usize>().prop_map(Step::Abandon),
            1 => Just(Step::Probe),
        ]
    }

    proptest! {
        /// Whatever happens: open lets nobody through before its time, half-open one at a time, it
        /// opens only for enough failures, and a store that answers again closes it.
        #[test]
        fn it_keeps_its_promises_in_any_order_of_events(
            steps in proptest::collection::vec(step(), 1..300),
            consecutive in 1..12u32,
            min_calls in 1..20u32,
        ) {
            let settings = policy::Breaker { consecutive, min_calls, ..policy::Breaker::default() };
            let mut breaker = Breaker::new(settings, DEADLINE, Micros::ZERO);
            let (mut now, mut out, mut failures) = (Micros::ZERO, Vec::new(), 0u32);
            for step in steps {
                let before = breaker.clone();
                match step {
                    Step::Wait(us) => now = now + Micros(us),
                    Step::Admit => {
                        let pass = breaker.admit(now);
                        let early = now.saturating_sub(before.since()) < settings.open_for;
                        match before.state() {
                            State::Closed => prop_assert!(pass.is_some()),
                            State::Open => prop_assert_eq!(pass.is_none(), early),
                            State::HalfOpen => {}
                        }
                        out.extend(pass);
                        let trials = out.iter().filter(|p| p.era == breaker.era).count();
                        prop_assert!(breaker.state() != State::HalfOpen || trials <= 1);
                    }
                    Step::Settle(n, failed, took) if !out.is_empty() => {
                        let pass = out.swap_remove(n % out.len());
                        breaker.settle(pass, Went { failed, took: Micros(took) }, now);
                        failures += u32::from(failed || took > 40_000);
                        let opens = breaker.opened() > before.opened();
                        if opens && before.state() == State::Closed {
                            prop_assert!(failures >= consecutive.min(min_calls.div_ceil(2)));
                            failures = 0;
                        }
                    }
                    Step::Abandon(n) if !out.is_empty() => {
                        let pass = out.swap_remove(n % out.len());
                        breaker.abandon(pass);
                    }
                    Step::Probe => {
                        breaker.probed(now);
                        prop_assert!(breaker.state() != State::Open);
                    }
                    Step::Settle(..) | Step::Abandon(_) => {}
                }
            }
            out.drain(..).for_each(|pass| breaker.settle(pass, OK, now));
            now = now + settings.open_for;
            prop_assert!(call(&mut breaker, OK, now.0));
            prop_assert_eq!(breaker.state(), State::Closed);
        }
    }
}
