//! Reads a task's output as it grows, from its agent's READ_FILE.

use meseta_proto::mesos::v1::agent as api;

use meseta_proto::transport::client::Client;

use super::server;

/// What one call asks for; the agent may give less.
const CHUNK_BYTES: u64 = 64 * 1024;

/// One file of a sandbox, read from where the last read ended, also when it was renamed to `<file>.1`
/// since because it was full.
#[derive(Debug)]
pub(super) struct Tail {
    /// Made at the first look.
    client: Option<Client>,
    agent: String,
    path: String,
    offset: u64,
    /// Whether what was read last has been renamed, and is read to its end first.
    renamed: bool,
}

impl Tail {
    /// `file` in the sandbox of the newest run of an executor. For a command task the executor's id
    /// is the task's.
    pub(super) fn new(agent: &str, framework: &str, executor: &str, file: &str) -> Self {
        let path = format!("/frameworks/{framework}/executors/{executor}/runs/latest/{file}");
        Self {
            client: None,
            agent: agent.to_owned(),
            path,
            offset: 0,
            renamed: false,
        }
    }

    /// What has been written since the last read; empty when there is nothing new, or no file yet.
    pub(super) async fn read(&mut self) -> anyhow::Result<Vec<u8>> {
        if self.renamed {
            let (data, _) = self.read_at(&format!("{}.1", self.path)).await?;
            if !data.is_empty() {
                return Ok(data);
            }
            (self.renamed, self.offset) = (false, 0);
        }
        let path = self.path.clone();
        let (data, size) = self.read_at(&path).await?;
        if data.is_empty() && size < self.offset {
            // Another file has begun; the rest of the one before comes first.
            self.renamed = true;
            let (data, _) = self.read_at(&format!("{path}.1")).await?;
            return Ok(data);
        }
        Ok(data)
    }

    /// What follows in a file, and how large the file is.
    async fn read_at(&mut self, path: &str) -> anyhow::Result<(Vec<u8>, u64)> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let client = server::client(&self.agent)?;
                self.client.insert(client).clone()
            }
        };
        let call = api::Call {
            r#type: Some(api::call::Type::ReadFile.into()),
            read_file: Some(api::call::ReadFile {
                path: path.to_owned(),
                offset: self.offset,
                length: Some(CHUNK_BYTES),
            }),
            ..api::Call::default()
        };
        let response: Option<api::Response> = server::call(&client, &self.agent, "/api/v1", &call)
            .await?
            .found()?;
        let read = response.and_then(|response| response.read_file);
        let (data, size) = read.map_or_else(Default::default, |read| (read.data, read.size));
        self.offset += u64::try_from(data.len())?;
        Ok((data, size))
    }
}
