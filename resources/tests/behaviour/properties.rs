//! Laws that hold for any resources.

use std::collections::BTreeSet;
use std::time::Duration;

use meseta_resources::{
    Attributes, ByteSize, DiskSource, ItemSet, Range, Ranges, Resource, ResourceName,
    ResourceQuantities, Resources, Role, Scalar, Value, format_duration, parse_duration,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::given::{disk, dynamic, role, shared_volume, volume};

const BITS: u64 = 128;

fn any_range() -> impl Strategy<Value = Range> {
    (0..BITS, 0..12_u64)
        .prop_map(|(begin, more)| Range::new(begin, (begin + more).min(BITS - 1)).unwrap())
}

fn any_ranges() -> impl Strategy<Value = Ranges> {
    vec(any_range(), 0..8).prop_map(Ranges::new)
}

fn any_set() -> impl Strategy<Value = BTreeSet<String>> {
    btree_set("[a-f]", 0..6)
}

fn any_value() -> impl Strategy<Value = (&'static str, Value)> {
    prop_oneof![
        (select(vec!["cpus", "mem", "disk", "foo"]), 0..100_000_i64)
            .prop_map(|(name, millis)| (name, Value::Scalar(Scalar::from_millis(millis)))),
        any_ranges().prop_map(|ranges| ("ports", Value::Ranges(ranges))),
        any_set().prop_map(|set| ("disks", Value::Set(set.into_iter().collect()))),
        // The same name with several types: these stay separate entries.
        any_ranges().prop_map(|ranges| ("foo", Value::Ranges(ranges))),
    ]
}

/// A resource with all distinguishing properties, from small domains so that they often meet.
fn any_resource() -> impl Strategy<Value = Resource> {
    let plain = (any_value(), any::<bool>(), 0..4_u8, 0..3_u8).prop_map(
        |((name, value), revocable, reserved, allocated)| {
            let mut resource = Resource::plain(ResourceName::new(name).unwrap(), value);
            if reserved > 0 {
                let principal = if reserved == 1 { "p" } else { "q" };
                resource = resource.push_reservation(dynamic("a", principal)).unwrap();
            }
            if reserved == 3 {
                resource = resource.push_reservation(dynamic("a/b", "p")).unwrap();
            }
            let role = ["x", "y"]
                .get(usize::from(allocated))
                .map(|name| role(name));
            resource.with_revocable(revocable).with_allocation(role)
        },
    );
    let disks = (0..6_u8, 1..4_u8).prop_map(|(kind, size)| {
        let size = f64::from(size);
        match kind {
            0 => disk(size, "a", Some(DiskSource::path(Some("/p")))),
            1 => disk(size, "a", Some(DiskSource::mount(Some("/m")))),
            2 => volume(size, "a", "1", "path"),
            3 => volume(size, "a", "2", "path"),
            4 => shared_volume(size, "a", "1", "path"),
            _ => shared_volume(size, "a", "3", "path"),
        }
    });
    prop_oneof![3 => plain, 1 => disks]
}

fn any_resources() -> impl Strategy<Value = Resources> {
    vec(any_resource(), 0..10).prop_map(|all| all.into_iter().collect())
}

fn bitmap(ranges: &Ranges) -> u128 {
    (0..BITS)
        .filter(|bit| {
            ranges
                .iter()
                .any(|range| (range.begin()..=range.end()).contains(bit))
        })
        .fold(0, |bits, bit| bits | 1 << bit)
}

fn is_coalesced(ranges: &Ranges) -> bool {
    ranges
        .as_slice()
        .windows(2)
        .all(|pair| pair[0].end() + 1 < pair[1].begin())
}

/// Whether the sum loses something: common members of ranges and sets count once.
fn overlaps(left: &Resources, right: &Resources) -> bool {
    // A shared volume on both sides also counts once, but is not lost.
    let (left, right) = (left.unshared(), right.unshared());
    let mut apart = left.quantities();
    apart += &right.quantities();
    (&left + &right).quantities() != apart
}

proptest! {
    #[test]
    fn ranges_agree_with_a_bitmap(parts in vec(any_range(), 0..10), left in any_ranges(), right in any_ranges()) {
        let built = Ranges::new(parts.clone());
        let bits = parts.iter().fold(0_u128, |bits, range| {
            (range.begin()..=range.end()).fold(bits, |bits, bit| bits | 1 << bit)
        });
        prop_assert_eq!(bitmap(&built), bits);
        prop_assert!(is_coalesced(&built));
        let (l, r) = (bitmap(&left), bitmap(&right));
        for (result, expected) in [
            (left.union(&right), l | r),
            (left.difference(&right), l & !r),
            (left.intersection(&right), l & r),
        ] {
            prop_assert_eq!(bitmap(&result), expected);
            prop_assert!(is_coalesced(&result), "{}", result);
            prop_assert_eq!(result.count(), u64::from(expected.count_ones()));
        }
        prop_assert_eq!(left.contains(&right), r & !l == 0);
    }

    #[test]
    fn sets_agree_with_btree_sets(left in any_set(), right in any_set()) {
        let ours = |items: &BTreeSet<String>| items.iter().map(String::as_str).collect::<ItemSet>();
        let (l, r) = (ours(&left), ours(&right));
        prop_assert_eq!(l.union(&r), ours(&left.union(&right).cloned().collect()));
        prop_assert_eq!(l.difference(&r), ours(&left.difference(&right).cloned().collect()));
        prop_assert_eq!(l.contains(&r), left.is_superset(&right));
        prop_assert!(l.iter().eq(left.iter().map(String::as_str)));
    }

    #[test]
    fn addition_is_commutative_and_associative(a in any_resources(), b in any_resources(), c in any_resources()) {
        prop_assert_eq!(&a + &b, &b + &a);
        prop_assert_eq!((&a + &b) + &c, &a + &(&b + &c));
        prop_assert_eq!(&a + &Resources::new(), a.clone());
        prop_assert_eq!(Resources::new() + &a, a);
    }

    #[test]
    fn a_sum_contains_its_parts(a in any_resources(), b in any_resources()) {
        let sum = &a + &b;
        prop_assert!(sum.contains(&a));
        prop_assert!(sum.contains(&b));
        prop_assert!(a.contains(&a));
        prop_assert!(a.contains(&Resources::new()));
        prop_assert_eq!(sum.iter().filter(|one| one.is_empty()).count(), 0);
    }

    #[test]
    fn added_resources_can_be_subtracted(a in any_resources(), b in any_resources()) {
        if overlaps(&a, &b) {
            return Ok(());
        }
        let sum = &a + &b;
        prop_assert_eq!(&sum - &b, a.clone());
        prop_assert_eq!(sum.checked_sub(&b), Ok(a));
    }

    #[test]
    fn subtracted_resources_can_be_added_back(a in any_resources(), b in any_resources()) {
        match a.checked_sub(&b) {
            Ok(rest) => {
                prop_assert!(a.contains(&b));
                prop_assert_eq!(&rest + &b, a.clone());
                prop_assert!(a.contains(&rest));
                prop_assert!(a.quantities().contains(&rest.quantities()));
            }
            Err(error) => {
                prop_assert!(!a.contains(&b));
                prop_assert!(b.contains_resource(&error.requested));
            }
        }
    }

    #[test]
    fn parts_subtract_in_any_order(
        all in vec(any_resource(), 1..10), picked in any::<Index>(),
    ) {
        let total: Resources = all.iter().cloned().collect();
        let part = &all[picked.index(all.len())];
        prop_assert!(total.contains_resource(part));
        let part = Resources::from(part.clone());
        let rest = total.checked_sub(&part).unwrap();
        prop_assert_eq!(rest + &part, total);
    }

    #[test]
    fn equality_does_not_depend_on_order(all in vec(any_resource(), 0..10), seed in any::<u64>()) {
        let mut shuffled: Vec<(u64, Resource)> = all
            .iter()
            .cloned()
            .zip(1_u64..)
            .map(|(resource, index)| (seed.wrapping_mul(index).rotate_left(17), resource))
            .collect();
        shuffled.sort_by_key(|(key, _)| *key);
        let one: Resources = all.into_iter().collect();
        let other: Resources = shuffled.into_iter().map(|(_, resource)| resource).collect();
        prop_assert_eq!(&one, &other);
        prop_assert_eq!(one.to_string(), other.to_string());
        prop_assert!(one.contains(&other) && other.contains(&one));
    }

    #[test]
    fn equal_means_containing_each_other(a in any_resources(), b in any_resources()) {
        prop_assert_eq!(a == b, a.contains(&b) && b.contains(&a));
    }

    #[test]
    fn filters_split_without_loss(a in any_resources()) {
        prop_assert_eq!(a.revocable() + &a.unrevocable(), a.clone());
        prop_assert_eq!(a.reserved(None) + &a.unreserved(), a.clone());
        prop_assert_eq!(a.shared() + &a.unshared(), a.clone());
        let by_role: Resources = a.reservations().values().sum();
        prop_assert_eq!(by_role, a.reserved(None));
        let allocated = a.allocate(&role("z"));
        prop_assert!(allocated.iter().all(|one| one.allocation_role() == Some(&role("z"))));
        prop_assert_eq!(allocated.unallocate(), a.unallocate());
    }

    #[test]
    fn a_pushed_reservation_can_be_popped(a in any_resources()) {
        let reservation = dynamic("a/b/c", "p");
        let pushed = a.push_reservation(&reservation).unwrap();
        prop_assert_eq!(pushed.pop_reservation().unwrap(), a);
    }

    #[test]
    fn quantities_follow_resources(a in any_resources(), b in any_resources()) {
        if overlaps(&a, &b) || !a.shared().is_empty() {
            return Ok(());
        }
        let mut apart = a.quantities();
        apart += &b.quantities();
        prop_assert_eq!((&a + &b).quantities(), apart.clone());
        apart -= &b.quantities();
        prop_assert_eq!(apart, a.quantities());
    }

    #[test]
    fn shrinking_fits(a in any_resources(), b in any_resources()) {
        let target = b.quantities();
        let kept = a.unshared().shrink_to(&target);
        prop_assert!(target.contains(&kept.quantities()));
    }

    #[test]
    fn scalars_go_to_doubles_and_back(millis in -(1_i64 << 50)..=(1 << 50)) {
        let scalar = Scalar::from_millis(millis);
        prop_assert_eq!(Scalar::from_f64(scalar.to_f64()), Ok(scalar));
        prop_assert_eq!(scalar.to_string().parse::<f64>().unwrap(), scalar.to_f64());
    }

    #[test]
    fn plain_resources_print_and_parse(values in vec(any_value(), 0..6)) {
        let all: Resources = values
            .into_iter()
            .filter(|(name, _)| *name != "foo")
            .map(|(name, value)| Resource::plain(ResourceName::new(name).unwrap(), value))
            .collect();
        let text = if all.is_empty() { String::new() } else { all.to_string() };
        prop_assert_eq!(Resources::parse(&text, &Role::star()), Ok(all.clone()));
        let amounts: ResourceQuantities = all.scalar_quantities();
        let text = if amounts.is_empty() { String::new() } else { amounts.to_string() };
        prop_assert_eq!(text.parse(), Ok(amounts));
    }

    #[test]
    fn durations_print_and_parse(nanos in 0..=i64::MAX.unsigned_abs(), shift in 0..63_u32) {
        let duration = Duration::from_nanos(nanos >> shift);
        let text = format_duration(duration);
        let back = parse_duration(&text).unwrap();
        // Fifteen digits are printed, and a double has hardly more.
        let error = back.abs_diff(duration).as_secs_f64();
        prop_assert!(error <= duration.as_secs_f64() * 1e-14 + 1e-9, "{} {:?}", text, back);
        // A duration that prints without a fraction is exact.
        let whole = Duration::from_secs(60 * (nanos % 1440));
        prop_assert_eq!(parse_duration(&format_duration(whole)), Ok(whole));
    }

    #[test]
    fn byte_sizes_print_and_parse(bytes in any::<u64>(), shift in 0..64_u32) {
        let size = ByteSize::from_bytes(bytes >> shift << (shift / 2));
        prop_assert_eq!(size.to_string().parse(), Ok(size));
    }

    #[test]
    fn no_text_makes_a_parser_panic(
        text in prop_oneof![any::<String>(), "[a-c0-9:;(){}\\[\\]., \n*/x-]{0,40}", "[0-9.]{0,25}[a-zA-Z]{0,6}"],
    ) {
        if let Err(error) = Resources::parse(&text, &Role::star()) {
            prop_assert!(text[error.offset..].starts_with(&error.piece));
        }
        if let Err(error) = text.parse::<Attributes>() {
            prop_assert!(text[error.offset..].starts_with(&error.piece));
        }
        let _ = text.parse::<ResourceQuantities>();
        let _ = parse_duration(&text);
        let _ = text.parse::<ByteSize>();
        let _ = Role::new(&text);
    }

    #[test]
    fn valid_role_descends_from_each_ancestor(text in "[a-c]{1,2}(/[a-c.]{1,3}){0,4}") {
        if let Ok(role) = Role::new(&text) {
            prop_assert!(role.ancestors().all(|above| role.is_strict_subrole_of(&above)));
            prop_assert_eq!(role.ancestors().count() + 1, role.components().count());
            prop_assert_eq!(Role::new(role.as_str()), Ok(role));
        }
    }
}
