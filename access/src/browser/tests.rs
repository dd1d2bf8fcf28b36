//! Requests as browsers and other programs send them, and the decision on each.

use super::*;

fn policy() -> Policy {
    Policy {
        hosts: ["node1.example", "*.mesos"]
            .map(|text| HostPattern::parse(text).unwrap())
            .to_vec(),
        origins: vec![Origin::parse("https://proxy.example").unwrap()],
        takes_short_names: false,
    }
}

const PLAIN: Request<'static> = Request {
    authorities: &["127.0.0.1:5050"],
    origin: None,
    referer: None,
    fetch_site: None,
    user_agent: None,
    encrypted: false,
    effect: Effect::Changes,
};

#[test]
fn own_host_names_are_answered_only() {
    let exposed = Policy {
        takes_short_names: true,
        ..policy()
    };
    let certified = [HostPattern::parse("*.certified.example").unwrap()];
    // The name, whether it is answered on loopback, and on an address that others can reach.
    for (host, local, elsewhere) in [
        ("127.0.0.1:5050", true, true),
        ("127.255.0.9", true, true),
        ("10.0.0.1:5050", true, true),
        ("[::1]:5050", true, true),
        ("[::1]", true, true),
        ("localhost", true, true),
        ("LocalHost.:5050", true, true),
        ("node1.example:5051", true, true),
        ("NODE1.example.", true, true),
        ("leader.mesos:5050", true, true),
        ("a.certified.example", true, true),
        ("", true, true),
        ("master", false, true),
        ("mesos", false, true),
        (".mesos", false, false),
        ("certified.example", false, false),
        ("evil.example", false, false),
        ("node1.example.evil.example", false, false),
        ("evilnode1.example", false, false),
        ("127.0.0.1.evil.example", false, false),
        ("localhost.evil.example", false, false),
        ("127.0.0.1@evil.example", false, false),
        ("evil.example:x", false, false),
        ("[::1", false, false),
        ("[evil.example]", false, false),
        ("::1", false, false),
        ("b\u{fc}cher.example", false, false),
        ("0x7f.1", false, false),
    ] {
        for effect in [Effect::Reads, Effect::Changes, Effect::ChangesByGet] {
            let authorities = [host];
            let request = Request {
                authorities: &authorities,
                effect,
                ..PLAIN
            };
            let told = policy().check(&request, &certified);
            assert_eq!(told.is_ok(), local, "{host} on loopback: {told:?}");
            let told = exposed.check(&request, &certified);
            assert_eq!(told.is_ok(), elsewhere, "{host} elsewhere: {told:?}");
        }
    }
    let two = ["127.0.0.1", "evil.example"];
    let request = Request {
        authorities: &two,
        ..PLAIN
    };
    let told = policy().check(&request, &[]);
    assert_eq!(told, Err(BlockedRequest::Host("evil.example".to_owned())));
    let any = Policy {
        hosts: vec![HostPattern::Any],
        ..Policy::default()
    };
    assert!(any.check(&request, &[]).is_ok());
}

#[test]
fn page_changes_only_its_own_daemon() {
    let own = "http://127.0.0.1:5050";
    let evil = "http://evil.example";
    // Origin, Referer, Sec-Fetch-Site, and whether a POST is accepted.
    for (origin, referer, site, taken) in [
        (None, None, None, true),
        (Some(own), None, None, true),
        (Some(own), Some(evil), Some("same-origin"), true),
        (Some("HTTP://127.0.0.1:5050"), None, None, true),
        (None, None, Some("same-origin"), true),
        (None, None, Some("none"), true),
        (None, Some("http://127.0.0.1:5050/page?x#y"), None, true),
        (Some("null"), None, Some("same-origin"), true),
        (Some("null"), None, None, false),
        (Some("null"), None, Some("cross-site"), false),
        (Some("null"), Some(own), None, false),
        (Some(evil), None, None, false),
        (Some(evil), Some(own), None, false),
        (Some(evil), None, Some("same-origin"), false),
        (Some(own), None, Some("cross-site"), false),
        (Some(own), None, Some("same-site"), false),
        (None, None, Some("same-site"), false),
        (None, None, Some("cross-site"), false),
        (None, None, Some("nonsense"), false),
        (None, Some("http://evil.example/"), None, false),
        (
            None,
            Some("http://evil.example@127.0.0.1:5050/"),
            None,
            true,
        ),
        (
            None,
            Some("http://127.0.0.1:5050@evil.example/"),
            None,
            false,
        ),
        (None, Some("nonsense"), None, false),
        (Some("http://127.0.0.1:5051"), None, None, false),
        (Some("http://127.0.0.1"), None, None, false),
        (Some("http://localhost:5050"), None, None, false),
        (Some("https://127.0.0.1:5050"), None, None, true),
        (Some("ftp://127.0.0.1:5050"), None, None, false),
        (Some("chrome-extension://abcdef"), None, None, false),
        (Some("nonsense"), None, None, false),
        (Some(""), None, None, false),
        (
            Some("https://proxy.example"),
            None,
            Some("cross-site"),
            true,
        ),
        (Some("https://proxy.example:443"), None, None, true),
        (Some("https://proxy.example:8443"), None, None, false),
        (Some("http://proxy.example"), None, None, false),
        (None, Some("https://proxy.example/ui/"), None, true),
    ] {
        let request = Request {
            origin,
            referer,
            fetch_site: site,
            ..PLAIN
        };
        let told = policy().check(&request, &[]);
        assert_eq!(told.is_ok(), taken, "{request:?}: {told:?}");
        let read = Request {
            effect: Effect::Reads,
            ..request
        };
        assert!(policy().check(&read, &[]).is_ok(), "{read:?}");
    }
    // A page over plain HTTP differs from the page over TLS.
    let encrypted = Request {
        origin: Some(own),
        encrypted: true,
        ..PLAIN
    };
    assert!(policy().check(&encrypted, &[]).is_err());
}

#[test]
fn default_port_may_be_omitted() {
    for (host, origin) in [
        ("node1.example", "http://node1.example"),
        ("node1.example:80", "http://node1.example"),
        ("node1.example", "https://node1.example"),
        ("node1.example:443", "https://node1.example"),
        ("[::1]", "http://[0:0::1]"),
    ] {
        let authorities = [host];
        let request = Request {
            authorities: &authorities,
            origin: Some(origin),
            ..PLAIN
        };
        let told = policy().check(&request, &[]);
        assert_eq!(told, Ok(Source::Own), "{host} {origin}");
    }
}

#[test]
fn no_browser_changes_anything_by_get() {
    let get = Request {
        effect: Effect::ChangesByGet,
        ..PLAIN
    };
    let check = |request: Request<'_>| policy().check(&request, &[]);
    assert_eq!(check(get), Ok(Source::Own));
    let curl = Some("curl/8.5.0");
    assert_eq!(
        check(Request {
            user_agent: curl,
            ..get
        }),
        Ok(Source::Own)
    );
    let browser = Some("Mozilla/5.0 (X11; Linux x86_64)");
    let own = Some("http://127.0.0.1:5050");
    for request in [
        Request {
            user_agent: browser,
            ..get
        },
        Request { origin: own, ..get },
        Request {
            referer: own,
            ..get
        },
        Request {
            fetch_site: Some("same-origin"),
            ..get
        },
        Request {
            fetch_site: Some("none"),
            ..get
        },
        Request {
            origin: Some("https://proxy.example"),
            ..get
        },
    ] {
        assert_eq!(check(request), Err(BlockedRequest::Get), "{request:?}");
    }
}

#[test]
fn refusal_does_not_echo_raw_header() {
    let authorities = ["<script>'\u{1b}[2J"];
    let request = Request {
        authorities: &authorities,
        ..PLAIN
    };
    let refused = policy().check(&request, &[]).unwrap_err();
    assert_eq!(refused, BlockedRequest::Host("script[2J".to_owned()));
}

#[test]
fn host_and_origin_flags_are_validated() {
    for text in ["", "*.", ".", "http://a", "a:80", "a b", "*a", "a*.b"] {
        assert!(HostPattern::parse(text).is_err(), "{text:?}");
    }
    for text in [
        "",
        "a",
        "a.example:80",
        "http://",
        "http://a/",
        "://a",
        "http://a b",
    ] {
        assert!(Origin::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn form_content_types_are_recognized() {
    for (text, is_one) in [
        ("text/plain", true),
        ("Text/Plain;charset=UTF-8", true),
        ("text/plain; application/json", true),
        ("multipart/form-data; boundary=x", true),
        (" multipart/mixed", true),
        ("application/json", false),
        ("application/json; text/plain", false),
        ("application/x-www-form-urlencoded", false),
        ("application/octet-stream", false),
        ("", false),
    ] {
        assert_eq!(is_type_of_forms(text), is_one, "{text:?}");
    }
}
