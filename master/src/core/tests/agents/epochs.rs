//! Agents that have obeyed a higher epoch than the registry's: the registry was restored from an older copy.

use super::*;

/// A master of the cluster `c` whose registry is at epoch 3.
fn restored() -> World {
    let recovered = Recovered {
        epoch: 3,
        cluster_id: "c".to_owned(),
        ..Recovered::default()
    };
    World::with(config(), recovered)
}

fn obeyed(cluster: &str, epoch: u64, master: Option<&str>) -> Option<meseta::ObeyedEpoch> {
    Some(meseta::ObeyedEpoch {
        cluster_id: cluster.to_owned(),
        epoch,
        master_id: master.map(str::to_owned),
    })
}

/// Returns an earlier agent that has obeyed this epoch.
fn comes_back(world: &mut World, number: i32, obeyed: Option<meseta::ObeyedEpoch>) -> ConnectionId {
    let node = Node {
        connection: ConnectionId(0),
        id: format!("before-S{number}"),
        register: meseta::Register {
            obeyed,
            ..register(5_051 + number, "cpus:1;mem:64")
        },
    };
    world.return_empty(&node).connection
}

#[test]
fn higher_agent_epoch_delays_the_answer() {
    let mut world = restored();
    world.writes_at_once = false;
    let connection = comes_back(&mut world, 0, obeyed("c", 7, Some("former")));
    assert_eq!(world.core.epoch(), 3);
    let written: Vec<_> = world.unwritten.iter().map(|(_, one)| one.clone()).collect();
    assert_eq!(written, [Mutation::RaiseEpoch { epoch: 8 }]);
    assert!(world.take_frames(connection).is_empty());
    world.writes_at_once = true;
    world.write();
    assert_eq!((world.core.epoch(), world.registry.epoch), (8, 8));
    world.registered(connection);
    // The epoch that the agent obeys now suffices.
    let again = comes_back(&mut world, 0, obeyed("c", 8, Some("m")));
    world.registered(again);
    assert_eq!(world.core.epoch(), 8);
}

#[test]
fn concurrent_agents_share_one_epoch_raise() {
    let mut world = restored();
    world.writes_at_once = false;
    let told = [7, 6, 7, 9];
    let connections: Vec<_> = (0..)
        .zip(told)
        .map(|(number, epoch)| comes_back(&mut world, number, obeyed("c", epoch, Some("former"))))
        .collect();
    world.writes_at_once = true;
    world.write();
    for connection in &connections[..3] {
        world.registered(*connection);
    }
    let refused = taken!(world, connections[3], Refused);
    assert!(!refused[0].permanent, "{refused:?}");
    assert_eq!(world.core.epoch(), 8);
    world.advance(11 * SECOND);
    let again = comes_back(&mut world, 3, obeyed("c", 9, Some("former")));
    world.registered(again);
    assert_eq!(world.core.epoch(), 10);
}

#[test]
fn equal_epoch_of_other_master_raises() {
    for (master, raised) in [(Some("former"), 4), (Some("m"), 3), (None, 3)] {
        let mut world = restored();
        let connection = comes_back(&mut world, 0, obeyed("c", 3, master));
        world.registered(connection);
        assert_eq!(world.core.epoch(), raised, "{master:?}");
    }
}

#[test]
fn foreign_or_absurd_epochs_raise_nothing() {
    for told in [None, obeyed("other", 7, Some("former"))] {
        let mut world = restored();
        let connection = comes_back(&mut world, 0, told);
        world.registered(connection);
        assert_eq!(world.core.epoch(), 3);
    }
    for absurd in [1_000_003, u64::MAX] {
        let mut world = restored();
        let connection = comes_back(&mut world, 0, obeyed("c", absurd, Some("former")));
        let refused = taken!(world, connection, Refused);
        let reason = &refused[0].reason;
        assert!(reason.contains("is not believed"), "{reason}");
        assert_eq!(world.core.epoch(), 3);
    }
    let mut world = restored();
    let connection = comes_back(&mut world, 0, obeyed("c", 1_000_002, Some("former")));
    world.registered(connection);
}

#[test]
fn epoch_raise_limit_follows_operator_flag() {
    let mut world = restored();
    let connection = comes_back(&mut world, 0, obeyed("c", 1_000_001, Some("x")));
    world.registered(connection);
    world.advance(11 * SECOND);
    let further = comes_back(&mut world, 0, obeyed("c", 1_500_000, Some("x")));
    let refused = taken!(world, further, Refused);
    let reason = &refused[0].reason;
    assert!(
        reason.ends_with("--registry_epoch_rise_max=1499998"),
        "{reason}"
    );
    let mut config = config();
    config.registry_epoch_rise_max = 1_499_998;
    let recovered = Recovered {
        epoch: 3,
        cluster_id: "c".to_owned(),
        ..Recovered::default()
    };
    let mut world = World::with(config, recovered);
    let connection = comes_back(&mut world, 0, obeyed("c", 1_500_000, Some("x")));
    world.registered(connection);
}

#[test]
fn gone_agent_waits_for_epoch_raise() {
    let recovered = Recovered {
        epoch: 3,
        cluster_id: "c".to_owned(),
        gone: vec![("before-S0".to_owned(), Duration::from_secs(1_799_999_000))],
        ..Recovered::default()
    };
    let mut world = World::with(config(), recovered);
    world.writes_at_once = false;
    let connection = comes_back(&mut world, 0, obeyed("c", 7, Some("former")));
    assert!(world.take_frames(connection).is_empty());
    world.writes_at_once = true;
    world.write();
    assert_eq!(world.core.epoch(), 8);
    assert_eq!(taken!(world, connection, Shutdown).len(), 1);
}

#[test]
fn departed_agent_gets_no_epoch_answer() {
    let mut world = restored();
    world.writes_at_once = false;
    let connection = comes_back(&mut world, 0, obeyed("c", 7, Some("former")));
    world.input(Input::AgentGone { connection });
    world.writes_at_once = true;
    world.write();
    assert_eq!(world.core.epoch(), 8);
    assert!(world.take_frames(connection).is_empty());
    assert!(world.core.snapshot().agents.is_empty());
}
