//! `Table`: the numbers behind a chart.

use crate::canvas::{clean, escape};

/// Rows of text below a head.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// What it holds.
    pub caption: String,
    /// The names of the columns.
    pub head: Vec<String>,
    /// The cells of each row; what lacks is empty.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new<const N: usize>(caption: impl Into<String>, head: [&str; N]) -> Self {
        Self {
            caption: caption.into(),
            head: head.map(str::to_owned).to_vec(),
            rows: Vec::new(),
        }
    }

    fn cell<'a>(&self, row: &'a [String], column: usize) -> &'a str {
        row.get(column).map_or("", String::as_str)
    }

    /// Lines of text: the first column begins at the left, the others end at the right.
    pub fn text(&self) -> String {
        let rows = || std::iter::once(&self.head).chain(&self.rows);
        let widths = (0..self.head.len()).map(|column| {
            let cells = rows().map(|row| self.cell(row, column).chars().count());
            cells.max().unwrap_or(0)
        });
        let widths: Vec<_> = widths.collect();
        let mut text = String::new();
        for row in rows() {
            let mut line = String::new();
            for (column, &width) in widths.iter().enumerate() {
                let cell = clean(self.cell(row, column));
                line += &match column {
                    0 => format!("{cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    /// A table of HTML that scrolls by itself where it is too wide.
    pub(crate) fn html(&self) -> String {
        let caption = escape(&self.caption);
        let head: String = self
            .head
            .iter()
            .map(|it| format!("<th scope=\"col\">{}</th>", escape(it)))
            .collect();
        let mut rows = String::new();
        for row in &self.rows {
            rows += "<tr>";
            for column in 0..self.head.len() {
                let cell = escape(self.cell(row, column));
                rows += &match column {
                    0 => format!("<th scope=\"row\">{cell}</th>"),
                    _ => format!("<td>{cell}</td>"),
                };
            }
            rows += "</tr>\n";
        }
        format!(
            "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{caption}\">\n\
             <table>\n<caption>{caption}</caption>\n<thead><tr>{head}</tr></thead>\n\
             <tbody>\n{rows}</tbody>\n</table>\n</div>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_columns() {
        let mut table = Table::new("Sizes", ["size", "GB/s", "ratio"]);
        table.rows.push(vec!["64 B".into(), "0.4".into()]);
        table
            .rows
            .push(vec!["4 KiB".into(), "5.10".into(), "1.01".into()]);
        assert_eq!(
            table.text(),
            "size   GB/s  ratio\n64 B    0.4\n4 KiB  5.10   1.01\n"
        );
    }

    #[test]
    fn what_a_cell_says_stays_text() {
        let mut table = Table::new("<b>", ["a"]);
        table.rows.push(vec!["<script>\"&'\u{1b}".into()]);
        let html = table.html();
        assert!(html.contains("&lt;script&gt;&quot;&amp;&#39; "), "{html}");
        assert!(!html.contains("<script") && !html.contains("<b>"), "{html}");
    }
}
