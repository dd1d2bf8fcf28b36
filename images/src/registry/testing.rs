//! A registry on loopback for tests, which can fail in every way that a test wants.
//!
//! [`TestRegistry::start`] takes a function from requests to answers. Invariant: every answer is recorded before it is sent.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::descriptor::Digest;
use crate::manifest::{OCI_MANIFEST, Platform};

/// An image of plain layers, whose bytes are not necessarily archives.
#[derive(Clone, Debug)]
pub(crate) struct TestImage {
    pub(crate) layers: Vec<Vec<u8>>,
    pub(crate) config: Vec<u8>,
    pub(crate) manifest: Vec<u8>,
}

impl TestImage {
    pub(crate) fn new(layers: &[&[u8]]) -> Self {
        let digests = layers
            .iter()
            .map(|layer| format!("\"{}\"", Digest::from_content(layer)));
        let config = format!(
            r#"{{"os":"linux","architecture":"{}","rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
            Platform::for_this_machine().architecture(),
            digests.collect::<Vec<_>>().join(",")
        );
        let described = layers.iter().map(|layer| {
            format!(
                r#"{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"{}","size":{}}}"#,
                Digest::from_content(layer),
                layer.len()
            )
        });
        let manifest = format!(
            r#"{{"schemaVersion":2,"mediaType":"{OCI_MANIFEST}","config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{}","size":{}}},"layers":[{}]}}"#,
            Digest::from_content(config.as_bytes()),
            config.len(),
            described.collect::<Vec<_>>().join(",")
        );
        Self {
            layers: layers.iter().map(|layer| layer.to_vec()).collect(),
            config: config.into_bytes(),
            manifest: manifest.into_bytes(),
        }
    }

    /// The answer to a request for a part of this image, whatever the repository and the tag.
    pub(crate) fn answer(&self, request: &TestRequest) -> TestAnswer {
        let path = request.target.split('?').next().unwrap_or_default();
        let selector = path.rsplit('/').next().unwrap_or_default();
        if path.contains("/manifests/") {
            let digest = Digest::from_content(&self.manifest).to_string();
            if selector.starts_with("sha256:") && selector != digest {
                return TestAnswer::status(404);
            }
            return TestAnswer::ok(&self.manifest)
                .with("Content-Type", OCI_MANIFEST)
                .with("Docker-Content-Digest", &digest);
        }
        let mut blobs = self.layers.iter().chain([&self.config]);
        let blob = blobs.find(|blob| Digest::from_content(blob).to_string() == selector);
        let Some(blob) = blob else {
            return TestAnswer::status(404);
        };
        match request.range_start() {
            Some(start) => {
                let rest = blob.get(start..).unwrap_or_default();
                let range = format!("bytes {start}-{}/{}", blob.len() - 1, blob.len());
                TestAnswer {
                    status: 206,
                    ..TestAnswer::ok(rest)
                }
                .with("Content-Range", &range)
            }
            None => TestAnswer::ok(blob),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct TestRequest {
    pub(crate) method: String,
    pub(crate) target: String,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl TestRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(crate) fn range_start(&self) -> Option<usize> {
        let range = self.header("range")?.strip_prefix("bytes=")?;
        range.split('-').next()?.parse().ok()
    }

    fn read(stream: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut line = String::new();
        stream
            .read_line(&mut line)
            .ok()
            .filter(|count| *count > 0)?;
        let mut words = line.split_whitespace().map(str::to_owned);
        let (method, target) = (words.next()?, words.next()?);
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).ok()?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers
            .get("content-length")
            .and_then(|text| text.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        stream.read_exact(&mut body).ok()?;
        let body = String::from_utf8_lossy(&body).into_owned();
        Some(Self {
            method,
            target,
            headers,
            body,
        })
    }
}

/// The end of an answer's body.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Complete,
    /// Closes the connection after these bytes of the body.
    Cut(usize),
    /// Sends nothing more after these bytes.
    Stall(usize),
    /// Repeats the body for ever.
    Endless,
}

#[derive(Clone, Debug)]
pub(crate) struct TestAnswer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    ending: Ending,
}

impl TestAnswer {
    pub(crate) fn ok(body: &[u8]) -> Self {
        Self {
            status: 200,
            headers: Vec::new(),
            body: body.to_vec(),
            ending: Ending::Complete,
        }
    }

    pub(crate) fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::ok(b"")
        }
    }

    pub(crate) fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn cut_after(self, bytes: usize) -> Self {
        Self {
            ending: Ending::Cut(bytes),
            ..self
        }
    }

    pub(crate) fn stalled_after(self, bytes: usize) -> Self {
        Self {
            ending: Ending::Stall(bytes),
            ..self
        }
    }

    pub(crate) fn endless(self) -> Self {
        Self {
            ending: Ending::Endless,
            ..self
        }
    }

    fn send(&self, stream: &mut TcpStream, has_body: bool) -> std::io::Result<bool> {
        let mut head = format!("HTTP/1.1 {} Test\r\n", self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !matches!(self.ending, Ending::Endless) {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes())?;
        if !has_body {
            return Ok(true);
        }
        let part = |count: usize| self.body.get(..count).unwrap_or(&self.body);
        match self.ending {
            Ending::Complete => stream.write_all(&self.body)?,
            Ending::Cut(count) => {
                stream.write_all(part(count))?;
                return Ok(false);
            }
            Ending::Stall(count) => {
                stream.write_all(part(count))?;
                // Until the client gives up.
                let _ = stream.read(&mut [0]);
                return Ok(false);
            }
            Ending::Endless => loop {
                stream.write_all(&self.body)?;
            },
        }
        Ok(true)
    }
}

/// A server that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct TestRegistry {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<TestRequest>>>,
    is_stopped: Arc<AtomicBool>,
}

impl TestRegistry {
    /// Starts a server. The function gets each request and the number of earlier requests with the same method and target.
    pub(crate) fn start(
        answer: impl Fn(&TestRequest, usize) -> TestAnswer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let registry = Self {
            address: listener.local_addr().expect("bound"),
            requests: Arc::default(),
            is_stopped: Arc::default(),
        };
        let (requests, is_stopped) = (registry.requests.clone(), registry.is_stopped.clone());
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_stopped.load(Ordering::Relaxed) {
                    break;
                }
                let (requests, answer) = (requests.clone(), answer.clone());
                let Ok(stream) = stream else { continue };
                std::thread::spawn(move || serve(stream, &requests, &*answer));
            }
        });
        registry
    }

    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn requests(&self) -> Vec<TestRequest> {
        self.requests.lock().expect("no panic").clone()
    }

    /// The requests in short: `GET manifests/latest`.
    pub(crate) fn log(&self) -> Vec<String> {
        let requests = self.requests();
        let lines = requests.iter().map(|request| {
            let parts = request.target.split('/').collect::<Vec<_>>();
            let end = parts
                .get(parts.len().saturating_sub(2)..)
                .unwrap_or_default();
            let range = request
                .header("range")
                .map_or(String::new(), |range| format!(" {range}"));
            format!("{} {}{range}", request.method, end.join("/"))
        });
        lines.collect()
    }
}

impl Drop for TestRegistry {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(
    stream: TcpStream,
    requests: &Mutex<Vec<TestRequest>>,
    answer: &dyn Fn(&TestRequest, usize) -> TestAnswer,
) {
    let Ok(mut output) = stream.try_clone() else {
        return;
    };
    let mut input = BufReader::new(stream);
    while let Some(request) = TestRequest::read(&mut input) {
        let earlier = {
            let mut requests = requests.lock().expect("no panic");
            let is_same = |one: &&TestRequest| {
                (&one.method, &one.target) == (&request.method, &request.target)
            };
            let earlier = requests.iter().filter(is_same).count();
            requests.push(request.clone());
            earlier
        };
        let answer = answer(&request, earlier);
        match answer.send(&mut output, request.method != "HEAD") {
            Ok(true) => {}
            _ => break,
        }
    }
}
