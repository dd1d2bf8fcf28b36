//! Reads a task's output as it grows, from its agent's READ_FILE.

use meseta_proto::mesos::v1::agent as api;

use meseta_daemon::client::Client;

use super::server::{self, AgentAddress};

type FileChunk = api::response::ReadFile;

/// Bytes that one call requests; the agent may return less.
const CHUNK_BYTES: u64 = 64 * 1024;

/// Files of one log that a search examines for the last file: more than any agent keeps.
const FILES_MAX: u32 = 1000;
/// A file is missing for a moment while it is renamed; this many missing files in a row mean the end of the log.
const GAP_MAX: u32 = 2;
/// The number of searches for the last file before it counts as gone.
const ATTEMPTS_MAX: u32 = 3;

/// A file of a sandbox, read from the end of the last read, also after any number of rotations because it was full (to
/// `<file>.1`, and then to `<file>.2`, and so on).
#[derive(Debug)]
pub(super) struct Tail {
    /// The client, created at the first read.
    client: Option<Client>,
    agent: AgentAddress,
    /// The folder of the sandbox.
    folder: String,
    path: String,
    offset: u64,
    /// The id of the last file that was read; `None` before the first read.
    file_id: Option<u64>,
    /// The number of files begun after this one, when it was last seen.
    newer: u32,
}

impl Tail {
    /// Follows `file` in the sandbox of an executor's newest run. For a command task, the executor's id is the task's.
    pub(super) fn new(agent: &AgentAddress, framework: &str, executor: &str, file: &str) -> Self {
        let folder = format!("/frameworks/{framework}/executors/{executor}/runs/latest");
        Self {
            client: None,
            agent: agent.clone(),
            path: format!("{folder}/{file}"),
            folder,
            offset: 0,
            file_id: None,
            newer: 0,
        }
    }

    /// Whether the file ever existed, even if empty.
    pub(super) fn was_found(&self) -> bool {
        self.file_id.is_some()
    }

    /// Returns the end of the file, as much as one answer holds; `None` if there is no file.
    pub(super) async fn last(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        let Some(first) = self.chunk(0, 0).await? else {
            return Ok(None);
        };
        let from = first.size.saturating_sub(CHUNK_BYTES);
        if from == 0 {
            return Ok(Some(first.data));
        }
        Ok(self.chunk(0, from).await?.map(|chunk| chunk.data))
    }

    /// Returns the names in the sandbox; `None` if there is no sandbox.
    pub(super) async fn names(&mut self) -> anyhow::Result<Option<Vec<String>>> {
        let call = api::Call {
            r#type: Some(api::call::Type::ListFiles.into()),
            list_files: Some(api::call::ListFiles {
                path: self.folder.clone(),
            }),
            ..api::Call::default()
        };
        let client = self.client()?;
        let response: Option<api::Response> =
            server::call(&client, &self.agent.address, "/api/v1", &call)
                .await?
                .found()?;
        let files = response.and_then(|response| response.list_files);
        Ok(files.map(|files| {
            let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
            files
                .file_infos
                .iter()
                .map(|info| name(&info.path))
                .collect()
        }))
    }

    fn client(&mut self) -> anyhow::Result<Client> {
        match &self.client {
            Some(client) => Ok(client.clone()),
            None => {
                let client = self.agent.client()?;
                Ok(self.client.insert(client).clone())
            }
        }
    }

    /// Returns the bytes written since the last read; empty if there is nothing new, or no file yet.
    pub(super) async fn read(&mut self) -> anyhow::Result<Vec<u8>> {
        loop {
            let found = match self.file_id {
                None => self.first().await?,
                Some(id) => self.next_of(id).await?,
            };
            let Some(chunk) = found else {
                return Ok(Vec::new());
            };
            if !chunk.data.is_empty() {
                self.offset += u64::try_from(chunk.data.len())?;
                return Ok(chunk.data);
            }
            if self.newer == 0 {
                return Ok(Vec::new());
            }
            self.go_to_successor().await?;
        }
    }

    /// Reads the beginning of the oldest file: some files may be full before the first look.
    async fn first(&mut self) -> anyhow::Result<Option<FileChunk>> {
        let (mut oldest, mut gap) = (None, 0);
        for newer in 0..FILES_MAX {
            match self.chunk(newer, 0).await? {
                Some(chunk) => (oldest, gap) = (Some((newer, chunk)), 0),
                None => gap += 1,
            }
            if gap == GAP_MAX {
                break;
            }
        }
        Ok(oldest.map(|(newer, chunk)| {
            (self.file_id, self.newer, self.offset) = (Some(chunk.file_id()), newer, 0);
            chunk
        }))
    }

    /// Returns the following bytes of the file with this id, which may have been renamed since.
    async fn next_of(&mut self, id: u64) -> anyhow::Result<Option<FileChunk>> {
        for _ in 0..ATTEMPTS_MAX {
            let mut gap = 0;
            for newer in self.newer..FILES_MAX {
                match self.chunk(newer, self.offset).await? {
                    Some(chunk) if chunk.file_id() == id && chunk.size < self.offset => {
                        // The file was truncated in place.
                        self.offset = 0;
                        return self.chunk(newer, 0).await;
                    }
                    Some(chunk) if chunk.file_id() == id => {
                        self.newer = newer;
                        return Ok(Some(chunk));
                    }
                    Some(_) => gap = 0,
                    None => gap += 1,
                }
                if gap == GAP_MAX {
                    break;
                }
            }
        }
        // The file was the oldest and is gone: only later files remain.
        self.file_id = None;
        self.first().await
    }

    /// Moves from a finished file that was renamed to its successor. Files may be renamed between any two looks: a second
    /// look at the finished file shows whether they were.
    async fn go_to_successor(&mut self) -> anyhow::Result<()> {
        let Some(next) = self.chunk(self.newer - 1, 0).await? else {
            return Ok(());
        };
        let before = self.chunk(self.newer, self.offset).await?;
        let unmoved = before.is_some_and(|before| {
            let id = Some(before.file_id());
            id == self.file_id && before.data.is_empty() && Some(next.file_id()) != id
        });
        if unmoved {
            (self.file_id, self.newer, self.offset) = (Some(next.file_id()), self.newer - 1, 0);
        }
        Ok(())
    }

    /// Returns the bytes at an offset in the file after which `newer` files were begun.
    async fn chunk(&mut self, newer: u32, offset: u64) -> anyhow::Result<Option<FileChunk>> {
        let client = self.client()?;
        let path = match newer {
            0 => self.path.clone(),
            _ => format!("{}.{newer}", self.path),
        };
        let call = api::Call {
            r#type: Some(api::call::Type::ReadFile.into()),
            read_file: Some(api::call::ReadFile {
                path,
                offset,
                length: Some(CHUNK_BYTES),
            }),
            ..api::Call::default()
        };
        let response: Option<api::Response> =
            server::call(&client, &self.agent.address, "/api/v1", &call)
                .await?
                .found()?;
        Ok(response.and_then(|response| response.read_file))
    }
}
