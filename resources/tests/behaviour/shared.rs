//! Shared volumes: copies are counted, quantities are not.

use meseta_resources::Resources;

use crate::given::{all, disk, quantities, scalar, shared_volume, sum, volume};

#[test]
fn resources_count() {
    let shared = shared_volume(100.0, "role1", "1", "path1");
    assert_eq!(sum(&[&shared]).count(&shared), 1);
    assert_eq!(sum(&[&shared, &shared]).count(&shared), 2);
    let alone = volume(100.0, "role1", "1", "path1");
    assert_eq!(sum(&[&alone, &alone]).count(&alone), 1);
    let cpus = crate::given::one("cpus:1");
    assert_eq!(sum(&[&cpus]).count(&cpus), 1);
    assert_eq!(sum(&[&cpus, &cpus]).count(&cpus), 0);
}

#[test]
fn shared_resources_addition_and_subtraction() {
    let shared = shared_volume(50.0, "role1", "1", "path");
    let first = all("cpus:1;mem:5") + &sum(&[&shared]);
    let second = all("cpus:2;mem:10") + &sum(&[&shared]);
    let both = &first + &second;
    assert_eq!(both.len(), 3);
    assert_eq!(both.cpus(), Some(scalar(3.0)));
    assert_eq!(both.disk(), Some(scalar(50.0)));
    assert_eq!(both.count(&shared), 2);
    assert_eq!(both.quantities(), quantities("cpus:3;disk:50;mem:15"));

    let rest = &both - &first;
    assert_eq!(rest, second);
    assert_eq!(rest.count(&shared), 1);
    assert!((&rest - &second).is_empty());
    assert!(!first.contains(&sum(&[&shared, &shared])));
    assert!(both.contains(&sum(&[&shared, &shared])));
    assert!(first.checked_sub(&sum(&[&shared, &shared])).is_err());
}

#[test]
fn shared_resources_compound_expressions() {
    let shared = shared_volume(50.0, "role1", "1", "path");
    let copies = |count: usize| all("cpus:2;mem:10") + &sum(&vec![&shared; count]);
    let (four, three) = (copies(4), copies(3));
    assert_eq!((&four + &four) - &four, four);
    assert_eq!((&four + &three) - &four, three);
    assert_eq!((&three - &four) + &four, four);
    assert_eq!((&four - &three) + &three, four);
    assert!((&three - &four).is_empty());
    assert!(!(&four - &three).is_empty());
}

#[test]
fn shared_resources_differ_by_sharing() {
    let small = shared_volume(50.0, "role1", "1", "path1");
    let large = shared_volume(100.0, "role1", "2", "path2");
    assert_eq!(sum(&[&small, &large]) - &small, sum(&[&large]));
    assert_eq!(sum(&[&small]) - &large, sum(&[&small]));

    let alone = volume(50.0, "role1", "1", "path1");
    let mixed = sum(&[&small, &small, &alone]);
    assert_eq!(mixed.len(), 2);
    assert_eq!(mixed.disk(), Some(scalar(100.0)));
    assert_eq!((mixed.count(&small), mixed.count(&alone)), (2, 1));
    assert_eq!(sum(&[&alone]) - &small, sum(&[&alone]));
    assert!(!sum(&[&alone]).contains(&sum(&[&small])));
}

#[test]
fn shared_resources_filter() {
    let shared = sum(&[&shared_volume(10.0, "role1", "1", "path")]);
    let rest = all("cpus:1;disk:1000") + &sum(&[&disk(20.0, "role2", None)]);
    let both = &shared + &rest;
    assert_eq!(both.shared(), shared);
    assert_eq!(both.unshared(), rest);
    assert_eq!(Resources::new().shared(), Resources::new());
}
