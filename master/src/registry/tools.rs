//! Tools for registries without a running master: reading, filling, moving from one store to another.
//!
//! Entered through [`Store`]. Invariant: a tool never writes over an existing registry, nor while a master leads.

use std::path::PathBuf;

use meseta_daemon::flag_error::FlagError;
use meseta_daemon::work_dir;
use meseta_etcd::leadership::election::LeaseTimes;
use meseta_etcd::store::{Keys, StoreError};
use meseta_etcd::{Client, EtcdFlags, SettingsError};

use super::etcd::copying;
use super::{DamagedRecord, Image, OpenError, embedded, registry_path};

/// The location of a registry.
#[derive(Debug)]
pub enum Store {
    /// A file in the master's work directory.
    Embedded { work_dir: PathBuf },
    /// A prefix in etcd.
    Etcd(EtcdStore),
}

/// A prefix in etcd.
#[derive(Debug)]
pub struct EtcdStore {
    client: Client,
    keys: Keys,
    times: LeaseTimes,
    /// The name of the masters' cluster, if given: an import stores it.
    cluster: Option<String>,
}

/// The content found in a registry.
#[derive(Debug)]
pub struct Inspected {
    pub image: Image,
    /// Records that no master could read.
    pub damaged: Vec<DamagedRecord>,
    /// The reason why a master would not start with the registry, if everything was readable.
    pub damage: Option<ToolError>,
    /// The current leader, if the store knows it.
    pub leader: Option<String>,
    /// The unfinished change of an interrupted leader, and its future.
    pub unfinished: Option<String>,
}

/// The reason why a registry could not be read or filled.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error(transparent)]
    Embedded(#[from] OpenError),
    #[error(transparent)]
    Etcd(#[from] StoreError),
    #[error(transparent)]
    Flag(#[from] FlagError),
    #[error("the settings of etcd are invalid")]
    Settings(#[from] SettingsError),
    #[error("failed to write to the work directory {path}: give a writable one with --work_dir")]
    WorkDir {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("no registry in {place}; {flag} sets its master's directory")]
    Absent { place: String, flag: &'static str },
    #[error(
        "a registry exists already below {prefix} in etcd, and the import would replace it: give \
         another \
         --etcd_prefix, or delete this one with `etcdctl del --prefix {prefix}` while no master runs"
    )]
    NotEmpty { prefix: String },
    #[error(
        "none of the {records} records below {prefix} in etcd belongs to a master: give the \
         masters' --etcd_prefix; schedulers of jobs use the same prefix with -scheduler at its end"
    )]
    Foreign { prefix: String, records: usize },
    #[error("{leader} leads below {prefix} in etcd: stop all masters of this cluster first")]
    Leading { prefix: String, leader: String },
    #[error(
        "etcd does not accept the import ({0}): run `meseta registry check` when etcd answers \
         again, and repeat the import if the registry is missing"
    )]
    Stalled(String),
    #[error("the leader's key in etcd was lost during the import ({0}): repeat the import")]
    Interrupted(String),
}

impl Store {
    /// The store of a master with these flags; `is_insecure` allows an etcd without access control. Must be called
    /// within a runtime.
    ///
    /// # Errors
    /// For an invalid flag.
    pub fn new(
        kind: &str,
        work_dir: PathBuf,
        etcd: &EtcdFlags,
        cluster: Option<String>,
        is_insecure: bool,
    ) -> Result<Self, ToolError> {
        match kind {
            "embedded" => Ok(Self::Embedded { work_dir }),
            "etcd" => {
                let ttl = etcd.lease_ttl()?;
                Ok(Self::Etcd(EtcdStore {
                    client: Client::new(etcd.settings(ttl, "--registry=etcd", is_insecure)?)?,
                    keys: Keys::new(&etcd.etcd_prefix),
                    times: LeaseTimes { ttl },
                    cluster,
                }))
            }
            other => {
                let reason = "this registry is not persistent: use embedded or etcd";
                Err(FlagError::new("registry", other, reason).into())
            }
        }
    }

    /// The location for people.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Self::Embedded { work_dir } => registry_path(work_dir).display().to_string(),
            Self::Etcd(store) => format!("{} in etcd", store.keys.prefix()),
        }
    }

    /// Reads the whole registry without changing it.
    ///
    /// # Errors
    /// If the registry does not exist or cannot be read completely.
    pub async fn read(&self) -> Result<Inspected, ToolError> {
        match self {
            Self::Embedded { work_dir } => {
                let path = registry_path(work_dir);
                if embedded::is_absent(&path)? {
                    return Err(ToolError::Absent {
                        place: work_dir.display().to_string(),
                        flag: "--work_dir=DIR",
                    });
                }
                let (image, damage) = embedded::inspect(&path)?;
                Ok(Inspected {
                    damaged: image.recovered().1,
                    image,
                    damage: damage.map(ToolError::from),
                    leader: None,
                    unfinished: None,
                })
            }
            Self::Etcd(store) => {
                copying::inspect(&store.client, &store.keys, store.cluster.as_deref()).await
            }
        }
    }

    /// Creates a registry from an image.
    ///
    /// # Errors
    /// If a registry exists, a master leads, or the write fails.
    pub async fn fill(&self, image: &Image) -> Result<(), ToolError> {
        match self {
            Self::Embedded { work_dir } => {
                work_dir::prepare(work_dir, &super::FILES).map_err(|source| {
                    ToolError::WorkDir {
                        path: work_dir.clone(),
                        source,
                    }
                })?;
                Ok(embedded::fill(&registry_path(work_dir), image)?)
            }
            Self::Etcd(store) => {
                let mut image = image.clone();
                if store.cluster.is_some() {
                    image.cluster.clone_from(&store.cluster);
                }
                copying::fill(&store.client, &store.keys, store.times, image).await
            }
        }
    }
}
