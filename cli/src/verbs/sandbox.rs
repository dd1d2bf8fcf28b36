//! Reads a task's output as it grows, from its agent's READ_FILE.

use meseta_proto::mesos::v1::agent as api;

use meseta_proto::transport::client::Client;

use super::server;

/// What one call asks for; the agent may give less.
const CHUNK_BYTES: u64 = 64 * 1024;

/// One file of a sandbox, read from where the last read ended.
#[derive(Debug)]
pub(super) struct Tail {
    client: Client,
    agent: String,
    path: String,
    offset: u64,
}

impl Tail {
    /// `file` in the sandbox of the newest run of an executor. For a command task the executor's id
    /// is the task's.
    pub(super) fn new(agent: &str, framework: &str, executor: &str, file: &str) -> Self {
        let path = format!("/frameworks/{framework}/executors/{executor}/runs/latest/{file}");
        Self {
            client: Client::default(),
            agent: agent.to_owned(),
            path,
            offset: 0,
        }
    }

    /// What has been written since the last read; empty when there is nothing new, or no file yet.
    pub(super) async fn read(&mut self) -> anyhow::Result<Vec<u8>> {
        let call = api::Call {
            r#type: Some(api::call::Type::ReadFile.into()),
            read_file: Some(api::call::ReadFile {
                path: self.path.clone(),
                offset: self.offset,
                length: Some(CHUNK_BYTES),
            }),
            ..api::Call::default()
        };
        let response: Option<api::Response> =
            server::call(&self.client, &self.agent, "/api/v1", &call)
                .await?
                .found()?;
        let data = response
            .and_then(|r| r.read_file)
            .map(|f| f.data)
            .unwrap_or_default();
        self.offset += u64::try_from(data.len())?;
        Ok(data)
    }
}
