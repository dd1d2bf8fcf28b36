//! The effects of ACCEPT in the world: first operations, then tasks; nothing if the master refuses it.

use meseta_proto::mesos::v1::TaskState;

use super::super::super::volume_operations::named_by;
use super::super::super::{Accept, Input, RefusedAccept};
use super::{Life, World};

impl World {
    pub(super) fn accept(&mut self, accept: &Accept) {
        let of_tasks = accept.tasks.iter().flat_map(|task| &task.operations);
        let operations: Vec<_> = accept.operations.iter().chain(of_tasks).cloned().collect();
        self.named.push(named_by(&operations));
        if accept.tasks.len() > self.accept_tasks_max {
            let ids = operations.into_iter().map(|operation| operation.id);
            let tasks = accept.tasks.iter().map(|task| task.task_id.clone());
            let refused = RefusedAccept {
                offers: vec![accept.offer.id.clone()],
                tasks: tasks.collect(),
                operations: ids.collect(),
                why: "too many".to_owned(),
            };
            return self.inbox.push_back(Input::AcceptRefused(refused));
        }
        if self.loses_accepts {
            self.offers.remove(&accept.offer.id);
            return;
        }
        let agent = accept.offer.agent_id.clone();
        let offer = self.offers.remove(&accept.offer.id);
        let is_good = offer.is_some() && !self.agents[&agent].is_away;
        let mut left = offer.map(|(_, resources)| resources).unwrap_or_default();
        let of_tasks = accept.tasks.iter().flat_map(|task| &task.operations);
        for operation in accept.operations.iter().chain(of_tasks) {
            self.operate(&agent, operation, is_good.then_some(&mut left));
        }
        for task in &accept.tasks {
            let id = &task.task_id;
            assert!(
                self.disk.contains_key(&format!("task/{id}")),
                "{id} was launched before it was durable"
            );
            assert!(self.launched.insert(id.clone()), "{id} was used twice");
            if !is_good {
                self.tell(id, &agent, TaskState::TaskDropped, None);
                continue;
            }
            let resources = &task.placement.resources;
            let volumes = resources.persistent_volumes();
            for volume in &volumes {
                let persistence = volume.disk().and_then(|disk| disk.persistence.as_ref());
                let volume = persistence.map(|persistence| persistence.id.to_string());
                self.volumes
                    .extend(volume.map(|volume| (id.clone(), volume)));
            }
            if left.try_sub_assign(resources).is_err() {
                assert!(self.fails_to_create, "{id} takes {resources} of {left}");
                self.tell(id, &agent, TaskState::TaskError, None);
                continue;
            }
            let of_agent = self.agents.get_mut(&agent).expect("an agent");
            of_agent.tasks.insert(id.clone(), Life::Staging);
            of_agent.used.insert(id.clone(), resources.clone());
        }
    }
}
