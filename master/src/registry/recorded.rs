//! Records of earlier masters (`tests/recorded/registry.txt`), read by this version as after an upgrade.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meseta_allocator::Quota;
use meseta_proto::mesos::v1::MachineId;
use meseta_resources::{ResourceName, Role, Scalar};
use meseta_tests::recorded_bytes::{recorded, with_unknown_fields};
use prost::Message as _;

use super::content::Content;
use super::records::{FORMAT, META_KEY, Meta, read, writes};
use crate::core::{
    AgentRecord, Deactivation, DeadlineRecord, Drain, FrameworkRecord, Maintenance, Mutation,
    Recovered, RemovedRecord, UnreachableRecord,
};

fn quota() -> Quota {
    let cpus = ResourceName::new("cpus").unwrap();
    Quota {
        guarantees: [(cpus.clone(), Scalar::from_millis(1_500))]
            .into_iter()
            .collect(),
        limits: [(cpus, Scalar::from_millis(3_000))].into_iter().collect(),
        legacy: true,
    }
}

fn framework(id: &str, principal: Option<&str>, user: Option<u32>) -> FrameworkRecord {
    FrameworkRecord {
        framework_id: id.to_owned(),
        principal: principal.map(str::to_owned),
        user,
        absent: Some(Duration::from_millis(1_800_000_000_250)),
    }
}

/// A mutation for each kind of record.
fn mutations() -> Vec<Mutation> {
    let since = Duration::from_millis(1_800_000_000_500);
    vec![
        Mutation::RaiseEpoch { epoch: 8 },
        Mutation::PutAgent(AgentRecord {
            agent_id: "M-S0".to_owned(),
            info: Bytes::from_static(b"info"),
        }),
        Mutation::MarkUnreachable(UnreachableRecord {
            agent_id: "M-S1".to_owned(),
            since,
            hostname: "node.example".to_owned(),
        }),
        Mutation::MarkGone {
            agent_id: "M-S2".to_owned(),
            since,
        },
        Mutation::PutFramework(framework("M-0000", Some("ops"), None)),
        Mutation::PutFramework(framework("M-0001", None, Some(1_000))),
        Mutation::EndFrameworks {
            removed: vec![RemovedRecord {
                framework_id: "M-0002".to_owned(),
                since,
                ..RemovedRecord::default()
            }],
            forgotten: Vec::new(),
        },
        Mutation::PutDeadline(DeadlineRecord {
            framework_id: "M-0000".to_owned(),
            deadline: since,
        }),
        Mutation::PutWeights(vec![("ads".to_owned(), 2.5)]),
        Mutation::UpdateQuota(vec![(Role::new("ads").unwrap(), quota())]),
        Mutation::PutMaintenance(Arc::new(Maintenance {
            down: vec![MachineId {
                hostname: Some("node.example".to_owned()),
                ip: None,
            }],
            ..Maintenance::default()
        })),
        Mutation::PutDeactivation {
            agent_id: "M-S0".to_owned(),
            deactivation: Some(Deactivation {
                since,
                drain: Some(Drain {
                    max_grace: Some(Duration::from_secs(5)),
                    mark_gone: true,
                    drained: false,
                }),
            }),
        },
    ]
}

#[test]
fn records_of_other_versions_are_readable() {
    let meta = Meta {
        format: FORMAT,
        epoch: 7,
        id: "3f0e".to_owned(),
        content: Some(Content::default().stored()),
    };
    let puts = mutations().iter().flat_map(writes).collect::<Vec<_>>();
    let mut written: Vec<_> = puts
        .into_iter()
        .filter_map(|write| Some((write.key, write.value?)))
        .collect();
    written.push((META_KEY.to_owned(), meta.encode_to_vec()));
    let mut recorded = recorded("registry.txt", &written);
    let stored = recorded.remove(META_KEY).unwrap();
    for stored in [stored.clone(), with_unknown_fields(&stored)] {
        assert_eq!(Meta::decode(&*stored).unwrap(), meta);
    }
    let mut recovered = Recovered::default();
    let mut from_newer = Recovered::default();
    for (key, value) in &recorded {
        read(&mut recovered, key, value).unwrap();
        read(&mut from_newer, key, &with_unknown_fields(value)).unwrap();
    }
    read(&mut from_newer, "kind-of-later/x", b"anything").unwrap();
    assert_eq!(from_newer, recovered);
    assert_eq!(recovered.epoch, 8);
    let again = [
        Mutation::PutAgent(recovered.agents[0].clone()),
        Mutation::MarkUnreachable(recovered.unreachable[0].clone()),
        Mutation::PutFramework(recovered.frameworks[0].clone()),
        Mutation::PutFramework(recovered.frameworks[1].clone()),
        Mutation::PutDeadline(recovered.deadlines[0].clone()),
        Mutation::PutWeights(recovered.weights.clone().unwrap()),
        Mutation::UpdateQuota(recovered.quotas.clone()),
        Mutation::PutMaintenance(Arc::new(recovered.maintenance.clone())),
    ];
    for mutation in again {
        assert!(mutations().contains(&mutation), "{mutation:?}");
    }
    assert_eq!(recovered.gone.len(), 1);
    assert_eq!(recovered.removed_frameworks.len(), 1);
    assert_eq!(recovered.deactivations.len(), 1);
}
