//! Rows in columns: as many as there is room for, with the marked one among them.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use unicode_width::UnicodeWidthStr;

use super::paint::Paint;
use crate::tui::words::fit;

/// A column: its head, how wide it is, and on which side its text stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) head: &'static str,
    /// 0 takes what the others leave.
    pub(super) width: u16,
    pub(super) right: bool,
}

pub(super) const fn left(head: &'static str, width: u16) -> Column {
    Column { head, width, right: false }
}

pub(super) const fn right(head: &'static str, width: u16) -> Column {
    Column { head, width, right: true }
}

/// A column that takes what others leave has at least this.
const LEAST_FILL: u16 = 12;

pub(super) type Cell = (String, Style);

/// Rows are made only where they are seen.
pub(super) struct Table<'a> {
    pub(super) columns: &'a [Column],
    pub(super) rows: usize,
    pub(super) cells: &'a dyn Fn(usize) -> Vec<Cell>,
    /// The marked row; brighter where keys go.
    pub(super) marked: Option<usize>,
    pub(super) focused: bool,
    /// What stands there when there are no rows.
    pub(super) nothing: &'a str,
}

impl Table<'_> {
    pub(super) fn draw(&self, frame: &mut Frame<'_>, area: Rect, paint: Paint) {
        if area.height == 0 || area.width < 3 {
            return;
        }
        let widths = self.widths(area.width.saturating_sub(1));
        // What there is no room for is left out, from the right.
        let heads = self.columns.iter().map(|c| (c.head.to_string(), paint.dim()));
        let mut lines = vec![self.line(heads.collect(), &widths, " ", None)];
        let mut room = usize::from(area.height) - 1;
        // Where a row can be spared it tells how many there are beside those that are seen.
        let is_told = self.rows > room && room > 3;
        room -= usize::from(is_told);
        if self.rows == 0 {
            lines.push(Line::styled(format!(" {}", self.nothing), paint.dim()));
        }
        let first = first_row(self.marked.unwrap_or(0), self.rows, room);
        for row in first..self.rows.min(first + room) {
            let is_marked = self.marked == Some(row);
            let sign = if is_marked { ">" } else { " " };
            let style = (is_marked && self.focused).then(|| paint.marked());
            lines.push(self.line((self.cells)(row), &widths, sign, style));
        }
        if is_told {
            let text = format!(" ({} more)", self.rows - room);
            lines.push(Line::styled(text, paint.dim()));
        }
        for (line, y) in lines.iter().zip(area.y..area.bottom()) {
            frame.buffer_mut().set_line(area.x, y, line, area.width);
        }
    }

    fn widths(&self, room: u16) -> Vec<usize> {
        let fixed = |columns: &[Column]| columns.iter().map(|c| c.width + 1).sum::<u16>();
        let mut columns = self.columns;
        while columns.len() > 1 && fixed(columns) + LEAST_FILL > room {
            columns = &columns[..columns.len() - 1];
        }
        let fills = columns.iter().filter(|c| c.width == 0).count().max(1) as u16;
        let rest = room.saturating_sub(fixed(columns)) / fills;
        let of = |c: &Column| usize::from(if c.width == 0 { rest } else { c.width });
        columns.iter().map(of).collect()
    }

    fn line(
        &self,
        cells: Vec<Cell>,
        widths: &[usize],
        sign: &str,
        over: Option<Style>,
    ) -> Line<'static> {
        let mut spans = vec![Span::styled(sign.to_string(), over.unwrap_or_default())];
        for (((text, style), width), column) in cells.into_iter().zip(widths).zip(self.columns) {
            let text = fit(&text, *width);
            let pad = " ".repeat(width.saturating_sub(text.width()));
            let text = if column.right { pad + &text + " " } else { text + &pad + " " };
            spans.push(Span::styled(text, over.map_or(style, |over| style.patch(over))));
        }
        Line::from(spans)
    }
}

/// The first row that is shown, so that the marked one is.
pub(super) fn first_row(marked: usize, rows: usize, room: usize) -> usize {
    let last = rows.saturating_sub(room);
    (marked + 1).saturating_sub(room).min(last)
}
