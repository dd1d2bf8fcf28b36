//! The table of a daemon's routes: one place for all rules of a path.
//!
//! Dispatch, authentication, authorization, the firewall, the reference pages and the tests of access read [`Routes`].
//! Invariant: no handler answers a path outside the table; gRPC and the files of a page for people are beside it.

use http::{Method, header};
use meseta_access::{Action, browser};

use crate::authentication::{Authentication, Realm};
use crate::request::READ;

/// The methods of a route that accepts every method.
pub const ANY_METHOD: &[Method] = &[];

/// The permission that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The answer contains nothing confidential.
    Nothing,
    /// A permission for the whole response, with its object.
    Permission(Action, Option<&'static str>),
    /// Any authenticated caller; hidden entries are left out.
    Filtered,
    /// The changed object determines the permission, and the handler that parses it checks the permission.
    ByObject,
}

/// The type of a route's bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyType {
    Json,
    Form,
}

/// A path with its rules. `H` handles its requests.
#[derive(Clone, Copy, Debug)]
pub struct Route<H> {
    /// The path of a request, such as `/maintenance/status`.
    pub path: &'static str,
    pub methods: &'static [Method],
    pub realm: Realm,
    /// The permission for a request.
    pub need: Need,
    /// The permission for GET and HEAD, if it differs.
    pub need_of_reads: Option<Need>,
    /// A parameter that makes a request change something, with any method.
    pub changed_by: Option<&'static str>,
    /// The type of the bodies, required where a page's form could send another.
    pub body_type: Option<BodyType>,
    /// The length of the longest accepted body.
    pub body_bytes_max: usize,
    /// Whether the route also matches paths below its own, as in libprocess.
    pub takes_paths_below: bool,
    /// Whether a master that does not lead serves the route too.
    pub by_followers: bool,
    /// Whether the answer has a number (`ETag`) that changes with its contents.
    pub has_etag: bool,
    pub handler: H,
    /// The description in the row of `docs/endpoints.md`.
    pub text: &'static str,
}

impl<H: Copy> Route<H> {
    /// Returns a route that changes nothing, for callers with read access.
    #[must_use]
    pub const fn read(path: &'static str, need: Need, handler: H, text: &'static str) -> Self {
        Self {
            path,
            methods: READ,
            realm: Realm::Readonly,
            need,
            need_of_reads: None,
            changed_by: None,
            body_type: None,
            body_bytes_max: 0,
            takes_paths_below: true,
            by_followers: false,
            has_etag: false,
            handler,
            text,
        }
    }

    /// Builds a route that is read with the permission for this endpoint.
    #[must_use]
    pub const fn endpoint(path: &'static str, handler: H, text: &'static str) -> Self {
        let need = Need::Permission(Action::GetEndpoint, Some(path));
        Self::read(path, need, handler, text)
    }

    /// Returns a route that changes the objects of its requests.
    #[must_use]
    pub const fn change(
        path: &'static str,
        methods: &'static [Method],
        handler: H,
        text: &'static str,
    ) -> Self {
        Self {
            methods,
            realm: Realm::Readwrite,
            ..Self::read(path, Need::ByObject, handler, text)
        }
    }

    /// Builds a route that needs no authentication.
    #[must_use]
    pub const fn open(path: &'static str, handler: H, text: &'static str) -> Self {
        Self::read(path, Need::Nothing, handler, text).realm(Realm::Open)
    }

    #[must_use]
    pub const fn realm(self, realm: Realm) -> Self {
        Self { realm, ..self }
    }

    #[must_use]
    pub const fn methods(self, methods: &'static [Method]) -> Self {
        Self { methods, ..self }
    }

    /// Filters the answer of GET by the caller's permissions.
    #[must_use]
    pub const fn filters_reads(self) -> Self {
        Self {
            need_of_reads: Some(Need::Filtered),
            ..self
        }
    }

    #[must_use]
    pub const fn changed_by(self, parameter: &'static str) -> Self {
        Self {
            changed_by: Some(parameter),
            ..self
        }
    }

    /// Sets the longest body, and its type where a page's form could send another.
    #[must_use]
    pub const fn body(self, body_bytes_max: usize, body_type: Option<BodyType>) -> Self {
        Self {
            body_bytes_max,
            body_type,
            ..self
        }
    }

    #[must_use]
    pub const fn with_etag(self) -> Self {
        Self {
            has_etag: true,
            ..self
        }
    }

    /// Lets a daemon that does not lead serve the route too, for itself.
    #[must_use]
    pub const fn by_followers(self) -> Self {
        Self {
            by_followers: true,
            ..self
        }
    }

    /// Makes paths below the route's own unknown.
    #[must_use]
    pub const fn alone(self) -> Self {
        Self {
            takes_paths_below: false,
            ..self
        }
    }

    /// Returns true if the route accepts this method. A route that accepts GET accepts HEAD too, even if `Allow` omits
    /// HEAD.
    #[must_use]
    pub fn takes(&self, method: &Method) -> bool {
        let method = match *method {
            Method::HEAD => &Method::GET,
            _ => method,
        };
        self.methods.is_empty() || self.methods.contains(method)
    }

    /// Returns the permission for a request with this method.
    #[must_use]
    pub fn need(&self, method: &Method) -> Need {
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        self.need_of_reads.filter(|_| is_read).unwrap_or(self.need)
    }

    /// Whether a GET request may change state.
    #[must_use]
    pub fn changes_by_get(&self, query: Option<&str>) -> bool {
        let is_named = |parameter| query.is_some_and(|query| query.contains(parameter));
        self.changed_by.is_some_and(is_named)
    }

    /// Returns why the body is refused, if it has a type that only a page's form has. The type is not checked otherwise, as
    /// in Mesos: `curl -d` declares a form.
    #[must_use]
    pub fn wrong_body_type<B>(&self, request: &http::Request<B>) -> Option<String> {
        let expected = match self.body_type? {
            BodyType::Json => "application/json",
            BodyType::Form => "application/x-www-form-urlencoded",
        };
        let mut given = request.headers().get_all(header::CONTENT_TYPE).iter();
        let given = given.find(|kind| {
            let kind = String::from_utf8_lossy(kind.as_bytes());
            browser::is_type_of_forms(&kind)
        })?;
        let given = String::from_utf8_lossy(given.as_bytes());
        Some(format!(
            "Expecting 'Content-Type' of {expected}, not '{}'",
            given.escape_debug()
        ))
    }

    /// Returns the methods as text for a row of the reference.
    #[must_use]
    pub fn methods_text(&self) -> String {
        let mut names: Vec<&str> = match self.methods == READ {
            true => vec!["read"],
            false => self.methods.iter().map(Method::as_str).collect(),
        };
        if self.has_etag {
            names.push("ETag");
        }
        names.join(", ")
    }
}

/// All routes of a daemon.
#[derive(Debug)]
pub struct Routes<H: 'static> {
    /// The name of the libprocess process, below which each path is served too: `master`.
    pub process: &'static str,
    pub list: &'static [Route<H>],
    /// The route for messages of libprocess, at `/mesos.internal.…`.
    pub libprocess: &'static Route<H>,
}

impl<H: Copy> Routes<H> {
    /// Returns the route with the longest path that is a prefix of the request's path.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<&'static Route<H>> {
        if path.split('/').any(|segment| segment == "..") {
            return None;
        }
        let path = self.without_process(path);
        if path.starts_with("mesos.internal.") {
            return Some(self.libprocess);
        }
        let mut rest = path;
        loop {
            let is_rest = |route: &&Route<H>| route.path.strip_prefix('/') == Some(rest);
            if let Some(route) = self.list.iter().find(is_rest) {
                let is_exact = rest.len() == path.len();
                return (is_exact || route.takes_paths_below).then_some(route);
            }
            rest = rest.rsplit_once('/')?.0;
        }
    }

    /// Returns the segments of a request's path below a route's path, with or without the process before it.
    #[must_use]
    pub fn segments_below<'a>(&self, route: &str, path: &'a str) -> Vec<&'a str> {
        let path = self.without_process(path);
        let below = path.strip_prefix(route.trim_start_matches('/'));
        let below = below.and_then(|rest| rest.strip_prefix('/'));
        below.map_or_else(Vec::new, |rest| rest.split('/').collect())
    }

    /// Returns a path without surrounding slashes and the process before it.
    fn without_process<'a>(&self, path: &'a str) -> &'a str {
        let path = path.trim_start_matches('/').trim_end_matches('/');
        let below = path
            .strip_prefix(self.process)
            .and_then(|rest| rest.strip_prefix('/'));
        below.unwrap_or(path)
    }

    /// Whether firewall rules disable the path: they name a route with or without the process, and paths below it belong to
    /// the route.
    #[must_use]
    pub fn is_disabled(&self, authentication: &Authentication, path: &str) -> bool {
        authentication.is_disabled(path)
            || self.find(path).is_some_and(|route| {
                let (process, name) = (self.process, route.path);
                authentication.is_disabled(name)
                    || authentication.is_disabled(&format!("/{process}{name}"))
            })
    }

    /// Returns the rows of `docs/endpoints.md`.
    #[must_use]
    pub fn reference(&self) -> String {
        let rows = self.list.iter().map(|route| {
            let (path, methods, text) = (route.path, route.methods_text(), route.text);
            format!("| `{path}` | {methods} | {text} |\n")
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static LIBPROCESS: Route<u8> = Route::open("/mesos.internal", 9, "").methods(ANY_METHOD);

    static ROUTES: Routes<u8> = Routes {
        process: "master",
        list: &[
            Route::read("/state", Need::Filtered, 1, "the whole state"),
            Route::change("/api/v1", &[Method::POST], 2, "calls"),
            Route::change("/api/v1/scheduler", &[Method::POST], 3, "calls"),
            Route::change("/quota", &[Method::GET, Method::POST], 4, "quota").filters_reads(),
            Route::open("/redirect", 5, "elsewhere").alone(),
        ],
        libprocess: &LIBPROCESS,
    };

    #[test]
    fn paths_are_found_as_libprocess_does() {
        for (path, expected) in [
            ("/state", Some(1)),
            ("/state/", Some(1)),
            ("/master/state", Some(1)),
            ("/masterstate", None),
            ("/state/below", Some(1)),
            ("/api/v1", Some(2)),
            ("/api/v1/other", Some(2)),
            ("/api/v1x", None),
            ("/master/api/v1/scheduler", Some(3)),
            ("/redirect", Some(5)),
            ("/redirect/below", None),
            ("/master/mesos.internal.Ping", Some(9)),
            ("/state/../quota", None),
            ("/", None),
            ("", None),
        ] {
            let found = ROUTES.find(path).map(|route| route.handler);
            assert_eq!(found, expected, "{path}");
        }
    }

    #[test]
    fn read_of_changeable_object_is_filtered() {
        let quota = ROUTES.find("/quota/ads").unwrap();
        assert_eq!(quota.need(&Method::GET), Need::Filtered);
        assert_eq!(quota.need(&Method::POST), Need::ByObject);
        assert!(quota.takes(&Method::POST) && !quota.takes(&Method::PATCH));
        assert!(quota.takes(&Method::HEAD));
        assert_eq!(quota.need(&Method::HEAD), Need::Filtered);
        let internal = ROUTES.find("/mesos.internal.Ping").unwrap();
        assert!(internal.takes(&Method::PATCH));
        assert!(
            ROUTES
                .reference()
                .contains("| `/quota` | GET, POST | quota |\n")
        );
        assert!(
            ROUTES
                .reference()
                .starts_with("| `/state` | read | the whole state |\n")
        );
    }
}
