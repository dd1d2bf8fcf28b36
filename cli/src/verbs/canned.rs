//! Daemons on loopback with fixed responses, for the tests of the verbs.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use meseta_proto::media::{self, MediaType};
use meseta_proto::mesos::v1::agent;
use meseta_proto::mesos::v1::scheduler::{Call, Event};
use meseta_proto::recordio;
use serde_json::{Value, json};

/// Returns an address without a listener: the kernel never assigns port 1 to a socket without a fixed port.
pub(super) fn nobody() -> String {
    "127.0.0.1:1".to_owned()
}

/// Answers one request with a stream of this record, and then stays silent until the client has gone.
pub(super) fn silent_after(record: &[u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let head = "HTTP/1.1 200 OK\r\nmesos-stream-id: 1\r\nconnection: close\r\n\r\n";
    let answer = [head.as_bytes(), record].concat();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept()?;
        if request_of(&stream).is_some() {
            stream.write_all(&answer)?;
        }
        stream.read(&mut [0])
    });
    address
}

/// Stands for a status: the master ends, and nothing listens there any more.
pub(super) const GONE: u16 = 0;
/// Stands for a status: the call is accepted, and the streams end.
pub(super) const ENDS_STREAM: u16 = 1;
/// Stands for a status: the call gets no answer.
pub(super) const STANDS_STILL: u16 = 2;

/// Starts a master of one framework: it answers the subscription with a stream of these events, and any other call with the
/// status of `answer`, whose events come on the stream.
pub(super) fn master_of(
    events: Vec<Event>,
    mut answer: impl FnMut(&Call) -> (u16, Vec<Event>) + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    std::thread::spawn(move || {
        let mut streams: Vec<TcpStream> = Vec::new();
        let mut unanswered = Vec::new();
        for stream in listener.incoming().flatten() {
            let Some((_, body)) = request_bytes_of(&stream) else {
                continue;
            };
            let Ok(call) = media::decode::<Call>(MediaType::Protobuf, &body) else {
                answer_with(stream, 404, &json!({}));
                continue;
            };
            let next = if call.subscribe.is_some() {
                let head = "HTTP/1.1 200 OK\r\nmesos-stream-id: 1\r\nconnection: close\r\n\r\n";
                let _ = (&stream).write_all(head.as_bytes());
                streams.push(stream);
                events.clone()
            } else {
                let (status, next) = answer(&call);
                match status {
                    GONE => return,
                    ENDS_STREAM => {
                        answer_with(stream, 202, &json!({}));
                        streams.clear();
                    }
                    STANDS_STILL => unanswered.push(stream),
                    _ => answer_with(stream, status, &json!({})),
                }
                next
            };
            for (event, mut stream) in next.iter().zip(streams.last().into_iter().cycle()) {
                let record = media::encode(MediaType::Protobuf, event);
                let _ = stream.write_all(&recordio::encode(&record));
            }
        }
    });
    address
}

/// Starts an agent that reads files as `read` does, or responds with its status.
pub(super) fn agent_of(
    mut read: impl FnMut(&agent::call::ReadFile) -> Result<agent::response::ReadFile, u16>
    + Send
    + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let asked = request_bytes_of(&stream);
            let call = asked.and_then(|(_, body)| {
                let call = media::decode::<agent::Call>(MediaType::Protobuf, &body);
                call.ok()?.read_file
            });
            match call.ok_or(400).and_then(|call| read(&call)) {
                Ok(chunk) => {
                    let response = agent::Response {
                        r#type: Some(agent::response::Type::ReadFile.into()),
                        read_file: Some(chunk),
                        ..agent::Response::default()
                    };
                    let body = media::encode(MediaType::Protobuf, &response);
                    answer_bytes(stream, 200, "", &body);
                }
                Err(status) => answer_bytes(stream, status, "", b""),
            }
        }
    });
    address
}

/// Answers one request per connection, and returns the received requests.
pub(super) fn server_with(
    answers: &[(&'static str, u16, Value)],
) -> (String, mpsc::Receiver<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address").to_string();
    let answers: BTreeMap<&str, (u16, Value)> = answers
        .iter()
        .map(|(request, status, body)| (*request, (*status, body.clone())))
        .collect();
    let (told, asked) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let Some((request, body)) = request_of(&stream) else {
                continue;
            };
            let missing = (404, json!({}));
            let (status, answer) = answers.get(request.as_str()).unwrap_or(&missing);
            answer_with(stream, *status, answer);
            if told.send((request, body)).is_err() {
                return;
            }
        }
    });
    (address, asked)
}

fn request_of(stream: &TcpStream) -> Option<(String, String)> {
    let (request, body) = request_bytes_of(stream)?;
    Some((request, String::from_utf8(body).ok()?))
}

fn request_bytes_of(stream: &TcpStream) -> Option<(String, Vec<u8>)> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first).ok()?;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let request = first.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    Some((request, body))
}

fn answer_with(stream: TcpStream, status: u16, body: &Value) {
    let location = body.get("location").and_then(Value::as_str);
    let location = location.map_or_else(String::new, |at| format!("location: {at}\r\n"));
    answer_bytes(stream, status, &location, body.to_string().as_bytes());
}

fn answer_bytes(mut stream: TcpStream, status: u16, headers: &str, body: &[u8]) {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} OK\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
}
