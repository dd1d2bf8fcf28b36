//! Plain HTTP requests by a client without the product's code.

use std::time::Duration;

use serde_json::Value;
use ureq::Agent;

/// The time limit for an answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("not JSON ({e}): {}", self.text()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
    }
}

/// Returns a client that accepts every status as an answer. Without a limit the answer may continue for ever once it has
/// begun.
pub(crate) fn client(limit: Option<Duration>) -> Agent {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_global(limit)
        .timeout_connect(Some(TIMEOUT))
        .timeout_recv_response(Some(limit.unwrap_or(TIMEOUT).max(TIMEOUT)))
        .build();
    config.into()
}

pub fn get(url: &str) -> Answer {
    try_get(url).unwrap_or_else(|e| panic!("GET {url}: {e}"))
}

/// Sends a GET to a server that may be gone.
pub fn try_get(url: &str) -> Result<Answer, ureq::Error> {
    answer(client(Some(TIMEOUT)).get(url).call()?)
}

/// Sends GET, with a time limit.
pub fn get_within(limit: Duration, url: &str) -> Result<Answer, ureq::Error> {
    answer(client(Some(limit)).get(url).call()?)
}

/// Sends PUT, with a time limit.
pub fn put_within(limit: Duration, url: &str, body: &str) -> Result<Answer, ureq::Error> {
    answer(client(Some(limit)).put(url).send(body)?)
}

/// Sends a POST with these headers.
pub fn post(url: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    try_post(url, headers, body).unwrap_or_else(|e| panic!("POST {url}: {e}"))
}

/// Sends a POST to a server that may close the connection before it has read everything.
pub fn try_post(url: &str, headers: &[(&str, &str)], body: &[u8]) -> Result<Answer, ureq::Error> {
    post_within(TIMEOUT, url, headers, body)
}

/// Posts a body, with a time limit for the answer.
pub fn post_within(
    limit: Duration,
    url: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Result<Answer, ureq::Error> {
    let mut request = client(Some(limit)).post(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    answer(request.send(body)?)
}

/// Posts a JSON value whose answer is a stream.
pub fn stream(url: &str, body: &Value) -> impl std::io::Read + use<> {
    try_stream(url, body).unwrap_or_else(|why| panic!("POST {url}: {why}"))
}

/// Opens a stream; returns the error if the other side is gone or refuses.
pub fn try_stream(url: &str, body: &Value) -> Result<impl std::io::Read + use<>, String> {
    let sent = client(None)
        .post(url)
        .header("content-type", "application/json")
        .send(body.to_string());
    let response = sent.map_err(|error| error.to_string())?;
    if response.status() != 200 {
        return Err(format!("it answered {}", response.status()));
    }
    Ok(response.into_body().into_reader())
}

/// A client of one connection with the same `Authorization` in each request.
#[derive(Debug)]
pub struct Reader {
    agent: Agent,
    authorization: String,
}

impl Reader {
    pub fn new(authorization: &str) -> Self {
        Self {
            agent: client(None),
            authorization: authorization.to_owned(),
        }
    }

    pub fn get(&self, url: &str) -> Result<Answer, ureq::Error> {
        let request = self.agent.get(url);
        answer(
            request
                .header("authorization", &self.authorization)
                .call()?,
        )
    }

    /// Posts a JSON value whose answer is a stream.
    pub fn stream(&self, url: &str, body: &Value) -> impl std::io::Read + use<> {
        let sent = self
            .agent
            .post(url)
            .header("authorization", &self.authorization)
            .header("content-type", "application/json")
            .send(body.to_string());
        let response = sent.unwrap_or_else(|e| panic!("POST {url}: {e}"));
        assert_eq!(response.status().as_u16(), 200, "POST {url}");
        response.into_body().into_reader()
    }
}

pub fn delete(url: &str) -> Answer {
    let sent = client(Some(TIMEOUT)).delete(url).call();
    let sent = sent.and_then(answer);
    sent.unwrap_or_else(|e| panic!("DELETE {url}: {e}"))
}

pub fn put(url: &str, body: &str) -> Answer {
    let sent = client(Some(TIMEOUT)).put(url).send(body);
    let sent = sent.and_then(answer);
    sent.unwrap_or_else(|e| panic!("PUT {url}: {e}"))
}

/// Sends a POST of a JSON value.
pub fn post_json(url: &str, body: &Value) -> Answer {
    post(
        url,
        &[("content-type", "application/json")],
        body.to_string().as_bytes(),
    )
}

pub(crate) fn answer(
    mut response: ureq::http::Response<ureq::Body>,
) -> Result<Answer, ureq::Error> {
    let headers = response
        .headers()
        .iter()
        .map(|(n, v)| {
            (
                n.to_string(),
                String::from_utf8_lossy(v.as_bytes()).into_owned(),
            )
        })
        .collect();
    let status = response.status().as_u16();
    let body = response
        .body_mut()
        .with_config()
        .limit(1 << 30)
        .read_to_vec()?;
    Ok(Answer {
        status,
        headers,
        body,
    })
}
