//! Gateways telling each other which keys may be hot: `id:rate id:rate`, each id in hex.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use smallvec::smallvec;

use super::super::scripts::Script;
use super::super::wire::Call;
use super::{RedisRegistry, RegistryError};
use crate::engine::hot::{HEARD_FOR, Report};
use crate::engine::store::keys::Part;

static HOT: LazyLock<Script> = LazyLock::new(|| Script::plain(include_str!("hot.lua")));

impl RedisRegistry {
    /// Tells what this gateway sees, and says what all others see.
    pub(crate) async fn share_rates(
        &self,
        gateway: &str,
        report: &Report,
    ) -> Result<HashMap<u64, u64>, RegistryError> {
        let words: Vec<String> = report.iter().map(|(id, rate)| format!("{id:x}:{rate}")).collect();
        let args = [gateway.to_owned(), words.join(" "), HEARD_FOR.0.to_string()];
        let keys = smallvec![self.prefix.policy(Part::Hot)];
        let args = args.into_iter().map(Into::into).collect();
        let call = Call::new(&HOT, keys, args);
        let told: Vec<String> = self.read(self.servers.call(call, Duration::ZERO).await?)?;
        let mut others = HashMap::new();
        for (id, rate) in told.iter().flat_map(|report| read(report)) {
            let sum: &mut u64 = others.entry(id).or_default();
            *sum = sum.saturating_add(rate);
        }
        Ok(others)
    }
}

/// What cannot be read is of another version, and counts for nothing.
fn read(report: &str) -> impl Iterator<Item = (u64, u64)> {
    report.split(' ').filter_map(|word| {
        let (id, rate) = word.split_once(':')?;
        Some((u64::from_str_radix(id, 16).ok()?, rate.parse().ok()?))
    })
}
