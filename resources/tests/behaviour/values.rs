//! Scalars, ranges and sets.

use meseta_resources::{InvertedRange, ItemSet, Range, Ranges, Scalar, ScalarError};

use crate::given::{all, one, ranges, scalar};

#[test]
fn scalar_rounds_half_away_from_zero() {
    for (value, millis) in [
        (1.001, 1001),
        (1.5015, 1502),
        (1.5011, 1501),
        (0.0005, 1),
        (-0.0005, -1),
        (-1.5015, -1502),
        (0.0004, 0),
        (-0.0, 0),
        (1_000_001.0, 1_000_001_000),
        (99_999_999_999.999_4, 99_999_999_999_999),
    ] {
        assert_eq!(scalar(value).millis(), millis, "{value}");
    }
}

#[test]
fn scalar_must_be_finite_and_bounded() {
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(
            matches!(Scalar::from_f64(value), Err(ScalarError::NotFinite(_))),
            "{value}"
        );
    }
    for value in [1e300, -1e300, 1.2e12, f64::MAX] {
        assert!(
            matches!(Scalar::from_f64(value), Err(ScalarError::OutOfRange(_))),
            "{value}"
        );
    }
    assert_eq!(Scalar::from_f64(Scalar::LIMIT.to_f64()), Ok(Scalar::LIMIT));
}

#[test]
fn negative_or_tiny_quantity_is_refused() {
    assert_eq!(Scalar::quantity_from_f64(0.0), Ok(Scalar::ZERO));
    assert!(matches!(
        Scalar::quantity_from_f64(-1.0),
        Err(ScalarError::Negative(_))
    ));
    assert!(matches!(
        Scalar::quantity_from_f64(-0.0001),
        Err(ScalarError::Negative(_))
    ));
    assert!(matches!(
        Scalar::quantity_from_f64(0.0001),
        Err(ScalarError::Vanishing(_))
    ));
}

#[test]
fn scalar_prints_three_decimals_at_most() {
    for (value, text) in [
        (1.234, "1.234"),
        (1.2345, "1.235"),
        (1.2344, "1.234"),
        (1.1, "1.1"),
        (1.0, "1"),
        (0.05, "0.05"),
        (-0.5, "-0.5"),
        (1_000_001.0, "1000001"),
        (99_999_999_999.999_4, "99999999999.999"),
    ] {
        assert_eq!(scalar(value).to_string(), text);
    }
}

#[test]
fn scalars_saturate() {
    assert_eq!(Scalar::MAX + Scalar::from_millis(1), Scalar::MAX);
    assert_eq!(Scalar::MAX.checked_add(Scalar::from_millis(1)), None);
    assert_eq!(Scalar::from_units(u64::MAX), Scalar::MAX);
    assert_eq!(
        Scalar::from_millis(1).floor_sub(Scalar::from_millis(2)),
        Scalar::ZERO
    );
    assert_eq!(Scalar::from_millis(1999).whole_units(), 1);
}

/// 100,000 additions and as many subtractions of 1.001 lead back to the start exactly.
#[test]
fn resources_precision_many_consecutive_ops() {
    let start = all("cpus:1.001");
    let mut current = start.clone();
    for _ in 0..100_000 {
        current += &start;
    }
    assert_eq!(current.cpus().unwrap().to_f64(), 100_101.001);
    for _ in 0..100_000 {
        current -= &start;
    }
    assert_eq!(current, start);
    assert_eq!(current.cpus().unwrap().to_f64(), 1.001);
}

#[test]
fn resources_precision_many_ops() {
    let start = all("cpus:1.001");
    let mut current = start.clone();
    for _ in 0..2500 {
        current = current.clone() + &current + &current - &current - &current;
        assert_eq!(current, start);
    }
}

#[test]
fn resources_precision_lost_and_rounded() {
    assert_eq!(all("cpus:1.5011"), all("cpus:1.501"));
    assert_eq!(all("cpus:1.5015"), all("cpus:1.502"));
    assert_eq!(all("cpus:1") - &all("cpus:0"), all("cpus:1"));
}

#[test]
fn values_ranges_coalesce() {
    for (written, expected) in [
        ("[1-10]", "[1-10]"),
        ("[4-6, 6-8, 5-9, 3-4, 2-5, 4-6, 1-1, 10-10, 4-6]", "[1-10]"),
        ("[4-6, 6-8]", "[4-8]"),
        ("[6-8, 4-6]", "[4-8]"),
        ("[1-10, 8-10]", "[1-10]"),
        ("[1-11, 8-10]", "[1-11]"),
        ("[1-4, 4-5, 7-8, 8-10]", "[1-5, 7-10]"),
        ("[7-8, 1-4, [8-10], 4-5]", "[1-5, 7-10]"),
        ("[4-6, 7-8]", "[4-8]"),
        ("[4-6, 7-7]", "[4-7]"),
        ("[4-6, 7-7, 8-8, 9-9]", "[4-9]"),
        ("[4-6, 7-7, 9-10, 9-11]", "[4-7, 9-11]"),
        ("[6-8, 6-8, 4-6, 6-8]", "[4-8]"),
        ("[0-18446744073709551615, 5-6]", "[0-18446744073709551615]"),
    ] {
        assert_eq!(ranges(written).to_string(), expected, "{written}");
    }
}

#[test]
fn values_ranges_addition() {
    for (left, right, expected) in [
        ("[3-8]", "[4-10]", "[3-10]"),
        ("[3-8]", "[1-4]", "[1-8]"),
        ("[2-3]", "[1-4]", "[1-4]"),
        ("[2-3]", "[4-6]", "[2-6]"),
        ("[3-5]", "[1-2]", "[1-5]"),
        ("[3-5, 7-8]", "[6-6]", "[3-8]"),
        ("[1-4, 9-10, 20-22, 26-30]", "[5-8, 23-25]", "[1-10, 20-30]"),
        (
            "[20000-40000]",
            "[30000-50000, 10000-20000]",
            "[10000-50000]",
        ),
        ("[1-10, 5-30, 50-60]", "[1-65, 70-80]", "[1-65, 70-80]"),
        ("[]", "[1-2]", "[1-2]"),
    ] {
        assert_eq!(ranges(left).union(&ranges(right)).to_string(), expected);
        let added = all(&format!("ports:{left}")) + &all(&format!("ports:{right}"));
        assert_eq!(added.ports().unwrap().to_string(), expected);
    }
}

#[test]
fn values_ranges_subtraction() {
    for (left, right, expected) in [
        ("[]", "[1-10]", "[]"),
        ("[3-8]", "[]", "[3-8]"),
        ("[3-8]", "[1-10]", "[]"),
        ("[3-8]", "[3-5]", "[6-8]"),
        ("[3-8]", "[5-8]", "[3-4]"),
        ("[3-8]", "[5-6]", "[3-4, 7-8]"),
        ("[3-8]", "[1-3]", "[4-8]"),
        ("[3-8]", "[5-10]", "[3-4]"),
        ("[3-8]", "[9-10]", "[3-8]"),
        ("[3-8]", "[1-2]", "[3-8]"),
        (
            "[20000-40000]",
            "[10000-20000, 30000-50000]",
            "[20001-29999]",
        ),
        ("[50000-60000]", "[50000-50001]", "[50002-60000]"),
        (
            "[1-10, 20-30, 40-50]",
            "[2-9, 15-45, 48-50]",
            "[1-1, 10-10, 46-47]",
        ),
        (
            "[0-18446744073709551615]",
            "[0-0, 18446744073709551615-18446744073709551615]",
            "[1-18446744073709551614]",
        ),
    ] {
        assert_eq!(
            ranges(left).difference(&ranges(right)).to_string(),
            expected,
            "{left} {right}"
        );
        let rest = all(&format!("ports:{left}")) - &all(&format!("ports:{right}"));
        assert_eq!(rest.ports().unwrap_or_default().to_string(), expected);
    }
}

#[test]
fn resources_ranges_subset() {
    let [few, ten, two, more, five] =
        ["[2-2, 4-5]", "[1-10]", "[2-3]", "[1-2, 4-6]", "[1-4, 5-5]"].map(ranges);
    for (outer, inner, expected) in [
        (&ten, &few, true),
        (&few, &ten, false),
        (&two, &few, false),
        (&few, &two, false),
        (&ten, &two, true),
        (&two, &ten, false),
        (&more, &few, true),
        (&ten, &more, true),
        (&five, &few, true),
        (&few, &five, false),
        (&two, &Ranges::default(), true),
    ] {
        assert_eq!(outer.contains(inner), expected, "{outer} {inner}");
    }
}

#[test]
fn range_counts_and_detects_inversion() {
    assert_eq!(ranges("[1-3, 10-10]").count(), 4);
    assert_eq!(ranges("[0-18446744073709551615]").count(), u64::MAX);
    assert_eq!(Range::new(2, 1), Err(InvertedRange { begin: 2, end: 1 }));
    assert_eq!(
        ranges("[1-5, 8-9]")
            .intersection(&ranges("[4-8]"))
            .to_string(),
        "[4-5, 8-8]"
    );
}

#[test]
fn values_set_subtraction_and_subset() {
    let set = |items: &[&str]| items.iter().copied().collect::<ItemSet>();
    let three = set(&["sda1", "sda2", "sda3"]);
    assert_eq!(three.difference(&set(&["sda2", "sda3"])), set(&["sda1"]));
    assert_eq!(set(&["sda4"]).difference(&three), set(&["sda4"]));
    assert_eq!(
        set(&["b", "a"]).union(&set(&["c", "a"])).to_string(),
        "{a, b, c}"
    );
    assert!(three.contains(&set(&["sda3", "sda1"])));
    assert!(!three.contains(&set(&["sda3", "sda4"])));
}

#[test]
fn values_of_different_kinds_are_disjoint() {
    assert!(!one("foo:3").value().contains(one("foo:[1-2]").value()));
    assert!(!all("foo:3").contains(&all("foo:{a}")));
}
