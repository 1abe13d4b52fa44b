//! Every key of the limiter: that it expires, and when it should; and how keys and use are spread
//! over the slots.

use std::collections::{HashMap, HashSet};

use super::{Diagnosis, Problem, Wishes};
use crate::engine::clock::Micros;
use crate::engine::store::StoreError;
use crate::engine::store::keys::{KeyKind, Prefix};
use crate::engine::store::record::{Record, records};
use crate::engine::store::redis::{Deployment, Node, Said, Words, scanned};
use crate::ops::bucket::Standing;
use crate::ops::layout::{Held, Layout};
use crate::ops::look::server_time;
use crate::ops::walk::{KEYS_PER_SCAN, Walk, Wish};
use crate::output::about;

/// Under a given time (tests, simulations) keys live for a day whatever their limit.
const DAY_AND_MORE: Micros = Micros(25 * Micros::HOUR.0);
/// Nothing that expires is meant to live longer: the longest period, twice.
const LONGEST: Micros = Micros(2 * 366 * Micros::DAY.0);
/// What differs by less is how long it takes to ask.
const SLACK: Micros = Micros(2 * Micros::SECOND.0);
/// Keys that are named; the others are counted.
const NAMED: usize = 3;
/// Keys whose copies are compared.
const SAMPLE: usize = 100;

/// What a look at all keys has shown.
#[derive(Debug, Default)]
pub(super) struct Looked {
    pub(super) keys: u64,
    /// Keys and used requests of each slot.
    pub(super) slots: HashMap<u16, Slot>,
    pub(super) sample: Vec<String>,
    with_quota: HashSet<String>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Slot {
    pub(super) keys: u64,
    pub(super) used: u64,
    /// Whose is most of it.
    pub(super) most: (u64, String),
}

impl Looked {
    pub(super) fn has_quota(&self, node: &str) -> bool {
        self.with_quota.contains(node)
    }
}

/// Keys with the same trouble.
#[derive(Debug, Default)]
struct Group {
    named: Vec<String>,
    count: u64,
    fixed: u64,
}

impl Group {
    fn add(&mut self, text: impl FnOnce() -> String, fixed: bool) {
        self.count += 1;
        self.fixed += u64::from(fixed);
        if self.named.len() < NAMED {
            self.named.push(text());
        }
    }

    fn text(&self, one: &str, many: &str) -> String {
        let more = self.count - self.named.len() as u64;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let what = if self.count == 1 {
            format!("1 key {one}")
        } else {
            format!("{} keys {many}", self.count)
        };
        format!("{what}: {}{more}", self.named.join(", "))
    }
}

/// What is wrong with keys.
#[derive(Debug, Default)]
struct Troubles {
    endless: Group,
    absurd: Group,
    short: Group,
    unreadable: Group,
}

/// A key of ours, with what was asked about it.
struct Asked {
    key: String,
    kind: KeyKind,
    value: Option<Said>,
    wrong_type: bool,
    ttl_ms: i64,
    slot: Option<u16>,
    identity: String,
}

pub(super) async fn examine(
    diagnosis: &mut Diagnosis,
    deployment: &Deployment,
    wishes: &Wishes,
    tell: &mut impl FnMut(String),
) -> Result<Looked, StoreError> {
    let (mut looked, mut troubles) = (Looked::default(), Troubles::default());
    let mut skipped = None;
    match wishes.layouts.as_slice() {
        [Layout::Own(prefix)] => {
            for primary in &deployment.map().primaries {
                let walk = Own { deployment, primary, prefix, fix: wishes.fix };
                let done = walk.run(&mut looked, &mut troubles, tell).await;
                skipped = skipped.or(done.err().map(|error| error.to_string()));
            }
        }
        layouts => foreign(deployment, layouts, &mut looked, &mut troubles, tell).await?,
    }
    report(diagnosis, troubles, wishes, skipped);
    diagnosis.fact("keys", None, looked.keys.to_string());
    Ok(looked)
}

struct Own<'a> {
    deployment: &'a Deployment,
    primary: &'a Node,
    prefix: &'a Prefix,
    fix: bool,
}

impl Own<'_> {
    async fn run(
        &self,
        looked: &mut Looked,
        troubles: &mut Troubles,
        tell: &mut impl FnMut(String),
    ) -> Result<(), StoreError> {
        let mut cursor = 0;
        loop {
            let scan = Words::of("SCAN").and(cursor.to_string()).and("MATCH");
            let scan = scan.and(self.prefix.everything_glob());
            let scan = scan.and("COUNT").and(KEYS_PER_SCAN.to_string());
            let said = self.primary.console.ask_all(&[scan]).await?.pop();
            let (next, keys) = match said {
                Some(said) => scanned(said?),
                None => (0, Vec::new()),
            };
            let (now, batch) = self.ask(keys).await?;
            for asked in batch {
                self.judge(asked, now, looked, troubles).await?;
            }
            tell(format!("{} keys looked at", looked.keys));
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    async fn ask(&self, keys: Vec<Vec<u8>>) -> Result<(Micros, Vec<Asked>), StoreError> {
        let map = self.deployment.map();
        let ours = keys.into_iter().filter_map(|key| {
            let key = String::from_utf8(key).ok()?;
            let (kind, identity) = self.prefix.kind_of(&key)?;
            (kind != KeyKind::Subject).then_some((key, kind, identity.to_string()))
        });
        let ours: Vec<(String, KeyKind, String)> = ours.collect();
        let mut commands = vec![Words::of("TIME")];
        for (key, kind, _) in &ours {
            commands.push(Words::of("PTTL").and(key));
            if *kind == KeyKind::Quota {
                commands.push(Words::of("GET").and(key));
            }
        }
        let mut said = self.primary.console.ask_all(&commands).await?.into_iter();
        let now = server_time(&said.next().unwrap_or(Ok(Said::Nothing))?);
        let mut batch = Vec::with_capacity(ours.len());
        for (key, kind, identity) in ours {
            let ttl = said.next().unwrap_or(Ok(Said::Nothing));
            let value = (kind == KeyKind::Quota).then(|| said.next()).flatten();
            // What has moved meanwhile is seen where it went.
            let Some(ttl_ms) = ttl.ok().and_then(|ttl| ttl.number()) else { continue };
            let wrong_type = matches!(&value, Some(Err(StoreError::Refused { code, .. })) if code == "WRONGTYPE");
            let slot = map.slot_of(key.as_bytes());
            let value = value.and_then(Result::ok);
            batch.push(Asked { key, kind, value, wrong_type, ttl_ms, slot, identity });
        }
        Ok((now, batch))
    }

    async fn judge(
        &self,
        asked: Asked,
        now: Micros,
        looked: &mut Looked,
        troubles: &mut Troubles,
    ) -> Result<(), StoreError> {
        let Asked { key, kind, value, wrong_type, ttl_ms, slot, identity } = asked;
        if ttl_ms == -2 {
            return Ok(());
        }
        looked.keys += 1;
        let mut whole = None;
        let mut used = 0;
        if kind == KeyKind::Quota {
            let bytes = value.and_then(Said::into_bytes);
            match bytes.as_deref().map(records) {
                Some(Ok(records)) => {
                    whole = records.iter().map(|record| record.whole).max();
                    used = records.iter().map(|record| in_use(record, now)).max().unwrap_or(0);
                    looked.with_quota.insert(self.primary.place().into());
                    if looked.sample.len() < SAMPLE {
                        looked.sample.push(key.clone());
                    }
                }
                Some(Err(error)) => troubles.unreadable.add(|| format!("`{key}` ({error})"), false),
                None if wrong_type => {
                    troubles.unreadable.add(|| format!("`{key}` (it is not a string)"), false);
                }
                None => return Ok(()),
            }
        }
        if let Some(slot) = slot {
            let of = looked.slots.entry(slot).or_default();
            of.keys += 1;
            of.used += used;
            if used > of.most.0 {
                of.most = (used, identity);
            }
        }
        if ttl_ms == -1 {
            let fixed = self.fix && self.mend(&key, kind, whole, now).await?;
            troubles.endless.add(|| format!("`{key}`"), fixed);
            return Ok(());
        }
        let ttl = Micros(u64::try_from(ttl_ms).unwrap_or(0) * 1_000);
        match whole.map(|whole| whole.saturating_sub(now)) {
            Some(until) if ttl > until + DAY_AND_MORE => {
                troubles.absurd.add(|| lives(&key, ttl, until), false);
            }
            Some(until) if ttl + SLACK < until => {
                troubles.short.add(|| lives(&key, ttl, until), false);
            }
            None if ttl > LONGEST => troubles.absurd.add(|| lives(&key, ttl, LONGEST), false),
            _ => {}
        }
        Ok(())
    }

    /// Sets the TTL that a value itself asks for; true if that was done. What cannot be read is
    /// left alone, and so is what got a TTL meanwhile.
    async fn mend(
        &self,
        key: &str,
        kind: KeyKind,
        whole: Option<Micros>,
        now: Micros,
    ) -> Result<bool, StoreError> {
        let at_ms = match (kind, whole) {
            // One that is whole by now has a second left, so that nobody is cut off.
            (KeyKind::Quota, Some(whole)) => whole.max(now + Micros::SECOND).as_millis_ceil(),
            (KeyKind::Log, _) => {
                let quota = key.strip_suffix(":log").unwrap_or(key);
                let expires = Words::of("PEXPIRETIME").and(quota);
                let at = self.deployment.ask_on(quota.as_bytes(), &expires).await?.number();
                match at.and_then(|at| u64::try_from(at).ok()) {
                    Some(at) => at,
                    None => return Ok(false),
                }
            }
            _ => return Ok(false),
        };
        let words = Words::of("PEXPIREAT").and(key).and(at_ms.to_string()).and("NX");
        let done = self.deployment.ask_on(key.as_bytes(), &words).await?;
        Ok(done.number() == Some(1))
    }
}

/// What is in use of a limit, as far as its record alone tells.
fn in_use(record: &Record, now: Micros) -> u64 {
    let Ok(state) = record.state(|_| None) else { return 0 };
    if record.chunks().is_empty() {
        return Standing::of(&record.limit, &state, now).now.used();
    }
    // The charges of a log are not read here; its sum is near enough.
    if record.whole > now { record.numbers[0] as u64 } else { 0 }
}

fn lives(key: &str, ttl: Micros, until: Micros) -> String {
    format!("`{key}` (expires in {}, whole in {})", about(ttl), about(until))
}

async fn foreign(
    deployment: &Deployment,
    layouts: &[Layout],
    looked: &mut Looked,
    troubles: &mut Troubles,
    tell: &mut impl FnMut(String),
) -> Result<(), StoreError> {
    let wish = Wish::all(layouts.to_vec());
    let mut walk = Walk::new(deployment, wish)?;
    while let Some(batch) = walk.next().await? {
        for seen in batch {
            looked.keys += 1;
            let key = &seen.found.key;
            let whole = match &seen.held {
                Held::Foreign(reading) => reading.whole(seen.now),
                _ => None,
            };
            let until = whole.map(|whole| whole.saturating_sub(seen.now));
            match (seen.found.ttl, until) {
                (None, _) => troubles.endless.add(|| format!("`{key}`"), false),
                (Some(ttl), Some(until)) if ttl > until + DAY_AND_MORE => {
                    troubles.absurd.add(|| lives(key, ttl, until), false);
                }
                (Some(ttl), None) if ttl > LONGEST => {
                    troubles.absurd.add(|| lives(key, ttl, LONGEST), false);
                }
                _ => {}
            }
        }
        tell(format!("{} keys looked at", looked.keys));
    }
    Ok(())
}

fn report(diagnosis: &mut Diagnosis, troubles: Troubles, wishes: &Wishes, skipped: Option<String>) {
    let Troubles { endless, absurd, short, unreadable } = troubles;
    let is_own = matches!(wishes.layouts.as_slice(), [Layout::Own(_)]);
    let mut found = Vec::new();
    if endless.count > 0 {
        let means = "nothing ever removes them: memory grows with every identity that comes by";
        let remedy = match (is_own, wishes.fix) {
            (true, false) => "rlctl doctor --fix sets what each value asks for".to_owned(),
            (true, true) => format!(
                "{} of {} were mended; what cannot be read is left alone: redis-cli PEXPIRE KEY MS",
                endless.fixed, endless.count
            ),
            (false, _) => "redis-cli PEXPIRE KEY MS, and find the code that sets none".to_owned(),
        };
        let fixed = endless.fixed == endless.count;
        let text = endless.text("never expires", "never expire");
        found.push(Problem { fixed, ..Problem::error(text, means).remedy(remedy) });
    }
    diagnosis.checked("keys without TTL", found, skipped.clone());
    let mut found = Vec::new();
    if absurd.count > 0 {
        let means = "they stay in memory long after they are whole; somebody else sets TTLs here";
        let remedy = "find who runs EXPIRE or PERSIST on them; redis-cli PEXPIRE KEY MS mends one";
        let text = absurd.text("lives far too long", "live far too long");
        found.push(Problem::warning(text, means).remedy(remedy));
    }
    if short.count > 0 {
        let means = "the limit starts anew before it is whole: more passes than it says";
        let remedy = "find who runs EXPIRE on them, or whose clock jumped";
        let text = short.text("expires too early", "expire too early");
        found.push(Problem::error(text, means).remedy(remedy));
    }
    diagnosis.checked("absurd TTL", found, skipped.clone());
    let mut found = Vec::new();
    if unreadable.count > 0 {
        let means = "another program uses our prefix, or a newer version of rlctl wrote them";
        let remedy = "give each its own --prefix; nothing here is removed by itself";
        let text = unreadable.text("holds no quota of ours", "hold no quota of ours");
        found.push(Problem::warning(text, means).remedy(remedy));
    }
    diagnosis.checked("readable values", found, skipped);
}
