//! Passwords, tokens and challenges against a registry on loopback.

use super::*;

/// A registry that knows the password of one user.
pub(super) fn with_basic(image: TestImage) -> TestRegistry {
    TestRegistry::start(move |request, _| {
        let right = format!("Basic {}", BASE64_STANDARD.encode("ann:pw"));
        match request.header("authorization") == Some(right.as_str()) {
            true => image.answer(request),
            false => TestAnswer::status(401).with("WWW-Authenticate", "Basic realm=\"x\""),
        }
    })
}

#[test]
fn basic_authentication_is_sent_when_asked() {
    let registry = with_basic(image());
    let client = Client::with_password(&registry, "ann:pw");
    assert_eq!(client.pull().expect("pulled"), [LAYER]);
    let requests = registry.requests();
    assert_eq!(requests.len(), 4);
    assert_eq!(requests[0].header("authorization"), None);
}

#[test]
fn wrong_password_is_refused_at_once() {
    let registry = with_basic(image());
    let error = Client::with_password(&registry, "ann:hunter2")
        .pull()
        .expect_err("refused");
    assert!(
        error.contains("denied") && !error.contains("hunter2"),
        "{error}"
    );
    assert_eq!(registry.requests().len(), 2);
}

#[test]
fn missing_credentials_are_named() {
    let registry = with_basic(image());
    let error = Client::new(&registry).pull().expect_err("refused");
    let host = registry.host();
    assert!(
        error.contains(&format!("add {host} to Docker's configuration")),
        "{error}"
    );
}

/// A registry whose token service is at `realm`, or on the same server.
fn with_tokens(realm: Option<String>) -> TestRegistry {
    let image = image();
    TestRegistry::start(move |request, _| {
        if request.target.starts_with("/token") {
            return token(request);
        }
        if request.header("authorization") == Some("Bearer good") {
            return image.answer(request);
        }
        let host = request.header("host").unwrap_or_default();
        let realm = realm
            .clone()
            .unwrap_or_else(|| format!("http://{host}/token?x=y"));
        let challenge =
            format!(r#"Bearer realm="{realm}",service="s v",scope="repository:app:pull""#);
        TestAnswer::status(401).with("WWW-Authenticate", &challenge)
    })
}

fn token(request: &TestRequest) -> TestAnswer {
    let right = format!("Basic {}", BASE64_STANDARD.encode("ann:pw"));
    let is_right = request.header("authorization") == Some(right.as_str());
    let is_refresh = request.body.contains("grant_type=refresh_token")
        && request.body.contains("&refresh_token=long%2Dlived");
    match is_right || is_refresh {
        true => TestAnswer::ok(br#"{"token":"good","expires_in":300}"#),
        false => TestAnswer::ok(br#"{"details":"bad password"}"#).with_status(401),
    }
}

#[test]
fn one_token_serves_the_whole_pull() {
    let registry = with_tokens(None);
    let client = Client::with_password(&registry, "ann:pw");
    assert_eq!(client.pull().expect("pulled"), [LAYER]);
    let requests = registry.requests();
    let tokens = requests
        .iter()
        .filter(|one| one.target.starts_with("/token"));
    let targets = tokens.map(|one| one.target.as_str()).collect::<Vec<_>>();
    assert_eq!(
        targets,
        ["/token?x=y&service=s%20v&scope=repository%3Aapp%3Apull"]
    );
    assert_eq!(requests.len(), 5);
}

#[test]
fn token_is_renewed_before_its_end() {
    let registry = with_tokens(None);
    let client = Client::with_password(&registry, "ann:pw");
    client.pull().expect("pulled");
    client.clock.advance(Duration::from_secs(296));
    assert_eq!(client.layer().expect("pulled"), LAYER);
    let requests = registry.requests();
    let tokens = requests
        .iter()
        .filter(|one| one.target.starts_with("/token"))
        .count();
    assert_eq!(tokens, 2);
}

#[test]
fn revoked_token_is_renewed() {
    let image = image();
    let registry = TestRegistry::start(move |request, earlier| {
        if request.target.starts_with("/token") {
            let text = format!(r#"{{"access_token":"t{earlier}"}}"#);
            return TestAnswer::ok(text.as_bytes());
        }
        // Each part needs a new token.
        let wanted = if is_layer(request) {
            "Bearer t1"
        } else {
            "Bearer t0"
        };
        match request.header("authorization") == Some(wanted) {
            true => image.answer(request),
            false => {
                let host = request.header("host").unwrap_or_default();
                let challenge = format!(r#"Bearer realm="http://{host}/token""#);
                TestAnswer::status(401).with("WWW-Authenticate", &challenge)
            }
        }
    });
    assert_eq!(Client::new(&registry).pull().expect("pulled"), [LAYER]);
}

#[test]
fn identity_token_is_exchanged() {
    let registry = with_tokens(None);
    let client = Client::with_password(&registry, "<token>:long-lived");
    assert_eq!(client.pull().expect("pulled"), [LAYER]);
}

#[test]
fn refused_password_names_user_and_reason() {
    let registry = with_tokens(None);
    let error = Client::with_password(&registry, "ann:hunter2")
        .pull()
        .expect_err("refused");
    assert!(
        error.contains("user \"ann\"") && error.contains("bad password"),
        "{error}"
    );
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn foreign_realm_gets_no_request() {
    let foreign = TestRegistry::start(|request, _| token(request));
    let registry = with_tokens(Some(format!("http://{}/token", foreign.host())));
    let error = Client::with_password(&registry, "ann:pw")
        .pull()
        .expect_err("refused");
    assert!(error.contains("--docker_registry_realms"), "{error}");
    assert!(foreign.requests().is_empty());
    // The operator may trust it.
    let options = RegistryOptions {
        settings: RegistrySettings {
            realms: vec![foreign.host()],
            ..RegistrySettings::default()
        },
        ..RegistryOptions::default()
    };
    let credentials = credentials_for(&registry.host(), "ann:pw");
    let client = Client::with(&registry.host(), options, credentials);
    assert_eq!(client.pull().expect("pulled"), [LAYER]);
}

#[test]
fn redirected_token_service_is_refused() {
    let foreign = TestRegistry::start(|request, _| token(request));
    let address = format!("http://{}/token", foreign.host());
    let registry =
        TestRegistry::start(
            move |request, _| match request.target.starts_with("/token") {
                true => TestAnswer::status(307).with("Location", &address),
                false => {
                    let host = request.header("host").unwrap_or_default();
                    let challenge = format!(r#"Bearer realm="http://{host}/token""#);
                    TestAnswer::status(401).with("WWW-Authenticate", &challenge)
                }
            },
        );
    let error = Client::with_password(&registry, "ann:pw")
        .pull()
        .expect_err("refused");
    assert!(error.contains("redirect"), "{error}");
    assert!(foreign.requests().is_empty());
}

#[test]
fn redirect_target_gets_no_credentials() {
    let image_of_storage = image();
    let storage = TestRegistry::start(move |request, _| image_of_storage.answer(request));
    let host = storage.host();
    let image = image();
    let registry = TestRegistry::start(move |request, _| {
        if request.header("authorization").is_none() {
            return TestAnswer::status(401).with("WWW-Authenticate", "Basic");
        }
        match is_layer(request) {
            true => TestAnswer::status(307)
                .with("Location", &format!("http://{host}{}", request.target)),
            false => image.answer(request),
        }
    });
    let client = Client::with_password(&registry, "ann:pw");
    assert_eq!(client.pull().expect("pulled"), [LAYER]);
    let requests = storage.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].header("authorization"), None);
}

#[test]
fn challenge_of_redirect_target_is_ignored() {
    let storage =
        TestRegistry::start(|_, _| TestAnswer::status(401).with("WWW-Authenticate", "Basic"));
    let host = storage.host();
    let registry = TestRegistry::start(move |request, _| {
        TestAnswer::status(302).with("Location", &format!("http://{host}{}", request.target))
    });
    let error = Client::with_password(&registry, "ann:pw")
        .pull()
        .expect_err("refused");
    assert!(error.contains("credentials"), "{error}");
    assert!(
        storage
            .requests()
            .iter()
            .all(|one| one.header("authorization").is_none())
    );
}
