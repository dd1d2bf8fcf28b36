//! The largest ACCEPTs with operations on reservations, on an agent divided into very many resources.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use meseta_master::core::call::Action;
use meseta_proto::convert::{self, Format, parse_resources, to_resources};
use meseta_proto::mesos::v1::agent_info::capability::Type as AgentCapability;
use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;
use meseta_proto::mesos::v1::offer::Operation as Message;
use meseta_proto::mesos::v1::scheduler::call;
use meseta_proto::mesos::v1::{self};
use meseta_resources::{Label, Operation, Reservation, Resource, Role};

use crate::world::World;

/// The maximum number of operations per ACCEPT.
const OPERATIONS: usize = 1_024;
/// The maximum number of resources per operation.
const RESOURCES: usize = 512;

/// A thousandth of a cpu, reserved under a label of its own.
fn piece(number: usize) -> Result<Resource, Box<dyn Error>> {
    let mut reservation = Reservation::dynamic(Role::new("dev")?, None);
    let label = Label {
        key: "k".to_owned(),
        value: Some(number.to_string()),
    };
    reservation.labels = std::iter::once(label).collect();
    let plain = parse_resources("cpus:0.001", &Role::star())?;
    let piece = plain.push_reservation(&reservation)?;
    Ok(piece.iter().next().ok_or("nothing was reserved")?.clone())
}

fn reserve(resources: Vec<Resource>) -> Message {
    convert::to_operation(&Operation::Reserve {
        source: Vec::new(),
        resources,
    })
}

fn unreserve(resources: Vec<Resource>) -> Message {
    convert::to_operation(&Operation::Unreserve(resources))
}

fn accept(offer: v1::Offer, operations: Vec<Message>) -> Action {
    Action::Accept(call::Accept {
        offer_ids: vec![offer.id],
        operations,
        filters: Some(v1::Filters {
            refuse_seconds: Some(0.0),
        }),
    })
}

/// Sets up an agent, a framework with the right to reserve, and divides the agent.
fn divided(resources: usize) -> Result<World, Box<dyn Error>> {
    let mut world = World::new();
    let has = parse_resources("cpus:32;mem:65536", &Role::star())?;
    let has = to_resources(&has, Format::PostRefinement)?;
    let capabilities = [
        AgentCapability::MultiRole,
        AgentCapability::HierarchicalRole,
        AgentCapability::ReservationRefinement,
    ];
    world.register(1, &has, &capabilities);
    let capability = |kind: FrameworkCapability| v1::framework_info::Capability {
        r#type: Some(kind.into()),
    };
    let kinds = [
        FrameworkCapability::MultiRole,
        FrameworkCapability::ReservationRefinement,
    ];
    world.subscribe(v1::FrameworkInfo {
        user: "bench".to_owned(),
        name: "bench".to_owned(),
        roles: vec!["dev".to_owned()],
        capabilities: kinds.map(capability).to_vec(),
        ..v1::FrameworkInfo::default()
    });
    let pieces: Result<Vec<_>, _> = (0..resources).map(piece).collect();
    for pieces in pieces?.chunks(RESOURCES) {
        let offer = world.next_offer()?;
        world.call(accept(offer, vec![reserve(pieces.to_vec())]));
    }
    Ok(world)
}

/// The name of an ACCEPT, and its operations.
type Large = (&'static str, Vec<Message>);

fn largest(resources: usize) -> Result<Vec<Large>, Box<dyn Error>> {
    let new = |number: usize| piece(resources + number);
    let each = |of: &dyn Fn(usize) -> Result<Message, Box<dyn Error>>| {
        (0..OPERATIONS).map(of).collect::<Result<Vec<_>, _>>()
    };
    let many = |from: usize| {
        (from..from + RESOURCES)
            .map(piece)
            .collect::<Result<Vec<_>, _>>()
    };
    Ok(vec![
        (
            "RESERVE of one each",
            each(&|number| Ok(reserve(vec![new(number)?])))?,
        ),
        (
            "RESERVE and UNRESERVE of one, in turn",
            each(&|number| {
                let piece = vec![new(number / 2)?];
                Ok(if number % 2 == 0 {
                    reserve(piece)
                } else {
                    unreserve(piece)
                })
            })?,
        ),
        (
            "UNRESERVE of one each, held",
            each(&|number| Ok(unreserve(vec![piece(number)?])))?,
        ),
        (
            "UNRESERVE of one each, not held",
            each(&|number| Ok(unreserve(vec![new(number)?])))?,
        ),
        (
            "UNRESERVE of many, twice",
            vec![unreserve(many(0)?), unreserve(many(RESOURCES)?)],
        ),
    ])
}

pub(crate) fn run(resources: usize) -> Result<(), Box<dyn Error>> {
    for (name, operations) in largest(resources)? {
        let mut world = divided(resources)?;
        let offer = world.next_offer()?;
        let (applied, count) = (world.applied, operations.len());
        world.slowest = Duration::ZERO;
        world.call(accept(offer, operations));
        writeln!(
            std::io::stdout(),
            "{resources} resources, {name}: {count} operations, {} done, {:.2?}",
            world.applied - applied,
            world.slowest
        )?;
    }
    Ok(())
}
