//! A slow source of files, so that a kill comes during their fetch.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// The size of the source, which comes in pieces with a pause after each.
pub(crate) const BYTES: usize = 1 << 20;
const PIECES: usize = 16;
const PAUSE: Duration = Duration::from_millis(25);

/// Starts the server for the lifetime of this program, and returns its URL.
pub(crate) fn start() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/blob", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || drop(give(stream)));
        }
    });
    url
}

fn give(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = [0; 1024];
    let _ = stream.read(&mut request)?;
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {BYTES}\r\n\r\n")?;
    for _ in 0..PIECES {
        stream.write_all(&vec![b'x'; BYTES / PIECES])?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
