//! Offers and inverse offers.

mod inverse;

use super::*;

/// A framework without reservation refinement would return other resources than those offered.
#[test]
fn static_principal_reservation_requires_refinement_capability() {
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
