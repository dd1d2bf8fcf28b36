//! HTTP/1.1 on plain sockets: from a chosen address, kept open, and unread where required.

use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn, sockopt};
use nix::sys::time::TimeVal;

/// The time limit for a connection and for an answer: far more than any should need.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest response that is kept.
const BODY_BYTES_MAX: usize = 64 << 20;
/// The receive buffer of an unread socket; the kernel doubles it.
const UNREAD_BUFFER: usize = 4096;

/// Connects from an address of this machine, or from the default one.
pub(crate) fn connect(to: SocketAddrV4, from: Option<Ipv4Addr>) -> io::Result<TcpStream> {
    open(to, from, None)
}

/// Connects with a small buffer, for an answer that stays unread.
pub(crate) fn connect_small_buffer(
    to: SocketAddrV4,
    from: Option<Ipv4Addr>,
) -> io::Result<TcpStream> {
    open(to, from, Some(UNREAD_BUFFER))
}

fn open(to: SocketAddrV4, from: Option<Ipv4Addr>, buffer: Option<usize>) -> io::Result<TcpStream> {
    let socket = socket::socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    if let Some(bytes) = buffer {
        socket::setsockopt(&socket, sockopt::RcvBuf, &bytes)?;
    }
    if let Some(from) = from {
        // Without this option two of the thousands of connections could not share a port.
        socket::setsockopt(&socket, sockopt::IpBindAddressNoPort, &true)?;
        let from = SockaddrIn::from(SocketAddrV4::new(from, 0));
        socket::bind(socket.as_raw_fd(), &from)?;
    }
    // The limit of sending also applies to connecting.
    let limit = TimeVal::new(i64::try_from(TIMEOUT.as_secs()).unwrap_or(i64::MAX), 0);
    socket::setsockopt(&socket, sockopt::SendTimeout, &limit)?;
    socket::connect(socket.as_raw_fd(), &SockaddrIn::from(to))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Sends the head of a request that announces a body of this size.
pub(crate) fn send_head(
    stream: &mut TcpStream,
    line: &str,
    headers: &[(&str, &str)],
    body_bytes: usize,
) -> io::Result<()> {
    let mut head =
        format!("{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {body_bytes}\r\n");
    for (name, value) in headers {
        head = head + name + ": " + value + "\r\n";
    }
    head += "\r\n";
    stream.write_all(head.as_bytes())
}

/// The head of a response.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    pub(crate) fn read(reader: &mut BufReader<TcpStream>) -> io::Result<Self> {
        let line = read_line(reader)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| malformed(&line))?;
        let mut headers = Vec::new();
        loop {
            let line = read_line(reader)?;
            if line.is_empty() {
                return Ok(Self { status, headers });
            }
            let (name, value) = line.split_once(':').ok_or_else(|| malformed(&line))?;
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

fn read_line(reader: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if reader.by_ref().take(64 * 1024).read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("not HTTP: {:?}", line.get(..80).unwrap_or(line)),
    )
}

/// The bytes of a chunked body.
#[derive(Debug)]
pub(crate) struct Chunked {
    reader: BufReader<TcpStream>,
    left: usize,
}

impl Chunked {
    pub(crate) fn new(reader: BufReader<TcpStream>) -> Self {
        Self { reader, left: 0 }
    }
}

impl Read for Chunked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let line = read_line(&mut self.reader)?;
            self.left = usize::from_str_radix(&line, 16).map_err(|_| malformed(&line))?;
            if self.left == 0 {
                return Ok(0);
            }
        }
        let part = into.len().min(self.left);
        let count = self.reader.read(&mut into[..part])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        if self.left == 0 {
            read_line(&mut self.reader)?;
        }
        Ok(count)
    }
}

/// Returns the next record of a stream of RecordIO, or `None` at its end.
pub(crate) fn next_record(reader: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut digits = String::new();
    loop {
        let mut byte = [0];
        if reader.read(&mut byte)? == 0 {
            return Ok(None);
        }
        if byte == *b"\n" {
            break;
        }
        digits.push(char::from(byte[0]));
        if digits.len() > 12 {
            return Err(malformed(&digits));
        }
    }
    let length = digits.parse().map_err(|_| malformed(&digits))?;
    let mut record = vec![0; length];
    reader.read_exact(&mut record)?;
    Ok(Some(record))
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// A client that keeps its connection open.
#[derive(Debug)]
pub(crate) struct Client {
    to: SocketAddrV4,
    from: Option<Ipv4Addr>,
    kept: Option<BufReader<TcpStream>>,
}

impl Client {
    pub(crate) fn new(to: SocketAddrV4, from: Option<Ipv4Addr>) -> Self {
        let kept = None;
        Self { to, from, kept }
    }

    /// Sends a request, on a new connection if the kept one has been closed.
    pub(crate) fn send(
        &mut self,
        line: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Reply> {
        if let Some(kept) = self.kept.take()
            && let Ok(reply) = self.exchange(kept, line, headers, body)
        {
            return Ok(reply);
        }
        let fresh = BufReader::new(connect(self.to, self.from)?);
        self.exchange(fresh, line, headers, body)
    }

    fn exchange(
        &mut self,
        mut reader: BufReader<TcpStream>,
        line: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Reply> {
        let sent = send_head(reader.get_mut(), line, headers, body.len())
            .and_then(|()| reader.get_mut().write_all(body));
        // A daemon may answer before it has read everything: its answer is more important.
        let head = match (Head::read(&mut reader), sent) {
            (Ok(head), _) => head,
            (Err(_), Err(error)) | (Err(error), Ok(())) => return Err(error),
        };
        let mut body = Vec::new();
        if let Some(length) = head.header("content-length") {
            let length: usize = length.parse().map_err(|_| malformed(length))?;
            let limit = length.min(BODY_BYTES_MAX);
            body.resize(limit, 0);
            reader.read_exact(&mut body)?;
        } else if head.header("transfer-encoding").is_some() {
            let mut chunked = Chunked::new(reader);
            chunked
                .by_ref()
                .take(BODY_BYTES_MAX as u64)
                .read_to_end(&mut body)?;
            reader = chunked.reader;
        }
        if head.header("connection") != Some("close") {
            self.kept = Some(reader);
        }
        Ok(Reply {
            status: head.status,
            body,
        })
    }
}
