//! The allocation role of resources.

use meseta_resources::Resources;

use crate::given::{all, role};

#[test]
fn allocated_resources_equality_contains_addition_subtraction() {
    let first = all("cpus:1").allocate(&role("role1"));
    let second = all("cpus:1").allocate(&role("role2"));
    assert_ne!(first, second);
    assert_ne!(first, all("cpus:1"));
    let both = &first + &second;
    assert_eq!(both.len(), 2);
    assert!(both.contains(&first) && both.contains(&second));
    assert_eq!(both.cpus(), all("cpus:2").cpus());
    assert!((&first - &first).is_empty());
    assert_eq!(&first - &second, first);
    // Roles with equal text are the same role, even as different objects.
    assert_eq!(first, all("cpus:1").allocate(&role("role1")));
}

#[test]
fn allocated_resources_by_role_and_back() {
    let star = all("cpus:1;mem:1024").allocate(&role("*"));
    let first = all("cpus:2;mem:2048").allocate(&role("role1"));
    let second = all("cpus(role2):3;mem(role2):3096").allocate(&role("role2"));
    let resources = [&star, &first, &second].into_iter().sum::<Resources>();
    let allocations = resources.allocations();
    assert_eq!(allocations.len(), 3);
    assert_eq!(allocations[&role("*")], star);
    assert_eq!(allocations[&role("role1")], first);
    assert_eq!(allocations[&role("role2")], second);
    // Resources that differed only in their allocation become one again.
    assert_eq!(
        resources.unallocate(),
        all("cpus:3;mem:3072;cpus(role2):3;mem(role2):3096")
    );
    assert_eq!(
        first.to_string(),
        "cpus(allocated: role1):2; mem(allocated: role1):2048"
    );
}
