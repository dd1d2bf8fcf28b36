//! Weights: valid values, storage, and their effect on offers.

use super::*;

#[test]
fn weights_are_checked_kept_and_used() {
    let mut world = World::new();
    let weights = |weights: &[(&str, f64)]| {
        let own = weights.iter().map(|(role, w)| ((*role).to_owned(), *w));
        Administration::UpdateWeights(own.collect())
    };
    for (role, weight, text) in [
        (
            "dev",
            0.0,
            "Failed to validate update weights request JSON for role 'dev': Invalid weight '0': \
             Weights must be positive",
        ),
        (
            "",
            1.0,
            "Failed to validate update weights request JSON: Invalid role '': Role names cannot \
             be the empty string",
        ),
    ] {
        assert_eq!(
            rejection(world.administer(weights(&[(role, weight)]))),
            text
        );
    }
    let deep = vec!["r"; 33].join("/");
    let told = rejection(world.administer(weights(&[(deep.as_str(), 2.0)])));
    assert_says(&told, "has 33 levels, more than the 32");
    rejection(world.administer(weights(&[("dev", -2.0)])));
    rejection(world.administer(weights(&[("dev", f64::NAN)])));
    world.administer_done(weights(&[]));
    world.administer_done(weights(&[("dev", 2.5), ("ops", 3.0)]));
    world.administer_done(weights(&[("ops", 1.0)]));
    let kept = world.core.snapshot().weights.clone();
    let mut world = world.restart();
    assert_eq!(world.core.snapshot().weights, kept);
    let dev = Role::new("dev").unwrap();
    assert_eq!(kept[&dev], 2.5);
    assert_eq!(kept.len(), 2);
}

#[test]
fn changed_weights_rescind_offers_for_waiters() {
    let mut world = World::new();
    let rich = world.subscribe(framework("rich", &["rich"]));
    world.agent(1, "cpus:4;mem:1024");
    world.agent(2, "cpus:4;mem:1024");
    world.offers(&rich);
    let poor = world.subscribe(framework("poor", &["poor"]));
    let weights = Administration::UpdateWeights(vec![("poor".to_owned(), 5.0)]);
    world.administer_done(weights);
    assert!(world.rescinded(&rich) > 0);
    assert!(!world.offers(&poor).is_empty());
}

#[test]
fn weight_requires_whitelisted_role() {
    let config = Config {
        roles: Some(["*", "known"].map(|r| Role::new(r).unwrap()).into()),
        ..config()
    };
    let mut world = World::configured(config);
    let weight = |role: &str| Administration::UpdateWeights(vec![(role.to_owned(), 2.0)]);
    let message = rejection(world.administer(weight("other")));
    assert_says(&message, "Unknown role 'other'");
    world.administer_done(weight("known"));
}

#[test]
fn invalid_stored_weight_keeps_other_weights() {
    let deep = vec!["r"; 33].join("/");
    let recovered = Recovered {
        epoch: 1,
        weights: Some(vec![(deep, 3.0), ("dev".to_owned(), 2.5)]),
        ..Recovered::default()
    };
    let mut world = World::with(config(), recovered);
    let weights = world.core.snapshot().weights.clone();
    let dev = Role::new("dev").unwrap();
    assert_eq!(weights.into_iter().collect::<Vec<_>>(), [(dev, 2.5)]);
}
