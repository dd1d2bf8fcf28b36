//! Tasks from their launch to their acknowledged end.

use std::error::Error;
use std::io::Write;
use std::time::{Duration, Instant};

use meseta_master::core::Input;
use meseta_master::core::call::Action;
use meseta_proto::convert::{Format, parse_resources, resources as resources_of, to_resources};
use meseta_proto::mesos::v1::scheduler::call;
use meseta_proto::mesos::v1::{self, TaskState};
use meseta_resources::Role;

use crate::world::World;

fn whole_cpus(resources: &[v1::Resource]) -> Result<usize, Box<dyn Error>> {
    let cpus = resources_of(resources)?.cpus().unwrap_or_default();
    Ok(usize::try_from(cpus.whole_units())?)
}

fn task(number: usize, offer: &v1::Offer, resources: &[v1::Resource]) -> v1::TaskInfo {
    v1::TaskInfo {
        name: "bench".to_owned(),
        task_id: v1::TaskId {
            value: format!("task-{number}"),
        },
        agent_id: offer.agent_id.clone(),
        resources: resources.to_vec(),
        command: Some(v1::CommandInfo::default()),
        ..v1::TaskInfo::default()
    }
}

fn accept(offer: v1::Offer, tasks: Vec<v1::TaskInfo>) -> Action {
    Action::Accept(call::Accept {
        offer_ids: vec![offer.id],
        operations: vec![v1::offer::Operation {
            r#type: Some(v1::offer::operation::Type::Launch.into()),
            launch: Some(v1::offer::operation::Launch { task_infos: tasks }),
            ..v1::offer::Operation::default()
        }],
        filters: Some(v1::Filters {
            refuse_seconds: Some(0.0),
        }),
    })
}

pub(crate) fn run(agents: usize, tasks: usize) -> Result<(), Box<dyn Error>> {
    let mut world = World::new();
    let has = to_resources(
        &parse_resources(
            "cpus:32;mem:65536;disk:65536;ports:[31000-32000]",
            &Role::star(),
        )?,
        Format::PostRefinement,
    )?;
    let takes = to_resources(
        &parse_resources("cpus:1;mem:64", &Role::star())?,
        Format::PostRefinement,
    )?;
    for number in 1..=agents {
        world.register(number, &has, &[]);
    }
    world.subscribe(v1::FrameworkInfo {
        user: "bench".to_owned(),
        name: "bench".to_owned(),
        ..v1::FrameworkInfo::default()
    });
    world.slowest = Duration::ZERO;
    let (began, steps) = (Instant::now(), world.steps);
    let mut launched = 0;
    let mut finished = 0;
    while finished < tasks {
        for offer in std::mem::take(&mut world.offers) {
            let cpus = whole_cpus(&offer.resources)?;
            let batch: Vec<v1::TaskInfo> = (launched..tasks)
                .take(cpus.min(8))
                .map(|number| task(number, &offer, &takes))
                .collect();
            launched += batch.len();
            world.call(accept(offer, batch));
        }
        let runs = std::mem::take(&mut world.runs);
        if runs.is_empty() && finished < launched {
            return Err("tasks were refused".into());
        }
        finished += runs.len();
        for run in runs {
            world.advance(&run, TaskState::TaskRunning, 1);
            world.advance(&run, TaskState::TaskFinished, 2);
        }
        world.step(Input::Tick);
    }
    let took = began.elapsed();
    let rate = f64::from(u32::try_from(tasks)?) / took.as_secs_f64();
    writeln!(
        std::io::stdout(),
        "{agents} agents, {tasks} tasks in {took:.2?}: {rate:.0} tasks/s, {} steps, slowest {:.2?}",
        world.steps - steps,
        world.slowest
    )?;
    Ok(())
}
