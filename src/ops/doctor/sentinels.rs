//! Sentinels: that enough of them are there and agree.

use super::{Diagnosis, Problem};
use crate::engine::clock::Micros;
use crate::engine::store::redis::Deployment;
use crate::ops::look::pairs;
use crate::output::about;

const FAILOVER: Micros = Micros(30 * Micros::SECOND.0);
/// After the master is suspected: agreeing on it, the election, the promotion.
const ELECTION: Micros = Micros(2 * Micros::SECOND.0);

pub(super) async fn examine(diagnosis: &mut Diagnosis, deployment: &Deployment) {
    let Some((name, sentinels)) = deployment.sentinels() else { return };
    let (mut found, mut masters, mut slowest) = (Vec::new(), Vec::new(), None);
    for address in &sentinels {
        let console = match deployment.sentinel(address).await {
            Ok(console) => console,
            Err(error) => {
                let means = "one voice less when the master dies";
                let problem = Problem::warning(error.to_string(), means);
                found.push(problem.remedy("start it again, or take it out of the address"));
                continue;
            }
        };
        let place = console.place().to_owned();
        if let Err(error) = console.ask(&["SENTINEL", "CKQUORUM", name]).await {
            let means = "when the master dies nobody takes over";
            let problem = Problem::error(error.to_string(), means).at(&place);
            found.push(problem.remedy("start sentinels until a majority is there"));
        }
        let Ok(told) = console.ask(&["SENTINEL", "MASTER", name]).await else { continue };
        let told = pairs(told);
        let of = |key: &str| told.get(key).map(|value| String::from_utf8_lossy(value).into_owned());
        masters.extend(of("ip").zip(of("port")).map(|(ip, port)| format!("{ip}:{port}")));
        let down_after: Option<u64> = of("down-after-milliseconds").and_then(|ms| ms.parse().ok());
        slowest = slowest.max(down_after);
    }
    masters.sort();
    masters.dedup();
    if masters.len() > 1 {
        let text = format!("sentinels name different masters: {}", masters.join(", "));
        let means = "gateways may count in two places";
        found.push(
            Problem::error(text, means)
                .remedy("wait for a failover to end; then look at their logs"),
        );
    }
    diagnosis.checked("sentinel quorum", found, None);
    let mut found = Vec::new();
    if let Some(ms) = slowest {
        let expected = Micros(ms * 1_000) + ELECTION;
        diagnosis.fact("failover", None, format!("about {}", about(expected)));
        if expected > FAILOVER {
            let text = format!("a failover takes about {}", about(expected));
            let means = "so long every rule answers by its failure mode";
            let remedy =
                format!("redis-cli -p 26379 SENTINEL SET {name} down-after-milliseconds 5000");
            found.push(Problem::warning(text, means).remedy(remedy));
        }
    }
    diagnosis.checked("failover time", found, None);
}
