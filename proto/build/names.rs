//! The spelling of protobuf names in prost's Rust code.

use heck::{ToSnakeCase, ToUpperCamelCase};

/// Words that prost escapes as names of fields or modules.
const KEYWORDS: &[&str] = &[
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
    "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return",
    "static", "struct", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield",
];

pub(crate) fn field(name: &str) -> String {
    let snake = name.to_snake_case();
    if KEYWORDS.contains(&snake.as_str()) {
        format!("r#{snake}")
    } else {
        snake
    }
}

pub(crate) fn camel(name: &str) -> String {
    let camel = name.to_upper_camel_case();
    if camel == "Self" {
        "Self_".to_owned()
    } else {
        camel
    }
}

/// The path of a type declared in `package` within the messages `parents`.
pub(crate) fn path(package: &str, parents: &[String], name: &str) -> String {
    let mut out = "crate".to_owned();
    for segment in package.split('.') {
        out.push_str("::");
        out.push_str(&field(segment));
    }
    for parent in parents {
        out.push_str("::");
        out.push_str(&field(parent));
    }
    out.push_str("::");
    out.push_str(&camel(name));
    out
}
