//! Which server has which keys. A cluster divides all keys into 16384 slots by a checksum of their
//! hash tag, and each primary has some of the slots. Pure.

use std::fmt;

use redis::Value;

pub const SLOTS: u16 = 16_384;

/// CRC16 as XMODEM has it, byte by byte.
const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut crc = (n as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
};

/// The slot of a key: that of its hash tag, if it has one that is not empty.
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let step = |crc: u16, byte: u8| (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)];
    hashed.bytes().fold(0, step) % SLOTS
}

/// Host and port of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    pub host: String,
    pub port: u16,
}

impl Place {
    /// `host:port` as servers write it; without a host, the one that said so is meant.
    pub(super) fn parse(text: &str, asked: &str) -> Option<Place> {
        let (host, port) = text.rsplit_once(':')?;
        let host = if host.is_empty() || host == "?" { asked } else { host };
        Some(Place { host: host.into(), port: port.parse().ok()? })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Slots one after the other that have the same servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) first: u16,
    pub(super) last: u16,
    pub(super) primary: Place,
    pub(super) replicas: Vec<Place>,
}

/// What a node answered to `CLUSTER SLOTS`; `asked` is the host it was reached at, which it means
/// where it names none.
pub(super) fn read_slots(answer: &Value, asked: &str) -> Result<Vec<Range>, String> {
    let strange = || "its answer to CLUSTER SLOTS has another form".to_owned();
    let Value::Array(ranges) = answer else { return Err(strange()) };
    ranges.iter().map(|range| read_range(range, asked).ok_or_else(strange)).collect()
}

fn read_range(range: &Value, asked: &str) -> Option<Range> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), primary, replicas @ ..] = parts.as_slice() else {
        return None;
    };
    let slot = |slot: &i64| u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS);
    let replicas = replicas.iter().filter_map(|replica| read_place(replica, asked));
    Some(Range {
        first: slot(first)?,
        last: slot(last)?,
        primary: read_place(primary, asked)?,
        replicas: replicas.collect(),
    })
}

fn read_place(server: &Value, asked: &str) -> Option<Place> {
    let Value::Array(parts) = server else { return None };
    let [host, Value::Int(port), ..] = parts.as_slice() else { return None };
    let text = |value: &Value| redis::from_redis_value_ref::<String>(value).ok();
    let host = match host {
        Value::Nil => None,
        host => Some(text(host)?).filter(|host| !host.is_empty()),
    };
    // It is to be called by a name that it does not have; perhaps it gives its address beside it.
    let beside = || match parts.get(3) {
        Some(Value::Array(more)) => more
            .chunks_exact(2)
            .find(|pair| text(&pair[0]).is_some_and(|name| name == "ip"))
            .and_then(|pair| text(&pair[1])),
        _ => None,
    };
    let host = match host {
        Some(unknown) if unknown == "?" => beside(),
        host => host,
    };
    let host = host.unwrap_or_else(|| asked.to_owned());
    Some(Place { host, port: u16::try_from(*port).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_slots_that_redis_gives_them() {
        // As CLUSTER KEYSLOT says.
        for (key, slot) in [
            ("foo", 12182),
            ("", 0),
            ("123456789", 12739),
            ("rl1:{user:1}", 10778),
            ("rl1:{user:1}:log", 10778),
            ("user:1", 10778),
            ("{}foo", 9500),
            ("foo{bar", 15278),
            ("foo{{bar}}zap", 4015),
            ("foo{bar}{zap}", 5061),
        ] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn server(host: Value, port: i64, more: Vec<Value>) -> Value {
        Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(more)])
    }

    fn range(first: i64, last: i64, servers: Vec<Value>) -> Value {
        Value::Array([vec![Value::Int(first), Value::Int(last)], servers].concat())
    }

    #[test]
    fn a_server_without_a_name_is_the_one_that_was_asked() {
        let named = server(text("10.0.0.1"), 7000, vec![]);
        let unnamed = [Value::Nil, text("")].map(|host| server(host, 7001, vec![]));
        let beside = server(text("?"), 7002, vec![text("ip"), text("10.0.0.3")]);
        let [nil, empty] = unnamed;
        let answer = Value::Array(vec![range(0, 5, vec![named, nil, empty, beside])]);
        let place = |host: &str, port| Place { host: host.into(), port };
        let expected = Range {
            first: 0,
            last: 5,
            primary: place("10.0.0.1", 7000),
            replicas: vec![place("asked", 7001), place("asked", 7001), place("10.0.0.3", 7002)],
        };
        assert_eq!(read_slots(&answer, "asked"), Ok(vec![expected]));
        assert_eq!(Place::parse(":7000", "asked"), Some(place("asked", 7000)));
        assert_eq!(Place::parse("::1:7000", "asked").unwrap().to_string(), "[::1]:7000");
        assert_eq!(Place::parse("h:x", "asked"), None);
    }

    #[test]
    fn what_is_no_slot_map_is_told_from_one() {
        for strange in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(0, 20_000, vec![server(text("h"), 1, vec![])])]),
            Value::Array(vec![range(0, 1, vec![])]),
            Value::Array(vec![range(0, 1, vec![server(text("h"), 70_000, vec![])])]),
        ] {
            assert!(read_slots(&strange, "asked").is_err(), "{strange:?}");
        }
        assert_eq!(read_slots(&Value::Array(vec![]), "asked"), Ok(vec![]));
    }
}
