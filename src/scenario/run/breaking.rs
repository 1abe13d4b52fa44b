//! Faults of a live run: what can be made on real servers, and how it is made and undone.

use std::ops::Range;

use super::live::{Live, LiveError, Target};
use super::time::Time;
use crate::engine::clock::Micros;
use crate::engine::store::simulated::Effect;
use crate::ops::local_redis;
use crate::scenario::model::{FaultPart, FaultWhat, On};

impl Live {
    pub(super) fn can_make(&self, fault: &FaultPart) -> bool {
        let FaultWhat::Store(effect) = fault.what else {
            return fault.what == FaultWhat::NodeDown
                && !matches!(self.target, Target::Gateways(_));
        };
        let Target::Spawned(ours) = &self.target else { return false };
        let is_single = ours.kind == local_redis::Kind::Single;
        let whole = fault.rate >= 1.0 && !matches!(fault.on, On::Node(_));
        whole
            && match effect {
                // What a real server loses is not ours to choose.
                Effect::Down => !is_single || fault.lose.is_none(),
                Effect::Hang | Effect::ScriptFlush => true,
                Effect::LoseData => fault.lose.is_none(),
                Effect::Refuse(code) => code == "OOM" || code == "READONLY" && is_single,
                Effect::Failover => !is_single,
                _ => false,
            }
    }

    /// The ports of the primaries that a fault meets.
    async fn primaries(&self, on: On) -> Result<Vec<u16>, LiveError> {
        let Target::Spawned(ours) = &self.target else { return Ok(Vec::new()) };
        let masters = ours.local.lock().await.masters().await?;
        Ok(match on {
            On::Shard(shard) => masters.into_iter().skip(shard).take(1).collect(),
            _ => masters,
        })
    }

    async fn tell(&self, ports: &[u16], words: &[&str]) -> Result<(), LiveError> {
        let Target::Spawned(ours) = &self.target else { return Ok(()) };
        for port in ports {
            ours.local.lock().await.console(*port).await?.ask(words).await?;
        }
        Ok(())
    }

    async fn begin(&self, effect: Effect, ports: &[u16]) -> Result<(), LiveError> {
        let Target::Spawned(ours) = &self.target else { return Ok(()) };
        match effect {
            Effect::Down => {
                for port in ports {
                    ours.local.lock().await.kill(*port).await?;
                }
            }
            Effect::Hang => {
                for port in ports {
                    ours.local.lock().await.pause(*port)?;
                }
            }
            Effect::ScriptFlush => self.tell(ports, &["SCRIPT", "FLUSH"]).await?,
            Effect::LoseData => self.tell(ports, &["FLUSHALL"]).await?,
            Effect::Refuse("OOM") => {
                self.tell(ports, &["CONFIG", "SET", "maxmemory", "1"]).await?;
            }
            // A port on which nobody listens.
            Effect::Refuse(_) => self.tell(ports, &["REPLICAOF", "127.0.0.1", "1"]).await?,
            Effect::Failover => {
                let _ = ours.local.lock().await.fail_over(ports.first().copied()).await?;
            }
            _ => {}
        }
        Ok(())
    }

    async fn end(&self, effect: Effect, ports: &[u16]) -> Result<(), LiveError> {
        let Target::Spawned(ours) = &self.target else { return Ok(()) };
        match effect {
            Effect::Down => {
                for port in ports {
                    ours.local.lock().await.start_again(*port).await?;
                }
            }
            Effect::Hang => {
                for port in ports {
                    ours.local.lock().await.wake(*port)?;
                }
            }
            Effect::Refuse("OOM") => {
                self.tell(ports, &["CONFIG", "SET", "maxmemory", "0"]).await?;
            }
            Effect::Refuse(_) => self.tell(ports, &["REPLICAOF", "NO", "ONE"]).await?,
            _ => {}
        }
        Ok(())
    }

    /// Makes a fault and undoes it; gives from when to when it really was.
    pub(super) async fn break_things(
        &self,
        time: &Time,
        fault: &FaultPart,
    ) -> Result<Option<Range<Micros>>, LiveError> {
        let FaultWhat::Store(effect) = fault.what else { return Ok(None) };
        time.sleep_until(fault.at).await;
        let ports = self.primaries(fault.on).await?;
        self.begin(effect, &ports).await?;
        let began = time.now();
        time.sleep_until(fault.at + fault.lasts).await;
        let ended = time.now();
        self.end(effect, &ports).await?;
        Ok(Some(began..ended.max(began)))
    }
}
