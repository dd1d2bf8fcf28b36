//! Reading and filling records in etcd without being one of the daemons that share them.
//!
//! During a fill the tool holds the leader's key, by a lease of its own, so that no daemon leads; its transactions are
//! compared like a leader's. All records appear at once, with the pointer to their parts. Invariant: a partly filled prefix
//! counts as empty, or the next leader finishes it.

use prost::Message as _;
use tokio::sync::{mpsc, watch};

use super::plan::Planner;
use super::reading::{self, At, Contents, Meta, READS_MAX};
use super::writer::Writer;
use super::{Keys, Layout, StoreError, Write, Writing};
use crate::api::{KeyValue, TxnRequest};
use crate::leadership::election::{Candidate, Elected};
use crate::leadership::{Fence, Leader};
use crate::{Client, Error, operation};

pub use super::reading::{Staged, apply};

/// The contents below a prefix, as of one revision.
#[derive(Debug)]
pub struct Found {
    pub meta: Option<Meta>,
    /// The value of the leader's key, if it has a holder.
    pub leader: Option<KeyValue>,
    pub contents: Contents,
    sequence: Option<KeyValue>,
}

impl Found {
    /// Whether no daemon has ever used the prefix, and no import has completed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let is_staged = matches!(self.contents.staged, Staged::Pointed(..));
        self.meta.is_none() && self.contents.values.is_empty() && !is_staged
    }
}

/// The holder of a leader's key, if the value is readable.
#[must_use]
pub fn holder(found: &KeyValue) -> Option<Leader> {
    serde_json::from_slice(&found.value).ok()
}

/// Reads all records. Repeats the read if etcd compacts them in the meantime, and tries each member in turn until one
/// answers.
///
/// # Errors
/// When the records cannot be read, or a newer version wrote them.
pub async fn find(client: &Client, keys: &Keys, layout: &Layout) -> Result<Found, StoreError> {
    let (mut reads, mut unanswered) = (1, 0);
    loop {
        match find_once(client, keys, layout).await {
            Err(StoreError::Etcd(Error::Compacted)) if reads < READS_MAX => reads += 1,
            Err(StoreError::Etcd(Error::Unavailable(_))) if unanswered < client.endpoints() => {
                unanswered += 1;
            }
            found => return found,
        }
    }
}

async fn find_once(client: &Client, keys: &Keys, layout: &Layout) -> Result<Found, StoreError> {
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
        reading::check_format(keys, layout, meta)?;
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

/// Errors of filling a prefix.
#[derive(Debug, thiserror::Error)]
pub enum FillError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another daemon leads; the holder is known if it could be read.
    #[error("a daemon leads below {prefix} in etcd")]
    Leading {
        prefix: String,
        holder: Option<KeyValue>,
    },
    #[error("records exist below {prefix} in etcd")]
    NotEmpty { prefix: String },
    #[error("etcd does not accept writes: {0}")]
    Stalled(String),
    #[error("the leader's key in etcd was lost: {0}")]
    Interrupted(String),
}

/// Writes records below a prefix that has no records and no leader. `candidate` needs no address: no client is sent to it.
///
/// # Errors
/// When there are records, another daemon leads, or etcd does not accept the records.
pub async fn fill(
    candidate: &Candidate,
    keys: &Keys,
    layout: &Layout,
    meta: Meta,
    records: Vec<Write>,
) -> Result<(), FillError> {
    let elected = candidate.win_if_free().await.map_err(StoreError::from)?;
    let elected = elected.map_err(|holder| FillError::Leading {
        prefix: keys.prefix().to_owned(),
        holder,
    })?;
    let fence = Fence::closed();
    let meta = Meta {
        leader: elected.leader_id.clone(),
        ..meta
    };
    let filler = Filler {
        client: &candidate.client,
        keys,
        layout,
        elected: &elected,
        fence: &fence,
    };
    let filled = tokio::select! {
        lost = candidate.hold(&elected, &fence) => Err(FillError::Interrupted(lost.to_string())),
        filled = filler.fill(meta, records) => filled,
    };
    candidate.resign(&elected, &fence).await;
    filled
}

/// The holder of the leader's key during a fill.
struct Filler<'a> {
    client: &'a Client,
    keys: &'a Keys,
    layout: &'a Layout,
    elected: &'a Elected,
    fence: &'a Fence,
}

impl Filler<'_> {
    async fn fill(&self, meta: Meta, records: Vec<Write>) -> Result<(), FillError> {
        let found = find(self.client, self.keys, self.layout).await?;
        if !found.is_empty() {
            return Err(FillError::NotEmpty {
                prefix: self.keys.prefix().to_owned(),
            });
        }
        let sequence = reading::number(self.keys, found.sequence.as_ref())?;
        if found.sequence.is_none() {
            self.begin_sequence(sequence).await?;
        }
        let mut planner = Planner::new(self.keys.clone(), sequence, found.contents.chunked);
        let mut transactions = Vec::new();
        if let Staged::Abandoned = found.contents.staged {
            transactions.push(planner.discard_staged());
        }
        transactions.extend(planner.fill(meta.encode_to_vec(), records));
        #[expect(
            clippy::disallowed_methods,
            reason = "nothing is ever put into this queue, which the writer finds closed"
        )]
        let (_, waiting) = mpsc::unbounded_channel::<(u64, ())>();
        let (told, mut writing) = watch::channel(Writing::default());
        let mut writer = Writer {
            client: self.client.clone(),
            keys: self.keys.clone(),
            leader_created: self.elected.created,
            fence: self.fence.clone(),
            planner,
            waiting,
            writes: |()| Vec::new(),
            told,
        };
        tokio::select! {
            written = writer.write_all(transactions, Box::new(|_| ())) => Ok(written?),
            reason = stalled(&mut writing) => Err(FillError::Stalled(reason)),
        }
    }

    /// Writes the first number for the comparison of transactions.
    async fn begin_sequence(&self, first: u64) -> Result<(), StoreError> {
        let compare = operation::created_at(self.keys.leader(), self.elected.created);
        let write = TxnRequest {
            compare: vec![compare],
            success: vec![operation::put(self.keys.sequence(), first.to_string())],
            ..TxnRequest::default()
        };
        if !self.client.txn(write).await?.succeeded {
            return Err(StoreError::LeadershipLost);
        }
        Ok(())
    }
}

/// Returns the reason when the writer stops; waits for ever if it never does.
async fn stalled(writing: &mut watch::Receiver<Writing>) -> String {
    let changed = writing.wait_for(|writing| *writing != Writing::Works).await;
    match changed.as_deref() {
        Ok(Writing::Stalled(reason) | Writing::Ended(reason)) => reason.clone(),
        Ok(Writing::Works) | Err(_) => std::future::pending().await,
    }
}
