//! Views: their content, and the cost of making them.

use meseta_access::{Acls, Authorizer};
use meseta_proto::mesos::v1::master::event;
use meseta_proto::mesos::v1::{TaskState, TaskStatus};

use super::*;
use crate::view_cache::{ViewCache, ViewScope};
use crate::views::tests::{many_frameworks, task};

/// A cluster whose frameworks each have a user of their own: `u0`, `u1` and so on.
fn cluster_of(agents: usize, frameworks: usize) -> Arc<Snapshot> {
    let mut all = copy(&many_frameworks(agents, frameworks));
    let with_user = |(number, framework): (usize, &Arc<FrameworkView>)| {
        let mut view = (**framework).clone();
        Arc::make_mut(&mut view.info).user = format!("u{number}");
        Arc::new(view)
    };
    all.frameworks = Arc::new(all.frameworks.iter().enumerate().map(with_user).collect());
    Arc::new(all)
}

/// A snapshot that shares its parts with the given one.
fn copy(snapshot: &Snapshot) -> Snapshot {
    filtered_snapshot(snapshot, &Approver::default())
}

/// The snapshot after an agent got another task.
fn with_task(snapshot: &Snapshot, agent: usize, framework: usize) -> Arc<Snapshot> {
    let mut next = copy(snapshot);
    let agents = Arc::make_mut(&mut next.agents);
    let view = Arc::make_mut(&mut agents[agent]);
    let record = task(framework, agent, "new", TaskState::TaskRunning);
    let key = (record.framework_id.clone(), record.task_id.clone());
    Arc::make_mut(&mut view.tasks).insert(key, record);
    Arc::new(next)
}

/// A caller that may view these objects of each list, and no others.
fn viewer(name: &str, version: u64, lists: &[(&str, &str, &str)]) -> Approver {
    let list = |(list, kind, which): &(&str, &str, &str)| {
        format!(r#""view_{list}":[{{"principals":{{"values":["{name}"]}},"{kind}":{which}}}]"#)
    };
    let lists: Vec<String> = lists.iter().map(list).collect();
    let acls = Acls::parse(&format!("{{{}}}", lists.join(","))).unwrap();
    let authorizer = Authorizer::new(acls, false).of_version(version);
    authorizer.approver(Some(name.to_owned()))
}

/// A caller that sees the objects of these users, and no others.
fn reader(users: &[&str], version: u64) -> Approver {
    let which = format!(r#"{{"values":{users:?}}}"#);
    let lists = ["frameworks", "tasks", "executors"];
    viewer("ada", version, &lists.map(|list| (list, "users", &*which)))
}

const ANY: &str = r#"{"type":"ANY"}"#;

/// A caller that sees everything by explicit rules.
fn administrator() -> Approver {
    let lists = ["frameworks", "tasks", "executors"];
    viewer("admin", 0, &lists.map(|list| (list, "users", ANY)))
}

/// A caller that sees everything by explicit rules, including roles.
fn administrator_of_roles() -> Approver {
    let lists = ["frameworks", "tasks", "executors", "roles"];
    let kinds = ["users", "users", "users", "roles"];
    let lists: Vec<_> = (0..4).map(|at| (lists[at], kinds[at], ANY)).collect();
    viewer("admin", 0, &lists)
}

async fn view(cache: &ViewCache, of: Arc<Snapshot>, approver: &Approver) -> Arc<Snapshot> {
    let view = cache.view(of, approver, ViewScope::Cluster);
    view.await.unwrap()
}

fn tasks_of(snapshot: &Snapshot) -> usize {
    snapshot.agents.iter().map(|agent| agent.tasks.len()).sum()
}

#[tokio::test]
async fn view_cost_depends_only_on_changes() {
    for approver in [reader(&["u1"], 0), administrator()] {
        let mut taken = Vec::new();
        for agents in [50, 100] {
            let cache = ViewCache::default();
            let first = cluster_of(agents, 20);
            let seen = view(&cache, first.clone(), &approver).await;
            let whole = cache.cost();
            assert!(whole.entries >= agents as u64, "{whole:?}");
            let again = view(&cache, first.clone(), &approver).await;
            assert!(Arc::ptr_eq(&seen, &again), "asked again");
            assert_eq!(cache.cost(), whole);
            let second = with_task(&first, 7, 1);
            let changed = view(&cache, second.clone(), &approver).await;
            assert_eq!(tasks_of(&changed), tasks_of(&seen) + 1);
            assert_eq!(
                format!("{changed:?}"),
                format!("{:?}", filtered_snapshot(&second, &approver)),
                "what is taken over is what would be made"
            );
            let cost = cache.cost();
            taken.push((cost.entries - whole.entries, cost.records - whole.records));
        }
        assert_eq!(taken[0].0, 1, "one agent has changed");
        assert!(taken[0].1 <= 5, "{taken:?}");
        assert_eq!(taken[0], taken[1], "twice the cluster");
    }
}

#[tokio::test]
async fn unread_view_parts_are_not_built() {
    let cache = ViewCache::default();
    let snapshot = cluster_of(50, 20);
    let approver = reader(&["u1"], 0);
    let seen = cache.view(snapshot, &approver, ViewScope::Policies).await;
    assert!(seen.unwrap().agents.is_empty());
    assert_eq!(cache.cost(), FilterCost::default());
}

#[tokio::test]
async fn fully_visible_objects_are_shared() {
    let snapshot = cluster_of(10, 20);
    let seen = filtered_snapshot(&snapshot, &administrator());
    let pairs = seen.agents.iter().zip(snapshot.agents.iter());
    // Completed frameworks of the fixture have no user, so the rules hide none.
    assert!(pairs.clone().count() == 10);
    for (seen, agent) in pairs {
        assert!(Arc::ptr_eq(seen, agent));
    }
    for (seen, framework) in seen.frameworks.iter().zip(snapshot.frameworks.iter()) {
        assert!(Arc::ptr_eq(seen, framework));
    }
}

#[tokio::test]
async fn unrestricted_reader_shares_snapshot() {
    let snapshot = cluster_of(10, 20);
    let mut cost = FilterCost::default();
    let seen = cluster(&snapshot, &administrator_of_roles(), None, &mut cost);
    assert_eq!(cost, FilterCost::default());
    assert!(Arc::ptr_eq(&seen.agents, &snapshot.agents));
    assert!(Arc::ptr_eq(&seen.frameworks, &snapshot.frameworks));
    assert_eq!(seen.quotas.len(), 0, "nothing is said of quotas");
    let filtered = filtered_snapshot(&snapshot, &administrator());
    let ids = |all: &Snapshot| format!("{:?}{:?}", all.agents, all.frameworks);
    assert_eq!(ids(&seen), ids(&filtered), "what filtering would have left");
}

#[tokio::test]
async fn different_rules_and_callers_separate_views() {
    let cache = ViewCache::default();
    let snapshot = cluster_of(20, 6);
    let mut numbers = Vec::new();
    for approver in [
        reader(&["u1"], 0),
        reader(&["u1", "u2"], 1),
        reader(&["u1"], 0),
        administrator(),
    ] {
        let seen = view(&cache, snapshot.clone(), &approver).await;
        assert_eq!(seen.viewer.principal(), approver.principal());
        assert_eq!(
            format!("{seen:?}"),
            format!("{:?}", filtered_snapshot(&snapshot, &approver))
        );
        numbers.push(seen.frameworks.len());
    }
    assert_eq!(numbers, [1, 2, 1, 6]);
}

#[tokio::test(start_paused = true)]
async fn unused_views_are_dropped() {
    let cache = ViewCache::default();
    let snapshot = cluster_of(5, 6);
    let view = async |approver: Approver| view(&cache, snapshot.clone(), &approver).await;
    let seen = view(reader(&["u1"], 0)).await;
    assert_eq!(Arc::strong_count(&seen), 2);
    tokio::time::advance(std::time::Duration::from_secs(61)).await;
    view(administrator()).await;
    assert_eq!(Arc::strong_count(&seen), 1);
    for version in 0..100 {
        view(reader(&["u1"], version)).await;
    }
    assert!(Arc::strong_count(&snapshot) <= 20, "few are kept");
}

fn stream_event(event: v1::master::Event, task_user: crate::core::TaskUser) -> StreamEvent {
    StreamEvent { event, task_user }
}

fn updated(framework: &str, task: &str, user: crate::core::TaskUser) -> StreamEvent {
    let event = v1::master::Event {
        task_updated: Some(event::TaskUpdated {
            framework_id: v1::FrameworkId {
                value: framework.to_owned(),
            },
            status: TaskStatus {
                task_id: v1::TaskId {
                    value: task.to_owned(),
                },
                ..TaskStatus::default()
            },
            state: TaskState::TaskFinished.into(),
        }),
        ..v1::master::Event::default()
    };
    stream_event(event, user)
}

fn added(framework: &str, task: &str, user: Option<&str>) -> StreamEvent {
    let mut event = v1::master::Event::default();
    let mut task_added = event::TaskAdded::default();
    task_added.task.framework_id.value = framework.to_owned();
    task_added.task.task_id.value = task.to_owned();
    task_added.task.user = user.map(str::to_owned);
    event.task_added = Some(task_added);
    stream_event(event, None)
}

#[test]
fn event_filter_stores_no_tasks() {
    let snapshot = cluster_of(2, 4);
    let approver = reader(&["u1"], 0);
    let mut filter = EventFilter::new(approver.clone());
    filter.seed(&filtered_snapshot(&snapshot, &approver));
    let seen = snapshot.frameworks[1].id.to_string();
    let hidden = snapshot.frameworks[2].id.to_string();
    for number in 0..10_000 {
        let task = format!("t-{number}");
        assert!(filter.apply(&added(&seen, &task, None)).is_some());
        assert!(filter.apply(&updated(&seen, &task, Some(None))).is_some());
        assert!(filter.apply(&added(&hidden, &task, None)).is_none());
        assert!(filter.apply(&updated(&hidden, &task, Some(None))).is_none());
        // A user of this task alone.
        assert!(filter.apply(&added(&seen, &task, Some(&task))).is_none());
        let user = Some(Some(task.as_str().into()));
        assert!(filter.apply(&updated(&seen, &task, user)).is_none());
        assert!(
            filter.apply(&updated(&seen, &task, None)).is_none(),
            "nobody's"
        );
    }
    let remembered = filter.frameworks.len() + filter.tasks.len();
    assert!(remembered <= 1 + USERS_MAX, "{remembered}");
}

#[test]
fn replies_of_hidden_frameworks_are_hidden() {
    use crate::core::InverseReply;
    let mut all = copy(&cluster_of(1, 3));
    let ids: Vec<_> = all.frameworks.iter().map(|one| one.id.clone()).collect();
    let agents = Arc::make_mut(&mut all.agents);
    let agent = Arc::make_mut(&mut agents[0]);
    let hostname = Some(agent.profile.info.hostname.clone());
    for id in &ids {
        let reply = InverseReply {
            accepted: true,
            at: std::time::Duration::ZERO,
        };
        agent.inverse_replies.insert(id.clone(), reply);
    }
    let maintenance = Arc::make_mut(&mut all.maintenance);
    maintenance.schedule.windows = vec![v1::maintenance::Window {
        machine_ids: vec![v1::MachineId { hostname, ip: None }],
        ..v1::maintenance::Window::default()
    }];
    let user = r#"{"values":["u1"]}"#;
    let rules = format!(
        r#"{{"view_frameworks":[{{"principals":{{"values":["ada"]}},"users":{user}}}],
            "get_maintenance_statuses":[{{"principals":{{"values":["ada"]}},"machines":{ANY}}}]}}"#
    );
    let authorizer = Authorizer::new(Acls::parse(&rules).unwrap(), false);
    let seen = filtered_snapshot(&all, &authorizer.approver(Some("ada".to_owned())));
    let status = crate::views::maintenance_status(&seen);
    let told = status.draining_machines[0].statuses.iter();
    let told: Vec<_> = told.map(|one| one.framework_id.value.as_str()).collect();
    assert_eq!(told, [ids[1].as_str()]);
}
