//! Traces: CSV with the header `t_us,key,cost`, one request a line, decided in file order.

use std::io::Read;

use csv::StringRecord;

use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::Cost;

const HEADER: [&str; 3] = ["t_us", "key", "cost"];

/// One line of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub at: Micros,
    pub key: Identity,
    pub cost: Cost,
}

/// What is wrong with a trace, and in which line.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct TraceError {
    pub line: u64,
    pub why: String,
}

/// Reads requests one by one, so that a trace of any length fits.
pub struct Trace<R> {
    csv: csv::Reader<R>,
    record: StringRecord,
}

impl<R: Read> Trace<R> {
    pub fn new(source: R) -> Result<Trace<R>, TraceError> {
        let mut csv = csv::ReaderBuilder::new().flexible(true).from_reader(source);
        let header = csv.headers().map_err(|e| at_line(1, csv_error(&e)))?;
        // Spreadsheets like to put a byte order mark in front.
        let names = header.iter().map(|name| name.trim_start_matches('\u{feff}'));
        if !names.clone().eq(HEADER) {
            let found = names.collect::<Vec<_>>().join(",");
            return Err(at_line(
                1,
                format!("the header is `{found}`, it has to be `t_us,key,cost`"),
            ));
        }
        Ok(Trace { csv, record: StringRecord::new() })
    }

    fn read(&mut self) -> Result<Option<Request>, TraceError> {
        match self.csv.read_record(&mut self.record) {
            Ok(true) => {
                let line = self.record.position().map_or(0, csv::Position::line);
                request(&self.record).map(Some).map_err(|why| at_line(line, why))
            }
            Ok(false) => Ok(None),
            Err(error) => {
                let place =
                    error.position().map_or(self.csv.position().line(), csv::Position::line);
                Err(at_line(place, csv_error(&error)))
            }
        }
    }
}

impl<R: Read> Iterator for Trace<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

impl<R> std::fmt::Debug for Trace<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("record", &self.record).finish_non_exhaustive()
    }
}

fn request(record: &StringRecord) -> Result<Request, String> {
    let [at, key, cost] = [0, 1, 2].map(|field| record.get(field));
    let (Some(at), Some(key), Some(cost), 3) = (at, key, cost, record.len()) else {
        return Err(format!("{} fields instead of 3 (t_us,key,cost)", record.len()));
    };
    let time = at.parse().map(Micros).ok().filter(|at| *at <= Micros::LAST);
    Ok(Request {
        at: time.ok_or_else(|| {
            format!("`{at}` is not a time; Unix microseconds, whole, up to the year 2255")
        })?,
        key: Identity::opaque(key).map_err(|e| e.to_string())?,
        cost: cost.parse().map_err(|e: crate::engine::limit::CostError| e.to_string())?,
    })
}

fn at_line(line: u64, why: String) -> TraceError {
    TraceError { line, why }
}

fn csv_error(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::Io(io) => format!("cannot read: {io}"),
        csv::ErrorKind::Utf8 { .. } => "this is not UTF-8 text".into(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<Request>, Option<TraceError>) {
        let trace = match Trace::new(text.as_bytes()) {
            Ok(trace) => trace,
            Err(error) => return (Vec::new(), Some(error)),
        };
        let mut requests = Vec::new();
        for request in trace {
            match request {
                Ok(request) => requests.push(request),
                Err(error) => return (requests, Some(error)),
            }
        }
        (requests, None)
    }

    #[test]
    fn a_line_is_a_request_in_file_order() {
        let (requests, error) = read("t_us,key,cost\n5,user:1,1\n3,\"a,b\",0\r\n3,{},1000\n");
        assert!(error.is_none());
        let lines: Vec<_> =
            requests.iter().map(|r| (r.at.0, r.key.as_str(), r.cost.get())).collect();
        assert_eq!(lines, [(5, "user:1", 1), (3, "a,b", 0), (3, "{}", 1000)]);
    }

    #[test]
    fn a_broken_line_is_named_and_what_came_before_stands() {
        for (line, why) in [
            ("x,a,1", "not a time"),
            ("-1,a,1", "not a time"),
            ("1.5,a,1", "not a time"),
            ("9007199254740992,a,1", "not a time"),
            ("1,,1", "empty"),
            ("1,a\u{1b},1", "control"),
            ("1,a,-1", "not a cost"),
            ("1,a,1000000001", "not a cost"),
            ("1,a", "2 fields"),
            ("1,a,1,1", "4 fields"),
        ] {
            let (requests, error) = read(&format!("t_us,key,cost\n1,ok,1\n{line}\n2,ok,1\n"));
            let error = error.expect(line);
            assert_eq!((requests.len(), error.line), (1, 3), "{line}");
            assert!(error.why.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn a_wrong_header_is_refused() {
        for text in ["", "time,key,cost\n", "t_us,key\n", "1,a,1\n"] {
            assert_eq!(read(text).1.expect(text).line, 1);
        }
        assert!(read("\u{feff}t_us,key,cost\n").1.is_none());
    }
}
