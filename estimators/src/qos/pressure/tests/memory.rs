//! The actions of the pressure controller while memory is short, and their limits.

use super::*;

#[test]
fn memory_kills_largest_and_never_freezes() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    // In quarters of a gigabyte, of ten: 86 % used; the first container has 0.5 and the second 1.
    node.sample.containers[1].memory_bytes = Some(2 << 28);
    node.sample.containers[2].memory_bytes = Some(4 << 28);
    memory(&mut node, 33);
    let throttled = controller.assess(&node.step(SECOND, &[1.0, 1.0, 1.0]));
    assert_eq!(throttled.stop_offering.unwrap().detector, "mem-watermark");
    assert_eq!(throttled.memory_ceiling_bytes, Some(6 << 28));
    assert_eq!(throttled.throttle, None, "the processors are not to blame");
    memory(&mut node, 35);
    let log = watch(&mut controller, &mut node, 2, &[1.0, 1.0, 1.0]);
    assert_eq!(
        log,
        [(2, Action::Kill, "b1".to_owned())],
        "closes a gap of 3/4 GB"
    );
    // The next kill comes only after the cool-down, if still needed.
    memory(&mut node, 36);
    let log = watch(&mut controller, &mut node, 10, &[1.0, 1.0]);
    assert_eq!(log, [(4, Action::Kill, "b0".to_owned())]);
}

/// The memory ceiling follows the memory that revocable work gives back, and not the memory that it takes.
#[test]
fn memory_ceiling_only_falls_during_shortage() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    // In quarters of a gigabyte: the used part of the forty, the part of revocable work, and the ceiling.
    for (used, revocable, ceiling) in [
        (33, 6, Some(6)),
        (33, 8, Some(6)),
        (33, 5, Some(5)),
        (33, 7, Some(5)),
        (20, 7, None),
        (33, 8, Some(8)),
    ] {
        memory(&mut node, used);
        node.sample.containers[1].memory_bytes = Some(revocable << 28);
        node.sample.containers[2].memory_bytes = Some(0);
        let assessment = controller.assess(&node.step(SECOND, &[1.0, 1.0, 1.0]));
        let expected = ceiling.map(|quarters: u64| quarters << 28);
        assert_eq!(
            assessment.memory_ceiling_bytes, expected,
            "{used} {revocable}"
        );
    }
}

/// Regression: a container that began while memory was short was limited to its first sample, next to nothing, and hung in
/// reclaim as long as memory was short.
#[test]
fn new_executor_keeps_its_memory_request() {
    let quarters = |count: u64| Some(count << 28);
    let ceiling = |controller: &mut PressureController, node: &mut Node| {
        let used = vec![1.0; node.sample.containers.len()];
        controller
            .assess(&node.step(SECOND, &used))
            .memory_ceiling_bytes
    };
    let mut ours = controller(&[]);
    let mut node = Node::new(10, &[9.0]);
    memory(&mut node, 33);
    assert_eq!(
        ceiling(&mut ours, &mut node),
        None,
        "there is nobody to hold"
    );
    let given = || {
        let mut given = revocable_cpus("3");
        given.extend(crate::testing::resources("mem:512").iter().cloned());
        given
    };
    node.add("batch", "b0", &given());
    node.sample.containers[1].memory_bytes = Some(1 << 20);
    assert_eq!(ceiling(&mut ours, &mut node), quarters(2));
    node.add("batch", "b1", &revocable_cpus("3"));
    node.sample.containers[2].memory_bytes = quarters(1);
    assert_eq!(
        ceiling(&mut ours, &mut node),
        quarters(3),
        "nothing was given"
    );

    // A container from before the shortage keeps its memory beside the new one.
    let mut ours = controller(&[]);
    let mut node = settled(&mut ours);
    memory(&mut node, 33);
    node.sample.containers[1].memory_bytes = quarters(4);
    assert_eq!(ceiling(&mut ours, &mut node), quarters(4));
    node.add("late", "b2", &given());
    for (held, expected) in [(4, 6), (3, 5), (5, 5)] {
        node.sample.containers[1].memory_bytes = quarters(held);
        assert_eq!(ceiling(&mut ours, &mut node), quarters(expected));
    }
    node.sample.containers.remove(1);
    assert_eq!(ceiling(&mut ours, &mut node), quarters(2));
    memory(&mut node, 20);
    assert_eq!(ceiling(&mut ours, &mut node), None);
}

/// Regression: the ceiling of all revocable work was the memory of the readable containers alone.
#[test]
fn unreadable_memory_keeps_the_ceiling() {
    let mut controller = controller(&[]);
    let mut node = settled(&mut controller);
    memory(&mut node, 33);
    // In quarters of a gigabyte: the memory of the two containers, and the ceiling.
    for (first, second, ceiling) in [
        (Some(2), None, None),
        (Some(2), Some(4), Some(6)),
        (None, Some(4), Some(6)),
        (None, None, Some(6)),
        (Some(1), Some(4), Some(5)),
    ] {
        let quarters = |count: u64| count << 28;
        node.sample.containers[1].memory_bytes = first.map(quarters);
        node.sample.containers[2].memory_bytes = second.map(quarters);
        let assessment = controller.assess(&node.step(SECOND, &[1.0, 1.0, 1.0]));
        let expected = ceiling.map(quarters);
        assert_eq!(
            assessment.memory_ceiling_bytes, expected,
            "{first:?} {second:?}"
        );
    }
    // A container without any reading does not stop the ceiling.
    node.add("late", "b2", &revocable_cpus("3"));
    let mut sample = node.step(SECOND, &[1.0, 1.0, 1.0, 0.0]);
    sample.containers[1].memory_bytes = Some(0);
    (sample.containers[3].at, sample.containers[3].memory_bytes) = (None, None);
    let assessment = controller.assess(&sample);
    assert_eq!(assessment.memory_ceiling_bytes, Some(4 << 28));
}

#[test]
fn memory_stall_kills_one() {
    for some in [false, true] {
        let mut controller = controller(&[]);
        let mut node = settled(&mut controller);
        node.sample.containers[1].memory_bytes = Some(1 << 20);
        node.sample.containers[2].memory_bytes = Some(2 << 20);
        // Above the stop threshold, and below the kill threshold.
        memory(&mut node, 31);
        let (some_avg10, full_avg10) = if some { (20.0, 0.0) } else { (6.0, 5.0) };
        node.sample.host.memory_pressure = Some(Pressure {
            some_avg10,
            full_avg10,
        });
        let log = watch(&mut controller, &mut node, 6, &[1.0, 1.0, 1.0]);
        assert_eq!(log, [(6, Action::Kill, "b1".to_owned())]);
    }
}

/// Regression: one container that read more than its own memory limit caused the kill of all others, one every four seconds,
/// on a machine with plenty of free memory.
#[test]
fn memory_stall_alone_kills_nobody() {
    for has_regular in [false, true] {
        let mut controller = controller(&[]);
        let mut node = settled(&mut controller);
        if !has_regular {
            node.sample.containers.remove(0);
            memory(&mut node, 31);
        }
        for container in &mut node.sample.containers {
            container.memory_bytes = Some(64 << 20);
        }
        node.sample.host.memory_pressure = Some(Pressure {
            some_avg10: 80.0,
            full_avg10: 30.0,
        });
        let log = watch(&mut controller, &mut node, 60, &[1.0, 1.0, 1.0]);
        assert_eq!(log, [], "with regular work: {has_regular}");
        let last = controller.assess(&node.step(SECOND, &[1.0, 1.0, 1.0]));
        let stopping = last.stop_offering.map(|why| why.detector);
        assert_eq!(stopping, (!has_regular).then_some("mem-watermark"));
    }
}
