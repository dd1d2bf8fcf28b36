//! Divides a reregistration into frames, so that the agent's state may be larger than a frame.
//!
//! Pure. Invariant: each item is in exactly one frame, in order, and the last frame is the reregistration itself; a
//! state that fits into one frame is sent as one frame.

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message;
use prost::Message as _;

/// Bytes of a partial frame, unless a single item is larger. The value is far below the master's limit, since the
/// master reads a frame in one piece.
pub(super) const PART_BYTES: usize = 4 * 1024 * 1024;

/// The frames of a reregistration, in order.
pub(super) fn divide(mut whole: wire::Reregister) -> Vec<Message> {
    if whole.encoded_len() <= PART_BYTES {
        return vec![Message::Reregister(whole)];
    }
    let mut parts = Parts {
        register: Some(whole.register.clone()),
        ..Parts::default()
    };
    for one in whole.frameworks.drain(..) {
        parts.add(one.encoded_len(), |part| part.frameworks.push(one));
    }
    for one in whole.executors.drain(..) {
        parts.add(one.encoded_len(), |part| part.executors.push(one));
    }
    for one in whole.tasks.drain(..) {
        parts.add(one.len(), |part| part.tasks.push(one));
    }
    for one in whole.operations.drain(..) {
        parts.add(one.encoded_len(), |part| part.operations.push(one));
    }
    parts.close();
    let mut frames = parts.frames;
    frames.push(Message::Reregister(whole));
    frames
}

#[derive(Default)]
struct Parts {
    register: Option<wire::Register>,
    frames: Vec<Message>,
    part: wire::ReregisterPart,
    bytes: usize,
}

impl Parts {
    fn add(&mut self, bytes: usize, put: impl FnOnce(&mut wire::ReregisterPart)) {
        if self.bytes > 0 && self.bytes.saturating_add(bytes) > PART_BYTES {
            self.close();
        }
        self.bytes = self.bytes.saturating_add(bytes);
        put(&mut self.part);
    }

    fn close(&mut self) {
        if self.bytes > 0 {
            let mut part = std::mem::take(&mut self.part);
            part.register = self.register.take();
            self.frames.push(Message::ReregisterPart(part));
            self.bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1 as pb;

    use super::*;

    fn task(number: usize, bytes: usize) -> Vec<u8> {
        let mut task = pb::Task {
            name: "x".repeat(bytes),
            ..pb::Task::default()
        };
        task.task_id.value = number.to_string();
        task.encode_to_vec()
    }

    fn holding(tasks: usize, bytes: usize) -> wire::Reregister {
        wire::Reregister {
            tasks: (0..tasks).map(|number| task(number, bytes)).collect(),
            frameworks: vec![pb::FrameworkInfo::default()],
            ..wire::Reregister::default()
        }
    }

    #[test]
    fn small_reregistration_is_one_frame() {
        let whole = holding(100, 100);
        assert_eq!(divide(whole.clone()), [Message::Reregister(whole)]);
    }

    #[test]
    fn large_reregistration_is_split_losslessly() {
        for (tasks, bytes) in [(11, 6 << 20), (30_000, 1000), (3, 3 << 20)] {
            let mut frames = divide(holding(tasks, bytes));
            let Some(Message::Reregister(last)) = frames.pop() else {
                panic!("the return comes last");
            };
            assert!(last.tasks.is_empty());
            let mut told = Vec::new();
            let mut frameworks = 0;
            for (number, frame) in frames.into_iter().enumerate() {
                let Message::ReregisterPart(part) = frame else {
                    panic!("a part");
                };
                assert!(part.encoded_len() < PART_BYTES.max(bytes) + 100_000);
                assert_eq!(part.register.is_some(), number == 0);
                frameworks += part.frameworks.len();
                let tasks = part.tasks.iter();
                let tasks = tasks.map(|task| pb::Task::decode(task.as_slice()).unwrap());
                told.extend(tasks.map(|task| task.task_id.value));
            }
            let expected: Vec<_> = (0..tasks).map(|number| number.to_string()).collect();
            assert_eq!((told, frameworks), (expected, 1));
        }
    }
}
