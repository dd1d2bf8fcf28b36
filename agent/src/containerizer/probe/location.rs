//! The target of a redirect: resolves `Location` against the requested URL (RFC 3986, section 5.2).

use ureq::http::Uri;

/// Resolves a reference against the URL of a page.
pub(super) fn resolve(page: &Uri, reference: &str) -> Option<String> {
    let reference = reference.split('#').next().unwrap_or_default().trim();
    let (scheme, authority) = (page.scheme_str()?, page.authority()?);
    if has_scheme(reference) {
        return Some(reference.to_owned());
    }
    if let Some(host_and_path) = reference.strip_prefix("//") {
        return Some(format!("{scheme}://{host_and_path}"));
    }
    let origin = format!("{scheme}://{authority}");
    let (path, query) = match reference.split_once('?') {
        Some((path, query)) => (path, format!("?{query}")),
        None => (reference, String::new()),
    };
    if path.is_empty() {
        let query = match (query.is_empty(), page.query()) {
            (true, Some(query)) => format!("?{query}"),
            _ => query,
        };
        return Some(format!("{origin}{}{query}", page.path()));
    }
    let path = match path.starts_with('/') {
        true => path.to_owned(),
        false => {
            let folder = page
                .path()
                .rsplit_once('/')
                .map_or("", |(folder, _)| folder);
            format!("{folder}/{path}")
        }
    };
    Some(format!("{origin}{}{query}", without_dots(&path)))
}

fn has_scheme(reference: &str) -> bool {
    let end = reference.find([':', '/', '?']);
    let scheme = end.and_then(|end| {
        reference
            .get(..end)
            .filter(|_| reference[end..].starts_with(':'))
    });
    scheme.is_some_and(|scheme| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|one| one.is_ascii_alphanumeric() || "+-.".contains(one))
    })
}

fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." if !is_last => {}
            ".." if !is_last => drop(kept.pop()),
            "." => kept.push(""),
            ".." => {
                kept.pop();
                kept.push("");
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved_against_the_page() {
        let page = Uri::from_static("http://h:81/a/b?q");
        for (reference, url) in [
            ("https://o/x", "https://o/x"),
            ("//o/x", "http://o/x"),
            ("/x?y", "http://h:81/x?y"),
            ("x", "http://h:81/a/x"),
            ("./x/../y/.", "http://h:81/a/y/"),
            ("../../..", "http://h:81/"),
            ("?z", "http://h:81/a/b?z"),
            ("#part", "http://h:81/a/b?q"),
            ("", "http://h:81/a/b?q"),
            ("x:y/z", "x:y/z"),
            ("/x:y", "http://h:81/x:y"),
            (" /x ", "http://h:81/x"),
        ] {
            assert_eq!(
                resolve(&page, reference).as_deref(),
                Some(url),
                "{reference:?}"
            );
        }
        let bare = Uri::from_static("http://h");
        assert_eq!(resolve(&bare, "x").as_deref(), Some("http://h/x"));
    }
}
