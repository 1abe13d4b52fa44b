//! What a rules file says to an enforcing gateway: `[gateway]`, `[response]`, `[[upstream]]`,
//! `[cors]` and `[domains]`.

use std::collections::HashMap;

use super::super::policy::{GatewaySettings, HeaderFamilies, ResponseSettings, Upstream};
use super::super::rules::normal_path;
use super::read::did_you_mean;
use super::source::Findings;
use super::tree::{Node, Table};

pub(super) fn settings(file: &Table<'_>, findings: &mut Findings<'_>) -> GatewaySettings {
    let empty = Table::default();
    let usual = GatewaySettings::default();
    let gateway = file.table("gateway").unwrap_or(&empty);
    let cors = file.table("cors").unwrap_or(&empty);
    GatewaySettings {
        health_path: gateway.text("health_path").map_or(usual.health_path, |path| path.it.into()),
        max_checks: gateway.count("max_checks").map_or(usual.max_checks, |n| n.it),
        websocket: gateway.flag("websocket").unwrap_or(usual.websocket),
        self_limits: gateway.flag("self_limits").unwrap_or(usual.self_limits),
        response: response(file.table("response").unwrap_or(&empty)),
        upstreams: upstreams(file.list("upstream"), findings),
        charge_preflight: cors.flag("charge_preflight").unwrap_or(usual.charge_preflight),
        expose_headers: cors.flag("expose_headers").unwrap_or(usual.expose_headers),
    }
}

fn response(table: &Table<'_>) -> ResponseSettings {
    let usual = ResponseSettings::default();
    let text = |key: &str| table.text(key).map(|text| text.it.to_owned());
    let status = table.count("status").and_then(|n| u16::try_from(n.it).ok());
    let headers = text("headers").unwrap_or_else(|| "both".into());
    ResponseSettings {
        status: status.unwrap_or(usual.status),
        body: text("body"),
        documentation_url: text("documentation_url"),
        headers: HeaderFamilies {
            x: matches!(headers.as_str(), "both" | "x"),
            ietf: matches!(headers.as_str(), "both" | "ietf"),
        },
    }
}

fn upstreams(nodes: &[Node<'_>], findings: &mut Findings<'_>) -> Vec<Upstream> {
    let mut upstreams: Vec<Upstream> = Vec::new();
    for table in nodes.iter().filter_map(Node::table) {
        let (Some(prefix), Some(url)) = (table.text("prefix"), table.text("url")) else { continue };
        let place = findings.source.place(prefix.span.start);
        let normal = normal_path(prefix.it).unwrap_or_default();
        if let Some(first) = upstreams.iter().find(|other| other.prefix == normal) {
            let hint = format!("the first is at {}", first.place);
            findings.error(prefix.span, format!("`{}` has two upstreams", prefix.it), hint);
        }
        upstreams.push(Upstream { prefix: normal.into_owned(), url: url.it.into(), place });
    }
    upstreams
}

/// What a domain of Envoy leads to are rules of this file.
pub(super) fn domains(
    domains: &Table<'_>,
    rules: &[Node<'_>],
    findings: &mut Findings<'_>,
) -> HashMap<String, Vec<String>> {
    let names: Vec<&str> =
        rules.iter().filter_map(|rule| Some(rule.table()?.text("name")?.it)).collect();
    let mut known: HashMap<String, Vec<String>> = HashMap::new();
    for domain in &domains.entries {
        let meant = known.entry(domain.key.as_ref().into()).or_default();
        for name in domains.texts(&domain.key) {
            meant.push(name.it.into());
            if !names.contains(&name.it) {
                let hint = did_you_mean(name.it, names.iter().copied()).unwrap_or_default();
                findings.error(name.span, format!("there is no rule `{}`", name.it), hint);
            }
        }
    }
    known
}
