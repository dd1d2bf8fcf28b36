//! CREATE, DESTROY, GROW_VOLUME and SHRINK_VOLUME: the owners of volumes, and sharing.

use super::*;

#[test]
fn a_volume_lives_and_dies() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024;disk:1000");
    let disk = reserved(&parse("disk:100"), "dev", None);
    let data = volume(&disk, "v", false);
    world.do_all(&scheduler, &offer, vec![reserve(&disk), create([&data])]);
    assert_eq!(world.finish(&node), 2);
    let offer = world.next_offer(&scheduler);
    let with = parse("cpus:4;mem:1024;disk:900") + &Resources::from(data.clone());
    assert_eq!(total_of(&offer), with);
    // The disk cannot be unreserved while the volume is on it, and a second volume with the same id is refused.
    let operations = vec![
        named(unreserve(&disk), "u"),
        named(unreserve(&data.clone().into()), "w"),
        reserve(&disk),
        named(create([&data]), "again"),
    ];
    world.do_all(&scheduler, &offer, operations);
    let errors = world.operation_events(&scheduler);
    let text = |n: usize| errors[n].message().to_owned();
    assert_says(text(0), "does not contain");
    assert_says(text(1), "destroy the persistent volume first");
    assert_says(text(2), "Persistence ID 'v' is not unique");
    world.applies(&node);
    let offer = world.next_offer(&scheduler);
    let both = reserved(&parse("disk:200"), "dev", None);
    world.do_all(
        &scheduler,
        &offer,
        vec![
            destroy([&data]),
            named(destroy([data]), "twice"),
            unreserve(&both),
        ],
    );
    let error = world.operation_events(&scheduler).pop().unwrap();
    assert_says(error.message(), "Persistent volumes not found");
    world.assert_total(&node, parse("cpus:4;mem:1024;disk:1000"));
}

fn disk_of(create: &mut Message) -> &mut v1::resource::DiskInfo {
    create.create.as_mut().unwrap().volumes[0]
        .disk
        .as_mut()
        .unwrap()
}

#[test]
fn volumes_require_reserved_persistent_disk() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024;disk:1000");
    let disk = reserved(&parse("disk:100"), "dev", None);
    let mut read_only = create([volume(&disk, "ro", false)]);
    disk_of(&mut read_only).volume.as_mut().unwrap().mode = v1::volume::Mode::Ro.into();
    let mut bad_id = create([volume(&disk, "x", false)]);
    disk_of(&mut bad_id).persistence.as_mut().unwrap().id = "../x".to_owned();
    let mut of_host = create([volume(&disk, "host", false)]);
    disk_of(&mut of_host).volume.as_mut().unwrap().host_path = Some("/tmp".to_owned());
    let revocable = volume(&disk.with_revocable(true), "rev", false);
    let operations = vec![
        named(create([volume(&parse("disk:100"), "free", false)]), "1"),
        named(create([revocable]), "2"),
        named(read_only, "3"),
        named(bad_id, "4"),
        named(create([volume(&disk, "shared", true)]), "5"),
        named(create(list(&disk)), "6"),
        named(reserve(&disk.with_revocable(true)), "7"),
        named(create(&[]), "8"),
        named(of_host, "9"),
    ];
    world.do_all(&scheduler, &offer, operations);
    let errors = world.operation_events(&scheduler);
    for (n, text) in [
        "cannot be created from unreserved resources",
        "cannot be created from revocable resources",
        "Read-only persistent volume not supported",
        "Persistence ID",
        "no SHARED_RESOURCES capability",
        "does not have DiskInfo",
        "cannot be created from revocable resources",
        "No resources are named",
        "'host_path' to be unset",
    ]
    .into_iter()
    .enumerate()
    {
        let message = errors[n].message();
        assert!(message.contains(text), "{n}: {message}");
        assert_eq!(errors[n].state(), OperationState::OperationError);
    }
    assert!(world.applies(&node).is_empty());
    world.assert_total(&node, parse("cpus:4;mem:1024;disk:1000"));
}

#[test]
fn resized_volume_waits_for_later_offer() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024;disk:1000");
    let disk = reserved(&parse("disk:100"), "dev", None);
    let more = reserved(&parse("disk:50"), "dev", None);
    let data = volume(&disk, "v", false);
    world.do_all(
        &scheduler,
        &offer,
        vec![reserve(&(&disk + &more)), create([&data])],
    );
    let offer = world.next_offer(&scheduler);
    world.applies(&node);
    let grown = volume(&reserved(&parse("disk:150"), "dev", None), "v", false);
    let mut on_grown = task(&node, "t", "cpus:1");
    let needs = parse("cpus:1;mem:32") + &Resources::from(grown.clone());
    on_grown.resources = to_wire(&needs, Format::PostRefinement);
    let grow = convert::to_operation(&Operation::Grow {
        volume: data.clone(),
        addition: list(&more).pop().unwrap(),
    });
    world.do_all(&scheduler, &offer, vec![grow, launch(vec![on_grown])]);
    let (told, rest): (Vec<Event>, Vec<Event>) = world
        .take_events(scheduler.connection)
        .into_iter()
        .partition(|event| event.update.is_some());
    world.events.insert(scheduler.connection, rest);
    let told = told[0].update.as_ref().unwrap();
    assert_eq!(
        told.status.state(),
        TaskState::TaskError,
        "not in the same call"
    );
    let offer = world.next_offer(&scheduler);
    assert!(total_of(&offer).contains_resource(&grown));
    let shrink = |subtract: u64| shrink(&grown, subtract);
    let operations = vec![
        named(shrink(150), "all"),
        named(shrink(0), "none"),
        shrink(50),
    ];
    world.do_all(&scheduler, &offer, operations);
    let errors = world.operation_events(&scheduler);
    assert_says(errors[0].message(), "must be smaller than the size");
    assert_says(errors[1].message(), "must be greater than zero");
    let offer = world.next_offer(&scheduler);
    let expected = parse("cpus:4;mem:1024;disk:850") + &more + &Resources::from(data);
    assert_eq!(total_of(&offer), expected);
}

fn sharing(name: &str) -> v1::FrameworkInfo {
    capable(framework(name, &["dev"]), CapabilityType::SharedResources)
}

fn on_volume(node: &Node, id: &str, volume: &Resource) -> v1::TaskInfo {
    let mut info = task(node, id, "cpus:1");
    let needs = parse("cpus:1;mem:32") + &Resources::from(volume.clone());
    info.resources = to_wire(&needs, Format::PostRefinement);
    info
}

/// A framework, and a shared volume of 100 MB on an agent of 4 cpus.
fn begin_shared() -> (World, Node, Scheduler, Resource) {
    let (mut world, node, scheduler, offer) =
        begin_with(sharing("f"), "cpus:4;mem:1024;disk(dev):100");
    let data = volume(&parse("disk(dev):100"), "s", true);
    world.do_all(&scheduler, &offer, vec![create([&data])]);
    world.finish(&node);
    (world, node, scheduler, data)
}

impl World {
    /// All offers that a framework holds now.
    fn all_offers(&mut self, scheduler: &Scheduler) -> Vec<v1::Offer> {
        self.advance(2 * SECOND);
        self.take_events(scheduler.connection);
        let id = FrameworkId::new(&scheduler.id).unwrap();
        let held = self.core.frameworks[&id].offers.clone();
        held.iter()
            .map(|id| {
                let offer = &self.core.offers[id];
                let framework = &self.core.frameworks[&offer.framework_id];
                let agent = &self.core.agents[&offer.agent_id];
                crate::core::offers::outstanding::to_wire(offer, framework, agent)
            })
            .collect()
    }

    fn accept_all(&mut self, scheduler: &Scheduler, operations: Vec<Message>) {
        let offers = self.all_offers(scheduler);
        let answer = self.call(scheduler, with_operations(&offers, operations, 0.0));
        assert_eq!(answer, Answer::Accepted);
    }
}

#[test]
fn several_tasks_share_a_volume() {
    let (mut world, node, scheduler, data) = begin_shared();
    let tasks = ["a", "b"].map(|id| on_volume(&node, id, &data)).to_vec();
    world.accept_all(&scheduler, vec![launch(tasks)]);
    assert_eq!(world.core.agents[node.id.as_str()].tasks.len(), 2);
    // The volume is offered nevertheless, and a third task gets it.
    let third = launch(vec![on_volume(&node, "c", &data)]);
    world.accept_all(&scheduler, vec![third]);
    assert_eq!(world.core.agents[node.id.as_str()].tasks.len(), 3);
    // A volume in use stays.
    world.accept_all(&scheduler, vec![named(destroy([&data]), "d")]);
    let status = world.operation_events(&scheduler).pop().unwrap();
    assert_says(status.message(), "Persistent volumes in use");
    for (number, id) in [(1, "a"), (2, "b"), (3, "c")] {
        world.update(&node, &scheduler, id, TaskState::TaskFinished, number);
    }
    world.accept_all(&scheduler, vec![destroy([data])]);
    world.assert_total(&node, parse("cpus:4;mem:1024;disk(dev):100"));
}

#[test]
fn destroyed_shared_volume_rescinds_other_offers() {
    let (mut world, node, scheduler, data) = begin_shared();
    let task = launch(vec![on_volume(&node, "t", &data)]);
    world.accept_all(&scheduler, vec![task]);
    let mine = world.all_offers(&scheduler);
    world.call(&scheduler, decline(&mine, 600.0));
    let other = world.subscribe(sharing("g"));
    let theirs = world.all_offers(&other);
    assert!(total(&theirs).contains_resource(&data), "both may use it");
    world.update(&node, &scheduler, "t", TaskState::TaskFinished, 1);
    world.call(&scheduler, Action::Revive { roles: Vec::new() });
    let mine = world.all_offers(&scheduler);
    assert!(
        total(&mine).contains_resource(&data),
        "offered to both at once"
    );
    world.accept_all(&scheduler, vec![destroy([data])]);
    let told = world.take_events(other.connection);
    assert!(told.iter().any(|event| event.rescind.is_some()));
    world.assert_total(&node, parse("cpus:4;mem:1024;disk(dev):100"));
}

#[test]
fn shared_volumes_require_capability() {
    let (mut world, _, scheduler, data) = begin_shared();
    let offers = world.all_offers(&scheduler);
    world.call(&scheduler, decline(&offers, 600.0));
    let plain = world.subscribe(framework("g", &["dev"]));
    let offers = world.all_offers(&plain);
    assert!(!total(&offers).contains_resource(&data));
}

#[test]
fn shrunk_volume_waits_for_later_offer() {
    let (mut world, node, scheduler, offer) = begin("cpus:4;mem:1024;disk(dev):100");
    let data = volume(&parse("disk(dev):100"), "v", false);
    world.do_all(&scheduler, &offer, vec![create([&data])]);
    let small = volume(&parse("disk(dev):60"), "v", false);
    let shrink = shrink(&data, 40);
    let tasks = [("old", &data), ("new", &small)].map(|(id, on)| on_volume(&node, id, on));
    let offers = world.all_offers(&scheduler);
    let operations = vec![shrink, launch(tasks.to_vec())];
    world.call(&scheduler, with_operations(&offers, operations, 0.0));
    let told = states(&world.updates(&scheduler));
    assert_eq!(
        told,
        [TaskState::TaskError; 2],
        "neither as it was nor as it is"
    );
    assert!(world.agent_total(&node).contains_resource(&small));
    world.accept_all(
        &scheduler,
        vec![launch(vec![on_volume(&node, "t", &small)])],
    );
    assert_eq!(world.core.agents[node.id.as_str()].tasks.len(), 1);
}

#[test]
fn shared_volume_survives_master_restart() {
    let (mut world, node, scheduler, data) = begin_shared();
    let tasks = ["a", "b"].map(|id| on_volume(&node, id, &data)).to_vec();
    world.accept_all(&scheduler, vec![launch(tasks)]);
    let mut world = world.restart();
    let holding = |id: &str| {
        let mut task = running(&node, &scheduler, id, "cpus:1;mem:32", "dev");
        let volume = Resources::from(data.clone()).allocate(&role("dev"));
        task.resources
            .extend(to_wire(&volume, Format::PostRefinement));
        task
    };
    let info = World::with_id(sharing("f"), &scheduler.id);
    let mut told = report(&node, vec![holding("a"), holding("b")], vec![info.clone()]);
    told.register.checkpointed_resources =
        to_wire(&Resources::from(data.clone()), Format::PostRefinement);
    let connection = world.handshake(AgentMessage::Reregister(told));
    let node = Node { connection, ..node };
    world.take_frames(connection);
    let scheduler = world.subscribe(info);
    assert_eq!(world.core.agents[node.id.as_str()].tasks.len(), 2);
    // The volume is offered to a third task, and cannot be destroyed while one of them runs.
    let offers = world.all_offers(&scheduler);
    assert!(total(&offers).contains_resource(&data));
    for (number, id) in [(1, "a"), (2, "b")] {
        let destroyed = named(destroy([&data]), "d");
        world.accept_all(&scheduler, vec![destroyed]);
        let status = world.operation_events(&scheduler).pop().unwrap();
        assert_says(status.message(), "Persistent volumes in use");
        world.update(&node, &scheduler, id, TaskState::TaskFinished, number);
    }
    world.accept_all(&scheduler, vec![destroy([data])]);
    let left = parse("cpus:4;mem:1024;disk(dev):100");
    world.assert_total(&node, &left);
}

/// The folder of a volume is named after the whole role.
#[test]
fn refuses_volume_with_too_long_role() {
    let long = vec!["x".repeat(127); 3].join("/");
    let resources = format!("cpus:4;mem:1024;disk({long}):100");
    let (mut world, _, scheduler, offer) = begin_with(framework("f", &[&long]), &resources);
    let data = volume(&parse(&format!("disk({long}):10")), "v", false);
    let operations = vec![named(create([data]), "c")];
    world.do_all(&scheduler, &offer, operations);
    let error = world.operation_events(&scheduler).pop().unwrap();
    assert_says(error.message(), "383 bytes");
}

#[test]
fn destroys_volume_beside_shared_in_use() {
    let (mut world, node, scheduler, offer) =
        begin_with(sharing("f"), "cpus:4;mem:1024;disk(dev):100");
    let shared = volume(&parse("disk(dev):60"), "s", true);
    let own = volume(&parse("disk(dev):40"), "o", false);
    let both = create([shared.clone(), own.clone()]);
    world.do_all(&scheduler, &offer, vec![both]);
    world.finish(&node);
    let tasks = ["a", "b"].map(|id| on_volume(&node, id, &shared)).to_vec();
    world.accept_all(&scheduler, vec![launch(tasks)]);
    // Both in one call: the volume in use stays, and the other goes.
    let destroyed = [named(destroy([&shared]), "s"), named(destroy([own]), "o")];
    world.accept_all(&scheduler, destroyed.to_vec());
    let status = world.operation_events(&scheduler).pop().unwrap();
    assert_eq!(status.operation_id.as_ref().unwrap().value, "s");
    assert_says(status.message(), "Persistent volumes in use");
    assert_eq!(world.finish(&node), 1);
    let left = parse("cpus:4;mem:1024;disk(dev):40") + &Resources::from(shared);
    world.assert_total(&node, &left);
}

#[test]
fn refused_destroy_rescinds_no_offers() {
    let (mut world, node, scheduler, data) = begin_shared();
    let task = launch(vec![on_volume(&node, "t", &data)]);
    world.accept_all(&scheduler, vec![task]);
    let mine = world.all_offers(&scheduler);
    world.call(&scheduler, decline(&mine, 600.0));
    // A framework with the same role, with an offer of the agent without the volume.
    let other = world.subscribe(framework("g", &["dev"]));
    let offers = world.all_offers(&other);
    assert!(!offers.is_empty() && !total(&offers).contains_resource(&data));
    world.update(&node, &scheduler, "t", TaskState::TaskFinished, 1);
    world.call(&scheduler, Action::Revive { roles: Vec::new() });
    let mine = world.all_offers(&scheduler);
    assert!(total(&mine).contains_resource(&data));
    let before = world.core.offers.len();
    let operations = vec![named(destroy([&data]), "d")];
    world.call(&other, with_operations(&offers, operations, 600.0));
    let told = world.operation_events(&other);
    assert_eq!(told[0].state(), OperationState::OperationError);
    assert_eq!(world.rescinded(&scheduler), 0);
    assert_eq!(world.core.offers.len(), before - offers.len());
}
