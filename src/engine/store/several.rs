//! Stores besides the one that counts what names no other: a policy calls each by a name
//! (`[stores.premium]`), and rules say which is theirs. They are opened when a policy names them, and
//! let go when none does any more.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::ops::Deref;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use foldhash::fast::FixedState;

use super::redis::{RedisOptions, Shard};
use super::{RedisStore, Store, StoreError};
use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::policy::{Defaults, NamedStore, Policy};

#[derive(Debug)]
pub struct Several {
    pub(super) main: Box<Store>,
    /// In place of what the policy says, for whoever has more patience.
    deadline: Option<Micros>,
    named: RwLock<HashMap<String, Open>>,
}

/// One that is open, by what was said of it.
#[derive(Debug)]
struct Open {
    said: Arc<NamedStore>,
    /// Each with a connection of its own to every server; an identity keeps to one of them.
    stores: Vec<Arc<Store>>,
}

/// The store that counts for a rule.
#[derive(Debug)]
pub enum Chosen<'a> {
    Main(&'a Store),
    Named(Arc<Store>),
}

impl Deref for Chosen<'_> {
    type Target = Store;

    fn deref(&self) -> &Store {
        match self {
            Chosen::Main(store) => store,
            Chosen::Named(store) => store,
        }
    }
}

impl Several {
    pub fn new(main: Store) -> Several {
        Several { main: Box::new(main), deadline: None, named: RwLock::default() }
    }

    /// The same with another deadline for all the others than theirs.
    pub fn with_deadline(self, deadline: Micros) -> Several {
        Several { deadline: Some(deadline), ..self }
    }

    /// The one of this name as the policy has it now; none where the policy knows no such name.
    pub(super) fn of(&self, name: &str, policy: &Policy, who: &Identity) -> Option<Arc<Store>> {
        let said = policy.stores.iter().find(|store| store.name == name)?;
        let is_it = |open: &&Open| Arc::ptr_eq(&open.said, said) || open.said == *said;
        let chosen = |open: &Open| open.of(who).clone();
        let named = self.named.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = named.get(name).filter(is_it) {
            return Some(chosen(open));
        }
        drop(named);
        let mut named = self.named.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = named.get(name).filter(is_it) {
            return Some(chosen(open));
        }
        let open = Open::new(said, &policy.defaults, self.deadline)?;
        let store = chosen(&open);
        named.insert(name.into(), open);
        Some(store)
    }

    /// As far as it is open: for what was charged there.
    pub(super) fn opened(&self, name: &str, who: &Identity) -> Option<Arc<Store>> {
        let named = self.named.read().unwrap_or_else(PoisonError::into_inner);
        named.get(name).map(|open| open.of(who).clone())
    }

    /// Opens what the policy names, lets go what it does not, and goes by its numbers.
    pub(super) fn follow(&self, policy: &Policy) {
        let mut named = self.named.write().unwrap_or_else(PoisonError::into_inner);
        named.retain(|name, _| policy.stores.iter().any(|said| said.name == *name));
        for said in &policy.stores {
            match named.get(&said.name).filter(|open| open.said == *said) {
                Some(open) => open.follow(&policy.defaults, self.deadline),
                None => {
                    let open = Open::new(said, &policy.defaults, self.deadline);
                    open.map(|open| named.insert(said.name.clone(), open));
                }
            }
        }
    }

    /// All that are open, by name: of each the first, for the others lead to the same servers.
    pub(super) fn all(&self) -> Vec<(String, Arc<Store>)> {
        let named = self.named.read().unwrap_or_else(PoisonError::into_inner);
        let first =
            |(name, open): (&String, &Open)| Some((name.clone(), open.stores.first()?.clone()));
        let mut all: Vec<_> = named.iter().filter_map(first).collect();
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    /// Their servers, under names that tell them from each other.
    pub(super) fn shards(&self) -> Vec<Shard> {
        let named = self.named.read().unwrap_or_else(PoisonError::into_inner);
        let mut shards = Vec::new();
        for (name, open) in &*named {
            for (number, store) in open.stores.iter().enumerate() {
                let nth = if number == 0 { String::new() } else { format!("#{}", number + 1) };
                shards.extend(store.shards().into_iter().map(|shard| Shard {
                    name: format!("{name}/{}{nth}", shard.name).into(),
                    ..shard
                }));
            }
        }
        shards.sort_by(|a, b| a.name.cmp(&b.name));
        shards
    }
}

impl Open {
    /// Must be called where tasks can be started. None when it could not be read, which was refused
    /// when the policy was.
    fn new(said: &Arc<NamedStore>, defaults: &Defaults, deadline: Option<Micros>) -> Option<Open> {
        let (address, prefix) = (said.address().ok()?, said.prefix().ok()?);
        let deadline = deadline.or(said.deadline).unwrap_or(defaults.deadline);
        let connect_timeout = said.connect_timeout;
        let options = RedisOptions { address, deadline, connect_timeout };
        let start = |_| Arc::new(Store::Redis(RedisStore::start(options.clone(), prefix.clone())));
        let open = Open { said: said.clone(), stores: (0..said.connections).map(start).collect() };
        open.follow(defaults, Some(deadline));
        Some(open)
    }

    fn follow(&self, defaults: &Defaults, deadline: Option<Micros>) {
        for store in &self.stores {
            store.set_deadline(deadline.or(self.said.deadline).unwrap_or(defaults.deadline));
            store.set_breaker(defaults.breaker);
        }
    }

    /// Calls of one identity keep their order.
    fn of(&self, who: &Identity) -> &Arc<Store> {
        match self.stores.as_slice() {
            [only] => only,
            several => {
                let hash = FixedState::with_seed(0).hash_one(who.as_str());
                &several[(hash % several.len() as u64) as usize]
            }
        }
    }
}

impl Store {
    /// One that also has what a policy calls by name.
    pub fn with_others(self) -> Store {
        Store::Several(Several::new(self))
    }

    /// The one that counts for rules of this store; without others there is only this one.
    pub fn of<'a>(
        &'a self,
        name: Option<&str>,
        policy: &Policy,
        who: &Identity,
    ) -> Result<Chosen<'a>, StoreError> {
        match (self, name) {
            (Store::Several(several), Some(name)) => {
                let unknown = || StoreError::Unreachable {
                    url: format!("[stores.{name}]"),
                    why: "the policy has no such store".into(),
                };
                several.of(name, policy, who).map(Chosen::Named).ok_or_else(unknown)
            }
            (store, _) => Ok(Chosen::Main(store)),
        }
    }

    /// Goes by what a policy says of this store, and of the others that it names.
    pub fn follow(&self, policy: &Policy) {
        self.set_deadline(policy.defaults.deadline);
        self.set_breaker(policy.defaults.breaker);
        if let Store::Several(several) = self {
            several.follow(policy);
        }
    }

    /// The others that are open, by name.
    pub fn others(&self) -> Vec<(String, Arc<Store>)> {
        match self {
            Store::Several(several) => several.all(),
            _ => Vec::new(),
        }
    }

    /// Waits until it was tried for the first time to connect, but no longer than this, or than a
    /// call may take.
    pub async fn tried(&self, within: Option<Duration>) {
        if let super::One::Redis(store) = self.one() {
            store.tried(within).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::config::parse_policy;

    fn policy(stores: &str) -> Policy {
        let rule = "[[rule]]\nname = \"r\"\ndimension = \"ip\"\nlimits = [\"1/1s\"]\n";
        parse_policy("r.toml", &format!("{rule}{stores}"), Micros::ZERO).unwrap().0
    }

    #[tokio::test]
    async fn stores_come_and_go_with_the_policy_and_stay_open_while_nothing_changes() {
        let several = Several::new(Store::Memory(super::super::MemoryStore::default()));
        let who: Identity = "ip:192.0.2.1".parse().unwrap();
        // Nobody listens there.
        let one = "[stores.a]\nurl = \"redis://:secret@127.0.0.1:1\"\nconnections = 3\n";
        let first = policy(one);
        assert!(several.of("b", &first, &who).is_none() && several.opened("a", &who).is_none());
        let store = several.of("a", &first, &who).unwrap();
        assert!(Arc::ptr_eq(&store, &several.of("a", &policy(one), &who).unwrap()));
        several.follow(&policy(one));
        assert!(Arc::ptr_eq(&store, &several.opened("a", &who).unwrap()), "it says the same");
        let names: Vec<_> = several.shards().iter().map(|shard| shard.name.to_string()).collect();
        assert_eq!(names, ["a/127.0.0.1:1", "a/127.0.0.1:1#2", "a/127.0.0.1:1#3"]);
        assert!(!format!("{:?} {first:?}", several).contains("secret"));
        let other = policy(&one.replace("127.0.0.1:1", "127.0.0.1:2"));
        assert!(!Arc::ptr_eq(&store, &several.of("a", &other, &who).unwrap()));
        several.follow(&policy(""));
        assert!(several.opened("a", &who).is_none() && several.shards().is_empty());
    }
}
