//! Tests of both ends over real sockets: which certificates are trusted, and how they are replaced.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::Request;
use axum::routing::get;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
    date_time_ymd,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::client::{Client, Options as ClientOptions};
use crate::server::{self, Peer};

/// An authority and the folder of its files.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    fn write(&self, dir: &Path, name: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, &self.pem).unwrap();
        path
    }

    /// Signs a certificate for these names, and writes it and its key.
    fn sign(&self, dir: &Path, name: &str, hosts: &[&str], expired: bool) -> (PathBuf, PathBuf) {
        self.sign_as(dir, name, hosts, None, expired)
    }

    /// Signs a certificate with the mark of a daemon.
    fn sign_as(
        &self,
        dir: &Path,
        name: &str,
        hosts: &[&str],
        daemon: Option<DaemonKind>,
        expired: bool,
    ) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        if let Some(daemon) = daemon {
            let mark = rcgen::SanType::URI(daemon.uri().try_into().unwrap());
            params.subject_alt_names.push(mark);
        }
        if expired {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        }
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let (certificate, secret) = (
            dir.join(format!("{name}.pem")),
            dir.join(format!("{name}.key")),
        );
        std::fs::write(&certificate, signed.pem()).unwrap();
        write_private(&secret, &key.serialize_pem());
        (certificate, secret)
    }
}

impl PeerCertificate {
    /// Returns a certificate for these hosts, or for this principal if there are none.
    pub(crate) fn signed_for(principal: &str, hosts: &[&str]) -> Self {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        if params.subject_alt_names.is_empty() {
            let uri = principal_uri(principal).try_into().unwrap();
            params.subject_alt_names.push(SanType::URI(uri));
        }
        let key = KeyPair::generate().unwrap();
        Self(params.self_signed(&key).unwrap().der().clone())
    }
}

fn write_private(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Returns the identity of the other side.
async fn who(request: Request) -> String {
    let peer = request.extensions().get::<Peer>().unwrap();
    let principal = peer.certificate.as_ref().and_then(|one| one.principal());
    format!("{} {}", peer.encrypted, principal.as_deref().unwrap_or("-"))
}

struct Running {
    address: SocketAddr,
    served: Arc<Served>,
    shutdown: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn run(files: Files) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = Served::load(files).unwrap();
    let shutdown = CancellationToken::new();
    tokio::spawn(server::serve_with(
        listener,
        Router::new().route("/", get(who)),
        server::Options::default(),
        Some(served.clone()),
        shutdown.clone(),
    ));
    Running {
        address,
        served,
        shutdown,
    }
}

/// Returns the files of a server whose clients need no certificate.
fn files((certificate, key): (PathBuf, PathBuf)) -> Files {
    Files {
        certificate,
        key,
        authorities: None,
    }
}

fn client(trusted: &Path, own: Option<&(PathBuf, PathBuf)>) -> Client {
    let own = own.map(|(certificate, key)| (certificate.as_path(), key.as_path()));
    let config = super::client(Some(trusted), own).unwrap();
    Client::with(ClientOptions::default(), config, None)
}

async fn ask(client: &Client, url: &str) -> Result<String, String> {
    let reply = client.get(url).await;
    reply
        .map(|reply| reply.text())
        .map_err(|error| chain(&error))
}

#[tokio::test]
async fn certificates_are_believed_or_refused() {
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let ca = ours.write(dir.path(), "ca.pem");
    let other_ca = theirs.write(dir.path(), "other.pem");
    let mut urls = Vec::new();
    let mut running = Vec::new();
    for (name, hosts, expired) in [
        ("good", &["127.0.0.1", "localhost"][..], false),
        ("elsewhere", &["elsewhere.example"][..], false),
        ("expired", &["127.0.0.1"][..], true),
    ] {
        let one = run(Files {
            authorities: Some(ca.clone()),
            ..files(ours.sign(dir.path(), name, hosts, expired))
        })
        .await;
        urls.push(format!("https://{}/", one.address));
        running.push(one);
    }
    let plain = client(&ca, None);
    assert_eq!(ask(&plain, &urls[0]).await.unwrap(), "true -");
    let wrong_name = ask(&plain, &urls[1]).await.unwrap_err();
    assert!(wrong_name.contains("not valid for name"), "{wrong_name}");
    let expired = ask(&plain, &urls[2]).await.unwrap_err();
    assert!(expired.contains("expired"), "{expired}");
    let wrong = client(&other_ca, None);
    let unknown = ask(&wrong, &urls[0]).await.unwrap_err();
    assert!(unknown.contains("invalid peer certificate"), "{unknown}");
    let nobody = ask(&Client::default(), &urls[0]).await.unwrap_err();
    assert!(nobody.contains("UnknownIssuer"), "{nobody}");

    // The other direction: the certificate of a client.
    let own = ours.sign(dir.path(), "node1", &["node1.example", "10.0.0.1"], false);
    let known = client(&ca, Some(&own));
    assert_eq!(ask(&known, &urls[0]).await.unwrap(), "true node1.example");
    for (name, authority, expired) in [("forged", &theirs, false), ("old", &ours, true)] {
        let own = authority.sign(dir.path(), name, &["node1.example"], expired);
        let refused = ask(&client(&ca, Some(&own)), &urls[0]).await;
        assert!(refused.is_err(), "{name}: {refused:?}");
    }
    // A local connection without TLS reaches the routes, which see that.
    let clear = format!("http://{}/", running[0].address);
    assert_eq!(ask(&Client::default(), &clear).await.unwrap(), "false -");
}

#[tokio::test]
async fn port_without_grpc_negotiates_http1() {
    let dir = TempDir::new().unwrap();
    let ours = Authority::new();
    let ca = ours.write(dir.path(), "ca.pem");
    let signed = ours.sign(dir.path(), "served", &["127.0.0.1"], false);
    let served = Served::load(files(signed)).unwrap();
    for (http2, expected) in [(true, b"h2".as_slice()), (false, b"http/1.1".as_slice())] {
        let mut config = super::client(Some(&ca), None).unwrap();
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let (near, far) = tokio::io::duplex(1 << 16);
        let accepting = served.acceptor(http2).accept(far);
        let (client, server) = tokio::join!(connector.connect(name, near), accepting);
        let (client, _server) = (client.unwrap(), server.unwrap());
        assert_eq!(client.get_ref().1.alpn_protocol(), Some(expected));
    }
}

/// A client that has connected before is verified again.
#[tokio::test]
async fn client_certificate_is_verified_per_connection() {
    use rustls::HandshakeKind::{Full, Resumed};
    let dir = TempDir::new().unwrap();
    let ours = Authority::new();
    let ca = ours.write(dir.path(), "ca.pem");
    let signed = ours.sign(dir.path(), "served", &["127.0.0.1"], false);
    let (certificate, key) = ours.sign(dir.path(), "node1", &["node1.example"], false);
    for (authorities, second) in [(None, Resumed), (Some(ca.clone()), Full)] {
        let served = Served::load(Files {
            authorities,
            ..files(signed.clone())
        });
        let acceptor = served.unwrap().acceptor(true);
        let config = super::client(Some(&ca), Some((&certificate, &key))).unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        for expected in [Full, second] {
            let name = ServerName::try_from("127.0.0.1").unwrap();
            let (near, far) = tokio::io::duplex(1 << 16);
            let (client, server) =
                tokio::join!(connector.connect(name, near), acceptor.accept(far));
            let (mut client, mut server) = (client.unwrap(), server.unwrap());
            // The session's resumption data comes before the first data.
            server.write_all(b"x").await.unwrap();
            server.flush().await.unwrap();
            client.read_exact(&mut [0]).await.unwrap();
            assert_eq!(client.get_ref().1.handshake_kind(), Some(expected));
        }
    }
}

/// The certificate of an agent always contains its host name, but not always its address.
#[tokio::test]
async fn server_with_two_names_matches_both() {
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let ca = ours.write(dir.path(), "ca.pem");
    let ask_of = async |authority: &Authority, hosts: &[&str], expired, also: &str| {
        let running = run(files(authority.sign(dir.path(), "served", hosts, expired))).await;
        let config = client_of_either(Some(&ca), None, also).unwrap();
        let client = Client::with(ClientOptions::default(), config, None);
        ask(&client, &format!("https://{}/", running.address)).await
    };
    let name = "node1.example";
    for (host, also) in [
        (name, name),
        ("127.0.0.1", name),
        ("127.0.0.1", "not a name"),
    ] {
        let answer = ask_of(&ours, &[host], false, also).await;
        assert!(answer.is_ok(), "{host} {also}: {answer:?}");
    }
    for (authority, hosts, expired, word) in [
        (&ours, "node2.example", false, "not valid for name"),
        (&ours, name, true, "expired"),
        (&theirs, name, false, "invalid peer certificate"),
    ] {
        let error = ask_of(authority, &[hosts], expired, name)
            .await
            .unwrap_err();
        assert!(error.contains(word), "{hosts}: {error}");
    }
}

/// A service may read a file of root for its own group, but no other group's file, and no file that others write or read.
#[test]
fn secret_file_needs_its_owner() {
    let (root, service, person) = ((0, 0), (990, 991), (1000, 1000));
    for (mode, owner, process, open) in [
        (0o600, service, service, false),
        (0o400, root, root, false),
        (0o640, (0, 991), service, false),
        (0o440, (0, 991), service, false),
        (0o640, (0, 100), service, true),
        (0o640, service, service, true),
        (0o660, (0, 991), service, true),
        (0o644, (0, 991), service, true),
        (0o641, (0, 991), service, true),
        (0o640, root, root, true),
        (0o640, (0, 1000), person, false),
        (0o604, person, person, true),
    ] {
        let judged = is_open_to_others(mode, owner, process);
        assert_eq!(judged, open, "{mode:o} {owner:?} {process:?}");
    }
}

#[tokio::test]
async fn certificate_covers_exactly_its_hosts() {
    let dir = TempDir::new().unwrap();
    let ours = Authority::new();
    let hosts = ["node1.example", "*.pool.example", "10.0.0.1"];
    let (path, _) = ours.sign(dir.path(), "node1", &hosts, false);
    let der = CertificateDer::from_pem_slice(&std::fs::read(path).unwrap()).unwrap();
    let certificate = PeerCertificate(der);
    for (host, good) in [
        ("node1.example", true),
        ("NODE1.example", true),
        ("a.pool.example", true),
        ("a.b.pool.example", false),
        ("10.0.0.1", true),
        ("10.0.0.2", false),
        ("node2.example", false),
        ("example", false),
        ("", false),
        ("not a name", false),
    ] {
        assert_eq!(certificate.is_for(host), good, "{host:?}");
    }
    assert_eq!(certificate.principal().as_deref(), Some("node1.example"));
}

#[test]
fn principal_certificate_covers_no_host() {
    let certificate = PeerCertificate::signed_for("node1.example", &["node1.example"]);
    assert_eq!(certificate.named_principal(), None);
    let certificate = PeerCertificate::signed_for("node1.example", &[]);
    let principal = certificate.principal();
    assert_eq!(principal.as_deref(), Some("node1.example"));
    assert_eq!(certificate.named_principal(), principal);
    assert!(!certificate.is_for("node1.example"));
}

#[tokio::test]
async fn only_valid_new_certificate_is_adopted() {
    let dir = TempDir::new().unwrap();
    let (first, second) = (Authority::new(), Authority::new());
    let ca = first.write(dir.path(), "ca.pem");
    let new_ca = second.write(dir.path(), "new-ca.pem");
    let (certificate, key) = first.sign(dir.path(), "served", &["127.0.0.1"], false);
    let running = run(files((certificate.clone(), key.clone()))).await;
    let url = format!("https://{}/", running.address);
    let kept = client(&ca, None);
    assert!(ask(&kept, &url).await.is_ok());
    let load = {
        let (kept, url) = (kept.clone(), url.clone());
        tokio::spawn(async move {
            for _ in 0..200 {
                ask(&kept, &url).await?;
            }
            Ok::<(), String>(())
        })
    };
    // A mismatched pair and an unreadable file change nothing.
    std::fs::write(&certificate, "nonsense").unwrap();
    assert!(matches!(running.served.reload(), Err(TlsError::Pem { .. })));
    second.sign(dir.path(), "other", &["127.0.0.1"], false);
    std::fs::copy(dir.path().join("other.pem"), &certificate).unwrap();
    assert!(matches!(
        running.served.reload(),
        Err(TlsError::Pair { .. })
    ));
    assert!(ask(&client(&ca, None), &url).await.is_ok());
    std::fs::copy(dir.path().join("other.key"), &key).unwrap();
    running.served.reload().unwrap();
    assert!(ask(&client(&new_ca, None), &url).await.is_ok());
    assert!(ask(&client(&ca, None), &url).await.is_err());
    load.await
        .unwrap()
        .expect("connections that stand are not touched");
    assert!(ask(&kept, &url).await.is_ok());
}

/// Regression: the file was read three times; a file replaced meanwhile gave the certificate of one version, the names of
/// another and the end of a third.
#[test]
fn certificate_facts_share_one_read() {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    let dir = TempDir::new().unwrap();
    let authority = Authority::new();
    let link = dir.path().join("served");
    // A pipe can be read once.
    let put = |name: &str, host: &str, key: &Path| {
        let (certificate, secret) = authority.sign(dir.path(), name, &[host], false);
        std::fs::rename(secret, key).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer
            .write_all(&std::fs::read(&certificate).unwrap())
            .unwrap();
        let _former = std::fs::remove_file(&link);
        let of_pipe = format!("/proc/self/fd/{}", reader.as_raw_fd());
        std::os::unix::fs::symlink(of_pipe, &link).unwrap();
        let end = ends_of(&certificate).unwrap()[0];
        (reader, end)
    };
    let hosts = |served: &Served| {
        let hosts = served.hosts();
        let all = ["a.example", "b.example"].into_iter();
        all.filter(|host| hosts.contains(&HostPattern::parse(host).unwrap()))
            .collect::<Vec<_>>()
    };
    let key = dir.path().join("key");
    let (_first, end) = put("first", "a.example", &key);
    let served = Served::load(files((link.clone(), key.clone()))).unwrap();
    assert_eq!((hosts(&served), served.end()), (vec!["a.example"], end));
    let (_second, end) = put("second", "b.example", &key);
    served.reload().unwrap();
    assert_eq!((hosts(&served), served.end()), (vec!["b.example"], end));
}

/// The check includes untrusted servers: the reason may come from the server itself.
/// Regression: an attacker with access to etcd named a node as the leader, and verbs sent it the secret of the
/// administrator.
#[tokio::test]
async fn node_named_as_leader_receives_nothing() {
    let dir = TempDir::new().unwrap();
    let ours = Authority::new();
    let ca = ours.write(dir.path(), "ca.pem");
    for (name, daemon, named, is_believed) in [
        (
            "node",
            Some(DaemonKind::Agent),
            "masters.example:5050",
            false,
        ),
        (
            "named_node",
            Some(DaemonKind::Agent),
            "127.0.0.1:5050",
            false,
        ),
        (
            "scheduler",
            Some(DaemonKind::Scheduler),
            "127.0.0.1:5050",
            false,
        ),
        (
            "master",
            Some(DaemonKind::Master),
            "masters.example:5050",
            true,
        ),
        ("old_node", None, "masters.example:5050", false),
        ("old_master", None, "https://127.0.0.1:5050", true),
    ] {
        let signed = ours.sign_as(dir.path(), name, &["127.0.0.1"], daemon, false);
        let running = run(files(signed)).await;
        let named = [named.to_owned()];
        let config = client_of(DaemonKind::Master, &named, Some(&ca), None).unwrap();
        let client = Client::with(ClientOptions::default(), config, None);
        let answer = ask(&client, &format!("https://{}/", running.address)).await;
        assert_eq!(answer.is_ok(), is_believed, "{name}: {answer:?}");
        if let Err(told) = answer {
            assert!(told.contains("master"), "{name}: {told}");
        }
    }
}

/// Regression: a follower sent browsers and foreign clients to any address in etcd.
#[tokio::test]
async fn certificate_proves_address_of_leader() {
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let ca = ours.write(dir.path(), "ca.pem");
    let (master, agent) = (Some(DaemonKind::Master), Some(DaemonKind::Agent));
    let own = |name: &str, kind| {
        let (certificate, key) = ours.sign_as(dir.path(), name, &["own.example"], kind, false);
        let authorities = Some(ca.clone());
        let served = Served::load(Files {
            certificate,
            key,
            authorities,
        });
        ServerProof {
            kind: DaemonKind::Master,
            served: served.unwrap(),
        }
    };
    let (marked, unmarked) = (own("own", master), own("old_own", None));
    for (name, authority, hosts, kind, by_marked, by_unmarked) in [
        ("master", &ours, "127.0.0.1", master, true, true),
        ("by_name", &ours, "leader.example", master, true, true),
        ("node", &ours, "127.0.0.1", agent, false, false),
        ("old", &ours, "127.0.0.1", None, false, true),
        (
            "elsewhere",
            &ours,
            "elsewhere.example",
            master,
            false,
            false,
        ),
        ("foreign", &theirs, "127.0.0.1", master, false, false),
    ] {
        let signed = authority.sign_as(dir.path(), name, &[hosts], kind, false);
        let running = run(files(signed)).await;
        for (proof, is_proven) in [(&marked, by_marked), (&unmarked, by_unmarked)] {
            let address = running.address.to_string();
            let proven = proof.prove(&address, "leader.example").await;
            assert_eq!(proven.is_ok(), is_proven, "{name}: {proven:?}");
        }
    }
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = nobody.local_addr().unwrap().to_string();
    drop(nobody);
    for address in [&*address, "a b:1", ""] {
        marked.prove(address, "x").await.expect_err(address);
    }
}

#[tokio::test]
async fn shown_server_certificate_is_recorded() {
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = (Authority::new(), Authority::new());
    let ca = ours.write(dir.path(), "ca.pem");
    for (name, authority, host, expired, believed) in [
        ("good", &ours, "127.0.0.1", false, true),
        ("old", &ours, "127.0.0.1", true, false),
        ("elsewhere", &ours, "elsewhere.example", false, false),
        ("foreign", &theirs, "127.0.0.1", false, false),
    ] {
        let signed = authority.sign(dir.path(), name, &[host], expired);
        let end = ends_of(&signed.0).unwrap()[0];
        let running = run(files(signed)).await;
        let (config, shown) = client_that_records(
            DaemonKind::Master,
            &["127.0.0.1".to_owned()],
            Some(&ca),
            None,
        )
        .unwrap();
        assert_eq!(shown.end(), None);
        let client = Client::with(ClientOptions::default(), config, None);
        let answer = ask(&client, &format!("https://{}/", running.address)).await;
        assert_eq!(answer.is_ok(), believed, "{name}: {answer:?}");
        assert!(end.is_some() && shown.end() == end, "{name}");
    }
}

#[tokio::test]
async fn changed_files_are_noticed() {
    let dir = TempDir::new().unwrap();
    let (first, second) = (Authority::new(), Authority::new());
    let new_ca = second.write(dir.path(), "new-ca.pem");
    let running = run(files(first.sign(
        dir.path(),
        "served",
        &["127.0.0.1"],
        false,
    )))
    .await;
    let watch = running.served.clone();
    let interval = Duration::from_millis(5);
    tokio::spawn(watch.watch(interval, running.shutdown.clone()));
    let url = format!("https://{}/", running.address);
    assert!(ask(&client(&new_ca, None), &url).await.is_err());
    second.sign(dir.path(), "served", &["127.0.0.1"], false);
    let seen = async {
        while ask(&client(&new_ca, None), &url).await.is_err() {
            tokio::time::sleep(interval).await;
        }
    };
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, seen)
        .await
        .expect("the new one is served");
}

#[test]
fn unusable_files_name_their_fault() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = TempDir::new().unwrap();
    let ours = Authority::new();
    let (certificate, key) = ours.sign(dir.path(), "a", &["a"], false);
    let load = |certificate: &Path, key: &Path| {
        let served = Served::load(files((certificate.to_owned(), key.to_owned())));
        chain(&served.unwrap_err())
    };
    let missing = load(&dir.path().join("none"), &key);
    assert!(missing.contains("failed to read"), "{missing}");
    let swapped = load(&key, &key);
    assert!(swapped.contains("no certificate in PEM form"), "{swapped}");
    let keyless = dir.path().join("keyless");
    write_private(&keyless, "nothing");
    let keyless = load(&certificate, &keyless);
    assert!(keyless.contains("no private key in PEM form"), "{keyless}");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let open = load(&certificate, &key);
    assert!(open.contains("chmod 600"), "{open}");
    let endless = read_secret_file(Path::new("/dev/zero")).unwrap_err();
    assert!(matches!(endless, FileError::TooLong { .. }), "{endless}");
}

/// Regression: all certificates of a fleet ended on one day without a warning.
#[test]
fn certificate_is_warned_before_expiry() {
    let dir = TempDir::new().unwrap();
    let authority = Authority::new();
    let certificate = authority.sign(dir.path(), "old", &["localhost"], true);
    let served = Served::load(files(certificate.clone())).unwrap();
    // 2002-01-01.
    let end = Duration::from_secs(1_009_843_200);
    assert_eq!(served.end(), Some(end));
    let day = Duration::from_secs(24 * 60 * 60);
    assert_eq!(warning(end, end - 31 * day), None);
    let said = warning(end, end - 10 * day).unwrap();
    assert!(said.contains("in 10 days"), "{said}");
    let said = warning(end, end + day).unwrap();
    assert!(said.contains("has expired"), "{said}");
    // A new certificate has its own end.
    let (fresh, key) = authority.sign(dir.path(), "new", &["localhost"], false);
    std::fs::rename(fresh, certificate.0).unwrap();
    std::fs::rename(key, certificate.1).unwrap();
    served.reload().unwrap();
    let fresh = served.end();
    assert!(fresh > Some(end + 1000 * day));
    // The other certificates may be a path to an authority that few clients still need.
    let (ended, _) = authority.sign(dir.path(), "ended", &["localhost"], true);
    let mut whole = std::fs::read(served.files.certificate.as_path()).unwrap();
    whole.extend(std::fs::read(ended).unwrap());
    std::fs::write(&served.files.certificate, whole).unwrap();
    served.reload().unwrap();
    assert_eq!(served.end(), fresh);
    let ends = ends_of(&served.files.certificate).unwrap();
    assert_eq!(ends, [fresh, Some(end)]);
}
