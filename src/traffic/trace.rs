//! Traces: CSV with the header `t_us,key,cost`, one request a line, decided in file order.

use std::io::BufRead;

use crate::engine::clock::Micros;
use crate::engine::identity::Identity;
use crate::engine::limit::Cost;
use crate::traffic::gzip;

const HEADER: &str = "t_us,key,cost";
/// A key has at most 1 KiB; a line that is longer than this is no line of a trace.
const MAX_LINE_BYTES: u64 = 64 * 1024;

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

/// Reads requests one by one, so that a trace of any length fits. A request is a line: keys have
/// no control characters, so a quoted line break is none. Empty lines are passed over.
#[derive(Debug)]
pub struct Trace<R> {
    source: R,
    line: u64,
    text: Vec<u8>,
}

impl Trace<()> {
    /// Whether what begins so is a trace.
    pub fn is_one(beginning: &[u8]) -> bool {
        let text = beginning.strip_prefix("\u{feff}".as_bytes()).unwrap_or(beginning);
        text.starts_with(HEADER.as_bytes())
    }
}

impl<R: BufRead> Trace<R> {
    pub fn new(source: R) -> Result<Trace<R>, TraceError> {
        let mut trace = Trace { source, line: 0, text: Vec::new() };
        trace.read_line()?;
        let text = String::from_utf8_lossy(&trace.text);
        // Spreadsheets like to put a byte order mark in front.
        let found = text.trim_start_matches('\u{feff}');
        if found != HEADER {
            let shown: String = found.chars().take(60).collect();
            return Err(at_line(1, format!("the header is `{shown}`, it has to be `{HEADER}`")));
        }
        Ok(trace)
    }

    /// Takes the next line without its end into `text`; false when there is none.
    fn read_line(&mut self) -> Result<bool, TraceError> {
        self.text.clear();
        self.line += 1;
        let mut limited = std::io::Read::take(&mut self.source, MAX_LINE_BYTES);
        let read = limited
            .read_until(b'\n', &mut self.text)
            .map_err(|error| at_line(self.line, format!("cannot read: {}", gzip::why(&error))))?;
        if read as u64 == MAX_LINE_BYTES && self.text.last() != Some(&b'\n') {
            return Err(at_line(
                self.line,
                format!("the line is longer than {MAX_LINE_BYTES} bytes"),
            ));
        }
        while matches!(self.text.last(), Some(b'\n' | b'\r')) {
            self.text.pop();
        }
        Ok(read > 0)
    }
}

impl<R: BufRead> Iterator for Trace<R> {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.read_line() {
                Ok(true) if self.text.is_empty() => {}
                Ok(true) => {
                    return Some(request(&self.text).map_err(|why| at_line(self.line, why)));
                }
                Ok(false) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

fn request(line: &[u8]) -> Result<Request, String> {
    let line = std::str::from_utf8(line).map_err(|_| "this is not UTF-8 text")?;
    let quoted;
    let fields: Vec<&str> = if line.contains('"') {
        quoted = unquote(line)?;
        quoted.iter().collect()
    } else {
        line.split(',').collect()
    };
    let [at, key, cost] = fields.as_slice() else {
        return Err(format!("{} fields instead of 3 ({HEADER})", fields.len()));
    };
    let time = at.parse().map(Micros).ok().filter(|at| *at <= Micros::LAST);
    Ok(Request {
        at: time.ok_or_else(|| {
            format!("`{at}` is not a time; Unix microseconds, whole, up to the year 2253")
        })?,
        key: Identity::opaque(key).map_err(|e| e.to_string())?,
        cost: cost.parse().map_err(|e: crate::engine::limit::CostError| e.to_string())?,
    })
}

/// A line with quotes in it, as CSV reads it.
fn unquote(line: &str) -> Result<csv::StringRecord, String> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(line.as_bytes());
    let mut record = csv::StringRecord::new();
    reader.read_record(&mut record).map_err(|e| e.to_string())?;
    Ok(record)
}

fn at_line(line: u64, why: String) -> TraceError {
    TraceError { line, why }
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
    fn lines_are_counted_as_an_editor_counts_them() {
        for text in [
            "t_us,key,cost\r\n1,a,1\r\n2,a,1\r\n3,b,x\r\n",
            "t_us,key,cost\n1,a,1\n\n3,b,x\n",
            "t_us,key,cost\n\n\n\"3\",b,x",
        ] {
            assert_eq!(read(text).1.expect(text).line, 4, "{text:?}");
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
