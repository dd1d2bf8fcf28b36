//! Addition, subtraction, containment and comparison of whole collections.

use meseta_resources::{NotContained, Resource, ResourceLimits, ResourceName, Resources, Value};

use crate::given::{all, disk, name, one, quantities, revocable, role, scalar, sum};

#[test]
fn resources_getters() {
    let resources = all("cpus:45.55;mem:1024;ports:[10000-20000, 30000-50000];disk:512");
    assert_eq!(resources.cpus().unwrap().to_f64(), 45.55);
    assert_eq!(resources.mem().unwrap().whole_units(), 1024);
    assert_eq!(resources.disk().unwrap().whole_units(), 512);
    assert_eq!(
        resources.ports().unwrap().to_string(),
        "[10000-20000, 30000-50000]"
    );
    assert_eq!(resources.gpus(), None);
    assert_eq!(all("cpus:1").ports(), None);
    assert!(resources.has("disk") && !resources.has("gpus"));
}

#[test]
fn resources_names_and_named() {
    let cpus = all("cpus(role1):2;cpus:4");
    let mem = all("mem(role1):10;mem:10");
    let both = &cpus + &mem;
    assert_eq!(both.named("cpus"), cpus);
    assert_eq!(both.named("mem"), mem);
    assert!(both.names().into_iter().eq([name("cpus"), name("mem")]));
}

#[test]
fn resources_printing() {
    let resources = all("cpus:45.55;disks:{sda1};ports:[10000-20000, 30000-50000]");
    assert_eq!(
        resources.to_string(),
        "cpus:45.55; disks:{sda1}; ports:[10000-20000, 30000-50000]"
    );
    assert_eq!(Resources::new().to_string(), "{}");
}

#[test]
fn resources_drop_empty_values() {
    assert!(all("cpus:0;ports:[];disks:{}").is_empty());
    assert!(all("gpus:0").is_empty());
    assert_ne!(Resources::new(), all("cpus:2"));
    let negative = Resource::plain(ResourceName::cpus(), Value::Scalar(scalar(-1.0)));
    assert!(Resources::from(negative).is_empty());
}

#[test]
fn resources_scalar_equals_subset_addition_subtraction() {
    assert_eq!(all("cpus:3;mem:3072"), all("mem:3072;cpus:3"));
    assert_ne!(all("cpus(role1):3"), all("cpus(role2):3"));
    assert!(all("cpus:1;mem:4096").contains(&all("cpus:1;mem:3072")));
    assert!(!all("cpus:1;mem:3072").contains(&all("cpus:1;mem:4096")));
    let (first, second) = (all("cpus(role1):1"), all("cpus(role2):1"));
    assert!(!first.contains(&second) && !second.contains(&first));
    assert!(all("cpus(role1):3").contains(&first));
    assert!(!all("cpus(role1):3").contains(&second));

    assert_eq!(
        all("cpus:1;mem:5") + &all("cpus:2;mem:10"),
        all("cpus:3;mem:15")
    );
    let both = all("cpus(role1):1;cpus(role2):3") + &all("cpus(role1):5");
    assert_eq!(both, all("cpus(role1):6;cpus(role2):3"));
    assert_eq!(both.cpus(), Some(scalar(9.0)));

    assert_eq!(
        all("cpus:50;mem:4096") - &all("cpus:0.5;mem:1024"),
        all("cpus:49.5;mem:3072")
    );
    let rest = all("cpus(role1):5;cpus(role2):3") - &all("cpus(role1):1");
    assert_eq!(rest, all("cpus(role1):4;cpus(role2):3"));
    let whole = all("cpus:50;ports:[1-5];disks:{a}");
    assert!((&whole - &whole).is_empty());
}

#[test]
fn lenient_subtraction_stops_at_nothing() {
    assert_eq!(all("cpus:1;mem:5") - &all("cpus:2;disk:3"), all("mem:5"));
    assert_eq!(all("ports:[1-5]") - &all("ports:[4-9]"), all("ports:[1-3]"));
    assert_eq!(all("disks:{a,b}") - &all("disks:{b,c}"), all("disks:{a}"));
}

#[test]
fn checked_subtraction_changes_nothing_on_failure() {
    let mut resources = all("cpus:4;mem:10;ports:[1-5]");
    let before = resources.clone();
    for requested in [
        "cpus:1;mem:11",
        "ports:[5-6]",
        "gpus:1",
        "cpus(role):1",
        "cpus:5",
    ] {
        let error = resources
            .try_sub_assign(&all(requested))
            .expect_err(requested);
        assert!(error.available.contains("cpus:4"), "{error}");
        assert_eq!(resources, before);
    }
    let NotContained { requested, .. } = resources.checked_sub(&all("cpus:1;mem:11")).unwrap_err();
    assert_eq!(requested, one("mem:11"));
    assert_eq!(
        resources.checked_sub(&all("cpus:1;ports:[2-3]")).unwrap(),
        all("cpus:3;mem:10;ports:[1-1,4-5]")
    );
}

#[test]
fn resources_allocated_reservations_filters() {
    let unreserved = all("cpus:1;mem:2;disk:4");
    let (first, second) = (
        all("cpus(role1):2;mem(role1):4;disk(role1):8"),
        all("cpus(role2):4;mem(role2):8"),
    );
    let resources = [&unreserved, &first, &second]
        .into_iter()
        .sum::<Resources>();
    let reservations = resources.reservations();
    assert_eq!(reservations.len(), 2);
    assert_eq!(reservations[&role("role1")], first);
    assert_eq!(reservations[&role("role2")], second);
    assert_eq!(resources.reserved(Some(&role("role1"))), first);
    assert_eq!(resources.reserved(Some(&role("*"))), Resources::new());
    assert_eq!(resources.reserved(None), &first + &second);
    assert_eq!(resources.unreserved(), unreserved);
}

#[test]
fn resources_hierarchical_reservations() {
    let unreserved = all("cpus:1;mem:2;disk:4");
    let grandfather = all("cpus(a):2;mem(a):4");
    let father = all("cpus(a/bx):4;mem(a/bx):8");
    let uncle = all("cpus(a/b):4;mem(a/b):8");
    let child = all("cpus(a/bx/c):8;mem(a/bx/c):16");
    let family = [&unreserved, &grandfather, &father, &uncle, &child]
        .into_iter()
        .sum::<Resources>();
    for (name, expected) in [
        ("*", unreserved.clone()),
        ("a", &unreserved + &grandfather),
        ("a/bx", &unreserved + &grandfather + &father),
        ("a/bx/c", &unreserved + &grandfather + &father + &child),
    ] {
        let allocatable = family.filtered(|resource| resource.is_allocatable_to(&role(name)));
        assert_eq!(allocatable, expected, "{name}");
    }
}

#[test]
fn resources_to_unreserved() {
    assert_eq!(
        all("cpus(role1):1;cpus(role2):2;mem(role1):5").to_unreserved(),
        all("cpus:3;mem:5")
    );
}

#[test]
fn revocable_never_mixes() {
    let (oversubscribed, owned) = (revocable("cpus:1"), all("cpus:1"));
    assert_ne!(oversubscribed, owned);
    assert_eq!(&oversubscribed + &oversubscribed, revocable("cpus:2"));
    let both = &oversubscribed + &owned;
    assert_eq!(both.len(), 2);
    assert!(both.contains(&oversubscribed) && both.contains(&owned));
    assert!(!both.contains(&revocable("cpus:2")) && !both.contains(&all("cpus:2")));
    assert_eq!(&oversubscribed - &owned, oversubscribed);
    assert!((&oversubscribed - &oversubscribed).is_empty());
    assert!(!oversubscribed.contains(&(&oversubscribed + &oversubscribed)));
    assert_eq!(both.revocable(), oversubscribed);
    assert_eq!(both.unrevocable(), owned);
    assert_eq!(both.to_string(), "cpus:1; cpus{REV}:1");
    assert_eq!(both.with_revocable(false), all("cpus:2"));
}

#[test]
fn resource_provider_id_tells_resources_apart() {
    let plain = one("disk:1");
    let mut parts = plain.clone().into_parts();
    parts.provider_id = Some("provider".parse().unwrap());
    let provided = Resource::new(parts).unwrap();
    let both = sum(&[&plain, &provided, &provided]);
    assert_eq!(both.len(), 2);
    assert_eq!(both.disk(), Some(scalar(3.0)));
    assert!(!Resources::from(plain.clone()).contains_resource(&provided));
    assert_eq!(both - &provided - &provided, Resources::from(plain));
}

#[test]
fn resources_contain_quantities() {
    for (resources, requested, expected) in [
        ("", "", true),
        ("", "cpus:1", false),
        ("cpus:1", "", true),
        ("cpus:2", "cpus:1", true),
        ("cpus:0.5", "cpus:1", false),
        ("ports:[1-2]", "ports:2", true),
        ("ports:[1-1]", "ports:2", false),
        ("features:{a,b}", "features:2", true),
        ("features:{a}", "features:2", false),
        (
            "cpus:3;ports:[1-3];features:{a,b,c};mem:10",
            "cpus:3;ports:3;features:3",
            true,
        ),
        (
            "cpus:1;ports:[1-3];features:{a,b,c}",
            "cpus:3;ports:3;features:3",
            false,
        ),
        ("cpus:3;ports:[1-3]", "cpus:3;ports:3;features:3", false),
        ("cpus(role1):2", "cpus:3", false),
        ("cpus(role1):2;cpus:1", "cpus:3", true),
    ] {
        let contained = all(resources).quantities().contains(&quantities(requested));
        assert_eq!(contained, expected, "{resources} {requested}");
    }
}

#[test]
fn quantities_add_and_stop_at_zero() {
    let mut amounts = quantities("cpus:1;cpus:2;mem:0;ports:5");
    assert_eq!(amounts.to_string(), "cpus:3; ports:5");
    amounts += &quantities("disk:1;cpus:0.5");
    assert_eq!(amounts.to_string(), "cpus:3.5; disk:1; ports:5");
    amounts -= &quantities("cpus:1;disk:4;gpus:1;ports:5");
    assert_eq!(amounts.to_string(), "cpus:2.5");
    assert_eq!(amounts.get("disk"), scalar(0.0));
    assert!(quantities("a:2;b:1;c:3").contains(&quantities("a:2;c:1")));
    assert!(!quantities("a:2;c:3").contains(&quantities("b:1")));
    assert!(!quantities("a:2").contains(&quantities("a:2;c:1")));
    assert_eq!(quantities("").to_string(), "{}");
    let all = all("cpus(r):1;cpus:2;ports:[1-10,20-20];names:{a,b}");
    assert_eq!(all.quantities(), quantities("cpus:3;names:2;ports:11"));
    assert_eq!(all.scalar_quantities(), quantities("cpus:3"));
}

#[test]
fn limits_ignore_unnamed_quantities() {
    for text in ["{}", "cpus:1.5", "cpus:1; mem:2"] {
        assert_eq!(quantities(text).to_string(), text);
    }
    let limits: ResourceLimits = [("cpus", 2.0), ("mem", 0.0)]
        .map(|(name, amount)| (ResourceName::new(name).unwrap(), scalar(amount)))
        .into_iter()
        .collect();
    assert_eq!(limits.to_string(), "cpus:2; mem:0");
    assert_eq!(limits.get("mem"), Some(scalar(0.0)), "zero is a limit");
    assert_eq!(limits.get("disk"), None);
    assert!(limits.allows(&quantities("cpus:2;disk:100")));
    assert!(!limits.allows(&quantities("cpus:2.001")));
    assert!(!limits.allows(&quantities("mem:1")));
}

#[test]
fn resources_shrink_to_quantities() {
    for (resources, target, shrunk) in [
        ("", "cpus:1", ""),
        ("cpus:1", "", ""),
        ("cpus:2", "cpus:1", "cpus:1"),
        ("cpus:2;mem:20", "cpus:1;mem:10;disk:10", "cpus:1;mem:10"),
        ("cpus:2;mem:20", "cpus:1", "cpus:1"),
        ("cpus:2;cpus(a):2", "cpus:3", "cpus:2;cpus(a):1"),
        ("ports:[1-3]", "ports:2", ""),
        ("ports:[1-3]", "ports:3", "ports:[1-3]"),
    ] {
        let kept = all(resources).shrink_to(&quantities(target));
        assert_eq!(kept, all(shrunk), "{resources}");
    }
    let mount = meseta_resources::DiskSource::mount(Some("/mnt"));
    let whole = Resources::from(disk(20.0, "role", Some(mount)));
    assert!(whole.shrink_to(&quantities("disk:10")).is_empty());
    assert_eq!(whole.shrink_to(&quantities("disk:20")), whole);
}
