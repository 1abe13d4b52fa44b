//! What breaks: whether it can, with this store and these gateways.

use super::Whole;
use crate::engine::clock::Micros;
use crate::engine::store::simulated::Effect;
use crate::scenario::draft::{FaultDraft, hint, signed};
use crate::scenario::model::{FaultPart, FaultWhat, Kind, LimiterPart, On, StorePart};

impl Whole<'_, '_> {
    pub(super) fn fault(
        &mut self,
        draft: &FaultDraft,
        store: &StorePart,
        limiters: &[LimiterPart],
        run: Micros,
    ) -> Option<FaultPart> {
        if draft.at >= run {
            let message = format!("this begins at {}, when the run of {run} is over", draft.at);
            self.error(draft.spot, message, "begin earlier, or make `run` longer");
        }
        let on = self.on(draft, store, limiters)?;
        let what = self.effect(draft, on, store)?;
        let takes_rate = !matches!(
            what,
            FaultWhat::NodeDown
                | FaultWhat::NodeSkew(_)
                | FaultWhat::Store(
                    Effect::Down
                        | Effect::ClockSkew(_)
                        | Effect::LoseData
                        | Effect::Failover
                        | Effect::ScriptFlush
                )
        );
        if draft.rate.is_some() && !takes_rate {
            let message = format!("`{}` happens or does not; it has no rate", draft.effect.0);
            self.error(draft.effect.1, message, "leave `rate` out");
        }
        if let Some((_, spot)) = draft.lose
            && !matches!(what, FaultWhat::Store(Effect::Down | Effect::LoseData | Effect::Failover))
        {
            let message = format!("`{}` loses nothing", draft.effect.0);
            self.error(spot, message, "`lose` belongs to down, failover and lose_data");
        }
        let usual = if what == FaultWhat::Store(Effect::Evict) { 0.01 } else { 1.0 };
        Some(FaultPart {
            name: draft.name.clone().unwrap_or_else(|| draft.effect.0.clone()),
            at: draft.at,
            lasts: draft.lasts.unwrap_or(run.saturating_sub(draft.at)),
            on,
            word: draft.effect.0.clone(),
            what,
            rate: draft.rate.unwrap_or(usual),
            lose: draft.lose.map(|(lose, _)| lose),
        })
    }

    fn on(
        &mut self,
        draft: &FaultDraft,
        store: &StorePart,
        limiters: &[LimiterPart],
    ) -> Option<On> {
        let (text, spot) = &draft.on;
        let most = limiters.iter().map(|limiter| limiter.nodes).max().unwrap_or(1);
        let numbered = |text: &str, most: usize| {
            text.parse::<usize>().ok().filter(|n| (1..=most).contains(n)).map(|n| n - 1)
        };
        let found = match text.split_once(':') {
            None if text == "store" => Some(On::Store),
            None if text == "store.primary" => Some(On::Primary),
            Some(("shard", n)) => match numbered(n, store.shards) {
                Some(shard) => Some(On::Shard(shard)),
                None => {
                    let message = format!("there is no shard `{n}`");
                    self.error(*spot, message, format!("shards are 1 to {}", store.shards));
                    return None;
                }
            },
            Some(("node", name)) => {
                match name.strip_prefix("gw-").and_then(|n| numbered(n, most)) {
                    Some(node) => Some(On::Node(node)),
                    None => {
                        let message = format!("there is no node `{name}`");
                        let hint = format!(
                            "nodes are gw-1 to gw-{most}; a limiter says how many: nodes = 3"
                        );
                        self.error(*spot, message, hint);
                        return None;
                    }
                }
            }
            Some(("region", _)) => {
                let hint = "use on = \"node:gw-1\" for a gateway that is cut off";
                self.error(*spot, "this version knows no regions", hint);
                return None;
            }
            _ => None,
        };
        if found.is_none() {
            let names = ["store", "store.primary", "shard:1", "node:gw-1"];
            self.error(
                *spot,
                format!("`{text}` is nothing that can break"),
                hint(text, names.into_iter()),
            );
        }
        found
    }

    fn effect(&mut self, draft: &FaultDraft, on: On, store: &StorePart) -> Option<FaultWhat> {
        let (word, spot) = &draft.effect;
        let by = self.by(draft)?;
        let is_node = matches!(on, On::Node(_));
        let effect = match (word.as_str(), by) {
            ("down", _) if is_node => return Some(FaultWhat::NodeDown),
            ("clock_skew", Some(by)) if is_node => return Some(FaultWhat::NodeSkew(by)),
            ("down", _) => Effect::Down,
            ("hang", _) => Effect::Hang,
            ("latency", Some(by)) => Effect::Latency(Micros(by.unsigned_abs())),
            ("error", _) => Effect::Refuse("ERR"),
            ("partition", _) => Effect::Partition,
            ("readonly", _) => Effect::Refuse("READONLY"),
            ("script_flush", _) => Effect::ScriptFlush,
            ("clock_skew", Some(by)) => Effect::ClockSkew(by),
            ("lose_data", _) => Effect::LoseData,
            ("failover", _) => Effect::Failover,
            ("reshard", _) => Effect::Reshard,
            ("evict", _) => Effect::Evict,
            ("oom", _) => Effect::Refuse("OOM"),
            ("loading", _) => Effect::Refuse("LOADING"),
            ("drop", _) => Effect::Drop,
            // Reported by what read the word.
            _ => return None,
        };
        let on_the_way = matches!(effect, Effect::Partition | Effect::Latency(_) | Effect::Drop);
        let wrong = match (effect, store.kind) {
            (_, Kind::Memory) => {
                Some(("a memory store cannot break", "write store = { kind = \"redis\" }"))
            }
            _ if is_node && !on_the_way => Some((
                "this cannot happen to a gateway",
                "a gateway can have down, partition, latency, drop and clock_skew",
            )),
            (Effect::Failover, _) if store.replicas == 0 => Some((
                "there is no replica that could take over",
                "write store = { kind = \"redis-sentinel\" }",
            )),
            (Effect::Reshard, Kind::Redis | Kind::Sentinel) => Some((
                "only a cluster has slots to move",
                "write store = { kind = \"redis-cluster\" }",
            )),
            _ => None,
        };
        if let Some((message, hint)) = wrong {
            self.error(*spot, message, hint);
            return None;
        }
        Some(FaultWhat::Store(effect))
    }

    /// The outer none when something was reported.
    fn by(&mut self, draft: &FaultDraft) -> Option<Option<i64>> {
        let (word, spot) = &draft.effect;
        let needs = matches!(word.as_str(), "latency" | "clock_skew");
        match &draft.by {
            None if needs => {
                self.error(*spot, format!("`{word}` needs `by`"), "e.g. by = \"20ms\"");
                None
            }
            Some((_, at)) if !needs => {
                self.error(*at, format!("`{word}` has no amount"), "leave `by` out");
                None
            }
            None => Some(None),
            Some((text, at)) => {
                let by = signed(text).filter(|by| *by >= 0 || word == "clock_skew");
                if by.is_none() {
                    self.error(
                        *at,
                        format!("`{text}` is not an amount of time"),
                        "e.g. by = \"20ms\"",
                    );
                }
                by.map(Some)
            }
        }
    }
}
