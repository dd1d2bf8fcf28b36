//! A small HTTP client, with or without TLS: one request and its answer, or a stream of records.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::tls;
use meseta_proto::media::{self, BodyError, MediaType};
use meseta_proto::recordio;
use meseta_proto::schema::WireMessage;

#[derive(Copy, Clone, Debug)]
pub struct Options {
    pub connect_timeout: Duration,
    /// The time limit for a whole answer, or for the header of a stream.
    pub timeout: Duration,
    /// The maximum size of a whole answer, or of one record.
    pub body_max_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(30),
            body_max_bytes: 64 << 20,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to make a request to {url}")]
    Request {
        url: String,
        #[source]
        source: http::Error,
    },
    #[error("failed to reach {url}")]
    Connect {
        url: String,
        #[source]
        source: legacy::Error,
    },
    #[error("no answer from {url} within {timeout:?}")]
    Timeout { url: String, timeout: Duration },
    #[error("the answer of {url} is longer than {max} bytes")]
    TooLong { url: String, max: usize },
    #[error("failed to read the answer of {url}")]
    Read {
        url: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{url} answered {status}: {body}")]
    Refused {
        url: String,
        status: StatusCode,
        body: String,
    },
    #[error("failed to read the stream of {url}")]
    Record {
        url: String,
        #[source]
        source: recordio::Error,
    },
    #[error("failed to parse a message from {url}")]
    Message {
        url: String,
        #[source]
        source: BodyError,
    },
}

/// A whole answer, with any status.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Reply {
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the value of a header, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// A client that is cheap to clone; connections are kept and shared.
#[derive(Clone, Debug)]
pub struct Client {
    http: legacy::Client<Connector, Full<Bytes>>,
    options: Options,
    /// The `Authorization` header of every request, which identifies this daemon.
    authorization: Option<HeaderValue>,
}

impl Default for Client {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Client {
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self::with(options, tls::trusting_no_server(), None)
    }

    /// Returns a client without TLS that sends this authorization.
    #[must_use]
    pub fn plaintext(options: Options, authorization: Option<HeaderValue>) -> Self {
        Self::with(options, tls::trusting_no_server(), authorization)
    }

    /// Returns a client that trusts servers according to `config` and sends this authorization.
    #[must_use]
    pub fn with(
        options: Options,
        config: tls::ClientConfig,
        authorization: Option<HeaderValue>,
    ) -> Self {
        let connector = connector_for(config, options.connect_timeout, false);
        let http = legacy::Client::builder(TokioExecutor::new()).build(connector);
        let authorization = authorization.map(|mut value| {
            value.set_sensitive(true);
            value
        });
        Self {
            http,
            options,
            authorization,
        }
    }

    /// Returns a client without a timeout, for requests whose answer waits for an event, however late.
    #[must_use]
    pub fn without_timeout(&self) -> Self {
        let mut client = self.clone();
        client.options.timeout = Duration::MAX;
        client
    }

    pub async fn get(&self, url: &str) -> Result<Reply, Error> {
        self.request(Call::get(url)).await
    }

    /// Sends any request. The caller evaluates the status of the response.
    pub async fn request(&self, call: Call) -> Result<Reply, Error> {
        let url = call.url.clone();
        let whole = async {
            let response = self.send(call).await?;
            self.whole(response, &url).await
        };
        self.in_time(&url, whole).await
    }

    /// Sends a request whose answer is a stream of records. Any status but 200 is an error.
    pub async fn stream(&self, call: Call) -> Result<RecordStream, Error> {
        let url = call.url.clone();
        let opened = async {
            let response = self.send(call).await?;
            if response.status() == StatusCode::OK {
                return Ok(response);
            }
            let reply = self.whole(response, &url).await?;
            let body = reply.text();
            Err(Error::Refused {
                url: url.clone(),
                status: reply.status,
                body,
            })
        };
        let (head, body) = self.in_time(&url, opened).await?.into_parts();
        let decoder = recordio::Decoder::new(self.options.body_max_bytes);
        Ok(RecordStream {
            url,
            headers: head.headers,
            body,
            decoder,
        })
    }

    async fn in_time<T>(
        &self,
        url: &str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let timeout = self.options.timeout;
        tokio::time::timeout(timeout, work)
            .await
            .unwrap_or_else(|_| {
                Err(Error::Timeout {
                    url: url.to_owned(),
                    timeout,
                })
            })
    }

    async fn send(&self, call: Call) -> Result<Response<Incoming>, Error> {
        let url = call.url.clone();
        let mut request = call.into_request().map_err(|source| Error::Request {
            url: url.clone(),
            source,
        })?;
        if let Some(authorization) = &self.authorization {
            let headers = request.headers_mut();
            headers.insert(http::header::AUTHORIZATION, authorization.clone());
        }
        self.http
            .request(request)
            .await
            .map_err(|source| Error::Connect { url, source })
    }

    async fn whole(&self, response: Response<Incoming>, url: &str) -> Result<Reply, Error> {
        let (head, body) = response.into_parts();
        let max = self.options.body_max_bytes;
        let url = url.to_owned();
        let body = match Limited::new(body, max).collect().await {
            Ok(body) => body.to_bytes(),
            Err(source) if source.is::<LengthLimitError>() => {
                return Err(Error::TooLong { url, max });
            }
            Err(source) => return Err(Error::Read { url, source }),
        };
        Ok(Reply {
            status: head.status,
            headers: head.headers,
            body,
        })
    }
}

/// Opens connections: plain for `http`, over TLS for `https`.
pub type Connector = HttpsConnector<HttpConnector>;

/// Returns a connector for gRPC, which is HTTP/2.
#[must_use]
pub fn connector(config: tls::ClientConfig, timeout: Duration) -> Connector {
    connector_for(config, timeout, true)
}

/// The silence after which a connection probes its peer, the pause between probes, and their number: a machine that has
/// lost its power sends no end, see tcp(7).
const KEEP_ALIVE_AFTER: Duration = Duration::from_secs(20);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_RETRIES: u32 = 3;

fn connector_for(config: tls::ClientConfig, timeout: Duration, http2: bool) -> Connector {
    let mut plain = HttpConnector::new();
    plain.set_connect_timeout(Some(timeout));
    plain.set_nodelay(true);
    plain.set_keepalive(Some(KEEP_ALIVE_AFTER));
    plain.set_keepalive_interval(Some(KEEP_ALIVE_INTERVAL));
    plain.set_keepalive_retries(Some(KEEP_ALIVE_RETRIES));
    plain.enforce_http(false);
    let builder = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http();
    if http2 {
        builder.enable_http2().wrap_connector(plain)
    } else {
        builder.enable_http1().wrap_connector(plain)
    }
}

/// A request under construction.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    url: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Call {
    #[must_use]
    pub fn new(method: Method, url: &str) -> Self {
        Self {
            method,
            url: url.to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    #[must_use]
    pub fn get(url: &str) -> Self {
        Self::new(Method::GET, url)
    }

    #[must_use]
    pub fn post(url: &str) -> Self {
        Self::new(Method::POST, url)
    }

    /// Builds a POST of a message, with `Content-Type` and `Accept` of its encoding.
    #[must_use]
    pub fn message<T: WireMessage>(url: &str, media: MediaType, message: &T) -> Self {
        Self::post(url)
            .header(CONTENT_TYPE, media.header_value())
            .header(http::header::ACCEPT, media.header_value())
            .body(media::encode(media, message))
    }

    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    fn into_request(self) -> Result<Request<Full<Bytes>>, http::Error> {
        let uri: Uri = self.url.parse()?;
        let mut request = Request::builder()
            .method(self.method)
            .uri(uri)
            .body(Full::new(self.body))?;
        *request.headers_mut() = self.headers;
        Ok(request)
    }
}

/// The records of a response, as they arrive.
#[derive(Debug)]
pub struct RecordStream {
    url: String,
    headers: HeaderMap,
    body: Incoming,
    decoder: recordio::Decoder,
}

impl RecordStream {
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Returns the value of a header, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the next record, or `None` at the regular end of the stream. May be cancelled without loss.
    pub async fn next_record(&mut self) -> Result<Option<Bytes>, Error> {
        let url = || self.url.clone();
        loop {
            match self.decoder.next_record() {
                Ok(Some(record)) => return Ok(Some(record)),
                Ok(None) => {}
                Err(source) => return Err(Error::Record { url: url(), source }),
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(bytes) = frame.data_ref() {
                        self.decoder.push(bytes);
                    }
                }
                Some(Err(source)) => {
                    return Err(Error::Read {
                        url: url(),
                        source: source.into(),
                    });
                }
                None => {
                    let end = self.decoder.finish();
                    return end
                        .map(|()| None)
                        .map_err(|source| Error::Record { url: url(), source });
                }
            }
        }
    }

    /// Returns the next record as a message in the given encoding.
    pub async fn next_message<T: WireMessage>(
        &mut self,
        media: MediaType,
    ) -> Result<Option<T>, Error> {
        let Some(record) = self.next_record().await? else {
            return Ok(None);
        };
        media::decode(media, &record)
            .map(Some)
            .map_err(|source| Error::Message {
                url: self.url.clone(),
                source,
            })
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn missing_timeout_waits_for_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("bound"));
        let (go, going) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            // Until this signal, connections are opened and no request is answered.
            let _ = going.await;
            while let Ok((mut stream, _)) = listener.accept().await {
                let _read = stream.read(&mut [0; 1024]).await;
                let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                let _sent = stream.write_all(answer).await;
            }
        });
        let client = Client::new(Options {
            timeout: Duration::ZERO,
            ..Options::default()
        });
        let late = client.get(&url).await;
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        go.send(()).expect("it is waited for");
        let reply = client.without_timeout().get(&url).await.expect("an answer");
        assert_eq!(reply.status, StatusCode::OK);
    }
}
