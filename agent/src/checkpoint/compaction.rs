//! Compacts the log of a task, so that a task that lives for months has a log of bounded length.
//!
//! Pure. Invariant: the core makes the same of the shorter log as of the longer one. The same updates wait in the same
//! order, the same updates count as acknowledged, and the last sent update of each state is the same. The data of an
//! update goes with its acknowledgement, since the core does not retain it. Of an acknowledged update that is not the
//! last of its state, the core and the log keep only the uuid.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use meseta_proto::mesos::v1 as pb;
use prost::Message as _;

use super::frame::{self, FrameError};
use super::records::{LogEntry, LogRecord};

/// The length in bytes from which a log is considered for compaction, again at each doubling.
const LENGTH_MIN: u64 = 64 << 10;
/// Acknowledged updates to keep: as many uuids as the core remembers of a task.
const ACKNOWLEDGED_MAX: usize = 64;

/// Compaction is also worthwhile if it saves this many bytes, even if that is less than half of the log.
const SAVED_MIN: usize = 4 << 20;

/// The needed part of a record.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Needed {
    Whole,
    /// An acknowledged update, without its data.
    WithoutData,
    /// The identity of an update that the API no longer shows.
    Identity,
}

/// Whether a log that grew from one length to another should be considered for compaction.
pub(super) fn is_due(before: u64, after: u64) -> bool {
    after >= LENGTH_MIN && before.max(1).ilog2() < after.ilog2()
}

/// Returns the bytes of a shorter log. Returns `None` if the log would hardly be shorter, or if it is torn or damaged:
/// a start trusts records behind a hole less, and must find the hole.
pub(super) fn shortened(log: &[u8]) -> Option<Result<Vec<u8>, FrameError>> {
    let contents = frame::decode_log(log).ok()?;
    if contents.valid_bytes != log.len() || contents.hole.is_some() {
        return None;
    }
    let records = contents.bodies.iter().map(|body| LogRecord::decode(*body));
    let records: Vec<_> = records.collect::<Result<_, _>>().ok()?;
    let needed = needed(&records);
    let mut short = frame::log_header().to_vec();
    for (at, (body, record)) in contents.bodies.iter().zip(&records).enumerate() {
        let body = match needed.get(&at) {
            Some(Needed::Whole) => Cow::Borrowed(*body),
            Some(Needed::WithoutData) => without_data(body, record),
            Some(Needed::Identity) => identity(body, record),
            None => continue,
        };
        if let Err(error) = frame::encode_record(&body, &mut short) {
            return Some(Err(error));
        }
    }
    let is_worth_it = short.len() <= log.len() / 2 || short.len() + SAVED_MIN <= log.len();
    is_worth_it.then_some(Ok(short))
}

fn without_data<'a>(body: &'a [u8], record: &LogRecord) -> Cow<'a, [u8]> {
    match &record.entry {
        Some(LogEntry::Update(status)) if status.data.is_some() => {
            let mut status = status.clone();
            status.data = None;
            Cow::Owned(LogRecord::from_entry(LogEntry::Update(status)).encode_to_vec())
        }
        _ => Cow::Borrowed(body),
    }
}

fn identity<'a>(body: &'a [u8], record: &LogRecord) -> Cow<'a, [u8]> {
    let Some(LogEntry::Update(status)) = &record.entry else {
        return Cow::Borrowed(body);
    };
    let short = pb::TaskStatus {
        task_id: status.task_id.clone(),
        state: status.state,
        source: status.source,
        reason: status.reason,
        uuid: status.uuid.clone(),
        ..pb::TaskStatus::default()
    };
    Cow::Owned(LogRecord::from_entry(LogEntry::Update(short)).encode_to_vec())
}

/// The needed parts of the records, by position.
fn needed(records: &[LogRecord]) -> BTreeMap<usize, Needed> {
    let mut last: BTreeMap<u8, usize> = BTreeMap::new();
    let mut kept = BTreeMap::new();
    let mut unacknowledged: BTreeMap<&[u8], usize> = BTreeMap::new();
    // Acknowledged updates of which the last few are kept, and the last updates of each kind, each with its
    // acknowledgement.
    let mut acknowledged: VecDeque<(usize, usize)> = VecDeque::new();
    let mut last_of: BTreeMap<(u8, i32), (usize, usize)> = BTreeMap::new();
    for (at, record) in records.iter().enumerate() {
        match &record.entry {
            Some(LogEntry::Started(_)) => drop(last.insert(0, at)),
            Some(LogEntry::KillRequested(_)) => drop(last.insert(1, at)),
            Some(LogEntry::Delivered(_)) => drop(last.insert(2, at)),
            Some(LogEntry::Update(status)) => {
                unacknowledged.insert(status.uuid.as_deref().unwrap_or_default(), at);
            }
            Some(LogEntry::Acknowledged(uuid)) => {
                let Some(update) = unacknowledged.remove(uuid.as_slice()) else {
                    continue;
                };
                acknowledged.push_back((update, at));
                if acknowledged.len() > ACKNOWLEDGED_MAX {
                    acknowledged.pop_front();
                }
                let record = records.get(update).and_then(|record| record.entry.as_ref());
                if let Some(LogEntry::Update(status)) = record {
                    last_of.insert((0, status.state), (update, at));
                    if status.healthy.is_some() {
                        last_of.insert((1, 0), (update, at));
                    }
                    if status.check_status.is_some() {
                        last_of.insert((2, 0), (update, at));
                    }
                }
            }
            // Records of a later version are kept unchanged.
            None => drop(kept.insert(at, Needed::Whole)),
        }
    }
    // An unacknowledged update that is older than an acknowledged one no longer waits: a later update of the same check
    // replaced it.
    let head = acknowledged.back().map_or(0, |(update, _)| *update);
    let waiting = unacknowledged.into_values().filter(|at| *at >= head);
    let with =
        |needed| move |(update, at): &(usize, usize)| [(*update, needed), (*at, Needed::Whole)];
    kept.extend(acknowledged.iter().flat_map(with(Needed::Identity)));
    kept.extend(last_of.values().flat_map(with(Needed::WithoutData)));
    let whole = last.into_values().chain(waiting);
    kept.extend(whole.map(|at| (at, Needed::Whole)));
    kept
}

#[cfg(test)]
mod tests {
    use super::super::records::Started;
    use super::*;

    fn update(number: u32, state: pb::TaskState) -> LogEntry {
        LogEntry::Update(pb::TaskStatus {
            uuid: Some(number.to_le_bytes().to_vec()),
            state: state.into(),
            message: Some("m".repeat(100)),
            ..pb::TaskStatus::default()
        })
    }

    /// The saved entry of an update that the API no longer shows.
    fn known(number: u32) -> LogEntry {
        LogEntry::Update(pb::TaskStatus {
            uuid: Some(number.to_le_bytes().to_vec()),
            state: pb::TaskState::TaskRunning.into(),
            ..pb::TaskStatus::default()
        })
    }

    fn acknowledged(number: u32) -> LogEntry {
        LogEntry::Acknowledged(number.to_le_bytes().to_vec())
    }

    fn log_of(entries: &[LogEntry]) -> Vec<u8> {
        let mut log = frame::log_header().to_vec();
        for entry in entries {
            let body = LogRecord::from_entry(entry.clone()).encode_to_vec();
            frame::encode_record(&body, &mut log).expect("it is short");
        }
        log
    }

    fn entries_of(log: &[u8]) -> Vec<LogEntry> {
        let contents = frame::decode_log(log).expect("a log");
        assert_eq!(contents.valid_bytes, log.len());
        let records = contents.bodies.into_iter().map(LogRecord::decode);
        let entries = records.filter_map(|record| record.expect("a record").entry);
        entries.collect()
    }

    #[test]
    fn compaction_keeps_pending_updates_in_order() {
        let started = LogEntry::Started(Started {
            supervisor: "1 2 b".to_owned(),
            task_pid: 3,
            at_unix_ns: 4,
            uptime_ns: Some(5),
        });
        let mut entries = vec![
            started.clone(),
            update(0, pb::TaskState::TaskStarting),
            acknowledged(0),
        ];
        for number in 1..=1000 {
            entries.push(update(number, pb::TaskState::TaskRunning));
            entries.push(acknowledged(number));
        }
        let waiting = [1001, 1002, 1003].map(|number| update(number, pb::TaskState::TaskRunning));
        entries.extend(waiting.clone());
        let short = shortened(&log_of(&entries))
            .expect("shorter")
            .expect("framed");
        let kept = entries_of(&short);
        let mut expected = vec![
            started,
            update(0, pb::TaskState::TaskStarting),
            acknowledged(0),
        ];
        for number in 937..1000 {
            expected.push(known(number));
            expected.push(acknowledged(number));
        }
        expected.push(update(1000, pb::TaskState::TaskRunning));
        expected.push(acknowledged(1000));
        expected.extend(waiting);
        assert_eq!(kept, expected);
        // A second compaction saves nothing.
        assert_eq!(shortened(&short), None);
    }

    #[test]
    fn compaction_drops_only_acknowledged_data() {
        let with_data = |number| match update(number, pb::TaskState::TaskRunning) {
            LogEntry::Update(status) => LogEntry::Update(pb::TaskStatus {
                data: Some(vec![7; 1 << 20]),
                ..status
            }),
            other => other,
        };
        let entries = (0..12).flat_map(|number| [with_data(number), acknowledged(number)]);
        let entries: Vec<_> = entries.chain((12..32).map(with_data)).collect();
        let log = log_of(&entries);
        let short = shortened(&log).expect("shorter").expect("framed");
        // Compaction saves less than half, but many bytes.
        assert!(short.len() > log.len() / 2 && short.len() < 21 << 20);
        let acknowledged = (0..12).flat_map(|number| {
            let kept = match number {
                11 => update(number, pb::TaskState::TaskRunning),
                _ => known(number),
            };
            [kept, acknowledged(number)]
        });
        let expected: Vec<_> = acknowledged.chain((12..32).map(with_data)).collect();
        assert!(entries_of(&short) == expected);
    }

    #[test]
    fn compaction_drops_superseded_updates() {
        // The second update belongs to a check whose third result replaced it before the head was acknowledged.
        let mut entries: Vec<_> = (0..3)
            .map(|number| update(number, pb::TaskState::TaskRunning))
            .collect();
        entries.extend([acknowledged(0), acknowledged(2)]);
        for number in 3..200 {
            entries.extend([
                update(number, pb::TaskState::TaskRunning),
                acknowledged(number),
            ]);
        }
        let short = shortened(&log_of(&entries))
            .expect("shorter")
            .expect("framed");
        assert!(!entries_of(&short).contains(&update(1, pb::TaskState::TaskRunning)));
    }

    /// A task sends its next state before its last is acknowledged: the pending update precedes the acknowledgement.
    #[test]
    fn updates_before_last_acknowledgement_stay_pending() {
        let running = |number| update(number, pb::TaskState::TaskRunning);
        let mut entries: Vec<_> = (0..1000)
            .flat_map(|number| [running(number), acknowledged(number)])
            .collect();
        entries.extend([running(1000), running(1001), running(1002)]);
        entries.push(acknowledged(1000));
        let short = shortened(&log_of(&entries))
            .expect("shorter")
            .expect("framed");
        let kept = entries_of(&short);
        let last: Vec<_> = kept[kept.len() - 4..].to_vec();
        let expected = [1000, 1001, 1002].map(running);
        assert_eq!(last[..3], expected);
        assert_eq!(last[3], acknowledged(1000));
    }

    #[test]
    fn compaction_leaves_damaged_logs_unchanged() {
        let entries: Vec<_> = (0..500)
            .flat_map(|number| {
                [
                    update(number, pb::TaskState::TaskRunning),
                    acknowledged(number),
                ]
            })
            .collect();
        let log = log_of(&entries);
        assert!(shortened(&log).is_some());
        assert_eq!(shortened(&log[..log.len() - 1]), None);
        assert_eq!(shortened(b"what is this"), None);
        let mut damaged = log;
        damaged[frame::LOG_HEADER_BYTES + 20] ^= 1;
        let contents = frame::decode_log(&damaged).expect("a log");
        assert!(contents.hole.is_some() && contents.valid_bytes == damaged.len());
        assert_eq!(shortened(&damaged), None);
    }

    #[test]
    fn compaction_is_due_at_each_doubling() {
        let due = |before, after| is_due(before, after);
        assert!(!due(0, LENGTH_MIN - 1) && due(LENGTH_MIN - 1, LENGTH_MIN));
        assert!(!due(LENGTH_MIN, 2 * LENGTH_MIN - 1));
        assert!(due(2 * LENGTH_MIN - 10, 2 * LENGTH_MIN + 10));
        assert!(due(0, LENGTH_MIN + 1));
    }
}
