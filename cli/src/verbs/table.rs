//! Aligned tables and JSON on standard output.
//!
//! On a terminal a table is as wide as that and no wider: what all ids have in common is left out, then the widest
//! columns are cut. Elsewhere, for programs, every cell is whole.

use std::collections::BTreeSet;

use serde_json::Value;

/// Between two columns.
const GAP: &str = "  ";
/// A column is not cut below this, in characters.
const COLUMN_MIN: usize = 6;
/// Stands for what was cut.
const CUT: char = '…';

/// Prints a table without frames; its headings alone when there are no rows.
pub(super) fn print(headings: &[&str], rows: Vec<Vec<String>>) {
    for line in lines(headings, rows, width()) {
        put(&line);
    }
}

/// The columns of the terminal, or those that `COLUMNS` says; nothing if nobody looks.
fn width() -> Option<usize> {
    use std::io::IsTerminal as _;
    let said = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok());
    let asked = || {
        let stdout = std::io::stdout();
        let size = stdout
            .is_terminal()
            .then(|| rustix::termios::tcgetwinsize(&stdout));
        size?.ok().map(|size| usize::from(size.ws_col))
    };
    said.or_else(asked).filter(|width| *width > 0)
}

/// The lines of a table, cut to a width if there is one.
fn lines(headings: &[&str], mut rows: Vec<Vec<String>>, width: Option<usize>) -> Vec<String> {
    let headings: Vec<String> = headings.iter().map(|text| (*text).to_owned()).collect();
    if let Some(width) = width
        && total(&widths(&headings, &rows)) > width
    {
        for column in 0..headings.len() {
            shorten_ids(&mut rows, column);
        }
    }
    let mut widths = widths(&headings, &rows);
    while width.is_some_and(|width| total(&widths) > width) {
        let widest = widths.iter_mut().max_by_key(|width| **width);
        match widest {
            Some(widest) if *widest > COLUMN_MIN => *widest -= 1,
            _ => break,
        }
    }
    let all = std::iter::once(&headings).chain(&rows);
    all.map(|row| line(row, &widths)).collect()
}

fn widths(headings: &[String], rows: &[Vec<String>]) -> Vec<usize> {
    let widest = |column: usize| {
        let all = std::iter::once(headings).chain(rows.iter().map(Vec::as_slice));
        all.filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or_default()
    };
    (0..headings.len()).map(widest).collect()
}

fn total(widths: &[usize]) -> usize {
    widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1)
}

fn line(row: &[String], widths: &[usize]) -> String {
    let cell = |(text, width): (&String, &usize)| {
        let length = text.chars().count();
        if length <= *width {
            return format!("{text}{}", " ".repeat(width - length));
        }
        let kept: String = text.chars().take(width.saturating_sub(1)).collect();
        format!("{kept}{CUT}")
    };
    let cells: Vec<String> = row.iter().zip(widths).map(cell).collect();
    cells.join(GAP).trim_end().to_owned()
}

/// Leaves out what ids of one master have in common, where they are told apart without it: `S3` and `0007` are taken
/// for ids wherever an id is.
fn shorten_ids(rows: &mut [Vec<String>], column: usize) {
    let whole: BTreeSet<String> = rows
        .iter()
        .filter_map(|row| row.get(column))
        .cloned()
        .collect();
    let short: BTreeSet<&str> = whole.iter().map(|id| short_id(id)).collect();
    if short.len() != whole.len() {
        return;
    }
    for cell in rows.iter_mut().filter_map(|row| row.get_mut(column)) {
        *cell = short_id(cell).to_owned();
    }
}

/// What is behind the master's own part of an id: `<uuid>-S3` and `<uuid>-0007` are its agents and frameworks.
fn short_id(id: &str) -> &str {
    const UUID_BYTES: usize = 36;
    let Some((uuid, rest)) = id.split_at_checked(UUID_BYTES) else {
        return id;
    };
    let is_uuid = uuid.bytes().enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    match rest.strip_prefix('-') {
        Some(short) if is_uuid && !short.is_empty() => short,
        _ => id,
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

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "0a1b2c3d-0011-2233-4455-66778899aabb";

    fn rows() -> Vec<Vec<String>> {
        let row = |number: usize| {
            vec![
                format!("execute-{number:04}"),
                "TASK_RUNNING".to_owned(),
                format!("{UUID}-{number:04}"),
                format!("{UUID}-S{number}"),
                "a message that goes on for longer than anybody wants to read on one line"
                    .to_owned(),
            ]
        };
        (0..3).map(row).collect()
    }

    const HEADINGS: [&str; 5] = ["ID", "STATE", "FRAMEWORK", "AGENT", "MESSAGE"];

    fn widest(lines: &[String]) -> usize {
        lines
            .iter()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or_default()
    }

    #[test]
    fn a_table_fits_its_terminal() {
        for width in [40, 80, 120, 200] {
            let lines = lines(&HEADINGS, rows(), Some(width));
            assert!(widest(&lines) <= width, "{width}: {lines:#?}");
            let is_roomy = width >= 80;
            assert_eq!(lines[1].starts_with("execute-0000"), is_roomy, "{lines:#?}");
        }
        let narrow = lines(&HEADINGS, rows(), Some(80));
        assert!(
            narrow[2].contains(" 0001 ") && narrow[2].contains(" S1 "),
            "{narrow:#?}"
        );
        assert!(narrow[2].ends_with(CUT), "{narrow:#?}");
        let wide = lines(&HEADINGS, rows(), Some(200));
        assert!(
            wide[2].contains(UUID) && !wide[2].contains(CUT),
            "{wide:#?}"
        );
    }

    #[test]
    fn programs_get_every_cell_whole() {
        let lines = lines(&HEADINGS, rows(), None);
        assert!(widest(&lines) > 160);
        assert!(lines.iter().all(|line| !line.contains(CUT)));
        assert!(lines[1].contains(&format!("{UUID}-S0")));
    }

    #[test]
    fn ids_of_two_masters_stay_whole() {
        let other = UUID.replace('a', "b");
        let ids = [format!("{UUID}-S1"), format!("{other}-S1")];
        let mut rows: Vec<Vec<String>> = ids.iter().map(|id| vec![id.clone()]).collect();
        shorten_ids(&mut rows, 0);
        assert_eq!(rows.concat(), ids);
        assert_eq!(short_id("execute-0000"), "execute-0000");
        assert_eq!(short_id(&format!("{UUID}-")), format!("{UUID}-"));
    }
}
