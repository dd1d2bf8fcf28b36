//! The page for people: its files, which are part of the binary, and their answers.
//!
//! Entered through [`answer`], for paths outside the routes. The files are the same for everybody and reveal nothing about
//! a cluster: the page queries the daemon's routes, with the rights of its reader. Invariant: a browser runs only these
//! files in the page, and the page queries only the daemon that it came from.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::sync::LazyLock;

use axum::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};

/// The policy: scripts, styles and responses come from this daemon, and no other page shows this page in a frame.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; \
                      object-src 'none'";

/// The daemon of a page; each daemon has its own first file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    Master,
    Agent,
    Scheduler,
}

impl Page {
    /// Returns the file that is served at `/`.
    const fn first(self) -> &'static str {
        match self {
            Self::Master => "index.html",
            Self::Agent => "agent.html",
            Self::Scheduler => "scheduler.html",
        }
    }
}

const JAVASCRIPT: &str = "text/javascript; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

macro_rules! files {
    ($($name:literal: $kind:expr,)*) => {
        &[$(($name, $kind, include_bytes!(concat!("../ui/", $name)))),*]
    };
}

/// Name, type and content of each file.
static FILES: &[(&str, &str, &[u8])] = files! {
    "index.html": HTML,
    "agent.html": HTML,
    "scheduler.html": HTML,
    "icon.svg": "image/svg+xml",
    "style.css": CSS,
    "app.js": JAVASCRIPT,
    "agent.js": JAVASCRIPT,
    "agents.js": JAVASCRIPT,
    "api.js": JAVASCRIPT,
    "events.js": JAVASCRIPT,
    "form.js": JAVASCRIPT,
    "format.js": JAVASCRIPT,
    "frameworks.js": JAVASCRIPT,
    "job.js": JAVASCRIPT,
    "jobs.js": JAVASCRIPT,
    "logs.js": JAVASCRIPT,
    "machine.js": JAVASCRIPT,
    "now.js": JAVASCRIPT,
    "operate.js": JAVASCRIPT,
    "parts.js": JAVASCRIPT,
    "plot.js": JAVASCRIPT,
    "rights.js": JAVASCRIPT,
    "roles.js": JAVASCRIPT,
    "scheduler.js": JAVASCRIPT,
    "stream.js": JAVASCRIPT,
    "tasks.js": JAVASCRIPT,
    "vendor/preact-htm.js": JAVASCRIPT,
    "vendor/uplot.js": JAVASCRIPT,
    "vendor/uplot.css": CSS,
    "vendor/LICENSE-htm": TEXT,
    "vendor/LICENSE-preact": TEXT,
    "vendor/LICENSE-uplot": TEXT,
};

#[derive(Debug)]
struct File {
    content_type: HeaderValue,
    plain: Bytes,
    gzipped: Bytes,
    /// The version of the file; weak, since it is the same for both encodings.
    version: HeaderValue,
}

/// The files by name; compressed once, at the first request.
static BY_NAME: LazyLock<HashMap<&str, File>> = LazyLock::new(|| {
    let file = |(name, kind, content): &(&'static str, &'static str, &'static [u8])| {
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        let version = format!("W/\"{:x}\"", hasher.finish());
        let is_ours = *kind == JAVASCRIPT && !name.starts_with("vendor/");
        let plain = match is_ours {
            true => without_comments(content).into(),
            false => Bytes::from_static(content),
        };
        let file = File {
            content_type: HeaderValue::from_static(kind),
            // Without a compressed form everybody gets the plain one.
            gzipped: gzipped(&plain).unwrap_or_default().into(),
            plain,
            version: HeaderValue::from_str(&version).unwrap_or(HeaderValue::from_static("W/\"\"")),
        };
        (*name, file)
    };
    FILES.iter().map(file).collect()
});

/// Returns a module without its comments, which have lines of their own. Each comment stays an empty line, so that the line
/// numbers in a browser's errors match the file.
fn without_comments(content: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(content.len());
    let mut is_comment = false;
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        let text = line.trim_ascii();
        is_comment |= text.starts_with(b"/**");
        if is_comment || text.starts_with(b"//") {
            kept.push(b'\n');
        } else {
            kept.extend_from_slice(line);
        }
        is_comment &= !text.ends_with(b"*/");
    }
    kept
}

fn gzipped(content: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content)?;
    encoder.finish()
}

/// Returns the response to a request for a file of the page, or `None` if the page has no such file. The first file is
/// served at `/`, the others below `/ui/`.
#[must_use]
pub fn answer<B>(page: Page, request: &Request<B>) -> Option<Response<Body>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return None;
    }
    let name = match request.uri().path() {
        "/" => page.first(),
        path => path
            .strip_prefix("/ui/")
            .filter(|name| !name.ends_with(".html"))?,
    };
    let file = BY_NAME.get(name)?;
    let is_known = header_items(request.headers(), &header::IF_NONE_MATCH)
        .any(|tag| tag == "*" || file.version.as_bytes() == tag.as_bytes());
    let takes_gzip = header_items(request.headers(), &header::ACCEPT_ENCODING)
        .any(|item| is_gzip(item) && !file.gzipped.is_empty());
    let mut response = Response::new(match (is_known, takes_gzip) {
        (true, _) => Body::empty(),
        (false, true) => file.gzipped.clone().into(),
        (false, false) => file.plain.clone().into(),
    });
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    if takes_gzip && !is_known {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    headers.insert(header::CONTENT_TYPE, file.content_type.clone());
    headers.insert(header::ETAG, file.version.clone());
    for (name, value) in [
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "accept-encoding"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Some(response)
}

/// Returns the items of a header that is a list, without items that are no text.
fn header_items<'a>(
    headers: &'a HeaderMap,
    name: &header::HeaderName,
) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).map(str::trim)
}

/// Whether an item of `Accept-Encoding` permits gzip: `gzip;q=0` forbids it.
fn is_gzip(item: &str) -> bool {
    let mut parts = item.split(';').map(str::trim);
    let is_named = parts
        .next()
        .is_some_and(|name| name.eq_ignore_ascii_case("gzip") || name == "*");
    let is_refused = parts.any(|part| {
        let weight = part.strip_prefix("q=").and_then(|q| q.parse::<f32>().ok());
        weight.is_some_and(|weight| weight <= 0.0)
    });
    is_named && !is_refused
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use http_body_util::BodyExt as _;

    use super::*;

    fn ask(method: &str, path: &str, headers: &[(&str, &str)]) -> Option<Response<Body>> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        answer(Page::Master, &request.body(()).unwrap())
    }

    async fn bytes_of(response: Response<Body>) -> Bytes {
        response.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn only_existing_files_are_found() {
        let index = ask("GET", "/", &[]).unwrap();
        assert_eq!(index.headers()[header::CONTENT_TYPE], HTML);
        assert_eq!(index.headers()[header::CONTENT_SECURITY_POLICY], POLICY);
        assert_eq!(bytes_of(index).await, FILES[0].2);
        for (page, at) in [(Page::Agent, 1), (Page::Scheduler, 2)] {
            let first = answer(page, &Request::builder().uri("/").body(()).unwrap());
            assert_eq!(bytes_of(first.unwrap()).await, FILES[at].2);
        }
        for path in [
            "/ui",
            "/ui/",
            "/ui/index.html",
            "/ui/../app.js",
            "/ui/no.js",
        ] {
            assert!(ask("GET", path, &[]).is_none(), "{path}");
        }
        assert!(ask("POST", "/", &[]).is_none());
    }

    #[test]
    fn comments_vanish_and_line_numbers_stay() {
        let module = "// What it is.\nlet a = 1; // kept\n  /** Of\n   * two lines. */\nlet b = `//x`;\n/** One. */\nlet c;\n";
        let expected = "\nlet a = 1; // kept\n\n\nlet b = `//x`;\n\nlet c;\n";
        let kept = without_comments(module.as_bytes());
        assert_eq!(String::from_utf8(kept).unwrap(), expected);
    }

    #[tokio::test]
    async fn unchanged_file_is_not_sent_again() {
        let first = ask("GET", "/ui/app.js", &[]).unwrap();
        let version = first.headers()[header::ETAG].to_str().unwrap().to_owned();
        let tags = format!("\"x\", {version}");
        let again = ask("GET", "/ui/app.js", &[("If-None-Match", &tags)]).unwrap();
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        assert!(bytes_of(again).await.is_empty());
        let other = ask("GET", "/ui/api.js", &[("If-None-Match", &tags)]).unwrap();
        assert_eq!(other.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn files_are_compressed_on_request() {
        for (accepted, is_compressed) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("*", true),
            ("gzip;q=0", false),
            ("br", false),
        ] {
            let given = ask("GET", "/ui/app.js", &[("Accept-Encoding", accepted)]).unwrap();
            let encoding = given.headers().get(header::CONTENT_ENCODING).cloned();
            assert_eq!(encoding.is_some(), is_compressed, "{accepted}");
            let body = bytes_of(given).await;
            let mut plain = Vec::new();
            match is_compressed {
                true => drop(GzDecoder::new(&*body).read_to_end(&mut plain).unwrap()),
                false => plain.extend_from_slice(&body),
            }
            assert_eq!(plain, BY_NAME["app.js"].plain, "{accepted}");
        }
    }

    /// Returns the files that a file of the page imports or makes the browser load.
    fn named_in(content: &'static [u8]) -> impl Iterator<Item = &'static str> {
        let quoted = str::from_utf8(content).unwrap().split('"').skip(1);
        quoted.filter_map(|text| text.strip_prefix("ui/").or_else(|| text.strip_prefix("./")))
    }

    fn ours() -> impl Iterator<Item = &'static (&'static str, &'static str, &'static [u8])> {
        let is_ours = |name: &str| !name.starts_with("vendor/");
        FILES.iter().filter(move |(name, ..)| is_ours(name))
    }

    /// The limit covers all files that a browser loads while it visits the whole page of a daemon: on a slow line nobody
    /// waits for more.
    #[test]
    fn the_page_is_small() {
        const BYTES_MAX: usize = 61_000;
        for page in [Page::Master, Page::Agent, Page::Scheduler] {
            let mut loaded = BTreeSet::new();
            let mut left = vec![page.first()];
            while let Some(name) = left.pop() {
                if loaded.insert(name) {
                    let file = ours().find(|(known, ..)| *known == name);
                    left.extend(
                        file.into_iter()
                            .flat_map(|(_, _, content)| named_in(content)),
                    );
                }
            }
            assert!(loaded.contains("vendor/preact-htm.js"), "{loaded:?}");
            let bytes: usize = loaded.iter().map(|name| BY_NAME[name].gzipped.len()).sum();
            assert!(bytes <= BYTES_MAX, "{page:?}: {bytes} bytes, compressed");
        }
    }

    #[test]
    fn every_page_file_is_embedded() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/ui");
        let mut there = BTreeSet::new();
        for folder in ["", "vendor/"] {
            for entry in std::fs::read_dir(format!("{dir}/{folder}")).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                if entry.file_type().unwrap().is_file() && name != "README.md" {
                    there.insert(format!("{folder}{name}"));
                }
            }
        }
        let known: BTreeSet<_> = FILES.iter().map(|(name, ..)| (*name).to_owned()).collect();
        assert_eq!(there, known);
        for (name, _, content) in ours() {
            for named in named_in(content) {
                assert!(known.contains(named), "{name} names {named}");
            }
        }
    }

    /// Names in a cluster are foreign texts: a text inserted as markup could be made to run.
    #[test]
    fn page_files_obey_strict_policy() {
        for (name, _, content) in ours() {
            let text = str::from_utf8(content).unwrap();
            for forbidden in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "javascript:",
                "<script>",
                " style=\"",
                "onclick=\"",
            ] {
                assert!(!text.contains(forbidden), "{name} has {forbidden}");
            }
        }
    }
}
