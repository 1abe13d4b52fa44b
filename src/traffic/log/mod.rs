//! Access logs as traffic: common, combined, JSON and CSV, plain or gzipped, from any reader.
//! A line that cannot be read is counted and the first few are kept; it never ends the run.

mod combined;
mod field;
mod json;
mod lines;
mod names;
mod order;
mod table;
mod time;

use std::io::{BufRead, Read};

pub use field::{Field, FieldError};
pub use names::Names;
pub use order::{InOrder, Timed};

use self::combined::Combined;
use self::json::Json;
use self::lines::Lines;
use self::table::Table;
use crate::engine::clock::Micros;
use crate::traffic::gzip;

/// As many of the lines that could not be read are shown.
const EXAMPLES: usize = 3;
const EXAMPLE_CHARS: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Common,
    Combined,
    Json,
    Csv,
}

impl LogFormat {
    pub const ALL: [LogFormat; 4] =
        [LogFormat::Common, LogFormat::Combined, LogFormat::Json, LogFormat::Csv];

    pub fn name(self) -> &'static str {
        match self {
            LogFormat::Common => "common",
            LogFormat::Combined => "combined",
            LogFormat::Json => "json",
            LogFormat::Csv => "csv",
        }
    }

    /// What a line looks like.
    fn of(line: &[u8]) -> LogFormat {
        let text = line.trim_ascii_start();
        if text.starts_with(b"{") {
            LogFormat::Json
        } else if text.contains(&b'[') && text.contains(&b'"') {
            if text.ends_with(b"\"") { LogFormat::Combined } else { LogFormat::Common }
        } else {
            LogFormat::Csv
        }
    }
}

/// How to read a log.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// None: as the first line looks.
    pub format: Option<LogFormat>,
    /// Where JSON and CSV have the time; none: under one of the usual names.
    pub time: Option<String>,
}

/// A line that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    pub number: u64,
    pub why: String,
    /// Its beginning, as it stands there.
    pub text: String,
}

/// What became of the lines.
#[derive(Clone, Debug, Default)]
pub struct LogReport {
    pub format: Option<LogFormat>,
    pub lines: u64,
    /// Lines that were read.
    pub read: u64,
    /// Lines that no request could be made of.
    pub unreadable: u64,
    pub examples: Vec<BadLine>,
    /// Lines without what the key is taken from.
    pub without_key: u64,
}

#[derive(Debug)]
enum Parser {
    Combined(Combined),
    Json(Json),
    Table(Box<Table>),
}

/// Why a line is none.
pub(crate) enum Unread {
    Broken(String),
    /// It is a header, and not meant to be one.
    Header,
}

pub(crate) type Parsed = Result<Micros, Unread>;

pub(crate) fn broken(why: impl Into<String>) -> Unread {
    Unread::Broken(why.into())
}

/// The wanted fields of one line; empty is absent.
#[derive(Debug, Default)]
pub struct Values {
    texts: Vec<String>,
}

impl Values {
    pub(crate) fn clear(&mut self, count: usize) {
        self.texts.resize(count, String::new());
        self.texts.iter_mut().for_each(String::clear);
    }

    pub(crate) fn put(&mut self, place: usize, text: &str) {
        self.texts[place].push_str(text);
    }

    /// The value of a wanted field, unless it is absent or the dash that stands for that.
    pub fn get(&self, place: usize) -> Option<&str> {
        self.texts.get(place).map(String::as_str).filter(|text| !text.is_empty() && *text != "-")
    }
}

/// Reads a log line by line, in bounded memory.
pub struct LogReader {
    lines: Lines<Box<dyn BufRead + Send>>,
    parser: Option<Parser>,
    options: LogOptions,
    wanted: Vec<Field>,
    values: Values,
    report: LogReport,
}

impl std::fmt::Debug for LogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogReader").field("report", &self.report).finish_non_exhaustive()
    }
}

/// Why a log cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot read: {0}")]
    Read(String),
    /// Everything before this line was read.
    #[error("line {line}: cannot read: {why}")]
    BrokenOff { line: u64, why: String },
    #[error(transparent)]
    Field(#[from] FieldError),
}

impl LogReader {
    /// `wanted` are the fields that are told of each line, in their order.
    pub fn new(
        source: Box<dyn Read + Send>,
        options: LogOptions,
        wanted: Vec<Field>,
    ) -> Result<LogReader, LogError> {
        let source = gzip::unzipped(source).map_err(|error| LogError::Read(gzip::why(&error)))?;
        Ok(LogReader {
            lines: Lines::new(source),
            parser: None,
            options,
            wanted,
            values: Values::default(),
            report: LogReport::default(),
        })
    }

    /// The time of the next line that can be read, none at the end; its fields are then
    /// [`LogReader::values`].
    pub fn next_line(&mut self) -> Result<Option<Micros>, LogError> {
        loop {
            let next = self.lines.next_line().map_err(|error| LogError::BrokenOff {
                line: self.report.lines + 1,
                why: gzip::why(&error),
            });
            let Some(line) = next? else { return Ok(None) };
            self.report.lines += 1;
            let Some(line) = line else {
                let why = format!("longer than {} bytes", lines::MAX_LINE_BYTES);
                self.report.note(&why, b"");
                continue;
            };
            if line.trim_ascii().is_empty() {
                continue;
            }
            let parser = match &mut self.parser {
                Some(parser) => parser,
                none => {
                    let format = self.options.format.unwrap_or_else(|| LogFormat::of(line));
                    self.report.format = Some(format);
                    none.insert(Parser::new(format, &self.options, &self.wanted)?)
                }
            };
            self.values.clear(self.wanted.len());
            let parsed = match parser {
                Parser::Combined(parser) => parser.parse(line, &mut self.values),
                Parser::Json(parser) => parser.parse(line, &mut self.values),
                Parser::Table(parser) => parser.parse(line, &mut self.values)?,
            };
            match parsed {
                Ok(at) if at <= Micros::LAST => {
                    self.report.read += 1;
                    return Ok(Some(at));
                }
                Ok(_) => self.report.note("its time lies after the year 2253", line),
                Err(Unread::Broken(why)) => self.report.note(&why, line),
                Err(Unread::Header) => {}
            }
        }
    }

    /// Whether the next line is there already; otherwise one has to wait for it.
    pub fn has_line(&self) -> bool {
        self.lines.has_line()
    }

    pub fn values(&self) -> &Values {
        &self.values
    }

    /// The line that was just read has no key.
    pub fn no_key(&mut self) {
        self.report.without_key += 1;
    }

    pub fn report(&self) -> &LogReport {
        &self.report
    }
}

impl Parser {
    fn new(
        format: LogFormat,
        options: &LogOptions,
        wanted: &[Field],
    ) -> Result<Parser, FieldError> {
        Ok(match format {
            LogFormat::Common | LogFormat::Combined => Parser::Combined(Combined::new(wanted)?),
            LogFormat::Json => Parser::Json(Json::new(options.time.as_deref(), wanted)),
            LogFormat::Csv => Parser::Table(Box::new(Table::new(options.time.clone(), wanted))),
        })
    }
}

impl LogReport {
    fn note(&mut self, why: &str, line: &[u8]) {
        self.unreadable += 1;
        if self.examples.len() < EXAMPLES {
            let text = String::from_utf8_lossy(&line[..line.len().min(4 * EXAMPLE_CHARS)]);
            let text = text.chars().take(EXAMPLE_CHARS).collect();
            self.examples.push(BadLine { number: self.lines, why: why.into(), text });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use super::*;

    fn read(text: &[u8], options: LogOptions, wanted: &[&str]) -> (Vec<String>, LogReport) {
        let wanted = wanted.iter().map(|name| name.parse().unwrap()).collect::<Vec<Field>>();
        let count = wanted.len();
        let source = Box::new(Cursor::new(text.to_vec()));
        let mut log = LogReader::new(source, options, wanted).unwrap();
        let mut seen = Vec::new();
        while let Some(at) = log.next_line().unwrap() {
            let values: Vec<&str> =
                (0..count).map(|n| log.values().get(n).unwrap_or("∅")).collect();
            seen.push(format!("{} {}", at.0 / 1_000_000, values.join("|")));
        }
        (seen, log.report().clone())
    }

    fn auto(text: &str, wanted: &[&str]) -> (Vec<String>, LogReport) {
        read(text.as_bytes(), LogOptions::default(), wanted)
    }

    const COMBINED: &str = r#"203.0.113.7 - alice smith [10/Oct/2000:13:55:36 -0700] "GET /a?b=1 HTTP/1.1" 200 2326 "http://x/" "Mozilla \"5\""
2001:db8::1 - - [10/Oct/2000:13:55:37 -0700] "POST /o"dd HTTP/1.1" 429 -
"#;

    #[test]
    fn combined_lines_have_all_their_fields() {
        let all = ["ip", "user", "method", "path", "status", "referer", "agent"];
        let (seen, report) = auto(COMBINED, &all);
        assert_eq!(
            seen,
            [
                r#"971211336 203.0.113.7|alice smith|GET|/a?b=1|200|http://x/|Mozilla \"5\""#,
                "971211337 2001:db8::1|∅|POST|/o\"dd|429|∅|∅",
            ]
        );
        assert_eq!(report.format, Some(LogFormat::Combined));
        assert_eq!(auto(COMBINED, &["ip"]).0, ["971211336 203.0.113.7", "971211337 2001:db8::1"]);
        assert_eq!(auto(COMBINED, &["user"]).0[0], "971211336 alice smith");
    }

    #[test]
    fn broken_lines_are_counted_and_the_first_are_shown() {
        let text = format!(
            "{COMBINED}half a line\n\nh - - [99/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.0\" 200 1\n\
         h - - [10/Oct/2000:13:55:36 -0700] \"GET / HTT\nh - - [10/Oct/2000:13:55:36 -0700] x\n"
        );
        let (seen, report) = auto(&text, &["ip"]);
        assert_eq!((seen.len(), report.lines, report.unreadable), (2, 7, 4));
        let shown: Vec<(u64, &str)> =
            report.examples.iter().map(|bad| (bad.number, bad.why.as_str())).collect();
        assert_eq!(
            shown,
            [(3, "no time in brackets"), (5, "its time is none"), (6, "the request has no end")]
        );
        assert_eq!(report.examples[0].text, "half a line");
    }

    #[test]
    fn json_is_read_by_usual_names_by_paths_and_in_one_piece() {
        let text = concat!(
            r#"{"time":"2026-11-18T10:00:00Z","remote_addr":"a","user":{"id":7},"request":"GET /x HTTP/1.1"}"#,
            "\n",
            r#"{"ts":1794996001.5,"request":{"remote_ip":"b","method":"PUT","uri":"/y","headers":{"X-Tenant":["acme"]}}}"#,
            "\n{broken\n{\"ip\":\"c\"}\n"
        );
        let (seen, report) = auto(text, &["ip", "$.user.id", "method", "path", "header:x-tenant"]);
        assert_eq!(seen, ["1794996000 a|7|GET|/x|∅", "1794996001 b|∅|PUT|/y|acme"]);
        assert_eq!(report.format, Some(LogFormat::Json));
        assert_eq!(report.unreadable, 2);
        assert!(report.examples[1].why.contains("--time"), "{:?}", report.examples);
    }

    #[test]
    fn csv_is_read_by_its_header_in_any_order() {
        let text =
            "path,Client_IP,timestamp,tenant\n/a,\"x,y\",1794996000,t1\n/b,z,nonsense,t2\n/c,w\n";
        let (seen, report) = auto(text, &["ip", "tenant"]);
        assert_eq!(seen, ["1794996000 x,y|t1"]);
        assert_eq!((report.format, report.unreadable), (Some(LogFormat::Csv), 2));
        let semicolons = "when;who\n2026-11-18 10:00:00;bob\n";
        let options = LogOptions { time: Some("when".into()), ..LogOptions::default() };
        assert_eq!(read(semicolons.as_bytes(), options, &["who"]).0, ["1794996000 bob"]);
    }

    #[test]
    fn a_field_that_is_not_there_is_said_before_anything_is_counted() {
        let fails = |text: &str, key: &str| {
            let source = Box::new(Cursor::new(text.as_bytes().to_vec()));
            let wanted = vec![key.parse().unwrap()];
            let mut log = LogReader::new(source, LogOptions::default(), wanted).unwrap();
            log.next_line().unwrap_err().to_string()
        };
        assert!(fails(COMBINED, "tenant").contains("it has ip, user, method"));
        assert!(
            fails("time,ip\n1,a\n", "tenant").contains("no column `tenant`; there are time, ip")
        );
        assert!(fails("a,b\n1,2\n", "ip").contains("--time COLUMN"));
    }

    #[test]
    fn gzip_is_noticed_also_in_several_pieces() {
        let zip = |text: &str| {
            let mut zipped = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            zipped.write_all(text.as_bytes()).unwrap();
            zipped.finish().unwrap()
        };
        let both = [zip(COMBINED), zip(COMBINED)].concat();
        assert_eq!(read(&both, LogOptions::default(), &["ip"]).0.len(), 4);
    }

    #[test]
    fn a_line_without_end_needs_no_more_memory_than_others() {
        let text = format!("{COMBINED}{}\n{COMBINED}", "x".repeat(1_000_000));
        let (seen, report) = auto(&text, &["ip"]);
        assert_eq!((seen.len(), report.unreadable), (4, 1));
        assert_eq!(report.examples[0].number, 3);
        let unfinished = COMBINED.trim_end();
        assert_eq!(auto(unfinished, &["ip"]).0.len(), 2);
        assert!(auto("", &["ip"]).0.is_empty());
    }

    #[test]
    fn names_keep_their_numbers() {
        let mut names = Names::default();
        let numbers: Vec<u32> = ["a", "b", "a", "", "ab", "b"].map(|n| names.number(n)).to_vec();
        assert_eq!(numbers, [0, 1, 0, 2, 3, 1]);
        assert_eq!((names.name(3), names.count()), ("ab", 4));
    }
}
