//! What is checked on every server by itself.

use super::facts::Facts;
use super::keys::Looked;
use super::{Diagnosis, Problem};
use crate::engine::clock::Micros;
use crate::engine::store::StoreError;
use crate::engine::store::redis::{Node, Words, check_scripts};
use crate::output::about;

/// The oldest Redis whose commands the scripts use.
const OLDEST: (u32, u32) = (6, 2);
/// Clocks that are further apart are wrong: those of machines with time service differ by
/// milliseconds.
const CLOCK_ERROR: Micros = Micros::SECOND;
const CLOCK_WARNING: Micros = Micros(200 * Micros::MILLISECOND.0);

pub(super) fn reachable(diagnosis: &mut Diagnosis, all: &[(String, Result<Facts, StoreError>)]) {
    let problem = |(place, facts): &(String, Result<Facts, StoreError>)| {
        let error = facts.as_ref().err()?;
        let means = "its slots or its copy are not to be had";
        let remedy = "start it again, or take it out of the cluster";
        Some(Problem::error(error.to_string(), means).at(place).remedy(remedy))
    };
    diagnosis.checked("reachable", all.iter().filter_map(problem).collect(), None);
}

/// None of its servers answers.
pub(super) fn unreachable(diagnosis: &mut Diagnosis, error: &StoreError) {
    let means = "rules that count there go by their on_store_error";
    let remedy = "start it, or mend its address in the rules";
    let problem = Problem::error(error.to_string(), means).remedy(remedy);
    diagnosis.checked("reachable", vec![problem], None);
}

/// A check of one server: what is wrong with it, if anything.
type Check = fn(&Facts) -> Vec<Problem>;

pub(super) fn examine(diagnosis: &mut Diagnosis, all: &[&Facts], deadline: Micros) {
    let without_info = all.iter().any(|facts| !facts.has_info());
    let without_settings = all.iter().any(|facts| !facts.has_settings());
    let info = without_info.then(|| "INFO is not allowed to this user".to_owned());
    let settings = without_settings.then(|| "CONFIG GET is not allowed to this user".to_owned());
    let checks: [(&'static str, Check, &Option<String>); 6] = [
        ("version", version, &info),
        ("eviction", eviction, &settings),
        ("memory", memory, &info),
        ("clients", clients, &info),
        ("persistence", persistence, &info),
        ("exposure", exposure, &settings),
    ];
    for (name, check, skipped) in checks {
        let found = all.iter().flat_map(|facts| {
            check(facts).into_iter().map(|problem| problem.at(&facts.place)).collect::<Vec<_>>()
        });
        diagnosis.checked(name, found.collect(), skipped.clone());
    }
    let mut versions: Vec<&str> = all.iter().filter_map(|f| version_of(f)).collect();
    versions.sort_unstable();
    versions.dedup();
    if let [_, _, ..] = versions.as_slice() {
        let found = format!("servers run different versions: {}", versions.join(", "));
        let means = "after a failover commands and speed may differ";
        let problem = Problem::warning(found, means).remedy("upgrade the older ones");
        diagnosis.checked("same version", vec![problem], None);
    }
    clocks(diagnosis, all);
    round_trips(diagnosis, all, deadline);
    for facts in all.iter().filter(|facts| facts.is_primary) {
        diagnosis.fact("version", Some(&facts.place), version_of(facts).unwrap_or("unknown"));
    }
}

/// Valkey tells a version of Redis, too.
fn version_of(facts: &Facts) -> Option<&str> {
    facts.info("valkey_version").or_else(|| facts.info("redis_version"))
}

fn version(facts: &Facts) -> Vec<Problem> {
    let Some(text) = facts.info("redis_version") else { return Vec::new() };
    let mut parts = text.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version >= OLDEST {
        return Vec::new();
    }
    let found = format!("version {text} is older than {}.{}", OLDEST.0, OLDEST.1);
    let means = "the scripts use commands that it does not have: every check fails";
    vec![Problem::error(found, means).remedy("upgrade it")]
}

fn eviction(facts: &Facts) -> Vec<Problem> {
    let mut found = Vec::new();
    let policy = facts.setting("maxmemory-policy").unwrap_or("noeviction");
    let bound = facts.setting("maxmemory").and_then(|bytes| bytes.parse().ok()).unwrap_or(0u64);
    if policy != "noeviction" {
        let remedy = "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in its file";
        found.push(match bound {
            0 => Problem::warning(
                format!("maxmemory-policy is {policy}; there is no maxmemory yet"),
                "as soon as there is one, buckets in use are thrown away and limits start anew",
            ),
            bound => Problem::error(
                format!("maxmemory-policy is {policy}, maxmemory {bound} bytes"),
                "under pressure buckets in use are thrown away: whoever makes many keys resets others' limits",
            ),
        }
        .remedy(remedy));
    }
    if let Some(evicted) = facts.number("evicted_keys").filter(|evicted| *evicted > 0) {
        found.push(
            Problem::error(
                format!("{evicted} keys were evicted since it started"),
                "each may have been a limit that started anew",
            )
            .remedy("raise maxmemory and set maxmemory-policy noeviction"),
        );
    }
    found
}

fn memory(facts: &Facts) -> Vec<Problem> {
    let bound = facts.number("maxmemory").filter(|bound| *bound > 0);
    let (Some(used), Some(bound)) = (facts.number("used_memory"), bound) else {
        return Vec::new();
    };
    let percent = used.saturating_mul(100) / bound;
    let found = format!("{percent} % of maxmemory is used ({used} of {bound} bytes)");
    let means = "when it is full, writes are refused: each rule answers by its failure mode";
    match percent {
        95.. => {
            vec![Problem::error(found, means).remedy("raise maxmemory; rlctl keys --sort memory")]
        }
        80.. => {
            vec![Problem::warning(found, means).remedy("raise maxmemory; rlctl keys --sort memory")]
        }
        _ => Vec::new(),
    }
}

fn clients(facts: &Facts) -> Vec<Problem> {
    let most = facts.number("maxclients").or_else(|| facts.setting("maxclients")?.parse().ok());
    let (Some(now), Some(most)) = (facts.number("connected_clients"), most) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    if most > 0 && now * 100 / most >= 80 {
        let text = format!("{now} of {most} clients are connected");
        let means = "when all places are taken, gateways cannot connect";
        found.push(Problem::warning(text, means).remedy("raise maxclients, or find who leaks"));
    }
    if let Some(refused) = facts.number("rejected_connections").filter(|refused| *refused > 0) {
        let text = format!("{refused} connections were refused since it started");
        let means = "all places were taken: gateways could not connect";
        found.push(Problem::warning(text, means).remedy("raise maxclients"));
    }
    found
}

fn persistence(facts: &Facts) -> Vec<Problem> {
    let mut found = Vec::new();
    if facts.info("rdb_last_bgsave_status") == Some("err") {
        let stops = facts.setting("stop-writes-on-bgsave-error") != Some("no");
        let text = "the last snapshot could not be saved";
        let remedy = "look at its log and its disk";
        found.push(
            match stops {
                true => Problem::error(text, "it takes no writes until it can save (MISCONF)"),
                false => Problem::warning(text, "after a restart limits start anew"),
            }
            .remedy(remedy),
        );
    }
    let aof_fails = facts.info("aof_last_write_status") == Some("err");
    if aof_fails && facts.info("aof_enabled") == Some("1") {
        let means = "it takes no writes until it can append";
        let problem = Problem::error("the last write to the append-only file failed", means);
        found.push(problem.remedy("look at its log and its disk"));
    }
    if facts.info("loading") == Some("1") {
        let means = "until it has loaded its data it answers nothing";
        found.push(Problem::error("it is loading its data", means).remedy("wait"));
    }
    found
}

fn exposure(facts: &Facts) -> Vec<Problem> {
    let is_local = |bind: &str| {
        let hosts = bind.split_whitespace().map(|host| host.trim_start_matches('-'));
        !bind.trim().is_empty()
            && hosts.into_iter().all(|h| h == "::1" || h == "localhost" || h.starts_with("127."))
    };
    let open = facts.setting("requirepass") == Some("")
        && facts.setting("protected-mode") == Some("no")
        && !facts.setting("bind").is_some_and(is_local);
    if !open {
        return Vec::new();
    }
    let means = "whoever reaches it can change every limit";
    let remedy = "set a password and the ACL users of docs/keys.md, or protected-mode yes";
    vec![
        Problem::warning("no password, and not only this machine can connect", means)
            .remedy(remedy),
    ]
}

fn clocks(diagnosis: &mut Diagnosis, all: &[&Facts]) {
    let known = all.iter().filter_map(|facts| Some((facts, facts.clock_ahead_us?)));
    let mut found = Vec::new();
    let unknown = all.iter().any(|facts| facts.clock_ahead_us.is_none());
    for (facts, ahead) in known {
        let off = Micros(ahead.unsigned_abs()).saturating_sub(facts.clock_doubt);
        let way = if ahead > 0 { "ahead of" } else { "behind" };
        let text = format!("its clock is {} {way} this machine's", about(off));
        let means = "limits run on the servers' clocks: after a failover buckets are decided at another time, windows turn early or late";
        let remedy = "set both machines' clocks (chronyc tracking); which of the two is wrong is not known here";
        let problem = match off {
            off if off >= CLOCK_ERROR => Problem::error(text, means),
            off if off >= CLOCK_WARNING => Problem::warning(text, means),
            _ => continue,
        };
        found.push(problem.at(&facts.place).remedy(remedy));
    }
    let skipped = unknown.then(|| "TIME is not allowed to this user".to_owned());
    diagnosis.checked("clock", found, skipped);
}

fn round_trips(diagnosis: &mut Diagnosis, all: &[&Facts], deadline: Micros) {
    let mut found = Vec::new();
    for facts in all.iter().filter(|facts| facts.is_primary) {
        let Some((usual, longest)) = facts.round_trip else { continue };
        let text = format!("a round trip takes {}, of a deadline of {deadline}", about(usual));
        let means =
            "checks come close to their deadline or miss it: rules answer by their failure mode";
        let remedy = "move closer to it, or raise the deadline of the store in the rules";
        if usual >= deadline {
            found.push(Problem::error(text, means).at(&facts.place).remedy(remedy));
        } else if usual.0 * 2 >= deadline.0 {
            found.push(Problem::warning(text, means).at(&facts.place).remedy(remedy));
        }
        let both = format!("{} usually, {} at most", about(usual), about(longest));
        diagnosis.fact("round trip", Some(&facts.place), both);
    }
    diagnosis.checked("round trip", found, None);
}

/// Where buckets are, the script that made them should be, too.
pub(super) async fn scripts(
    diagnosis: &mut Diagnosis,
    primaries: &[Node],
    looked: &Looked,
    fix: bool,
) {
    let (mut found, mut skipped) = (Vec::new(), None);
    let scripts = check_scripts();
    for primary in primaries {
        if !looked.has_quota(primary.place()) {
            continue;
        }
        let exists = scripts.iter().fold(Words::of("SCRIPT EXISTS"), |words, s| words.and(&s.sha));
        let said = primary.console.ask_all(&[exists]).await;
        let Some(Ok(said)) = said.ok().and_then(|mut said| said.pop()) else {
            skipped = Some("SCRIPT EXISTS is not allowed to this user".to_owned());
            continue;
        };
        if said.into_list().iter().any(|one| one.number() == Some(1)) {
            continue;
        }
        let means = "the next check of each kind sends its text again: one slower check, no harm. It happens after a restart, a failover or SCRIPT FLUSH";
        let text = "it holds buckets, and none of the scripts that check them";
        let mut problem = Problem::warning(text, means)
            .at(primary.place())
            .remedy("rlctl doctor --fix loads them; or simply let traffic come");
        if fix {
            let load: Vec<Words> =
                scripts.iter().map(|s| Words::of("SCRIPT LOAD").and(&s.text)).collect();
            let loaded = primary.console.ask_all(&load).await;
            problem.fixed = loaded.is_ok_and(|all| all.iter().all(Result::is_ok));
        }
        found.push(problem);
    }
    diagnosis.checked("scripts", found, skipped);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::doctor::Severity;

    const HEALTHY: &str = "redis_version:7.0.15\nused_memory:100\nmaxmemory:0\nevicted_keys:0\nconnected_clients:3\nmaxclients:10000\nrejected_connections:0\nrdb_last_bgsave_status:ok\naof_enabled:0\naof_last_write_status:ok\nloading:0\n";

    fn all(facts: &Facts) -> Vec<Problem> {
        let checks: [Check; 6] = [version, eviction, memory, clients, persistence, exposure];
        checks.iter().flat_map(|check| check(facts)).collect()
    }

    #[test]
    fn nothing_is_found_on_a_healthy_server_and_something_on_each_other() {
        assert_eq!(all(&Facts::told(HEALTHY, &[("maxmemory-policy", "noeviction")])), []);
        for (wrong, settings, severity, words) in [
            ("redis_version:5.0.9\n", vec![], Severity::Error, "older than 6.2"),
            ("", vec![("maxmemory-policy", "allkeys-lru")], Severity::Warning, "no maxmemory yet"),
            (
                "",
                vec![("maxmemory-policy", "volatile-lru"), ("maxmemory", "1000")],
                Severity::Error,
                "volatile-lru",
            ),
            ("evicted_keys:5\n", vec![], Severity::Error, "5 keys were evicted"),
            ("maxmemory:120\n", vec![], Severity::Warning, "83 %"),
            ("maxmemory:101\n", vec![], Severity::Error, "99 %"),
            ("maxclients:3\n", vec![], Severity::Warning, "3 of 3"),
            ("rejected_connections:9\n", vec![], Severity::Warning, "9 connections"),
            ("rdb_last_bgsave_status:err\n", vec![], Severity::Error, "snapshot"),
            ("aof_enabled:1\naof_last_write_status:err\n", vec![], Severity::Error, "append-only"),
            ("loading:1\n", vec![], Severity::Error, "loading"),
            (
                "",
                vec![("requirepass", ""), ("protected-mode", "no"), ("bind", "* -::*")],
                Severity::Warning,
                "no password",
            ),
        ] {
            // The first line of a name counts.
            let facts = Facts::told(&(wrong.to_owned() + HEALTHY), &settings);
            let found = all(&facts);
            assert_eq!(found.len(), 1, "{wrong} {settings:?}: {found:?}");
            assert_eq!(found[0].severity, severity, "{found:?}");
            assert!(found[0].found.contains(words) && !found[0].remedy.is_empty(), "{found:?}");
        }
    }
}
