//! Placement by example, and its invariants on random offers.

use std::collections::BTreeMap;

use meseta_resources::{
    Disk, Label, Labels, Persistence, Reservation, Resource, Resources, Role, Scalar, Value,
};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::file::from_toml;
use crate::spec::Rule;

fn job(more: &str) -> JobSpec {
    let text = format!("name = \"a\"\n{more}");
    from_toml(&text).expect(more)
}

const SMALL: &str = "[task]\ncommand = \"true\"\n[resources]\ncpus = 1\nmem = \"100MB\"\n";

fn offer(number: usize, resources: &str, rack: Option<&str>) -> Offer {
    let rack = rack.map(|rack| ("rack".to_owned(), rack.to_owned()));
    Offer {
        id: format!("o{number}"),
        agent_id: format!("s{number}"),
        hostname: format!("n{number}"),
        role: "*".to_owned(),
        attributes: rack.into_iter().collect(),
        resources: Resources::parse(resources, &Role::star()).expect(resources),
        ..Offer::default()
    }
}

fn placed_on(offer: &Offer) -> Placed {
    Placed {
        agent_id: offer.agent_id.clone(),
        hostname: offer.hostname.clone(),
        attributes: offer.attributes.clone(),
    }
}

fn offers_of(placements: &[Placement]) -> Vec<usize> {
    placements.iter().map(|placement| placement.offer).collect()
}

#[test]
fn the_tightest_offer_is_filled_first() {
    let offers = [
        offer(0, "cpus:8;mem:800", None),
        offer(1, "cpus:2;mem:900", None),
        offer(2, "cpus:0.5;mem:900", None),
    ];
    let placements = place(&job(SMALL), &[], &offers, 4);
    assert_eq!(offers_of(&placements), [1, 1, 0, 0]);
    assert_eq!(place(&job(SMALL), &[], &offers, 100).len(), 10);
}

#[test]
fn gpu_agents_are_taken_last() {
    let offers = [
        offer(0, "cpus:2;mem:800;gpus:2", None),
        offer(1, "cpus:4;mem:900", None),
    ];
    let placements = place(&job(SMALL), &[], &offers, 5);
    assert_eq!(offers_of(&placements), [1, 1, 1, 1, 0]);
    let on_gpu = job(&format!("{SMALL}gpus = 1\n"));
    assert_eq!(offers_of(&place(&on_gpu, &[], &offers, 5)), [0, 0]);
}

#[test]
fn remote_agents_need_named_regions() {
    let mut remote = offer(0, "cpus:4;mem:900", None);
    remote.is_remote = true;
    let region = ("@region".to_owned(), "west".to_owned());
    remote.attributes.extend([region]);
    let why = fits(&job(SMALL), &[], &remote).expect_err("another region");
    assert!(why.to_string().contains("in region west"), "{why}");
    let rule = "[[constraints]]\nattribute = \"@region\"\nequals = \"west\"\n";
    let there = job(&format!("{SMALL}{rule}"));
    assert_eq!(place(&there, &[], &[remote], 9).len(), 4);
}

#[test]
fn reservations_come_first_and_ports_differ() {
    let spec = job(&format!("ports = [\"http\", \"admin\"]\n{SMALL}"));
    let offers = [offer(
        0,
        "cpus:2;cpus(a):1;mem:300;ports:[100-103];ports(a):[9-9]",
        None,
    )];
    let placements = place(&spec, &[], &offers, 5);
    let ports: Vec<Vec<u16>> = placements
        .iter()
        .map(|one| one.ports.values().copied().collect())
        .collect();
    assert_eq!(ports, [[100, 9], [102, 101]]);
    assert_eq!(
        placements[0].resources.to_string(),
        "cpus(reservations: [(STATIC,a)]):1; mem:100; ports:[100-100]; ports(reservations: [(STATIC,a)]):[9-9]"
    );
}

#[test]
fn only_best_effort_gets_revocable_cpus() {
    let mut mixed = offer(0, "cpus:4;mem:1000", None);
    let best_effort = job(&format!("best_effort = true\n{SMALL}"));
    assert_eq!(
        fits(&best_effort, &[], &mixed)
            .expect_err("none")
            .to_string(),
        "short of cpus:1 (needs cpus:1; mem:100 with revocable cpus)"
    );
    mixed.resources = mixed.resources.filtered(|one| one.name() != "cpus")
        + Resources::parse("cpus:2", &Role::star())
            .expect("cpus")
            .with_revocable(true);
    assert_eq!(place(&best_effort, &[], &[mixed.clone()], 9).len(), 2);
    assert_eq!(place(&job(SMALL), &[], &[mixed], 9), []);
}

#[test]
fn tasks_are_spread_and_kept_apart() {
    let offers = [
        offer(0, "cpus:9;mem:9000", Some("r1")),
        offer(1, "cpus:9;mem:9000", Some("r1")),
        offer(2, "cpus:9;mem:9000", Some("r2")),
        offer(3, "cpus:9;mem:9000", None),
    ];
    let spread = job(&format!(
        "{SMALL}[[constraints]]\nattribute = \"rack\"\nspread = true\n"
    ));
    let placed = [placed_on(&offers[2]), placed_on(&offers[2])];
    let racks: Vec<_> = place(&spread, &placed, &offers, 7)
        .iter()
        .map(|one| {
            offers[one.offer]
                .attributes
                .get("rack")
                .cloned()
                .unwrap_or_default()
        })
        .collect();
    let on = |rack: &str| racks.iter().filter(|one| *one == rack).count();
    assert_eq!((on("r1"), on("r2"), on("")), (3, 1, 3));
    let distinct = job(&format!(
        "{SMALL}[[constraints]]\nattribute = \"rack\"\ndistinct = 2\n"
    ));
    let placements = place(&distinct, &placed[..1], &offers, 9);
    assert_eq!(offers_of(&placements), [0, 0, 2]);
    assert_eq!(
        fits(&distinct, &placed, &offers[2])
            .expect_err("full")
            .to_string(),
        "rack r2 has 2 tasks of the job, which is as many as it allows"
    );
}

#[test]
fn obstacles_are_told_in_words() {
    let offers = [
        offer(0, "cpus:0.25;mem:9000", Some("r1")),
        offer(1, "cpus:9;mem:9000", Some("r12")),
        offer(2, "cpus:9;mem:9000", None),
        Offer {
            role: "b".to_owned(),
            ..offer(3, "cpus:9", None)
        },
        offer(4, "cpus:9;mem:9000", Some("r1")),
    ];
    let spec = job(&format!(
        "{SMALL}[[constraints]]\nattribute = \"rack\"\nmatches = \"r1|r2\"\n"
    ));
    let told: Vec<(usize, String)> = obstacles(&spec, &[], &offers)
        .into_iter()
        .map(|(index, why)| (index, why.to_string()))
        .collect();
    let expected = [
        (0, "short of cpus:0.75 (needs cpus:1; mem:100)"),
        (1, "rack is r12, which has to match r1|r2"),
        (2, "the agent has no rack, which has to match r1|r2"),
        (3, "the offer is for role b, the job is in role *"),
    ];
    assert_eq!(told, expected.map(|(index, why)| (index, why.to_owned())));
}

fn database() -> JobSpec {
    job(&format!(
        "role = \"a\"\n{SMALL}disk = \"100MB\"\n[volume]\nsize = \"500MB\"\npath = \"data\"\n"
    ))
}

#[test]
fn volume_takes_its_own_disk() {
    let in_role = |resources| Offer {
        role: "a".to_owned(),
        ..offer(0, resources, None)
    };
    let offers = [in_role("cpus:4;mem:900;disk:1000")];
    let placements = place(&database(), &[], &offers, 4);
    assert_eq!(placements.len(), 1);
    assert_eq!(placements[0].new_volume.to_string(), "disk:500");
    assert_eq!(
        placements[0].resources.disk().map(|disk| disk.to_f64()),
        Some(100.0)
    );
    assert_eq!(
        place_on_volume(&database(), &[], &offers, "v1")
            .expect_err("none")
            .to_string(),
        "no offer has volume v1; it is on an agent that is away or used"
    );
    // A volume needs a single disk.
    let divided = [in_role("cpus:4;mem:900;disk:450;disk(a):450")];
    assert_eq!(place(&database(), &[], &divided, 1), []);
}

#[test]
fn only_owner_uses_held_resources() {
    let label = Label {
        key: VOLUME_LABEL.to_owned(),
        value: Some("v1".to_owned()),
    };
    let reservation = Reservation {
        labels: Labels::new(vec![label]),
        ..Reservation::dynamic(Role::new("a").expect("a role"), None)
    };
    let held = Resources::parse("cpus:2;mem:60;disk:100;disk:500", &Role::star()).expect("held");
    let held = held
        .iter()
        .map(|one| one.push_reservation(reservation.clone()));
    let mut resources: Resources = held.map(|one| one.expect("reserved")).collect();
    let disk = resources
        .named("disk")
        .iter()
        .next()
        .cloned()
        .expect("a disk");
    let mut parts = disk
        .with_value(Value::Scalar(Scalar::from_units(500)))
        .into_parts();
    resources -= &Resource::new(parts.clone()).expect("a disk");
    parts.disk = Some(Disk {
        persistence: Some(Persistence {
            id: "v1".into(),
            principal: None,
        }),
        ..Disk::default()
    });
    let volume = Resource::new(parts).expect("a volume");
    resources += &volume;
    let with = |free: &str| {
        let free = Resources::parse(free, &Role::star()).expect(free);
        let all = &resources + &free;
        let role = "a".to_owned();
        Offer {
            role,
            ..offer(0, "", None)
        }
        .with_resources(all)
    };
    let mut full = with("cpus:4;mem:900;disk:90");
    let found = place_on_volume(&database(), &[], &[full.clone()], "v1").expect("a placement");
    // Beside the held resources it needs memory; it needs one of the held CPUs.
    assert_eq!(found.resources.to_string(), "mem:40");
    let returned = found.returned.clone().expect("what was held");
    assert_eq!((returned.volume, returned.id.as_str()), (volume, "v1"));
    assert_eq!(
        returned.used.quantities().to_string(),
        "cpus:1; disk:100; mem:60"
    );
    assert_eq!(returned.surplus.quantities().to_string(), "cpus:1");
    let small = job(&SMALL.replace("cpus = 1", "cpus = 5"));
    let why = fits(
        &JobSpec {
            role: "a".to_owned(),
            ..small
        },
        &[],
        &full,
    )
    .expect_err("short");
    assert_eq!(why.to_string(), "short of cpus:1 (needs cpus:5; mem:100)");
    full.take(&found).expect("contained");
    assert!(full.held.is_empty());
    assert_eq!(
        full.resources.quantities().to_string(),
        "cpus:4; disk:90; mem:860"
    );
    let why = place_on_volume(&database(), &[], &[with("cpus:9;mem:39")], "v1").expect_err("short");
    assert_eq!(
        why.to_string(),
        "short of mem:1 (needs cpus:1; disk:600; mem:100)"
    );
}

fn drawn_offer() -> impl Strategy<Value = (String, Option<String>, bool)> {
    let amounts = (0..9_u32, 0..900_u32, 0..3_u32, 0..4_u64);
    (amounts, proptest::option::of("r[123]"), any::<bool>()).prop_map(
        |((cpus, mem, reserved, ports), rack, is_revocable)| {
            let text = format!(
                "cpus:{cpus}.5;mem:{mem};cpus(a):{reserved};ports:[10-{}]",
                10 + ports
            );
            (text, rack, is_revocable)
        },
    )
}

proptest! {
    #[test]
    fn offer_gives_at_most_its_content(
        drawn in vec(drawn_offer(), 0..6),
        want in 0..30_usize,
        best_effort in any::<bool>(),
        rule in prop_oneof![Just("spread = true"), Just("distinct = 2"), Just("equals = \"r1\""), Just("not_equals = \"r1\"")],
    ) {
        let spec = job(&format!("best_effort = {best_effort}\nports = [\"p\"]\n{SMALL}[[constraints]]\nattribute = \"rack\"\n{rule}\n"));
        let offers: Vec<Offer> = drawn.iter().enumerate().map(|(number, (text, rack, is_revocable))| {
            let mut offer = offer(number, text, rack.as_deref());
            if *is_revocable {
                offer.resources += Resources::parse("cpus:3", &Role::star()).expect("cpus").with_revocable(true);
            }
            offer
        }).collect();
        let placements = place(&spec, &[], &offers, want);
        prop_assert!(placements.len() <= want);
        let mut left: Vec<Resources> = offers.iter().map(|offer| offer.resources.clone()).collect();
        let mut racks: BTreeMap<Option<&String>, u32> = BTreeMap::new();
        for placement in &placements {
            let rest = left[placement.offer].checked_sub(&placement.resources);
            prop_assert!(rest.is_ok(), "{:?}", rest);
            left[placement.offer] = rest.expect("contained");
            let taken = &placement.resources;
            prop_assert_eq!(taken.quantities().to_string(), "cpus:1; mem:100; ports:1");
            prop_assert_eq!(taken.revocable().is_empty(), !best_effort);
            let rack = offers[placement.offer].attributes.get("rack");
            *racks.entry(rack).or_default() += 1;
            match &spec.constraints[0].rule {
                Rule::Equals(value) => prop_assert_eq!(rack, Some(value)),
                Rule::NotEquals(value) => prop_assert_ne!(rack, Some(value)),
                Rule::Distinct(_) => prop_assert!(rack.is_some()),
                _ => {}
            }
        }
        if let Rule::Distinct(most) = spec.constraints[0].rule {
            prop_assert!(racks.values().all(|count| *count <= most));
        }
        // An unplaced task does not fit: placement keeps nothing back.
        if placements.len() < want {
            let placed: Vec<Placed> = placements.iter().map(|one| placed_on(&offers[one.offer])).collect();
            for (offer, left) in offers.iter().zip(left) {
                let rest = Offer { resources: left, ..offer.clone() };
                prop_assert!(fits(&spec, &placed, &rest).is_err());
            }
        }
    }
}
