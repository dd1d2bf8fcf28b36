//! Reservations: stacks, refinement, and permitted roles.

use meseta_resources::{Reservation, ReservationError, ReservationKind, Resource, Resources};

use crate::given::{all, dynamic, labelled, one, reserved, role};

#[test]
fn reserved_resources_equals() {
    let all_different = [
        one("cpus:8"),
        one("cpus(role1):8"),
        one("cpus(role2):8"),
        reserved("cpus:8", &dynamic("role1", "principal1")),
        reserved("cpus:8", &dynamic("role1", "principal2")),
        reserved("cpus:8", &dynamic("role2", "principal1")),
        reserved("cpus:8", &Reservation::dynamic(role("role1"), None)),
        reserved(
            "cpus:8",
            &labelled("role1", "principal2", &[("foo", "bar")]),
        ),
        reserved(
            "cpus:8",
            &labelled("role1", "principal2", &[("foo", "baz")]),
        ),
        reserved("cpus(role1):8", &dynamic("role1/child", "principal1")),
    ];
    for (i, left) in all_different.iter().enumerate() {
        for (j, right) in all_different.iter().enumerate() {
            assert_eq!(left == right, i == j, "{left} {right}");
            let together: Resources = [left.clone(), right.clone()].into_iter().collect();
            assert_eq!(together.len(), if i == j { 1 } else { 2 });
        }
    }
}

#[test]
fn reserved_resources_merge_only_when_equal() {
    let with = |text: &str, value: &str| {
        Resources::from(reserved(
            text,
            &labelled("role", "principal", &[("foo", value)]),
        ))
    };
    assert_eq!(
        with("cpus:8", "bar") + &with("cpus:4", "bar"),
        with("cpus:12", "bar")
    );
    assert_eq!((with("cpus:6", "bar") + &with("cpus:6", "baz")).len(), 2);
    assert_eq!(
        with("cpus:8", "bar") - &with("cpus:3", "bar"),
        with("cpus:5", "bar")
    );
    assert_eq!(
        with("cpus:8", "bar") - &with("cpus:3", "baz"),
        with("cpus:8", "bar")
    );
    assert!(!with("cpus:8", "bar").contains(&with("cpus:8", "baz")));
}

#[test]
fn label_order_does_not_matter() {
    let one_way = labelled("role", "p", &[("a", "1"), ("b", "2")]);
    let other_way = labelled("role", "p", &[("b", "2"), ("a", "1")]);
    assert_eq!(one_way, other_way);
    let both = Resources::from(reserved("cpus:1", &one_way)) + &reserved("cpus:1", &other_way);
    assert_eq!(both.len(), 1);
    assert_eq!(other_way.to_string(), "DYNAMIC,role,p,{b: 2, a: 1}");
}

#[test]
fn reservation_stack_refines_downwards() {
    let cpus = one("cpus(a):1");
    assert_eq!(cpus.reservation().unwrap().kind, ReservationKind::Static);
    let refined = cpus.push_reservation(dynamic("a/b/c", "p")).unwrap();
    assert_eq!(refined.reservation_role(), Some(&role("a/b/c")));
    assert!(refined.has_refined_reservations() && refined.is_dynamically_reserved());
    assert_eq!(refined.pop_reservation().unwrap(), cpus);
    assert_eq!(cpus.pop_reservation().unwrap(), one("cpus:1"));
    assert!(matches!(
        one("cpus:1").pop_reservation(),
        Err(ReservationError::NotReserved(_))
    ));
    for wrong in ["a", "ab", "b/a", "a/b"] {
        let base = if wrong == "a/b" { &refined } else { &cpus };
        assert!(
            matches!(
                base.push_reservation(dynamic(wrong, "p")),
                Err(ReservationError::NotRefined { .. })
            ),
            "{wrong}"
        );
    }
    assert_eq!(
        cpus.push_reservation(Reservation::fixed(role("a/b"))),
        Err(ReservationError::StaticRefinement)
    );
    assert_eq!(
        one("cpus:1").push_reservation(dynamic("*", "p")),
        Err(ReservationError::Star)
    );
}

#[test]
fn impossible_reservation_stacks_are_refused() {
    let mut parts = one("cpus:1").into_parts();
    parts.reservations = vec![dynamic("a", "p"), Reservation::fixed(role("a/b"))];
    assert!(Resource::new(parts.clone()).is_err());
    parts.reservations = vec![Reservation::fixed(role("*"))];
    assert!(Resource::new(parts.clone()).is_err());
    parts.reservations = vec![Reservation::fixed(role("a")), dynamic("b", "p")];
    assert!(Resource::new(parts).is_err());
}

#[test]
fn pushing_and_popping_whole_collections() {
    let unreserved = all("cpus:1;mem:2;ports:[1-2]");
    let pushed = unreserved.push_reservation(&dynamic("a", "p")).unwrap();
    assert!(pushed.iter().all(Resource::is_dynamically_reserved));
    assert_eq!(pushed.pop_reservation().unwrap(), unreserved);
    assert!(unreserved.pop_reservation().is_err());
    // Popping can merge resources that were separate.
    let both = unreserved.push_reservation(&dynamic("a", "q")).unwrap() + &pushed;
    assert_eq!(
        both.pop_reservation().unwrap(),
        all("cpus:2;mem:4;ports:[1-2]")
    );
}
