//! Transport of answers: metrics, conditional requests, compression.

use super::*;

#[tokio::test]
async fn prometheus_families_have_help_and_unit() {
    let router = master();
    let response = get(&router, "/metrics").await;
    assert!(
        response.headers()[header::CONTENT_TYPE]
            .to_str()
            .unwrap()
            .starts_with("text/plain")
    );
    let text = text_of(response).await;
    let helped: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let is_ours = name.starts_with("meseta_master_") || name.starts_with("process_");
        assert!(is_ours, "{name}");
        let of_histogram = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end));
        let is_helped = |name: &str| helped.contains(&name);
        assert!(
            is_helped(name) || of_histogram.is_some_and(is_helped),
            "{name} has no help"
        );
    }
    for counter in text
        .lines()
        .filter(|line| line.starts_with("# TYPE") && line.ends_with(" counter"))
    {
        assert!(counter.contains("_total "), "{counter}");
    }
}

#[tokio::test]
async fn unchanged_answer_is_not_modified() {
    let router = master();
    for path in [
        "/state",
        "/slaves",
        "/tasks",
        "/master/roles",
        "/quota",
        "/weights",
    ] {
        let first = get(&router, path).await;
        assert_eq!(first.status(), StatusCode::OK, "{path}");
        let version = first.headers()[header::ETAG].to_str().unwrap().to_owned();
        let known = ("If-None-Match", version.as_str());
        let again = send(&router, "GET", path, &[known], "").await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path}");
        assert_eq!(again.headers()[header::ETAG], version.as_str());
        assert_eq!(text_of(again).await, "");
        let other = send(&router, "GET", path, &[("If-None-Match", "W/\"x-1\"")], "").await;
        assert_eq!(other.status(), StatusCode::OK, "{path}");
    }
    let before = get(&router, "/weights").await.headers()[header::ETAG].clone();
    let set = send(
        &router,
        "PUT",
        "/weights",
        &[],
        r#"[{"role": "dev", "weight": 2.0}]"#,
    )
    .await;
    assert_eq!(set.status(), StatusCode::OK);
    let known = ("If-None-Match", before.to_str().unwrap());
    let changed = send(&router, "GET", "/weights", &[known], "").await;
    assert_eq!(changed.status(), StatusCode::OK);
    assert!(
        !get(&router, "/health")
            .await
            .headers()
            .contains_key(header::ETAG)
    );
}

/// A body compressed like a client's.
fn gzip(plain: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// The encodings that libprocess accepts.
#[tokio::test]
async fn gzip_bodies_obey_size_limits() {
    let router = master();
    let encoded = ("Content-Encoding", "gzip");
    let kill = r#"{"type":"KILL","framework_id":{"value":"f"},"kill":{"task_id":{"value":"t"}}}"#;
    for (method, path, headers, body, status, answered) in [
        (
            "PUT",
            "/weights",
            &[encoded][..],
            r#"[{"role":"dev","weight":2.0}]"#,
            200,
            "",
        ),
        (
            "POST",
            "/reserve",
            &[encoded],
            "slaveId=a",
            400,
            "resources",
        ),
        (
            "POST",
            "/api/v1",
            &[JSON, encoded],
            r#"{"type":"GET_HEALTH"}"#,
            200,
            "healthy",
        ),
        (
            "POST",
            "/api/v1/scheduler",
            &[JSON, encoded],
            kill,
            400,
            "Framework",
        ),
    ] {
        let plain = &headers[..headers.len() - 1];
        let expected = send(&router, method, path, plain, body).await;
        assert_eq!(expected.status(), status, "{path}");
        let expected = text_of(expected).await;
        assert!(expected.contains(answered), "{path}: {expected}");
        let answer = send(&router, method, path, headers, gzip(body.as_bytes())).await;
        assert_eq!(
            (answer.status().as_u16(), text_of(answer).await),
            (status, expected)
        );
        // The response to another encoding names the accepted one.
        let mut other = plain.to_vec();
        other.push(("Content-Encoding", "br"));
        let answer = send(&router, method, path, &other, body).await;
        assert_eq!(answer.status(), 415, "{path}");
        assert_eq!(answer.headers()[header::ACCEPT_ENCODING], "gzip");
        let text = "Expecting 'Content-Encoding' of gzip, or none";
        assert_eq!(text_of(answer).await, text, "{path}");
        let bomb = gzip(&vec![b' '; SCHEDULER_BODY_MAX + 1]);
        let answer = send(&router, method, path, headers, bomb).await;
        assert_eq!(answer.status(), 413, "{path}");
        let text = text_of(answer).await;
        assert!(text.contains("inflates to more than"), "{path}: {text}");
    }
}

#[tokio::test]
async fn large_answers_are_compressed_streams_not() {
    let router = master();
    let gzip = ("Accept-Encoding", "gzip");
    for path in ["/openapi.json", "/metrics"] {
        let page = send(&router, "GET", path, &[gzip], "").await;
        assert_eq!(page.headers()[header::CONTENT_ENCODING], "gzip", "{path}");
        let bytes = page.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&bytes[..2], [0x1f, 0x8b], "gzip begins so");
    }
    let metrics = r#"{"type":"GET_METRICS","get_metrics":{}}"#;
    let answer = send(&router, "POST", "/api/v1", &[JSON, gzip], metrics).await;
    assert_eq!(answer.headers()[header::CONTENT_ENCODING], "gzip");
    for (path, headers) in [
        ("/openapi.json", &[][..]),
        ("/health", &[gzip]),
        ("/weights", &[gzip]),
    ] {
        let plain = send(&router, "GET", path, headers, "").await;
        assert!(
            !plain.headers().contains_key(header::CONTENT_ENCODING),
            "{path}"
        );
    }
    let watch = send(
        &router,
        "POST",
        "/api/v1",
        &[JSON, gzip],
        r#"{"type":"SUBSCRIBE"}"#,
    )
    .await;
    assert_eq!(watch.status(), StatusCode::OK);
    assert!(!watch.headers().contains_key(header::CONTENT_ENCODING));
}
