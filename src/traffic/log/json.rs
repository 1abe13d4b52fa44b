//! Logs of one JSON object a line: Caddy, Traefik, nginx with a JSON format, cloud load balancers.

use serde_json::Value;

use super::field::{Field, TIMES};
use super::time::{self, ClfTime};
use super::{Parsed, Values, broken};
use crate::engine::clock::Micros;

#[derive(Debug)]
pub(super) struct Json {
    times: Vec<String>,
    wanted: Vec<(Field, Vec<String>)>,
    clf: ClfTime,
}

impl Json {
    pub(super) fn new(time: Option<&str>, wanted: &[Field]) -> Json {
        let usual = || TIMES.map(String::from).to_vec();
        Json {
            times: time.map_or_else(usual, |time| {
                vec![time.strip_prefix("$.").unwrap_or(time).to_string()]
            }),
            wanted: wanted.iter().map(|field| (field.clone(), field.names())).collect(),
            clf: ClfTime::default(),
        }
    }

    pub(super) fn parse(&mut self, line: &[u8], values: &mut Values) -> Parsed {
        let object: Value =
            serde_json::from_slice(line).map_err(|error| broken(format!("not JSON: {error}")))?;
        let time = self.times.iter().find_map(|name| at_path(&object, name));
        let time = time.ok_or_else(|| {
            let names = if self.times.len() == 1 { &self.times[0] } else { "a usual name" };
            broken(format!("no time under {names}; name it with --time FIELD"))
        })?;
        let at = moment(time, &mut self.clf).ok_or_else(|| broken("its time is none"))?;
        for (place, (field, names)) in self.wanted.iter().enumerate() {
            match names.iter().find_map(|name| at_path(&object, name)) {
                Some(value) => put(values, place, value),
                // Many servers log the request in one piece.
                None => {
                    if let Some(Value::String(request)) = object.get("request") {
                        values.put(place, part_of_request(request, field));
                    }
                }
            }
        }
        Ok(at)
    }
}

/// `GET /path HTTP/1.1`.
pub(super) fn part_of_request<'a>(request: &'a str, field: &Field) -> &'a str {
    let mut words = request.split(' ');
    match field {
        Field::Method => words.next().unwrap_or(""),
        Field::Path => words.nth(1).unwrap_or(""),
        _ => "",
    }
}

fn moment(time: &Value, clf: &mut ClfTime) -> Option<Micros> {
    match time {
        Value::String(text) => time::of_text(text, clf),
        Value::Number(number) => time::of_number(number.as_f64()?, number.as_u64()),
        _ => None,
    }
}

fn put(values: &mut Values, place: usize, value: &Value) {
    match value {
        Value::String(text) => values.put(place, text),
        Value::Null => {}
        // Headers are lists; the first one counts.
        Value::Array(items) => {
            if let Some(first) = items.first() {
                put(values, place, first);
            }
        }
        other => values.put(place, &other.to_string()),
    }
}

/// `user.id`, `tags[0]`, or a name that has a dot in it.
fn at_path<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    if let Some(found) = object.get(path) {
        return Some(found);
    }
    let mut here = object;
    for part in path.split('.') {
        let (name, index) = part.split_once('[').unwrap_or((part, ""));
        if !name.is_empty() {
            here = here.get(name)?;
        }
        if let Some(index) = index.strip_suffix(']') {
            here = here.get(index.parse::<usize>().ok()?)?;
        }
    }
    (!std::ptr::eq(here, object)).then_some(here)
}
