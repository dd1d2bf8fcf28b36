//! The configuration of an image: its process, its platform and the content digests of its layers.
//!
//! [`ImageConfig::parse`] reads the blob that the manifest names. Pure. Invariant: a configuration that has no list of layers is
//! refused.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::descriptor::Digest;
use crate::manifest::null_as_default;

/// Bytes of a configuration: builders keep the history of every command in it.
pub const CONFIG_BYTES_MAX: u64 = 8 << 20;

/// The rejection of a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the configuration is not valid JSON of an image")]
    Json(#[source] serde_json::Error),
    #[error("the configuration has a root file system of type {0:?}: only 'layers' is known")]
    RootType(String),
}

/// The configuration of an image.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ImageConfig {
    #[serde(default, deserialize_with = "null_as_default")]
    pub os: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub architecture: String,
    /// The time of the build, as the builder wrote it.
    #[serde(default, deserialize_with = "null_as_default")]
    pub created: String,
    #[serde(default, rename = "config", deserialize_with = "null_as_default")]
    pub process: ProcessConfig,
    rootfs: RootFs,
}

/// The defaults of a process that runs in an image.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ProcessConfig {
    /// `USER`, `UID`, `USER:GROUP` or a mixture.
    #[serde(default, deserialize_with = "null_as_default")]
    pub user: String,
    /// `NAME=VALUE` each.
    #[serde(default, deserialize_with = "null_as_default")]
    pub env: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub entrypoint: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub cmd: Vec<String>,
    #[serde(default, deserialize_with = "null_as_default")]
    pub working_dir: String,
    /// A signal's name or number.
    #[serde(default, deserialize_with = "null_as_default")]
    pub stop_signal: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub labels: BTreeMap<String, String>,
    /// `PORT/PROTOCOL` each: information only.
    #[serde(default, deserialize_with = "null_as_default")]
    pub exposed_ports: BTreeMap<String, serde::de::IgnoredAny>,
    /// Paths of volumes: information only.
    #[serde(default, deserialize_with = "null_as_default")]
    pub volumes: BTreeMap<String, serde::de::IgnoredAny>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct RootFs {
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default, deserialize_with = "null_as_default")]
    diff_ids: Vec<Digest>,
}

impl ImageConfig {
    pub fn parse(bytes: &[u8]) -> Result<Self, ConfigError> {
        let config: Self = serde_json::from_slice(bytes).map_err(ConfigError::Json)?;
        match config.rootfs.kind.as_str() {
            "layers" => Ok(config),
            other => Err(ConfigError::RootType(other.chars().take(100).collect())),
        }
    }

    /// The content digests of the layers, bottom first.
    pub fn diff_ids(&self) -> &[Digest] {
        &self.rootfs.diff_ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_of_docker_is_read() {
        let text = r#"{
            "architecture": "amd64", "os": "linux", "created": "2026-01-02T03:04:05Z",
            "config": {
                "User": "app:nogroup", "Env": ["PATH=/bin", "A=b=c"], "Entrypoint": ["/entry"], "Cmd": null,
                "WorkingDir": "/srv", "StopSignal": "SIGINT", "Labels": {"a": "b"},
                "ExposedPorts": {"80/tcp": {}}, "Volumes": {"/data": {}}, "ArgsEscaped": true, "Healthcheck": {}
            },
            "history": [{}],
            "rootfs": {"type": "layers", "diff_ids": ["sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]}
        }"#;
        let config = ImageConfig::parse(text.as_bytes()).expect("valid");
        assert_eq!(config.diff_ids(), [Digest::from_content(b"")]);
        let process = &config.process;
        assert_eq!(process.user, "app:nogroup");
        assert_eq!(process.env, ["PATH=/bin", "A=b=c"]);
        assert_eq!(process.entrypoint, ["/entry"]);
        assert!(process.cmd.is_empty());
        assert_eq!(
            (process.working_dir.as_str(), process.stop_signal.as_str()),
            ("/srv", "SIGINT")
        );
        assert!(
            process.exposed_ports.contains_key("80/tcp") && process.volumes.contains_key("/data")
        );
    }

    #[test]
    fn bare_configuration_is_enough() {
        let text = r#"{"config": null, "rootfs": {"type": "layers", "diff_ids": null}}"#;
        let config = ImageConfig::parse(text.as_bytes()).expect("valid");
        assert!(config.diff_ids().is_empty() && config.process.env.is_empty());
    }

    #[test]
    fn configuration_without_layers_is_refused() {
        for text in [
            "",
            "{}",
            r#"{"rootfs": {"diff_ids": []}}"#,
            r#"{"rootfs": {"type": "squashfs", "diff_ids": []}}"#,
            r#"{"rootfs": {"type": "layers", "diff_ids": ["sha256:../x"]}}"#,
        ] {
            assert!(ImageConfig::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
