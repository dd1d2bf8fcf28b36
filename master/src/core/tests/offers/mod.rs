//! Offers and inverse offers.

mod inverse;

use super::*;

/// A framework without reservation refinement would return other resources than those offered.
#[test]
fn a_static_reservation_with_a_principal_is_offered_to_those_who_can_say_it() {
    let reserved = r#"[{"name": "cpus", "type": "SCALAR", "scalar": {"value": 1},
            "reservations": [{"type": "STATIC", "role": "dev", "principal": "p"}]},
        {"name": "mem", "type": "SCALAR", "scalar": {"value": 64}}]"#;
    let offered = |info: v1::FrameworkInfo| {
        let (mut world, _) = World::with_agent(reserved);
        let scheduler = world.subscribe(info);
        let offers = world.offers(&scheduler);
        let names = offers.iter().flat_map(|offer| &offer.resources);
        names.map(|one| one.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(offered(plain()), ["cpus", "mem"]);
    let mut old = plain();
    old.capabilities
        .retain(|one| one.r#type() == CapabilityType::MultiRole);
    assert_eq!(offered(old), ["mem"]);
}
