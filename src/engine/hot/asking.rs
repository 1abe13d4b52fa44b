//! How questions about hot keys are put: the one part of this folder that waits.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::denial::Asking;
use super::spending::{Held, left, share};
use super::{Decisions, HotKeys, Look, Settings, Ticket, Wanted};
use crate::engine::clock::Micros;
use crate::engine::limit::Cost;
use crate::engine::store::{Answer, Charge, Check, Store, StoreError};

/// Who has waited so often for a lease that others have then spent asks for himself.
const MAX_WAITS: usize = 3;

/// Who decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    #[default]
    Store,
    /// This process, from quota that it had charged before.
    Lease,
    /// This process, for the store has refused it a moment ago.
    DenyCache,
}

/// What came of a question.
#[derive(Debug)]
pub struct Put {
    pub answer: Result<Answer, StoreError>,
    pub by: By,
    /// What was charged for it.
    pub charge: Option<Charge>,
    /// The lease that it came from.
    held: Option<u64>,
}

/// A question while it is on its way.
#[derive(Clone, Copy)]
struct Way<'a> {
    store: &'a Store,
    check: &'a Check<'a>,
    /// Of the time that the store has.
    spent: Duration,
    now: Micros,
}

impl Way<'_> {
    fn later(self, took: Micros) -> Self {
        Way { spent: self.spent + Duration::from(took), now: self.now + took, ..self }
    }
}

impl Put {
    /// Asked of the store, as always.
    pub fn by_store(answer: Result<Answer, StoreError>, check: &Check<'_>) -> Put {
        let charge = answer.as_ref().ok().and_then(|answer| answer.charge_unless_replayed(check));
        Put { answer, by: By::Store, charge, held: None }
    }

    /// The same where somebody else has asked, and knows what was charged.
    pub fn said(said: Result<(Answer, Option<Charge>), StoreError>) -> Put {
        let (answer, charge) = match said {
            Ok((answer, charge)) => (Ok(answer), charge),
            Err(error) => (Err(error), None),
        };
        Put { answer, by: By::Store, charge, held: None }
    }

    pub(super) fn denied(decisions: Decisions) -> Put {
        let answer = Ok(Answer::by_ourselves(decisions));
        Put { answer, by: By::DenyCache, charge: None, held: None }
    }
}

impl HotKeys {
    /// Answers a question: from a lease, from what is known to be refused, or from the store. It
    /// waits no longer than the store's deadline, of which `spent` is gone.
    pub async fn put(
        &self,
        store: &Store,
        check: &Check<'_>,
        settings: Settings,
        now: Micros,
        spent: Duration,
    ) -> Put {
        let mut way = Way { store, check, spent, now };
        let mut look = self.look(check, settings, now, true);
        for _ in 0..MAX_WAITS {
            let Look::Wait(ticket) = look else { break };
            let began = self.clock();
            Waits { keys: self, ticket }.await;
            way = way.later(self.since(began));
            look = self.look(check, settings, way.now, false);
        }
        match look {
            Look::Wait(ticket) => self.ask(way, ticket).await,
            Look::Ordinary => Put::by_store(store.check_after(check, way.spent).await, check),
            Look::Denied(decisions) => Put::denied(decisions),
            Look::Noted(ticket) => self.ask(way, ticket).await,
            Look::Spent(spent, wanted) => {
                if let Some(wanted) = wanted {
                    // This one is answered already; whether there is more is for those who follow.
                    let _asking = Guard { keys: self, ticket: wanted.ticket };
                    let _ = self.renew(way, wanted).await;
                }
                let answer = Ok(Answer::by_ourselves(spent.decisions));
                let (charge, held) = (Some(spent.charge), Some(spent.held));
                Put { answer, by: By::Lease, charge, held }
            }
            Look::Wanted(wanted) => self.ask_for_all(way, wanted).await,
        }
    }

    /// What was taken for an answer from a lease comes back unused; false when it came from elsewhere,
    /// or the lease is no more: then the store takes it back.
    pub fn put_back(&self, check: &Check<'_>, put: &Put) -> bool {
        put.held.is_some_and(|held| self.give_back(check, held))
    }

    /// Sees to a lease first; what it does not cover is asked as always.
    async fn ask_for_all(&self, way: Way<'_>, wanted: Wanted) -> Put {
        let _asking = Guard { keys: self, ticket: wanted.ticket };
        let began = self.clock();
        let granted = match wanted.size {
            Some(_) => self.renew(way, wanted).await,
            None => Ok(()),
        };
        if let Err(error) = granted {
            return Put { answer: Err(error), by: By::Store, charge: None, held: None };
        }
        if let Some(spent) = self.spend_now(way, wanted.ticket) {
            let answer = Ok(Answer::by_ourselves(spent.decisions));
            let (charge, held) = (Some(spent.charge), Some(spent.held));
            return Put { answer, by: By::Lease, charge, held };
        }
        self.ask(way.later(self.since(began)), wanted.ticket).await
    }

    fn spend_now(&self, way: Way<'_>, ticket: Ticket) -> Option<super::Spent> {
        let mut shard = self.shard(ticket.hash);
        let hot = shard.sketch.find(ticket.hash)?.hot.as_mut()?;
        hot.spending.spend(way.check.cost.get(), way.check.limits, way.now)
    }

    /// An ordinary question whose answer is noted.
    async fn ask(&self, way: Way<'_>, ticket: Ticket) -> Put {
        let began = self.clock();
        let answer = way.store.check_after(way.check, way.spent).await;
        let asking = Asking { began: way.now, took: self.since(began) };
        if let Ok(answer) = &answer {
            self.note(ticket, way.check, &answer.decisions, asking);
        }
        Put::by_store(answer, way.check)
    }

    /// Charges a lease; where the store has less, this process's part of that.
    async fn renew(&self, way: Way<'_>, wanted: Wanted) -> Result<(), StoreError> {
        let Some(size) = wanted.size else { return Ok(()) };
        let began = self.clock();
        let Some(left) = self.charge(way, wanted, size).await? else { return Ok(()) };
        // What is there now is shared with others who ask.
        let part = share(left, wanted.part.0, wanted.part.1).min(size);
        let way = way.later(self.since(began));
        self.leave_alone(wanted.ticket, way.now + wanted.pause);
        if part >= way.check.cost.get().max(1) {
            self.charge(way, Wanted { is_all: true, ..wanted }, part).await?;
        }
        Ok(())
    }

    /// One charge; when it is refused, how much there is instead.
    async fn charge(
        &self,
        way: Way<'_>,
        wanted: Wanted,
        size: u64,
    ) -> Result<Option<u64>, StoreError> {
        let Ok(cost) = Cost::new(size) else { return Ok(Some(0)) };
        let check = Check { cost, ..*way.check };
        let began = self.clock();
        let answer = match way.store.check_after(&check, way.spent).await {
            Ok(answer) => answer,
            Err(error) => {
                self.leave_alone(wanted.ticket, way.now + wanted.settings.lease);
                return Err(error);
            }
        };
        let asking = Asking { began: way.now, took: self.since(began) };
        let Some(charge) = answer.charge(&check) else {
            return Ok(Some(left(check.limits, &answer.decisions)));
        };
        let (decisions, lease) = (answer.decisions, wanted.settings.lease);
        let held = Held::new(charge, decisions.clone(), size, way.now, lease);
        self.take_in(wanted.ticket, held);
        // Once it is spent, is anything left to be had?
        match wanted.is_all {
            true => self.note_all(wanted.ticket, &check, &decisions, asking),
            false => self.note(wanted.ticket, &check, &decisions, asking),
        }
        Ok(None)
    }

    fn clock(&self) -> Began {
        match &self.clock {
            Some(clock) => Began::Virtual(clock.now()),
            None => Began::Real(Instant::now()),
        }
    }

    fn since(&self, began: Began) -> Micros {
        match (began, &self.clock) {
            (Began::Virtual(began), Some(clock)) => clock.now().saturating_sub(began),
            (Began::Real(began), _) => {
                Micros(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX))
            }
            _ => Micros::ZERO,
        }
    }
}

#[derive(Clone, Copy)]
enum Began {
    Real(Instant),
    Virtual(Micros),
}

/// Until nobody asks for all: no longer than one call takes.
struct Waits<'a> {
    keys: &'a HotKeys,
    ticket: Ticket,
}

impl Future for Waits<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut waits = Poll::Ready(());
        self.keys.with_hot(self.ticket, |hot| {
            if hot.spending.is_asking {
                hot.spending.waiting.add(context.waker());
                waits = Poll::Pending;
            }
        });
        waits
    }
}

/// Whoever asks for all says so when it ends, also when it is dropped half-way.
struct Guard<'a> {
    keys: &'a HotKeys,
    ticket: Ticket,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.keys.done_asking(self.ticket);
    }
}
