//! HTTP as bytes on a socket: the exact request, and the answer, chunk by chunk.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn};

/// The time limit for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Raw {
    reader: BufReader<TcpStream>,
}

/// The head of a response.
#[derive(Debug, Clone)]
pub struct Head {
    pub status: u16,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

impl Raw {
    pub fn connect(address: &str) -> Self {
        Self::over(TcpStream::connect(address).expect("connected"))
    }

    /// Connects from another address of this machine.
    pub fn connect_from(from: Ipv4Addr, address: &str) -> Self {
        let address: SocketAddrV4 = address.parse().expect("an address");
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket::socket(AddressFamily::Inet, SockType::Stream, flags, None);
        let socket = socket.expect("a socket");
        let from = SockaddrIn::from(SocketAddrV4::new(from, 0));
        socket::bind(socket.as_raw_fd(), &from).expect("an address of this machine");
        socket::connect(socket.as_raw_fd(), &SockaddrIn::from(address)).expect("connected");
        Self::over(TcpStream::from(socket))
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        Self {
            reader: BufReader::new(stream),
        }
    }

    /// Sends bytes without a change.
    pub fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).expect("sent");
    }

    /// Sends a request with these header lines and a body of known length.
    pub fn request(&mut self, line: &str, headers: &[&str], body: &str) {
        let mut text = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n",
            body.len()
        );
        for header in headers {
            text += header;
            text += "\r\n";
        }
        text += "\r\n";
        self.send((text + body).as_bytes());
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("a line");
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    pub fn head(&mut self) -> Head {
        let line = self.line();
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status line: {line:?}"));
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(": ") else {
                assert_eq!(line, "", "not a header");
                return Head { status, headers };
            };
            headers.push((name.to_lowercase(), value.to_owned()));
        }
    }

    /// Reads exactly this many bytes.
    pub fn read_exact(&mut self, into: &mut [u8]) {
        self.reader.read_exact(into).expect("the body");
    }

    /// Reads a whole answer with a `Content-Length`; an answer without one has no body.
    pub fn answer(&mut self) -> (Head, String) {
        let head = self.head();
        let length = head
            .header("content-length")
            .map_or(0, |length| length.parse().expect("a number"));
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).expect("the body");
        (head, String::from_utf8(body).expect("text"))
    }

    /// Returns the next chunk of a chunked response, or `None` at its end.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let length = usize::from_str_radix(&self.line(), 16).expect("a chunk's length");
        let mut chunk = vec![0; length];
        self.reader.read_exact(&mut chunk).expect("the chunk");
        assert_eq!(self.line(), "", "a chunk ends with a line feed");
        (length > 0).then_some(chunk)
    }

    /// Reads the next chunk, which must be one whole record: its length, a line feed, its bytes.
    pub fn record(&mut self) -> Option<serde_json::Value> {
        let chunk = String::from_utf8(self.chunk()?).expect("text");
        let parts: Vec<&str> = chunk.split('\n').collect();
        assert_eq!(parts.len(), 2, "one record in one chunk: {chunk:?}");
        assert_eq!(parts[0].parse(), Ok(parts[1].len()), "{chunk:?}");
        assert!(
            parts[1].is_ascii(),
            "lengths count bytes and characters alike"
        );
        Some(serde_json::from_str(parts[1]).expect("JSON"))
    }

    /// Reads records until one of this type.
    pub fn until(&mut self, kind: &str) -> serde_json::Value {
        loop {
            let record = self
                .record()
                .unwrap_or_else(|| panic!("no {kind} before the end"));
            if record["type"] == kind {
                return record;
            }
        }
    }

    /// Reads everything until the other side closes the connection, in whichever way.
    pub fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        // A reset also ends the stream.
        let _ = self.reader.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Whether the peer has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.reader.read(&mut [0]), Ok(0))
    }
}
