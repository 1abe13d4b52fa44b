//! One shard: what its primary has counted, what its replica knows of it, and what is still on its
//! way.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::Cost;
use crate::engine::store::{
    Answer, Charge, Check, Idempotency, MemoryStore, RuleLimit, Settlement, StoreError,
};

/// A command, kept for whoever runs it later or again.
#[derive(Clone, Debug)]
pub(super) enum Command {
    Check {
        identity: Identity,
        limits: SmallVec<[Arc<RuleLimit>; 2]>,
        cost: Cost,
        idempotency: Option<(String, Micros, Option<u32>)>,
    },
    Settle {
        charge: Charge,
        to: Settlement,
    },
}

impl Command {
    pub(super) fn of(check: &Check<'_>) -> Command {
        Command::Check {
            identity: check.identity.clone(),
            limits: check.limits.iter().cloned().collect(),
            cost: check.cost,
            idempotency: check.idempotency.map(|i| (i.key.to_owned(), i.remember, i.max_replays)),
        }
    }

    fn run(&self, data: &MemoryStore, at: Micros) -> Result<Done, StoreError> {
        match self {
            Command::Check { identity, limits, cost, idempotency } => {
                let idempotency = idempotency.as_ref().map(|(key, remember, max_replays)| {
                    Idempotency { key, remember: *remember, max_replays: *max_replays }
                });
                let check = Check { identity, limits, cost: *cost, idempotency, at: Some(at) };
                data.check(&check).map(Done::Decided)
            }
            Command::Settle { charge, to } => Ok(Done::Settled(data.settle(charge, *to, Some(at)))),
        }
    }
}

/// What a command gives back.
#[derive(Clone, Debug)]
pub(super) enum Done {
    Decided(Answer),
    Settled(bool),
}

impl Done {
    fn wrote(&self, command: &Command) -> bool {
        match (self, command) {
            (Done::Decided(answer), Command::Check { cost, .. }) => {
                answer.allowed() && !answer.replayed && *cost > Cost::PEEK
            }
            (Done::Settled(settled), _) => *settled,
            _ => false,
        }
    }
}

#[derive(Debug)]
pub(super) struct Shard {
    data: MemoryStore,
    /// None where nothing can ever be lost.
    copy: Option<Copy>,
    /// Which of its servers is the primary: counts promotions.
    pub(super) epoch: u32,
    /// Since when the primary is down, if it is.
    pub(super) down_since: Option<Micros>,
    /// What a takeover loses, if a fault says so.
    pub(super) lose: Option<Micros>,
    pub(super) scripts_loaded: bool,
    /// Commands whose callers gave up before they arrived, by their arrival.
    late: VecDeque<(Micros, Command)>,
    /// Commands that a hanging server holds.
    pub(super) held: Vec<Command>,
}

/// What a replica has, or a restart finds: everything but the last while.
#[derive(Debug)]
struct Copy {
    store: MemoryStore,
    /// Writes that are not in it yet.
    log: VecDeque<(Micros, Command)>,
    /// The longest while that anybody may lose.
    history: Micros,
}

impl Shard {
    pub(super) fn new(history: Option<Micros>) -> Shard {
        Shard {
            data: MemoryStore::unbounded(),
            copy: history.map(|history| Copy {
                store: MemoryStore::unbounded(),
                log: VecDeque::new(),
                history,
            }),
            epoch: 0,
            down_since: None,
            lose: None,
            scripts_loaded: true,
            late: VecDeque::new(),
            held: Vec::new(),
        }
    }

    /// Runs a command at the server's time, after whatever arrived before it.
    pub(super) fn run(&mut self, command: Command, at: Micros) -> Result<Done, StoreError> {
        self.run_late(at);
        self.execute(command, at)
    }

    /// The caller gave up; the command is on its way all the same.
    pub(super) fn will_arrive(&mut self, at: Micros, command: Command) {
        let place = self.late.partition_point(|(other, _)| *other <= at);
        self.late.insert(place, (at, command));
    }

    pub(super) fn run_late(&mut self, at: Micros) {
        while self.late.front().is_some_and(|(due, _)| *due <= at) {
            let Some((due, command)) = self.late.pop_front() else { return };
            // Nobody waits for the answer.
            drop(self.execute(command, due));
        }
    }

    /// What a server held while it hung runs when it goes on.
    pub(super) fn run_held(&mut self, at: Micros) {
        for command in std::mem::take(&mut self.held) {
            drop(self.execute(command, at));
        }
    }

    fn execute(&mut self, command: Command, at: Micros) -> Result<Done, StoreError> {
        let done = command.run(&self.data, at)?;
        if let Some(copy) = &mut self.copy
            && done.wrote(&command)
        {
            copy.log.push_back((at, command));
            copy.catch_up(at.saturating_sub(copy.history));
        }
        Ok(done)
    }

    pub(super) fn forget(&mut self, identity: &Identity, rule: Option<&str>) -> usize {
        if let Some(copy) = &self.copy {
            copy.store.reset(identity, rule);
        }
        self.data.reset(identity, rule)
    }

    /// From now on the data are those of the copy, without the writes after `until`. Writes after
    /// that are lost.
    pub(super) fn fall_back(&mut self, until: Micros) {
        let Some(copy) = &mut self.copy else { return };
        copy.catch_up(until);
        copy.log.clear();
        self.data = copy.store.copy();
    }

    pub(super) fn lose_everything(&mut self) {
        self.data = MemoryStore::unbounded();
        if let Some(copy) = &mut self.copy {
            copy.store = MemoryStore::unbounded();
            copy.log.clear();
        }
    }
}

impl Copy {
    /// Applies the writes up to and at `until`.
    fn catch_up(&mut self, until: Micros) {
        while self.log.front().is_some_and(|(at, _)| *at <= until) {
            let Some((at, command)) = self.log.pop_front() else { return };
            // It ran once, on the same history; so it runs again.
            drop(command.run(&self.store, at));
        }
    }
}
