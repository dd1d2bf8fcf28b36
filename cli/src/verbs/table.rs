//! Aligned tables and JSON on standard output.

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

/// Prints a table without frames; its headings alone when there are no rows.
pub(super) fn print(headings: &[&str], rows: Vec<Vec<String>>) {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(headings.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for line in table.lines() {
        put(line.trim());
    }
}

/// Prints one line for people.
pub(crate) fn say(text: &str) {
    put(text);
}

/// Prints a value, indented.
pub(super) fn print_json(value: &Value) -> anyhow::Result<()> {
    put(&serde_json::to_string_pretty(value)?);
    Ok(())
}

/// One line of output; a reader that went away (`| head`) is no error.
fn put(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
