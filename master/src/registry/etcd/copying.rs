//! Reading and filling a registry in etcd without being a master.
//!
//! Whoever fills one holds the leader's key meanwhile, by a lease of its own, so that no master leads; its transactions
//! are compared like a leader's. All records appear at once, with the pointer to their parts. Invariant: a registry
//! that was filled in part is none, or is finished by the next leader.

use meseta_etcd::api::{KeyValue, TxnRequest};
use meseta_etcd::{Client, Error, operation};
use prost::Message;
use tokio::sync::{mpsc, watch};

use super::plan::Planner;
use super::reading::{self, At, Contents, Meta, READS_MAX, Staged};
use super::writer::Writer;
use super::{EtcdError, Keys, Writing};
use crate::core::Lsn;
use crate::leadership::election::{Candidate, Elected, LeaseTimes};
use crate::leadership::fence::BootTime;
use crate::leadership::{Fence, Leader};
use crate::registry::Image;
use crate::registry::records::{FORMAT, Write};
use crate::registry::tools::{Inspected, ToolError};

/// All that is below a prefix, as of one revision.
struct Found {
    meta: Option<Meta>,
    leader: Option<KeyValue>,
    sequence: Option<KeyValue>,
    contents: Contents,
}

impl Found {
    /// Whether no master has ever had it, and nothing was imported as a whole.
    fn is_empty(&self) -> bool {
        let is_staged = matches!(self.contents.staged, Staged::Pointed(..));
        self.meta.is_none() && self.contents.values.is_empty() && !is_staged
    }
}

/// Reads all, again and again if etcd is compacted meanwhile.
async fn find(client: &Client, keys: &Keys) -> Result<Found, EtcdError> {
    let mut reads = 1;
    loop {
        match find_once(client, keys).await {
            Err(EtcdError::Etcd(Error::Compacted)) if reads < READS_MAX => reads += 1,
            found => return found,
        }
    }
}

async fn find_once(client: &Client, keys: &Keys) -> Result<Found, EtcdError> {
    let names = [keys.meta(), keys.leader(), keys.sequence()];
    let read = TxnRequest {
        success: names.into_iter().map(operation::get).collect(),
        ..TxnRequest::default()
    };
    let answer = client.txn(read).await?;
    let mut found = answer.responses.into_iter().map(reading::first);
    let mut next = || found.next().flatten();
    let (meta, leader, sequence) = (next(), next(), next());
    let meta = meta.map(|found| reading::decode_meta(keys, &found));
    let meta = meta.transpose()?;
    if let Some(meta) = &meta {
        reading::check_format(keys, meta)?;
    }
    let at = At {
        client,
        keys,
        revision: answer.header.map_or(0, |header| header.revision),
    };
    Ok(Found {
        meta,
        leader,
        sequence,
        contents: at.contents().await?,
    })
}

/// What a registry holds; a change that a leader has left pointed to is part of it.
pub(in crate::registry) async fn inspect(
    client: &Client,
    keys: &Keys,
) -> Result<Inspected, ToolError> {
    let found = find(client, keys).await?;
    let is_empty = found.is_empty();
    let Found {
        meta,
        leader,
        contents,
        ..
    } = found;
    let Some(meta) = meta.or_else(|| (!is_empty).then(Meta::default)) else {
        return Err(ToolError::Absent {
            place: format!("{} in etcd", keys.prefix()),
            flag: "--etcd_prefix=PREFIX",
        });
    };
    let mut records = contents.values;
    let unfinished = match contents.staged {
        Staged::Nothing => None,
        Staged::Abandoned => {
            Some("parts of a change that was never made, which the next leader deletes".to_owned())
        }
        Staged::Pointed(pointer, writes) => {
            reading::apply(&mut records, &writes);
            let parts = pointer.parts;
            Some(format!(
                "a change of {parts} parts, which the next leader finishes; it is counted here"
            ))
        }
    };
    let cluster = Some(meta.name).filter(|name| !name.is_empty());
    let image = Image::new(meta.id, cluster, meta.epoch, records);
    Ok(Inspected {
        damaged: image.recovered().1,
        image,
        damage: None,
        leader: leader.as_ref().map(name_of),
        unfinished,
    })
}

/// Who holds the leader's key, for people.
fn name_of(found: &KeyValue) -> String {
    match serde_json::from_slice::<Leader>(&found.value) {
        Ok(leader) if leader.address.is_empty() => format!("an import from {}", leader.hostname),
        Ok(leader) => format!("the master {} ({})", leader.hostname, leader.address),
        Err(_) => "another program".to_owned(),
    }
}

/// Makes a registry of an image, if there is none and nobody leads.
pub(in crate::registry) async fn fill(
    client: &Client,
    keys: &Keys,
    times: LeaseTimes,
    image: Image,
) -> Result<(), ToolError> {
    let candidate = Candidate {
        client: client.clone(),
        key: keys.leader(),
        // Nobody is sent to one without an address.
        me: Leader {
            id: uuid::Uuid::new_v4().to_string(),
            hostname: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Leader::default()
        },
        times,
        clock: BootTime::now,
    };
    let elected = candidate.win_if_free().await.map_err(EtcdError::from)?;
    let elected = elected.map_err(|holder| ToolError::Leading {
        prefix: keys.prefix().to_owned(),
        leader: holder
            .as_ref()
            .map_or_else(|| "a master".to_owned(), name_of),
    })?;
    let fence = Fence::closed();
    let filled = tokio::select! {
        lost = candidate.hold(&elected, &fence) => Err(ToolError::Interrupted(lost.to_string())),
        filled = fill_as_leader(client, keys, &elected, &fence, image) => filled,
    };
    candidate.resign(&elected, &fence).await;
    filled
}

async fn fill_as_leader(
    client: &Client,
    keys: &Keys,
    elected: &Elected,
    fence: &Fence,
    image: Image,
) -> Result<(), ToolError> {
    let found = find(client, keys).await?;
    if !found.is_empty() {
        return Err(ToolError::NotEmpty {
            prefix: keys.prefix().to_owned(),
        });
    }
    let sequence = reading::number(keys, found.sequence.as_ref())?;
    if found.sequence.is_none() {
        begin_sequence(client, keys, elected, sequence).await?;
    }
    let mut planner = Planner::new(keys.clone(), sequence, found.contents.chunked);
    let mut transactions = Vec::new();
    if let Staged::Abandoned = found.contents.staged {
        transactions.push(planner.discard_staged());
    }
    let new_id = || uuid::Uuid::new_v4().to_string();
    let meta = Meta {
        format: FORMAT,
        epoch: image.epoch,
        id: image.id.unwrap_or_else(new_id),
        name: image.cluster.unwrap_or_default(),
        leader: elected.leader_id.clone(),
    };
    let records = image.records.into_iter();
    let writes = records.map(|(key, value)| Write {
        key,
        value: Some(value),
    });
    transactions.extend(planner.fill(meta.encode_to_vec(), writes.collect()));
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing is ever put into this queue, which the writer finds closed"
    )]
    let (_, waiting) = mpsc::unbounded_channel::<(Lsn, _)>();
    let (told, mut writing) = watch::channel(Writing::default());
    let mut writer = Writer {
        client: client.clone(),
        keys: keys.clone(),
        leader_created: elected.created,
        fence: fence.clone(),
        planner,
        waiting,
        told,
    };
    tokio::select! {
        written = writer.write_all(transactions, Box::new(|_| ())) => Ok(written?),
        reason = stalled(&mut writing) => Err(ToolError::Stalled(reason)),
    }
}

/// Returns why nothing is written any more, which need not come.
async fn stalled(writing: &mut watch::Receiver<Writing>) -> String {
    let changed = writing.wait_for(|writing| *writing != Writing::Works).await;
    match changed.as_deref() {
        Ok(Writing::Stalled(reason) | Writing::Ended(reason)) => reason.clone(),
        Ok(Writing::Works) | Err(_) => std::future::pending().await,
    }
}

/// Writes the first number that transactions are compared with.
async fn begin_sequence(
    client: &Client,
    keys: &Keys,
    elected: &Elected,
    first: u64,
) -> Result<(), EtcdError> {
    let write = TxnRequest {
        compare: vec![operation::created_at(keys.leader(), elected.created)],
        success: vec![operation::put(keys.sequence(), first.to_string())],
        ..TxnRequest::default()
    };
    if !client.txn(write).await?.succeeded {
        return Err(EtcdError::LeadershipLost);
    }
    Ok(())
}
