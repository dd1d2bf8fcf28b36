//! Access to realms and endpoints, by example.

use std::os::unix::fs::PermissionsExt as _;

use meseta_access::{SecretHash, basic};
use tempfile::TempDir;

use super::*;

const REALMS: [Realm; 3] = [Realm::Readonly, Realm::Readwrite, Realm::Agents];

fn settings(address: &str) -> Settings {
    Settings {
        daemon: "master",
        address: address.parse().unwrap(),
        insecure: false,
        credentials: None,
        credentials_flag: "credentials",
        acls: None,
        firewall_rules: None,
        names: Names::default(),
        ssl_cert_file: None,
        ssl_key_file: None,
        ssl_ca_file: None,
        realms: REALMS
            .map(|realm| (realm, "authenticate_it", None))
            .to_vec(),
        key: [3; 32],
    }
}

fn write(dir: &TempDir, name: &str, text: &str, mode: u32) -> std::path::PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

fn people() -> String {
    format!(
        "ada {}",
        SecretHash::from_secret(b"wonder", [1; 16]).unwrap()
    )
}

fn refusal(settings: Settings) -> String {
    let error = settings.build().unwrap_err();
    let text = error.to_string();
    assert_eq!(
        crate::error_chain::chain(&error),
        text,
        "nothing is said twice"
    );
    text
}

/// Returns an authentication whose first realm requires the credentials of [`people`].
fn asking() -> Authentication {
    let dir = TempDir::new().unwrap();
    let mut settings = settings("127.0.0.1");
    settings.credentials = Some(write(&dir, "people", &people(), 0o600));
    settings.realms[0].2 = Some(true);
    settings.build().unwrap().0
}

/// Sends a request without credentials.
async fn unasked(
    authentication: &Authentication,
    realm: Realm,
    peer: &Peer,
) -> Result<Caller, AuthenticationError> {
    let nothing = HeaderMap::new();
    authentication
        .authenticate(realm, &nothing, Some(peer))
        .await
}

/// Returns the principal of a request with this header and an unknown peer.
async fn principal_of(
    authentication: &Authentication,
    realm: Realm,
    header: &str,
) -> Result<Option<String>, AuthenticationError> {
    let headers = named(Some(header));
    let caller = authentication.authenticate(realm, &headers, None).await;
    caller.map(|caller| caller.owned_principal())
}

fn named(authorization: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(value) = authorization {
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
    }
    headers
}

#[tokio::test]
async fn on_loopback_no_credentials_are_needed() {
    let (authentication, served) = settings("127.0.0.1").build().unwrap();
    assert!(served.is_none());
    for realm in REALMS {
        let wrong = named(Some("Basic Tm9uZTpOb25l"));
        let caller = authentication
            .authenticate(realm, &wrong, None)
            .await
            .unwrap();
        assert_eq!(caller.principal(), None);
        assert!(caller.approver.allows_everything());
    }
}

#[tokio::test]
async fn an_authenticated_realm_asks_and_remembers() {
    let authentication = asking();
    let right = basic::header("ada", b"wonder");
    let wrong = basic::header("ada", b"CANARY");
    for header in [None, Some(wrong.as_str()), Some("Bearer x"), Some("Basic")] {
        let rejected = authentication
            .authenticate(Realm::Readonly, &named(header), None)
            .await
            .unwrap_err();
        let response = rejected.response();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(
            response.headers()[header::WWW_AUTHENTICATE],
            "Basic realm=\"mesos-master-readonly\""
        );
        assert_eq!(
            rejected.status_of_grpc().code(),
            tonic::Code::Unauthenticated
        );
    }
    for _ in 0..3 {
        let known = principal_of(&authentication, Realm::Readonly, &right).await;
        assert_eq!(known.unwrap().as_deref(), Some("ada"));
    }
    let elsewhere = principal_of(&authentication, Realm::Readwrite, &right).await;
    assert_eq!(elsewhere.unwrap(), None, "a realm that does not ask");
    assert!(!format!("{authentication:?}").contains("argon2"));
}

#[tokio::test]
async fn plain_text_serves_only_local_executors() {
    let mut authentication = Authentication::not_required("agent");
    authentication.exposed = true;
    authentication.encrypted = true;
    let here = Peer::at("127.0.0.1:9".parse().unwrap());
    let there = Peer::at("10.9.9.9:9".parse().unwrap());
    for (peer, is_taken) in [(&here, true), (&there, false)] {
        let taken = unasked(&authentication, Realm::Executor, peer).await;
        assert_eq!(taken.is_ok(), is_taken);
    }
    for realm in [Realm::Open, Realm::Readonly, Realm::Readwrite] {
        let rejected = unasked(&authentication, realm, &here).await.unwrap_err();
        assert_eq!(rejected.status(), StatusCode::FORBIDDEN);
        assert!(rejected.text().contains("https://"));
    }
}

type Change<'a> = &'a dyn Fn(&mut Settings);

#[test]
fn conflicting_settings_name_the_remedy() {
    let dir = TempDir::new().unwrap();
    let open = write(&dir, "open", &people(), 0o644);
    let plain = write(&dir, "plain", "ada CANARY", 0o600);
    let cases: [(Change<'_>, &str); 10] = [
        (
            &|it| it.realms[1].2 = Some(true),
            "--authenticate_it needs --credentials",
        ),
        (
            &|it| it.ssl_cert_file = Some("/a".into()),
            "give both or none",
        ),
        (
            &|it| it.ssl_ca_file = Some("/a".into()),
            "needs --ssl_cert_file",
        ),
        (
            &|it| it.acls = Some("{\"a\":1}".to_owned()),
            "--acls: `a` is not a list",
        ),
        (
            &|it| it.acls = Some("/etc/acls".to_owned()),
            "is neither JSON nor file:///path",
        ),
        (
            &|it| it.firewall_rules = Some("{}".to_owned()),
            "--firewall_rules: expected",
        ),
        (
            &|it| it.credentials = Some("/nowhere".into()),
            "--credentials: failed to read /nowhere",
        ),
        (&|it| it.credentials = Some(open.clone()), "chmod 600"),
        (
            &|it| it.credentials = Some(plain.clone()),
            "`meseta credential`",
        ),
        (
            &|it| it.credentials = Some("{\"credentials\": \"CANARY\"}".into()),
            "give the path of a file",
        ),
    ];
    for (change, part) in cases {
        let mut settings = settings("127.0.0.1");
        change(&mut settings);
        let text = refusal(settings);
        assert!(text.contains(part), "{part}: {text}");
        assert!(!text.contains("CANARY"), "{text}");
    }
}

#[test]
fn exposed_daemon_needs_authentication_and_tls() {
    let dir = TempDir::new().unwrap();
    let people = write(&dir, "people", &people(), 0o600);
    let text = refusal(settings("10.0.0.1"));
    assert!(
        text.contains("--credentials") && text.contains("--ssl_cert_file"),
        "{text}"
    );
    let mut known = settings("10.0.0.1");
    known.credentials = Some(people.clone());
    let text = refusal(known.clone());
    assert!(
        !text.contains("--credentials=") && text.contains("--ssl_cert_file"),
        "{text}"
    );
    known.insecure = true;
    let (authentication, _) = known.build().unwrap();
    assert!(
        authentication.authenticated.is_empty()
            && authentication.rules.authorizer().allows_everything()
    );
    let mut off = settings("10.0.0.1");
    off.credentials = Some(people);
    off.ssl_cert_file = Some("/a".into());
    off.ssl_key_file = Some("/b".into());
    off.realms[2].2 = Some(false);
    let text = refusal(off);
    assert!(text.contains("switch off no --authenticate_*"), "{text}");
}

#[test]
fn disabled_endpoints_match_by_path() {
    let mut settings = settings("127.0.0.1");
    settings.firewall_rules =
        Some(r#"{"disabled_endpoints":{"paths":["/master/state","/health"]}}"#.to_owned());
    let (authentication, _) = settings.build().unwrap();
    assert!(authentication.is_disabled("/master/state"));
    assert!(authentication.is_disabled("/health/"));
    assert!(!authentication.is_disabled("/state"));
}

#[tokio::test]
async fn broken_credentials_keep_the_previous_ones() {
    let dir = TempDir::new().unwrap();
    let mut settings = settings("127.0.0.1");
    let people_file = write(&dir, "people", &people(), 0o600);
    let forbidden = r#"{"permissive": true, "update_weights":
        [{"principals": {"type": "ANY"}, "roles": {"type": "NONE"}}]}"#;
    let acl_file = write(&dir, "acls", forbidden, 0o644);
    settings.credentials = Some(people_file);
    settings.acls = Some(format!("file://{}", acl_file.display()));
    settings.realms[0].2 = Some(true);
    let (authentication, _) = settings.build().unwrap();
    let authenticate = async |name: &str, secret: &str| {
        let header = basic::header(name, secret.as_bytes());
        authentication
            .authenticate(Realm::Readonly, &named(Some(&header)), None)
            .await
    };
    let may = |caller: &Caller| caller.check(Action::UpdateWeight, Some("dev")).is_ok();
    let before = authenticate("ada", "wonder").await.unwrap();
    assert!(!may(&before));

    write(&dir, "acls", "{\"permissive\":", 0o644);
    write(&dir, "people", "ada CANARY", 0o600);
    let error = authentication.rules.exchange_acls().unwrap_err();
    assert!(matches!(error, SettingsError::Acls(_)), "{error}");
    let error = authentication.rules.exchange_credentials().unwrap_err();
    assert!(!error.to_string().contains("CANARY"), "{error}");
    let still = authenticate("ada", "wonder").await.unwrap();
    assert!(!may(&still), "what was read before stays in force");
    assert_eq!(still.approver.version(), before.approver.version());

    write(&dir, "acls", "{\"permissive\": true}", 0o644);
    authentication.rules.exchange_acls().unwrap();
    let after = authenticate("ada", "wonder").await.unwrap();
    assert!(
        may(&after) && !may(&before),
        "an authenticated client keeps its rules"
    );
    assert_ne!(after.approver.version(), before.approver.version());
    let bob = SecretHash::from_secret(b"builder", [2; 16]).unwrap();
    write(&dir, "people", &format!("bob {bob}"), 0o600);
    authentication.rules.exchange_credentials().unwrap();
    assert!(authenticate("ada", "wonder").await.is_err());
    assert_eq!(
        authenticate("bob", "builder").await.unwrap().principal(),
        Some("bob")
    );
}

fn asked(method: &str, headers: &[(&str, &str)]) -> http::Request<()> {
    let mut request = http::Request::builder().method(method).uri("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap()
}

#[test]
fn browser_requests_obey_the_flags() {
    let mut settings = settings("127.0.0.1");
    settings.names = Names {
        hostname: Some("node1.example".to_owned()),
        allowed_hosts: Some("proxy.example, *.mesos".to_owned()),
        allowed_origins: Some("https://page.example".to_owned()),
    };
    let (authentication, _) = settings.clone().build().unwrap();
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    for (host, status) in [
        ("127.0.0.1:5050", None),
        ("node1.example", None),
        (own.trim(), None),
        ("leader.mesos", None),
        ("evil.example", Some(StatusCode::MISDIRECTED_REQUEST)),
    ] {
        for method in ["GET", "POST"] {
            let told =
                authentication.check_browser_request(&asked(method, &[("Host", host)]), false);
            assert_eq!(
                told.err().map(|rejected| rejected.status()),
                status,
                "{host}"
            );
        }
    }
    let forbidden = Some(StatusCode::FORBIDDEN);
    for (method, headers, by_get, status) in [
        (
            "POST",
            &[("Origin", "https://page.example")][..],
            false,
            None,
        ),
        (
            "POST",
            &[("Origin", "https://evil.example")],
            false,
            forbidden,
        ),
        ("GET", &[("Origin", "https://evil.example")], false, None),
        ("GET", &[("Sec-Fetch-Site", "none")], true, forbidden),
        ("GET", &[], true, None),
        (
            "POST",
            &[
                ("Host", "[::1]"),
                ("Origin", "http://[::1]"),
                ("Origin", "http://[::1]"),
            ],
            false,
            forbidden,
        ),
    ] {
        let told = authentication.check_browser_request(&asked(method, headers), by_get);
        assert_eq!(
            told.err().map(|rejected| rejected.status()),
            status,
            "{headers:?}"
        );
    }
    let rejected = authentication
        .check_browser_request(&asked("POST", &[("Origin", "http://evil.example")]), false)
        .unwrap_err();
    let status = rejected.status_of_grpc();
    assert_eq!(status.code(), tonic::Code::PermissionDenied);
    assert!(status.message().contains("--allowed_origins"), "{status}");
    for (hosts, origins, flag) in [
        (Some("http://a"), None, "--allowed_hosts"),
        (None, Some("page.example"), "--allowed_origins"),
    ] {
        let mut wrong = settings.clone();
        wrong.names.allowed_hosts = hosts.map(str::to_owned);
        wrong.names.allowed_origins = origins.map(str::to_owned);
        assert!(refusal(wrong).starts_with(flag));
    }
}

struct Inside(u32);

impl ContainerSockets for Inside {
    fn is_inside(&self, socket: &crate::owner::SocketOwner) -> bool {
        socket.inode == self.0
    }
}

fn local_peer(uid: u32, inode: u32) -> Peer {
    let owner = crate::owner::SocketOwner {
        uid,
        inode,
        cgroup: None,
    };
    Peer::owned("127.0.0.1:9".parse().unwrap(), Some(owner))
}

#[tokio::test]
async fn loopback_trusts_root_and_own_user() {
    let own = rustix::process::geteuid();
    let (authentication, _) = settings("127.0.0.1").build().unwrap();
    let unknown = Peer::owned("127.0.0.1:9".parse().unwrap(), None);
    for realm in [Realm::Readonly, Realm::Readwrite] {
        for known in [local_peer(0, 1), local_peer(own.as_raw(), 1)] {
            assert!(unasked(&authentication, realm, &known).await.is_ok());
        }
        for untrusted in [&local_peer(65_533, 1), &unknown] {
            let rejected = unasked(&authentication, realm, untrusted)
                .await
                .unwrap_err();
            assert_eq!(rejected.status(), StatusCode::FORBIDDEN);
            assert!(rejected.text().contains("--http_credentials"));
            // No client can be identified here.
            let claim = named(Some("Basic Tm9uZTpOb25l"));
            let rejected = authentication
                .authenticate(realm, &claim, Some(untrusted))
                .await
                .unwrap_err();
            assert_eq!(rejected.status(), StatusCode::UNAUTHORIZED);
        }
    }
    let untrusted = local_peer(65_533, 1);
    for realm in [Realm::Open, Realm::Agents, Realm::Scheduler] {
        assert!(unasked(&authentication, realm, &untrusted).await.is_ok());
    }
    authentication.set_container_sockets(Arc::new(Inside(7)));
    let confined = unasked(&authentication, Realm::Readwrite, &local_peer(0, 7)).await;
    assert_eq!(confined.is_err(), own.is_root(), "root, but in a container");
    let free = unasked(&authentication, Realm::Readwrite, &local_peer(0, 8)).await;
    assert!(free.is_ok());
}

#[tokio::test(start_paused = true)]
async fn wrong_local_secrets_delay_no_others() {
    let authentication = asking();
    let authenticate = async |secret: &str, uid: u32| {
        let header = named(Some(&basic::header("ada", secret.as_bytes())));
        let peer = local_peer(uid, 1);
        let authenticated = authentication
            .authenticate(Realm::Readonly, &header, Some(&peer))
            .await;
        authenticated.map(|caller| caller.owned_principal())
    };
    let mut limited = 0;
    for number in 0..50 {
        let refused = authenticate(&format!("guess-{number}"), 65_533)
            .await
            .unwrap_err();
        limited += usize::from(refused == AuthenticationError::TooMany);
    }
    assert!(limited > 40, "{limited}");
    let principal = authenticate("wonder", 1_000).await.unwrap();
    assert_eq!(principal.as_deref(), Some("ada"));
}

#[tokio::test]
async fn principal_certificate_needs_current_credentials() {
    let authentication = asking();
    for (principal, hosts, authenticated) in [
        ("ada", &[][..], Some("ada")),
        ("bob", &[], None),
        ("", &["node1.example"], Some("node1.example")),
    ] {
        let mut peer = Peer::owned("10.9.9.9:9".parse().unwrap(), None);
        peer.certificate = Some(Arc::new(PeerCertificate::signed_for(principal, hosts)));
        let caller = unasked(&authentication, Realm::Readonly, &peer).await;
        let caller = caller.ok().and_then(|caller| caller.owned_principal());
        assert_eq!(caller.as_deref(), authenticated, "{principal:?} {hosts:?}");
    }
}

/// The rule also holds in a realm without authentication.
#[tokio::test]
async fn nameless_scheduler_is_its_local_user() {
    let (authentication, _) = settings("127.0.0.1").build().unwrap();
    let remote = Peer::owned("10.9.9.9:9".parse().unwrap(), None);
    let hidden = Peer::owned("127.0.0.1:9".parse().unwrap(), None);
    for (realm, peer, user) in [
        (
            Realm::Scheduler,
            local_peer(1_000, 1),
            Some(LocalUser::Id(1_000)),
        ),
        (Realm::Scheduler, hidden, Some(LocalUser::Unknown)),
        (Realm::Scheduler, remote, None),
        (Realm::Agents, local_peer(1_000, 1), None),
    ] {
        let caller = unasked(&authentication, realm, &peer).await.unwrap();
        assert_eq!(caller.user, user);
    }
}

#[tokio::test]
async fn untrusted_local_user_may_still_authenticate() {
    let dir = TempDir::new().unwrap();
    let untrusted = local_peer(65_533, 1);
    let mut with_people = settings("127.0.0.1");
    with_people.credentials = Some(write(&dir, "people", &people(), 0o600));
    let (authentication, _) = with_people.build().unwrap();
    let right = named(Some(&basic::header("ada", b"wonder")));
    let caller = authentication
        .authenticate(Realm::Readwrite, &right, Some(&untrusted))
        .await;
    assert_eq!(caller.unwrap().principal(), Some("ada"));
    let rejected = unasked(&authentication, Realm::Readwrite, &untrusted)
        .await
        .unwrap_err();
    assert_eq!(rejected.status(), StatusCode::UNAUTHORIZED);
    let mut open = settings("127.0.0.1");
    open.realms[0].2 = Some(false);
    let (authentication, _) = open.build().unwrap();
    let looks = unasked(&authentication, Realm::Readonly, &untrusted).await;
    assert!(looks.is_ok(), "said so for one realm");
    let changes = unasked(&authentication, Realm::Readwrite, &untrusted).await;
    assert!(changes.is_err(), "and not for the other");
    let mut insecure = settings("127.0.0.1");
    insecure.insecure = true;
    let (authentication, _) = insecure.build().unwrap();
    for realm in REALMS {
        assert!(unasked(&authentication, realm, &untrusted).await.is_ok());
    }
}
