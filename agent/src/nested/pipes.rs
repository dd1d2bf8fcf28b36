//! Where what a session's command prints is read, and where what is typed is written.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use super::output::{Output, Stream};
use super::terminal::Terminal;

/// Largest piece of output.
const CHUNK_BYTES: usize = 16 * 1024;

/// The three pipes of a session, by name, in a folder of their own.
pub(super) struct Pipes {
    pub(super) folder: PathBuf,
    pub(super) input: pipe::Sender,
    pub(super) output: pipe::Receiver,
    pub(super) errors: pipe::Receiver,
}

impl Pipes {
    pub(super) fn make(folder: &Path) -> std::io::Result<Self> {
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
            .recursive(true)
            .create(folder)?;
        let make = |name: &str| -> std::io::Result<PathBuf> {
            let path = folder.join(name);
            let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
            nix::unistd::mkfifo(&path, mode)?;
            Ok(path)
        };
        let (input, output, errors) = (make("in")?, make("out")?, make("err")?);
        Ok(Self {
            folder: folder.to_owned(),
            // Open for reading too, so that whoever opens it to read need not wait for us.
            input: pipe::OpenOptions::new()
                .read_write(true)
                .open_sender(input)?,
            output: pipe::OpenOptions::new().open_receiver(output)?,
            errors: pipe::OpenOptions::new().open_receiver(errors)?,
        })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

pub(super) fn remove_pipes(folder: &Path) {
    let _ = std::fs::remove_dir_all(folder);
    if let Some(sessions) = folder.parent() {
        // Fails while others are there.
        let _ = std::fs::remove_dir(sessions);
    }
}

/// Where output is read.
#[derive(Debug)]
pub(super) enum Source {
    Pipe(pipe::Receiver, Stream),
    Terminal(Arc<Terminal>),
}

impl Source {
    async fn read(&mut self, chunk: &mut [u8]) -> std::io::Result<(Stream, usize)> {
        match self {
            Self::Pipe(pipe, stream) => Ok((*stream, pipe.read(chunk).await?)),
            Self::Terminal(terminal) => Ok((Stream::Output, terminal.read(chunk).await?)),
        }
    }
}

/// Reads to the end, which comes when the last process that can print is gone.
pub(super) async fn pump(mut from: Source, to: Output) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok((stream, count)) = from.read(&mut chunk).await {
        let filled = chunk.get(..count).unwrap_or_default();
        if filled.is_empty() {
            return;
        }
        to.print(stream, Bytes::copy_from_slice(filled)).await;
    }
}
