//! Rows on their way to a reader: handed over once, printed in any form, in bounded memory.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, Width, presets};
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use super::format::{Format, Look, Tone};
use super::untrusted::json_line;
use super::{SCHEMA, Untrusted, csv};

/// A table's columns are as wide as its first rows need; those beyond are shown as many at a time.
const MEASURED_ROWS: usize = 1000;
/// Beside what stands in a cell.
const PADDING: usize = 2;

/// One result of a list. Its JSON is an object.
pub trait Row: Serialize + Sized {
    /// The columns that people see.
    fn columns() -> Vec<Column<Self>>;
    /// The columns of CSV: names of its JSON, in their order.
    const FIELDS: &'static [&'static str];
}

/// A column of a table. Cells are escaped where they are printed.
#[derive(Debug)]
pub struct Column<R> {
    title: &'static str,
    cell: fn(&R) -> String,
    tone: Option<fn(&R) -> Tone>,
    right: bool,
    wide: bool,
}

impl<R> Column<R> {
    pub fn new(title: &'static str, cell: fn(&R) -> String) -> Column<R> {
        Column { title, cell, tone: None, right: false, wide: false }
    }

    /// Numbers stand under each other.
    pub fn number(title: &'static str, cell: fn(&R) -> String) -> Column<R> {
        Column { right: true, ..Column::new(title, cell) }
    }

    /// Only with `-o wide`.
    pub fn wide(title: &'static str, cell: fn(&R) -> String) -> Column<R> {
        Column { wide: true, ..Column::new(title, cell) }
    }

    /// With colours.
    pub fn tone(self, tone: fn(&R) -> Tone) -> Column<R> {
        Column { tone: Some(tone), ..self }
    }
}

/// Writes rows one by one.
#[derive(Debug)]
pub struct Rows<R, W> {
    out: W,
    look: Look,
    columns: Vec<Column<R>>,
    /// Cells that wait for the width of their columns.
    held: Vec<Vec<(String, Tone)>>,
    widths: Vec<usize>,
    begun: bool,
    /// How many rows there were.
    count: u64,
}

impl<R: Row, W: Write> Rows<R, W> {
    /// Rows with nothing around them.
    pub fn new(out: W, look: Look) -> io::Result<Rows<R, W>> {
        Rows::with_head(out, look, &NoHead {})
    }

    /// Rows of an object that says more than its items: the fields of `head` stand before them.
    pub fn with_head(mut out: W, look: Look, head: &impl Serialize) -> io::Result<Rows<R, W>> {
        match look.format {
            Format::Json => {
                let text = with_schema(&json_line(head));
                let open = text.strip_suffix('}').unwrap_or(&text);
                write!(out, "{open},\"items\":[")?;
            }
            Format::Csv => csv::write_row(&mut out, R::FIELDS.iter().map(|f| f.to_string()))?,
            _ => {}
        }
        Ok(Rows::after_head(out, look))
    }

    /// Rows without an end: no object can stand around them, so JSON is one object a line.
    pub fn endless(out: W, look: Look) -> io::Result<Rows<R, W>> {
        let is_json = look.format == Format::Json;
        Rows::new(out, Look { format: if is_json { Format::Ndjson } else { look.format }, ..look })
    }

    fn after_head(out: W, look: Look) -> Rows<R, W> {
        let shown = |column: &Column<R>| !column.wide || look.format == Format::Wide;
        let columns: Vec<Column<R>> = R::columns().into_iter().filter(shown).collect();
        let widths = columns.iter().map(|column| column.title.width()).collect();
        Rows { out, look, columns, held: Vec::new(), widths, begun: false, count: 0 }
    }

    pub fn push(&mut self, row: &R) -> io::Result<()> {
        self.count += 1;
        match self.look.format {
            Format::Json => {
                let comma = if self.count > 1 { "," } else { "" };
                write!(self.out, "{comma}{}", json_line(row))
            }
            Format::Ndjson => writeln!(self.out, "{}", with_schema(&json_line(row))),
            Format::Csv => csv::write_row(&mut self.out, csv::cells(row, R::FIELDS)?.into_iter()),
            Format::Table | Format::Wide => {
                let cell = |column: &Column<R>| {
                    let tone = column.tone.map_or(Tone::Plain, |tone| tone(row));
                    (Untrusted(&(column.cell)(row)).to_string(), tone)
                };
                self.held.push(self.columns.iter().map(cell).collect());
                if self.held.len() == MEASURED_ROWS { self.lay_out() } else { Ok(()) }
            }
        }
    }

    /// Shows what has come so far.
    pub fn flush(&mut self) -> io::Result<()> {
        self.lay_out()?;
        self.out.flush()
    }

    /// Writes what is left, and gives the count of rows.
    pub fn end(mut self) -> io::Result<u64> {
        self.lay_out()?;
        if self.look.format == Format::Json {
            writeln!(self.out, "]}}")?;
        }
        self.out.flush()?;
        Ok(self.count)
    }

    /// Columns keep the widths that earlier rows gave them.
    fn lay_out(&mut self) -> io::Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        let colours = self.look.colours;
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        if !std::mem::replace(&mut self.begun, true) {
            table.set_header(self.columns.iter().map(|c| Tone::Strong.paint(c.title, colours)));
        }
        for row in std::mem::take(&mut self.held) {
            for (width, (cell, _)) in self.widths.iter_mut().zip(&row) {
                *width = (*width).max(cell.width());
            }
            table.add_row(row.iter().map(|(cell, tone)| tone.paint(cell, colours)));
        }
        let described = self.columns.iter().zip(&self.widths);
        for (shown, (column, width)) in table.column_iter_mut().zip(described) {
            let room = u16::try_from(width + PADDING).unwrap_or(u16::MAX);
            shown.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(room)));
            if column.right {
                shown.set_cell_alignment(CellAlignment::Right);
            }
        }
        writeln!(self.out, "{}", table.trim_fmt())
    }
}

#[derive(Serialize)]
struct NoHead {}

/// An object, with its schema first.
pub fn with_schema(object: &str) -> String {
    let rest = object.strip_prefix('{').unwrap_or(object);
    let comma = if rest.starts_with('}') { "" } else { "," };
    format!("{{\"schema\":\"{SCHEMA}\"{comma}{rest}")
}

/// A whole list with what stands around it.
#[derive(Debug)]
pub struct List<'a, R, H = ()> {
    rows: &'a [R],
    head: Option<&'a H>,
    above: String,
    below: String,
}

impl<'a, R: Row> List<'a, R> {
    pub fn new(rows: &'a [R]) -> List<'a, R> {
        List { rows, head: None, above: String::new(), below: String::new() }
    }

    /// More fields of the JSON object, before its items.
    pub fn head<H: Serialize>(self, head: &'a H) -> List<'a, R, H> {
        List { rows: self.rows, head: Some(head), above: self.above, below: self.below }
    }
}

impl<R: Row, H: Serialize> List<'_, R, H> {
    /// Lines for people before the table, escaped.
    pub fn above(self, above: String) -> Self {
        List { above, ..self }
    }

    /// Lines for people after the table, escaped.
    pub fn below(self, below: String) -> Self {
        List { below, ..self }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The whole of it as text. `goes_on` says that it was shown before: CSV has one header.
    pub fn render(&self, look: Look, goes_on: bool) -> io::Result<String> {
        let mut text = Vec::new();
        let people = look.format.is_for_people();
        if people {
            text.extend_from_slice(self.above.as_bytes());
        }
        let mut rows = match (look.format, self.head) {
            (Format::Csv, _) if goes_on => Rows::after_head(&mut text, look),
            (_, Some(head)) => Rows::with_head(&mut text, look, head)?,
            (_, None) => Rows::new(&mut text, look)?,
        };
        self.rows.iter().try_for_each(|row| rows.push(row))?;
        rows.end()?;
        if people {
            text.extend_from_slice(self.below.as_bytes());
        }
        String::from_utf8(text).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Used {
        who: &'static str,
        used: u64,
        note: Option<&'static str>,
    }

    impl Row for Used {
        fn columns() -> Vec<Column<Used>> {
            let alarm = |row: &Used| if row.used > 9 { Tone::Bad } else { Tone::Plain };
            vec![
                Column::new("WHO", |row: &Used| row.who.into()),
                Column::number("USED", |row: &Used| row.used.to_string()).tone(alarm),
                Column::wide("NOTE", |row| row.note.unwrap_or_default().into()),
            ]
        }

        const FIELDS: &'static [&'static str] = &["who", "used", "note"];
    }

    const ROWS: [Used; 2] = [
        Used { who: "user:日本", used: 7, note: None },
        Used { who: "=a\u{1b}[2J", used: 1234, note: Some("x, y") },
    ];

    fn shown(rows: &[Used], format: Format, colours: bool) -> String {
        List::new(rows).render(Look { format, colours }, false).unwrap()
    }

    #[test]
    fn the_same_rows_in_every_form() {
        for (format, expected) in [
            (Format::Table, " WHO          USED\n user:日本       7\n =a\\u{1b}[2J  1234\n"),
            (
                Format::Wide,
                " WHO          USED  NOTE\n user:日本       7\n =a\\u{1b}[2J  1234  x, y\n",
            ),
            (
                Format::Json,
                "{\"schema\":\"rlctl/v1\",\"items\":[{\"who\":\"user:日本\",\"used\":7,\"note\":null},\
                 {\"who\":\"=a\\u001b[2J\",\"used\":1234,\"note\":\"x, y\"}]}\n",
            ),
            (
                Format::Ndjson,
                "{\"schema\":\"rlctl/v1\",\"who\":\"user:日本\",\"used\":7,\"note\":null}\n\
                 {\"schema\":\"rlctl/v1\",\"who\":\"=a\\u001b[2J\",\"used\":1234,\"note\":\"x, y\"}\n",
            ),
            (Format::Csv, "who,used,note\nuser:日本,7,\n'=a\\u{1b}[2J,1234,\"x, y\"\n"),
        ] {
            assert_eq!(shown(&ROWS, format, false), expected);
        }
    }

    #[test]
    fn nothing_is_an_empty_list_and_csv_keeps_its_header() {
        assert_eq!(shown(&[], Format::Table, false), "");
        assert_eq!(shown(&[], Format::Json, false), "{\"schema\":\"rlctl/v1\",\"items\":[]}\n");
        assert_eq!(shown(&[], Format::Ndjson, false), "");
        assert_eq!(shown(&[], Format::Csv, false), "who,used,note\n");
    }

    #[test]
    fn what_goes_on_has_one_header_and_what_has_no_end_no_object_around_it() {
        let look = |format| Look { format, colours: false };
        let again = List::new(&ROWS).render(look(Format::Csv), true).unwrap();
        assert!(again.starts_with("user:日本,7,"), "{again}");
        let mut out = Vec::new();
        let mut rows = Rows::endless(&mut out, look(Format::Json)).unwrap();
        rows.push(&ROWS[0]).unwrap();
        rows.flush().unwrap();
        assert!(out.starts_with(b"{\"schema\":\"rlctl/v1\",\"who\":") && out.ends_with(b"}\n"));
    }

    #[test]
    fn colours_move_no_column() {
        let coloured = shown(&ROWS, Format::Table, true);
        assert!(coloured.contains("\u{1b}[31m1234\u{1b}[0m"), "{coloured:?}");
        let mut plain = coloured;
        for code in ["\u{1b}[31m", "\u{1b}[1m", "\u{1b}[0m"] {
            plain = plain.replace(code, "");
        }
        assert_eq!(plain, shown(&ROWS, Format::Table, false));
    }

    #[test]
    fn a_long_table_is_shown_while_it_comes() {
        let mut out = Vec::new();
        let look = Look { format: Format::Table, colours: false };
        let mut rows = Rows::new(&mut out, look).unwrap();
        for used in 0..MEASURED_ROWS as u64 + 5 {
            rows.push(&Used { who: "a", used, note: None }).unwrap();
            assert!(rows.held.len() < MEASURED_ROWS);
        }
        assert_eq!(rows.end().unwrap(), MEASURED_ROWS as u64 + 5);
        assert_eq!(out.split(|b| *b == b'\n').count(), MEASURED_ROWS + 7);
    }
}
