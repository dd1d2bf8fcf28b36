//! Operations of frameworks under ACLs: the master skips those without the right, and applies the rest of the call.

use super::*;
use crate::core::tests::frameworks::authorization::caller;

const RESERVES: &str = r#""reserve_resources":[{"principals":{"values":["ada"]},"roles":{"values":["dev"]}},
    {"principals":{"type":"ANY"},"roles":{"type":"NONE"}}]"#;
const UNRESERVES: &str = r#""unreserve_resources":[
    {"principals":{"values":["ada"]},"reserver_principals":{"values":["ada"]}},
    {"principals":{"type":"ANY"},"reserver_principals":{"type":"NONE"}}]"#;
const CREATES: &str = r#""create_volumes":[{"principals":{"values":["ada"]},"roles":{"values":["dev"]}},
    {"principals":{"type":"ANY"},"roles":{"type":"NONE"}}]"#;
const DESTROYS: &str = r#""destroy_volumes":[
    {"principals":{"values":["ada"]},"creator_principals":{"values":["ada"]}},
    {"principals":{"type":"ANY"},"creator_principals":{"type":"NONE"}}]"#;
const RESIZES: &str = r#""resize_volumes":[{"principals":{"values":["ada"]},"roles":{"values":["dev"]}},
    {"principals":{"type":"ANY"},"roles":{"type":"NONE"}}]"#;

/// A principal's framework under these ACLs, with an offer of the whole agent.
fn begin_as(
    principal: &str,
    acls: &[&str],
    resources: &str,
) -> (World, Node, Scheduler, v1::Offer) {
    let (mut world, node) = World::with_capable_agent(resources);
    world.take_frames(node.connection);
    world.caller = caller(&format!("{{{}}}", acls.join(",")), Some(principal));
    let mut info = plain();
    info.principal = Some(principal.to_owned());
    let scheduler = world.subscribe(info);
    let offer = world.offers(&scheduler).pop().unwrap();
    (world, node, scheduler, offer)
}

/// Asserts that nothing was applied, and that the framework got the reason.
fn refused(world: &mut World, node: &Node, scheduler: &Scheduler, id: &str) {
    let told = world.operation_events(scheduler);
    let status = told.iter().find(|status| {
        let of = status.operation_id.as_ref();
        of.is_some_and(|of| of.value == id)
    });
    let status = status.unwrap_or_else(|| panic!("{id} is not told of: {told:?}"));
    assert_eq!(status.state(), OperationState::OperationError);
    assert!(status.message().starts_with("Not authorized"), "{status:?}");
    assert!(world.applies(node).is_empty());
}

fn of_ada(text: &str) -> Resources {
    reserved(&parse(text), "dev", Some("ada"))
}

fn made_by(disk: &Resources, principal: &str) -> Resource {
    let mut message = convert::to_resource(&volume(disk, "v", false), Format::PostRefinement)
        .expect("a volume has a message");
    let disk = message.disk.as_mut().unwrap();
    let persistence = disk.persistence.as_mut().unwrap();
    persistence.principal = Some(principal.to_owned());
    convert::resource(&message).unwrap()
}

#[test]
fn authorized_principal_reserves_and_unreserves() {
    let (mut world, node, scheduler, offer) =
        begin_as("ada", &[RESERVES, UNRESERVES], "cpus:4;mem:1024");
    let mine = of_ada("cpus:1");
    world.do_all(&scheduler, &offer, vec![reserve(&mine)]);
    assert_eq!(world.finish(&node), 1);
    let offer = world.next_offer(&scheduler);
    assert_eq!(total_of(&offer), parse("cpus:3;mem:1024") + &mine);
    world.do_all(&scheduler, &offer, vec![unreserve(&mine)]);
    assert_eq!(world.finish(&node), 1);
    world.assert_total(&node, parse("cpus:4;mem:1024"));
}

#[test]
fn unauthorized_principal_cannot_reserve() {
    let (mut world, node, scheduler, offer) = begin_as("bob", &[RESERVES], "cpus:4;mem:1024");
    let of_bob = reserved(&parse("cpus:1"), "dev", Some("bob"));
    let requested = vec![named(reserve(&of_bob), "r")];
    world.do_all(&scheduler, &offer, requested);
    refused(&mut world, &node, &scheduler, "r");
    world.assert_total(&node, parse("cpus:4;mem:1024"));
}

#[test]
fn skips_only_unauthorized_operations() {
    let nobody = r#""unreserve_resources":[
        {"principals":{"values":["ada"]},"reserver_principals":{"type":"NONE"}}]"#;
    let (mut world, node, scheduler, offer) =
        begin_as("ada", &[RESERVES, nobody], "cpus:4;mem:1024");
    let mine = of_ada("cpus:1;mem:512");
    let mut info = task(&node, "t", "cpus:1");
    info.resources = to_wire(&mine, Format::PostRefinement);
    let operations = vec![
        reserve(&mine),
        named(unreserve(&mine), "u"),
        launch(vec![info]),
    ];
    world.do_all(&scheduler, &offer, operations);
    let frames = world.take_frames(node.connection);
    let count =
        |matches: fn(&MasterMessage) -> bool| frames.iter().filter(|frame| matches(frame)).count();
    assert_eq!(
        count(|frame| matches!(frame, MasterMessage::ApplyOperation(_))),
        1
    );
    assert_eq!(count(|frame| matches!(frame, MasterMessage::RunTask(_))), 1);
    refused(&mut world, &node, &scheduler, "u");
    world.assert_total(&node, parse("cpus:3;mem:512") + &mine);
}

#[test]
fn authorized_principal_manages_volumes() {
    let acls = [CREATES, DESTROYS, RESIZES];
    let (mut world, node, scheduler, offer) =
        begin_as("ada", &acls, "cpus:4;mem:1024;disk(dev):100");
    let disk = parse("disk(dev):60");
    let data = made_by(&disk, "ada");
    let operations = vec![create([&data])];
    world.do_all(&scheduler, &offer, operations);
    assert_eq!(world.finish(&node), 1);
    let offer = world.next_offer(&scheduler);
    let shrink = shrink(&data, 20);
    world.do_all(&scheduler, &offer, vec![shrink]);
    assert_eq!(world.finish(&node), 1);
    let offer = world.next_offer(&scheduler);
    let data = made_by(&parse("disk(dev):40"), "ada");
    world.do_all(&scheduler, &offer, vec![destroy([data])]);
    assert_eq!(world.finish(&node), 1);
    world.assert_total(&node, parse("cpus:4;mem:1024;disk(dev):100"));
}

#[test]
fn unauthorized_principal_cannot_touch_volumes() {
    let acls = [CREATES, DESTROYS, RESIZES];
    let (mut world, node, scheduler, offer) =
        begin_as("bob", &acls, "cpus:4;mem:1024;disk(dev):100");
    let of_bob = made_by(&parse("disk(dev):60"), "bob");
    let requested = vec![named(create([of_bob]), "c")];
    world.do_all(&scheduler, &offer, requested);
    refused(&mut world, &node, &scheduler, "c");
    world.assert_total(&node, parse("cpus:4;mem:1024;disk(dev):100"));

    // Ada's volume, and a framework of bob's with the same role.
    let (mut world, node, scheduler, offer) =
        begin_as("ada", &acls, "cpus:4;mem:1024;disk(dev):100");
    let hers = made_by(&parse("disk(dev):60"), "ada");
    let operations = vec![create([&hers])];
    world.do_all(&scheduler, &offer, operations);
    world.finish(&node);
    let offers = world.next_offer(&scheduler);
    world.call(&scheduler, decline(&[&offers], 600.0));
    world.caller = caller(&format!("{{{}}}", acls.join(",")), Some("bob"));
    let mut info = framework("g", &["dev"]);
    info.principal = Some("bob".to_owned());
    let other = world.subscribe(info);
    let offer = world.next_offer(&other);
    let before = world.agent_total(&node);
    let shrink = shrink(&hers, 20);
    world.do_all(&other, &offer, vec![named(destroy([hers]), "d")]);
    refused(&mut world, &node, &other, "d");
    let offer = world.next_offer(&other);
    world.do_all(&other, &offer, vec![named(shrink, "s")]);
    refused(&mut world, &node, &other, "s");
    world.assert_total(&node, &before);
}

#[test]
fn missing_principal_uses_rule_for_any() {
    for (roles, is_made) in [("ANY", true), ("NONE", false)] {
        let acls = format!(
            r#"{{"create_volumes":[{{"principals":{{"type":"ANY"}},"roles":{{"type":"{roles}"}}}}],
                "destroy_volumes":[{{"principals":{{"type":"ANY"}},"creator_principals":{{"type":"{roles}"}}}}]}}"#
        );
        let (mut world, node) = World::with_capable_agent("cpus:4;mem:1024;disk(dev):100");
        world.take_frames(node.connection);
        world.caller = caller(&acls, None);
        let scheduler = world.subscribe(plain());
        let offer = world.offers(&scheduler).pop().unwrap();
        let data = volume(&parse("disk(dev):100"), "v", false);
        let requested = vec![named(create([&data]), "c")];
        world.do_all(&scheduler, &offer, requested);
        if !is_made {
            refused(&mut world, &node, &scheduler, "c");
            continue;
        }
        assert_eq!(world.finish(&node), 1);
        let offer = world.next_offer(&scheduler);
        world.do_all(&scheduler, &offer, vec![destroy([data])]);
        assert_eq!(world.finish(&node), 1);
        world.assert_total(&node, parse("cpus:4;mem:1024;disk(dev):100"));
    }
}

/// The check is shared with operators' endpoints.
#[test]
fn operation_needs_rights_on_all_roles() {
    let acls = r#"{"permissive":false,
        "reserve_resources":[{"principals":{"values":["ada"]},"roles":{"values":["dev","ads"]}},
            {"principals":{"values":["bob"]},"roles":{"values":["dev"]}}],
        "create_volumes":[{"principals":{"values":["ada"]},"roles":{"values":["dev","ads"]}},
            {"principals":{"values":["bob"]},"roles":{"values":["dev"]}}]}"#;
    let parts = [
        reserved(&parse("disk:10"), "dev", None),
        reserved(&parse("disk:10"), "ads", None),
    ];
    let both = Operation::Reserve {
        source: Vec::new(),
        resources: parts.iter().flat_map(list).collect(),
    };
    let volumes = Operation::Create(parts.iter().map(|part| volume(part, "v", false)).collect());
    for operation in [both, volumes] {
        for (principal, may) in [("ada", true), ("bob", false)] {
            let approver = caller(acls, Some(principal)).approver;
            let decision = crate::core::authorization::operation(&approver, &operation);
            assert_eq!(decision.is_ok(), may, "{principal}: {operation:?}");
        }
    }
}
