//! Columns. Cells are plain text with a style beside, so that colour does not count as width.

use std::io::{self, Write};

use unicode_width::UnicodeWidthStr;

use crate::output::style::{Painter, Style};
use crate::output::text;

/// One cell.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Option<Style>,
}

impl Cell {
    /// A cell in the colour of `style`.
    pub(crate) fn new(text: &str, style: Style) -> Self {
        Self { text: text::line(text).into_owned(), style: Some(style) }
    }
}

impl Cell {
    /// The same, set in.
    pub(crate) fn indented(mut self) -> Self {
        self.text.insert_str(0, "  ");
        self
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text::line(text.as_ref()).into_owned(), style: None }
    }
}

/// Rows of cells under one head.
#[derive(Debug)]
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table with `head` as its first line.
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        self.rows.push(cells.into());
    }

    /// Writes it; nothing at all without rows.
    pub(crate) fn write(&self, out: &mut impl Write, painter: Painter) -> io::Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let head: Vec<Cell> = self.head.iter().map(|title| Cell::new(title, Style::Dim)).collect();
        let width = |column: usize| {
            let cells = std::iter::once(&head).chain(&self.rows).filter_map(|row| row.get(column));
            cells.map(|cell| cell.text.width()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        for row in std::iter::once(&head).chain(&self.rows) {
            let last = row.iter().rposition(|cell| !cell.text.is_empty()).unwrap_or(0);
            for (column, cell) in row.iter().enumerate().take(last + 1) {
                let painted = cell.style.map_or_else(|| cell.text.clone(), |style| painter.paint(&cell.text, style));
                out.write_all(painted.as_bytes())?;
                if column < last {
                    let width = widths.get(column).copied().unwrap_or(0);
                    // Not by a format's width, which ends at 65535.
                    out.write_all(" ".repeat(width.saturating_sub(cell.text.width()) + 2).as_bytes())?;
                }
            }
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_of_any_width_is_written() {
        const WIDE: usize = 70_000;
        let mut table = Table::new(&["a", "b"]);
        table.row([Cell::from("x".repeat(WIDE)), Cell::from("y")]);
        let mut out = Vec::new();
        table.write(&mut out, Painter::plain()).unwrap();
        let widths: Vec<usize> = out.split(|byte| *byte == b'\n').map(<[u8]>::len).collect();
        assert_eq!(widths, [WIDE + 3, WIDE + 3, 0]);
    }
}
