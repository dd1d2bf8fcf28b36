//! Reading and filling a registry in etcd without being a master: images from and to the records.

use meseta_etcd::Client;
use meseta_etcd::api::KeyValue;
use meseta_etcd::leadership::Leader;
use meseta_etcd::leadership::election::{Candidate, LeaseTimes};
use meseta_etcd::leadership::fence::BootTime;
use meseta_etcd::store::copying::{self, FillError, Found, Staged};
use meseta_etcd::store::{Keys, Meta, Write, check_name};

use super::LAYOUT;
use crate::registry::Image;
use crate::registry::records::FORMAT;
use crate::registry::tools::{Inspected, ToolError};

/// Reads a registry, including a change that a leader has staged completely. A master of a cluster other than the
/// given one would not start with it.
pub(in crate::registry) async fn inspect(
    client: &Client,
    keys: &Keys,
    given: Option<&str>,
) -> Result<Inspected, ToolError> {
    let found = copying::find(client, keys, &LAYOUT).await?;
    let is_empty = found.is_empty();
    let Found {
        meta,
        leader,
        contents,
        ..
    } = found;
    let named = meta.as_ref().map(|meta| meta.name.as_str()).zip(given);
    let another = named.and_then(|(found, given)| check_name(keys, given, found).err());
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
            Some("parts of an abandoned change, which the next leader deletes".to_owned())
        }
        Staged::Pointed(pointer, writes) => {
            copying::apply(&mut records, &writes);
            let parts = pointer.parts;
            Some(format!(
                "a change of {parts} parts, which the next leader finishes; the counts include it"
            ))
        }
    };
    let cluster = Some(meta.name).filter(|name| !name.is_empty());
    let image = Image::new(meta.id, cluster, meta.epoch, records);
    let records = image.records.len();
    let foreign = (records > 0 && image.unknown() == records).then(|| ToolError::Foreign {
        prefix: keys.prefix().to_owned(),
        records,
    });
    Ok(Inspected {
        damaged: image.recovered().1,
        image,
        damage: foreign.or_else(|| another.map(ToolError::from)),
        leader: leader.as_ref().map(name_of),
        unfinished,
    })
}

/// The holder of the leader's key, for people.
fn name_of(found: &KeyValue) -> String {
    match copying::holder(found) {
        Some(leader) if leader.address.is_empty() => format!("an import from {}", leader.hostname),
        Some(leader) => format!("the master {} ({})", leader.hostname, leader.address),
        None => "another program".to_owned(),
    }
}

/// Creates a registry from an image, if none exists and nobody leads.
pub(in crate::registry) async fn fill(
    client: &Client,
    keys: &Keys,
    times: LeaseTimes,
    image: Image,
) -> Result<(), ToolError> {
    let candidate = Candidate {
        client: client.clone(),
        key: keys.leader(),
        // Without an address, no client is redirected there.
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
    let new_id = || uuid::Uuid::new_v4().to_string();
    let meta = Meta {
        format: FORMAT,
        epoch: image.epoch,
        id: image.id.unwrap_or_else(new_id),
        name: image.cluster.unwrap_or_default(),
        ..Meta::default()
    };
    let records = image.records.into_iter();
    let writes = records.map(|(key, value)| Write {
        key,
        value: Some(value),
    });
    let filled = copying::fill(&candidate, keys, &LAYOUT, meta, writes.collect());
    filled.await.map_err(|error| match error {
        FillError::Store(error) => ToolError::Etcd(error),
        FillError::Leading { prefix, holder } => ToolError::Leading {
            prefix,
            leader: holder
                .as_ref()
                .map_or_else(|| "a master".to_owned(), name_of),
        },
        FillError::NotEmpty { prefix } => ToolError::NotEmpty { prefix },
        FillError::Stalled(reason) => ToolError::Stalled(reason),
        FillError::Interrupted(reason) => ToolError::Interrupted(reason),
    })
}
