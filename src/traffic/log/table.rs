//! Logs as CSV with a header: columns are found by their names, in any order.

use super::field::{Field, FieldError, TIMES};
use super::json::part_of_request;
use super::time::{self, ClfTime};
use super::{Parsed, Unread, Values, broken};

#[derive(Debug)]
pub(super) struct Table {
    time: Option<String>,
    wanted: Vec<Field>,
    /// Known once the header was seen.
    columns: Option<Columns>,
    record: csv::StringRecord,
    clf: ClfTime,
}

#[derive(Debug)]
struct Columns {
    count: usize,
    time: usize,
    /// One for each wanted field; none: it is not there.
    wanted: Vec<Option<usize>>,
    request: Option<usize>,
    separator: u8,
}

impl Table {
    pub(super) fn new(time: Option<String>, wanted: &[Field]) -> Table {
        Table {
            time,
            wanted: wanted.to_vec(),
            columns: None,
            record: csv::StringRecord::new(),
            clf: ClfTime::default(),
        }
    }

    pub(super) fn parse(&mut self, line: &[u8], values: &mut Values) -> Result<Parsed, FieldError> {
        let Some(columns) = &self.columns else {
            self.columns = Some(self.header(line)?);
            return Ok(Err(Unread::Header));
        };
        if let Err(why) = read_record(line, columns.separator, &mut self.record) {
            return Ok(Err(broken(why)));
        }
        if self.record.len() != columns.count {
            let (found, needed) = (self.record.len(), columns.count);
            return Ok(Err(broken(format!("{found} columns instead of {needed}"))));
        }
        let at = time::of_text(self.record.get(columns.time).unwrap_or(""), &mut self.clf);
        let Some(at) = at else { return Ok(Err(broken("its time is none"))) };
        for (place, (field, column)) in self.wanted.iter().zip(&columns.wanted).enumerate() {
            let cell = |column: usize| self.record.get(column).unwrap_or("");
            match (column, columns.request) {
                (Some(column), _) => values.put(place, cell(*column)),
                (None, Some(request)) => values.put(place, part_of_request(cell(request), field)),
                (None, None) => {}
            }
        }
        Ok(Ok(at))
    }

    fn header(&self, line: &[u8]) -> Result<Columns, FieldError> {
        // Spreadsheets like to put a byte order mark in front.
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        let count = |separator: u8| memchr::memchr_iter(separator, line).count();
        let separator = [b',', b';', b'\t'].into_iter().max_by_key(|s| count(*s)).unwrap_or(b',');
        let mut names = csv::StringRecord::new();
        // What is no header has no column of a known name, and is refused for that.
        let _ = read_record(line, separator, &mut names);
        let shown = || names.iter().take(12).collect::<Vec<_>>().join(", ");
        let find = |name: &str| names.iter().position(|n| n.trim().eq_ignore_ascii_case(name));
        let time = match &self.time {
            Some(name) => find(name).ok_or_else(|| FieldError::NoColumn(name.clone(), shown()))?,
            None => {
                let usual = TIMES.iter().find_map(|name| find(name));
                usual.ok_or_else(|| FieldError::NoTime(shown()))?
            }
        };
        let mut wanted = Vec::new();
        for field in &self.wanted {
            let column = field.names().iter().find_map(|name| find(name));
            if let (Field::Named(name), None) = (field, column) {
                return Err(FieldError::NoColumn(name.clone(), shown()));
            }
            wanted.push(column);
        }
        Ok(Columns { count: names.len(), time, wanted, request: find("request"), separator })
    }
}

fn read_record(
    line: &[u8],
    separator: u8,
    record: &mut csv::StringRecord,
) -> Result<(), &'static str> {
    let text = std::str::from_utf8(line).map_err(|_| "not UTF-8 text")?;
    if !text.contains('"') {
        record.clear();
        text.split(char::from(separator)).for_each(|cell| record.push_field(cell));
        return Ok(());
    }
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .delimiter(separator)
        .flexible(true)
        .from_reader(text.as_bytes());
    reader.read_record(record).map(|_| ()).map_err(|_| "not a line of CSV")
}
