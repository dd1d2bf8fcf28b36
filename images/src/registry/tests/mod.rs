//! The client against a registry on loopback that misbehaves.

mod authentication;

use std::error::Error as _;
use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::testing::{TestAnswer, TestImage, TestRegistry, TestRequest};
use super::*;
use crate::activity::Activity;
use crate::credentials::{Credentials, DockerConfig};
use crate::descriptor::{BlobDescriptor, Digest, Verified};
use crate::manifest::Platform;
use crate::origin::{Origin, OriginError};
use crate::reference::Reference;
use crate::wait::Cancel;
use crate::wait::testing::VirtualClock;

const LAYER: &[u8] = &[7; 600_000];

/// A client of one image, with a virtual clock.
struct Client {
    clock: Arc<VirtualClock>,
    repository: Arc<Repository>,
    activity: Arc<Activity>,
}

impl Client {
    fn new(registry: &TestRegistry) -> Self {
        Self::with(
            &registry.host(),
            RegistryOptions::default(),
            Credentials::default(),
        )
    }

    /// A client that knows the password of a host.
    fn with_password(registry: &TestRegistry, auth: &str) -> Self {
        let credentials = credentials_for(&registry.host(), auth);
        Self::with(&registry.host(), RegistryOptions::default(), credentials)
    }

    fn with(host: &str, options: RegistryOptions, credentials: Credentials) -> Self {
        let clock = VirtualClock::new();
        let client = RegistryClient::with_variables(options, |_| None, clock.clone());
        let client = Arc::new(client.expect("valid options"));
        let reference = Reference::parse("app", host).expect("valid");
        let repository = client.repository(&reference, credentials, Cancel::new());
        Self {
            clock,
            repository: repository.expect("valid settings"),
            activity: Arc::new(Activity::new()),
        }
    }

    /// Pulls the image, and returns the bytes of its layers.
    fn pull(&self) -> Result<Vec<Vec<u8>>, String> {
        let origin = Origin::Registry(self.repository.clone());
        let image = origin.resolve(&Platform::for_this_machine(), &self.activity);
        let image = image.map_err(|error| chain(&error))?;
        let layers = image.layers.iter().map(|layer| {
            let mut bytes = Vec::new();
            let read = origin.open(layer, &self.activity).read_to_end(&mut bytes);
            read.map(|_| bytes).map_err(|error| chain(&error))
        });
        layers.collect()
    }

    /// Downloads the only layer of an image.
    fn layer(&self) -> Result<Vec<u8>, String> {
        let blob = BlobDescriptor {
            digest: Digest::from_content(LAYER),
            size: LAYER.len() as u64,
            urls: Vec::new(),
        };
        let mut bytes = Vec::new();
        let reader = self.repository.blob(&blob, self.activity.clone());
        let read = Verified::new(reader, &blob).read_to_end(&mut bytes);
        read.map(|_| bytes).map_err(|error| chain(&error))
    }
}

fn credentials_for(host: &str, auth: &str) -> Credentials {
    let auth = BASE64_STANDARD.encode(auth);
    let text = format!(r#"{{"auths":{{"{host}":{{"auth":"{auth}"}}}}}}"#);
    let config = DockerConfig::from_secret(text.as_bytes()).expect("valid");
    Credentials::new(Some(Arc::new(config)), None)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    text
}

fn image() -> TestImage {
    TestImage::new(&[LAYER])
}

fn is_layer(request: &TestRequest) -> bool {
    request.target.contains(Digest::from_content(LAYER).hex())
}

/// A registry whose answers for the layer come from a function of earlier requests.
fn with_layer(
    answer: impl Fn(&TestRequest, usize) -> TestAnswer + Send + Sync + 'static,
) -> TestRegistry {
    let image = image();
    TestRegistry::start(move |request, earlier| match is_layer(request) {
        true => answer(request, earlier),
        false => image.answer(request),
    })
}

#[test]
fn anonymous_pull_takes_three_requests() {
    let image = TestImage::new(&[b"bottom", b"top"]);
    let served = image.clone();
    let registry = TestRegistry::start(move |request, _| served.answer(request));
    let client = Client::new(&registry);
    assert_eq!(client.pull().expect("pulled"), image.layers);
    let digest = |bytes: &[u8]| Digest::from_content(bytes).to_string();
    assert_eq!(
        registry.log(),
        [
            "GET manifests/latest".to_owned(),
            format!("GET blobs/{}", digest(&image.config)),
            format!("GET blobs/{}", digest(b"bottom")),
            format!("GET blobs/{}", digest(b"top")),
        ]
    );
    let first = &registry.requests()[0];
    assert_eq!(first.header("accept"), Some(crate::manifest::ACCEPT));
    assert_eq!(first.header("accept-encoding"), Some("identity"));
    let sizes = [image.manifest.len(), image.config.len(), 6, 3];
    assert_eq!(
        client.activity.received(),
        sizes.iter().sum::<usize>() as u64
    );
}

#[test]
fn head_tells_the_digest() {
    let image = image();
    let digest = Digest::from_content(&image.manifest);
    let registry = TestRegistry::start(move |request, _| image.answer(request));
    let client = Client::new(&registry);
    assert_eq!(
        client.repository.head(&client.activity).expect("answered"),
        Some(digest)
    );
    assert_eq!(registry.log(), ["HEAD manifests/latest"]);
}

#[test]
fn registry_without_head_is_no_failure() {
    for status in [405, 200] {
        let registry = TestRegistry::start(move |_, _| TestAnswer::status(status));
        let client = Client::new(&registry);
        assert_eq!(
            client.repository.head(&client.activity).expect("answered"),
            None
        );
    }
}

#[test]
fn redirect_loop_ends() {
    let registry =
        TestRegistry::start(|request, _| TestAnswer::status(302).with("Location", &request.target));
    let error = Client::new(&registry).pull().expect_err("refused");
    assert!(error.contains("more than 5 redirects"), "{error}");
    assert_eq!(registry.requests().len(), 6);
}

#[test]
fn cut_download_continues_by_range() {
    let image = image();
    let registry = with_layer(move |request, earlier| match earlier {
        0 => image.answer(request).cut_after(300_000),
        _ => image.answer(request),
    });
    let client = Client::new(&registry);
    assert_eq!(client.layer().expect("pulled"), LAYER);
    let log = registry.log();
    assert_eq!(log.len(), 2);
    assert!(log[1].ends_with(" bytes=300000-"), "{log:?}");
    assert_eq!(client.activity.received(), LAYER.len() as u64);
    assert_eq!(client.activity.wait_reason(), None);
}

#[test]
fn server_without_ranges_starts_over() {
    let registry = with_layer(|_, earlier| match earlier {
        0 => TestAnswer::ok(LAYER).cut_after(300_000),
        _ => TestAnswer::ok(LAYER),
    });
    let client = Client::new(&registry);
    assert_eq!(client.layer().expect("pulled"), LAYER);
    assert_eq!(client.activity.received(), LAYER.len() as u64);
}

#[test]
fn wrong_range_is_refused() {
    let registry = with_layer(|request, _| match request.range_start() {
        None => TestAnswer::ok(LAYER).cut_after(300_000),
        Some(_) => TestAnswer::ok(&LAYER[300_000..])
            .with_status(206)
            .with("Content-Range", "bytes 0-299999/600000"),
    });
    let error = Client::new(&registry).layer().expect_err("refused");
    assert!(error.contains("another range"), "{error}");
}

#[test]
fn many_cuts_with_progress_succeed() {
    let image = image();
    let registry = with_layer(move |request, _| image.answer(request).cut_after(299_000));
    assert_eq!(Client::new(&registry).layer().expect("pulled"), LAYER);
}

#[test]
fn cuts_without_progress_end() {
    let image = image();
    let registry = with_layer(move |request, _| image.answer(request).cut_after(10));
    let client = Client::new(&registry);
    let error = client.layer().expect_err("failed");
    assert!(
        error.contains("the connection broke") || error.contains("closed"),
        "{error}"
    );
    assert_eq!(registry.requests().len(), 6);
    assert_eq!(client.clock.waits().len(), 5);
}

#[test]
fn stalled_download_continues() {
    let image = image();
    let registry = with_layer(move |request, earlier| match earlier {
        0 => image.answer(request).stalled_after(300_000),
        _ => image.answer(request),
    });
    let options = RegistryOptions {
        timeouts: Timeouts {
            stall: Duration::from_secs(2),
            ..Timeouts::default()
        },
        ..RegistryOptions::default()
    };
    let client = Client::with(&registry.host(), options, Credentials::default());
    assert_eq!(client.layer().expect("pulled"), LAYER);
    assert!(registry.requests().len() >= 2);
}

#[test]
fn retry_after_is_honoured() {
    let image = image();
    let registry = TestRegistry::start(move |request, earlier| match earlier {
        0 | 1 => TestAnswer::status(429).with("Retry-After", "7"),
        _ => image.answer(request),
    });
    let client = Client::new(&registry);
    assert_eq!(client.pull().expect("pulled"), [LAYER]);
    let waits = client.clock.waits();
    assert_eq!(waits.len(), 6);
    assert!(
        waits.iter().all(|wait| (7..=8).contains(&wait.as_secs())),
        "{waits:?}"
    );
}

#[test]
fn long_retry_after_ends_with_reason() {
    let registry = TestRegistry::start(|_, _| TestAnswer::status(429).with("Retry-After", "21600"));
    let client = Client::new(&registry);
    let error = client.pull().expect_err("refused");
    assert!(error.contains("asks to wait for 21600 s"), "{error}");
    assert!(client.clock.waits().is_empty());
}

#[test]
fn server_errors_are_repeated() {
    let image = image();
    let registry = TestRegistry::start(move |request, earlier| match earlier {
        0 => TestAnswer::status(503),
        1 => TestAnswer::status(500),
        _ => image.answer(request),
    });
    assert_eq!(Client::new(&registry).pull().expect("pulled"), [LAYER]);
    let always = TestRegistry::start(|_, _| TestAnswer::status(502));
    let error = Client::new(&always).pull().expect_err("failed");
    assert!(error.contains("502"), "{error}");
    assert_eq!(always.requests().len(), 6);
}

#[test]
fn missing_image_is_not_repeated() {
    let registry = TestRegistry::start(|_, _| TestAnswer::status(404));
    let error = Client::new(&registry).pull().expect_err("missing");
    let expected = format!(
        "failed to download the manifest of {}/app:latest at {}",
        registry.host(),
        registry.host()
    );
    assert!(error.starts_with(&expected), "{error}");
    assert!(error.contains("check the name and the tag"), "{error}");
    assert_eq!(registry.requests().len(), 1);
}

#[test]
fn wrong_blobs_are_refused() {
    let wrong = vec![8; LAYER.len()];
    let registry = with_layer(move |_, _| TestAnswer::ok(&wrong));
    let error = Client::new(&registry).layer().expect_err("wrong digest");
    assert!(error.contains("damaged or hostile"), "{error}");
    let registry = with_layer(|_, _| TestAnswer::ok(&LAYER[1..]));
    let error = Client::new(&registry).layer().expect_err("wrong size");
    assert!(error.contains("the manifest promises 600000"), "{error}");
    let registry = with_layer(|_, _| TestAnswer::ok(LAYER).endless());
    let error = Client::new(&registry).layer().expect_err("endless");
    assert!(error.contains("more bytes than the 600000"), "{error}");
}

#[test]
fn wrong_documents_are_refused() {
    let pull = |answer: TestAnswer| {
        let registry = TestRegistry::start(move |_, _| answer.clone());
        Client::new(&registry).pull().expect_err("refused")
    };
    let error = pull(TestAnswer::ok(&[b' '; 1000]).endless());
    assert!(error.contains("larger than 4194304 bytes"), "{error}");
    let other = Digest::from_content(b"other").to_string();
    let manifest = image().manifest;
    let error = pull(TestAnswer::ok(&manifest).with("Docker-Content-Digest", &other));
    assert!(error.contains("damaged or hostile"), "{error}");
    let error = pull(TestAnswer::ok(b"<html>").with("Content-Type", "text/html"));
    assert!(error.contains("not valid JSON"), "{error}");
}

#[test]
fn digest_of_reference_is_checked() {
    let image = image();
    let registry = TestRegistry::start(move |_, _| TestAnswer::ok(&image.manifest));
    let clock = VirtualClock::new();
    let client = RegistryClient::with_variables(RegistryOptions::default(), |_| None, clock);
    let text = format!("{}/app@{}", registry.host(), Digest::from_content(b"other"));
    let reference = Reference::parse(&text, "docker.io").expect("valid");
    let client = Arc::new(client.expect("valid options"));
    let repository = client.repository(&reference, Credentials::default(), Cancel::new());
    let origin = Origin::Registry(repository.expect("valid"));
    let resolved = origin.resolve(&Platform::for_this_machine(), &Activity::new());
    let error = resolved.expect_err("another manifest");
    assert!(
        matches!(&error, OriginError::Registry(error) if matches!(error.cause(), Cause::Mismatch(_)))
    );
    assert!(error.source().is_some());
}

/// A client of `docker.io`-like `registry` with a mirror.
fn with_mirror(registry: &TestRegistry, mirror: &TestRegistry, credentials: Credentials) -> Client {
    let mirrors = [(registry.host(), vec![format!("http://{}", mirror.host())])];
    let settings = RegistrySettings {
        mirrors: mirrors.into(),
        ..RegistrySettings::default()
    };
    let options = RegistryOptions {
        settings,
        ..RegistryOptions::default()
    };
    Client::with(&registry.host(), options, credentials)
}

#[test]
fn mirror_serves_without_upstream() {
    let image = image();
    let mirror = TestRegistry::start(move |request, _| image.answer(request));
    let registry = TestRegistry::start(|_, _| TestAnswer::status(500));
    let client = with_mirror(&registry, &mirror, Credentials::default());
    assert_eq!(client.pull().expect("pulled"), [LAYER]);
    assert!(registry.requests().is_empty());
    let target = &mirror.requests()[0].target;
    assert!(
        target.ends_with(&format!("?ns={}", registry.host())),
        "{target}"
    );
}

#[test]
fn broken_mirror_costs_one_attempt() {
    for status in [404, 429, 500, 403] {
        let mirror = TestRegistry::start(move |_, _| TestAnswer::status(status));
        let image = image();
        let registry = TestRegistry::start(move |request, _| image.answer(request));
        let client = with_mirror(&registry, &mirror, Credentials::default());
        assert_eq!(client.pull().expect("pulled"), [LAYER], "{status}");
        assert_eq!(mirror.requests().len(), 3);
        assert!(client.clock.waits().is_empty());
    }
}

#[test]
fn cut_mirror_is_continued_upstream() {
    let image_of_mirror = image();
    let mirror = TestRegistry::start(move |request, _| match is_layer(request) {
        true => image_of_mirror.answer(request).cut_after(300_000),
        false => image_of_mirror.answer(request),
    });
    let image = image();
    let registry = TestRegistry::start(move |request, _| image.answer(request));
    let client = with_mirror(&registry, &mirror, Credentials::default());
    assert_eq!(client.pull().expect("pulled"), [LAYER]);
    let log = registry.log();
    assert!(
        log.len() == 1 && log[0].ends_with("bytes=300000-"),
        "{log:?}"
    );
}

#[test]
fn mirror_gets_no_upstream_password() {
    let mirror =
        TestRegistry::start(|_, _| TestAnswer::status(401).with("WWW-Authenticate", "Basic"));
    let registry = authentication::with_basic(image());
    let credentials = credentials_for(&registry.host(), "ann:pw");
    let client = with_mirror(&registry, &mirror, credentials);
    assert_eq!(client.pull().expect("pulled"), [LAYER]);
    assert!(
        mirror
            .requests()
            .iter()
            .all(|one| one.header("authorization").is_none())
    );
}

#[test]
fn foreign_layer_comes_from_its_address() {
    let image = image();
    let storage = TestRegistry::start(move |_, _| TestAnswer::ok(LAYER));
    let registry = TestRegistry::start(move |request, _| match is_layer(request) {
        true => TestAnswer::status(404),
        false => image.answer(request),
    });
    let client = Client::new(&registry);
    let blob = BlobDescriptor {
        digest: Digest::from_content(LAYER),
        size: LAYER.len() as u64,
        urls: vec![
            "ftp://x/y".to_owned(),
            format!("http://{}/layer", storage.host()),
        ],
    };
    let mut bytes = Vec::new();
    let mut reader = client.repository.blob(&blob, client.activity.clone());
    reader.read_to_end(&mut bytes).expect("downloaded");
    assert_eq!(bytes, LAYER);
}

#[test]
fn cancelled_pull_sends_nothing_more() {
    let registry = TestRegistry::start(|_, _| TestAnswer::status(503));
    let clock = VirtualClock::new();
    let client = RegistryClient::with_variables(RegistryOptions::default(), |_| None, clock);
    let reference = Reference::parse("app", &registry.host()).expect("valid");
    let cancel = Cancel::new();
    let client = Arc::new(client.expect("valid options"));
    let repository = client.repository(&reference, Credentials::default(), cancel.clone());
    cancel.set();
    let error = repository
        .expect("valid")
        .head(&Activity::new())
        .expect_err("cancelled");
    assert!(matches!(error.cause(), Cause::Cancelled(_)), "{error}");
    assert!(registry.requests().is_empty());
}

#[test]
fn https_goes_through_the_proxy() {
    let proxy = TestRegistry::start(|_, _| TestAnswer::status(403));
    let address = format!("http://ann:pw@{}", proxy.host());
    let variable = move |name: &str| (name == "https_proxy").then(|| address.clone());
    let clock = VirtualClock::new();
    let client = RegistryClient::with_variables(RegistryOptions::default(), variable, clock);
    let reference = Reference::parse("r.invalid/app", "docker.io").expect("valid");
    let client = Arc::new(client.expect("valid options"));
    let repository = client.repository(&reference, Credentials::default(), Cancel::new());
    repository
        .expect("valid")
        .head(&Activity::new())
        .expect_err("the proxy refuses");
    let requests = proxy.requests();
    assert_eq!(
        (requests[0].method.as_str(), requests[0].target.as_str()),
        ("CONNECT", "r.invalid:443")
    );
    let basic = format!("basic {}", BASE64_STANDARD.encode("ann:pw")).to_ascii_lowercase();
    let sent = requests[0]
        .header("proxy-authorization")
        .unwrap_or_default();
    assert_eq!(sent.to_ascii_lowercase(), basic);
}
