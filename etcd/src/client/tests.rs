//! The client over a real connection with TLS, to an etcd that has a user.

use clap::Parser;
use meseta_daemon::server::{self, CancellationToken};
use meseta_daemon::tls::{Files, Served};
use meseta_tests::secure::{Authority, Pair, write_private};
use tokio::net::TcpListener;

use super::*;
use crate::EtcdFlags;
use crate::testing::FakeEtcd;

const CALL_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    flags: EtcdFlags,
}

/// Replaces a pair by another.
fn replace(old: &Pair, new: &Pair) {
    std::fs::copy(&new.certificate, &old.certificate).unwrap();
    std::fs::copy(&new.key, &old.key).unwrap();
}

#[tokio::test]
async fn new_certificate_and_password_apply_live() {
    let dir = tempfile::tempdir().unwrap();
    let ours = Authority::new(&dir.path().join("ours"));
    let former = Authority::new(&dir.path().join("former"));
    let of_etcd = ours.sign("etcd", &["127.0.0.1"]);
    let served = Served::load(Files {
        certificate: of_etcd.certificate,
        key: of_etcd.key,
        authorities: Some(ours.file()),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let etcd = FakeEtcd::start();
    etcd.set_password("changed");
    let shutdown = CancellationToken::new();
    let _end = shutdown.clone().drop_guard();
    tokio::spawn(server::serve_with(
        listener,
        etcd.routes().into_axum_router(),
        server::Options::default(),
        Some(served.unwrap()),
        shutdown,
    ));

    // A certificate that etcd no longer trusts.
    let own = former.sign("master", &["master.example"]);
    let password = dir.path().join("password");
    write_private(&password, "former\n");
    let parsed = Command::try_parse_from([
        "master".to_owned(),
        format!("--etcd_endpoints=https://{address}"),
        format!("--etcd_ca_file={}", ours.file().display()),
        format!("--etcd_cert_file={}", own.certificate.display()),
        format!("--etcd_key_file={}", own.key.display()),
        "--etcd_user=meseta".to_owned(),
        format!("--etcd_password_file={}", password.display()),
    ]);
    let settings = parsed
        .unwrap()
        .flags
        .settings(CALL_TIMEOUT, "--registry=etcd", true);
    let client = Client::new(settings.unwrap()).unwrap();
    let ask = || {
        client.range(RangeRequest {
            key: "key".into(),
            ..RangeRequest::default()
        })
    };
    let refused = ask().await.unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused}");
    replace(&own, &ours.sign("renewed", &["master.example"]));
    let refused = ask().await.unwrap_err();
    assert!(matches!(refused, Error::Denied(_)), "{refused}");
    write_private(&password, "changed\n");
    ask().await.unwrap();
}
