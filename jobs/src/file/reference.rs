//! The declaration of the fields as tables of Markdown, for `docs/jobs.md`, with checks of the published files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::fields::{Field, Form, JOB, Presence};

const BEGIN: &str = "<!-- fields: begin -->\n";
const END: &str = "<!-- fields: end -->\n";

fn tables() -> String {
    let mut text = String::new();
    for section in JOB.all() {
        let title = match section.title {
            "the job" => "The top of the file".to_owned(),
            title => format!("`{title}`"),
        };
        let _ = writeln!(text, "### {title}\n\n{}\n", section.doc);
        text.push_str("| field | takes | default | meaning |\n|---|---|---|---|\n");
        for field in section.fields {
            let default = match field.presence {
                Presence::Required => "required".to_owned(),
                Presence::Optional => "absent".to_owned(),
                Presence::Default(text) => format!("`{text}`"),
            };
            let _ = writeln!(
                text,
                "| `{}` | {} | {default} | {} |",
                field.name,
                takes(field),
                field.doc
            );
        }
        text.push('\n');
    }
    text
}

fn takes(field: &Field) -> String {
    let takes = match &field.form {
        Form::Text => "text",
        Form::OneOf(choices) => return format!("`{}`", choices.join("`, `")),
        Form::Texts => "list of texts",
        Form::TextMap => "table of texts",
        Form::AmountMap => "table of numbers",
        Form::Flag => "`true` or `false`",
        Form::Integer { least, most } => return format!("{least} to {most}"),
        Form::Amount => "number",
        Form::AmountLimit => "number or `\"unlimited\"`",
        Form::Duration { may_be_zero: true } => "duration, may be zero",
        Form::Duration { .. } => "duration",
        Form::Size => "size",
        Form::SizeLimit => "size or `\"unlimited\"`",
        Form::Section(_) => "table",
        Form::Sections { .. } => "list of tables",
    };
    takes.to_owned()
}

fn docs(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(file)
}

/// Compares a published file with its expected contents, or writes it where `MESETA_BLESS` is set.
fn hold(path: &Path, expected: &str) {
    if std::env::var_os("MESETA_BLESS").is_some() {
        std::fs::write(path, expected).expect("the file can be written");
    }
    let published = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        published == expected,
        "{} differs from the declarations: MESETA_BLESS=1 cargo test -p meseta-jobs --lib file::reference",
        path.display()
    );
}

#[test]
fn the_schema_is_published() {
    let schema = serde_json::to_string_pretty(&super::schema()).expect("JSON");
    hold(&docs("jobs.schema.json"), &format!("{schema}\n"));
}

#[test]
fn the_reference_has_every_field() {
    let path = docs("jobs.md");
    let page = std::fs::read_to_string(&path).expect("docs/jobs.md");
    let (before, rest) = page.split_once(BEGIN).expect("the begin of the fields");
    let (_, after) = rest.split_once(END).expect("the end of the fields");
    let expected = format!("{before}{BEGIN}\n{}{END}{after}", tables());
    hold(&path, &expected);
}
