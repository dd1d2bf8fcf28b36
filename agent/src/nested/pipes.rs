//! The pipes for the output and the input of a session's command.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;

use super::output::{Output, Stream};
use super::terminal::Terminal;

/// Largest piece of output.
const CHUNK_BYTES: usize = 16 * 1024;

/// The folder of a session's pipes, removed when dropped: a session that cannot be launched leaves nothing.
#[derive(Debug)]
pub(super) struct PipeFolder(PathBuf);

impl PipeFolder {
    fn make(path: &Path) -> std::io::Result<Self> {
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
            .recursive(true)
            .create(path)?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for PipeFolder {
    /// Blocking. The parent folder stays: another session may be about to make its own folder there.
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The three pipes of a session, by name, in their own folder.
#[derive(Debug)]
pub(super) struct Pipes {
    pub(super) folder: PipeFolder,
    pub(super) input: pipe::Sender,
    pub(super) output: pipe::Receiver,
    pub(super) errors: pipe::Receiver,
}

impl Pipes {
    pub(super) fn make(folder: &Path) -> std::io::Result<Self> {
        let folder = PipeFolder::make(folder)?;
        let make = |name: &str| -> std::io::Result<PathBuf> {
            let path = folder.0.join(name);
            let mode = nix::sys::stat::Mode::from_bits_truncate(0o600);
            nix::unistd::mkfifo(&path, mode)?;
            Ok(path)
        };
        let (input, output, errors) = (make("in")?, make("out")?, make("err")?);
        Ok(Self {
            // Also open for reading, so that a reader does not wait for the agent when it opens the pipe.
            input: pipe::OpenOptions::new()
                .read_write(true)
                .open_sender(input)?,
            output: pipe::OpenOptions::new().open_receiver(output)?,
            errors: pipe::OpenOptions::new().open_receiver(errors)?,
            folder,
        })
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }
}

/// The source of the output.
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

/// Reads to the end, which comes when the last process with the open output has ended.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: each session that could not be launched left its folder in the runtime folder, so that one executor
    /// filled /run.
    #[tokio::test]
    async fn unused_pipes_leave_no_folder() {
        let dir = tempfile::tempdir().expect("a directory");
        let sessions = dir.path().join("sessions");
        let folder = sessions.join("outer+inner");
        let pipes = Pipes::make(&folder).expect("made");
        assert!(pipes.path("err").exists());
        drop(pipes);
        assert!(!folder.exists());
        // A folder is in the place of one of the three pipes.
        std::fs::create_dir_all(folder.join("err")).expect("made");
        Pipes::make(&folder).expect_err("it is no pipe");
        assert_eq!(std::fs::read_dir(&sessions).expect("there").count(), 0);
    }
}
