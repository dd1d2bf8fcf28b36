//! The error that resources are missing, with the available ones; a long list is cut to an excerpt.
//!
//! This file and `resources` depend on each other: the error is made from resources, and their subtraction returns it.

use crate::resources::Entry;
use crate::{Resource, Resources};

/// The longest text of very many resources, in bytes: an agent may be divided into thousands of resources, and each refusal
/// is logged and sent to its framework.
const AVAILABLE_BYTES_MAX: usize = 2_048;

/// A resource that was to be subtracted and is missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{available} does not contain {requested}")]
pub struct NotContained {
    /// The available resources, as text; of very many only those most similar to the request.
    pub available: String,
    pub requested: Resource,
}

impl NotContained {
    pub(crate) fn new(requested: Resource, available: &Resources) -> Self {
        let available = excerpt(nearest(&requested, available.entries().iter()));
        Self {
            available,
            requested,
        }
    }

    /// The error after a change of `resources`, in which `now` replaces `before`; `before` is all of its kind.
    pub(crate) fn with_change(
        requested: Resource,
        resources: &Resources,
        before: &Resources,
        now: &Resources,
    ) -> Self {
        let is_untouched = |entry: &&Entry| !before.has_alike(&entry.resource);
        let all = resources.entries().iter();
        let mut available: Vec<&Entry> = all.filter(is_untouched).collect();
        for entry in now.entries() {
            let is_before = |one: &&Entry| one.resource.compare_thing(&entry.resource).is_lt();
            available.insert(available.partition_point(is_before), entry);
        }
        let available = excerpt(nearest(&requested, available.into_iter()));
        Self {
            available,
            requested,
        }
    }
}

impl Resources {
    /// The resources as text; of very many the first ones, with the number of the others.
    #[must_use]
    pub fn excerpt(&self) -> String {
        excerpt(self.entries().iter().collect())
    }
}

/// Sorts the resources most similar to the request first: those with its name and role, then those with its name.
fn nearest<'a>(requested: &Resource, available: impl Iterator<Item = &'a Entry>) -> Vec<&'a Entry> {
    let (mut nearest, mut of_name, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for entry in available {
        let is_of_name = entry.resource.name() == requested.name();
        let is_of_role = entry.resource.reservation_role() == requested.reservation_role();
        match (is_of_name, is_of_role) {
            (true, true) => nearest.push(entry),
            (true, false) => of_name.push(entry),
            (false, _) => others.push(entry),
        }
    }
    nearest.extend(of_name);
    nearest.extend(others);
    nearest
}

/// The text of the first entries, with the number of the others.
fn excerpt(entries: Vec<&Entry>) -> String {
    if entries.is_empty() {
        return "{}".to_owned();
    }
    let mut text = String::new();
    for (index, entry) in entries.iter().enumerate() {
        let one = entry.to_string();
        if text.len() + one.len() > AVAILABLE_BYTES_MAX {
            let others = entries.len() - index;
            let beside = if index == 0 { "" } else { " and " };
            return text + &format!("{beside}{others} other resources");
        }
        if index > 0 {
            text.push_str("; ");
        }
        text.push_str(&one);
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::{Label, Reservation, Resources, Role};

    #[test]
    fn long_error_names_nearest_resources() {
        let piece = |number: usize, to: &str| {
            let mut reservation = Reservation::dynamic(Role::new(to).unwrap(), None);
            let value = Some(format!("{number}-{}", "x".repeat(100)));
            let key = "k".to_owned();
            reservation.labels = std::iter::once(Label { key, value }).collect();
            let plain = Resources::parse("cpus:1", &Role::star()).unwrap();
            plain.push_reservation(&reservation).unwrap()
        };
        let mut total = piece(1, "dev");
        for number in 0..1_000 {
            total += piece(number, "ads");
        }
        let error = total.checked_sub(&piece(2, "dev")).unwrap_err();
        let text = error.available;
        assert!(text.len() < 2_200, "{}", text.len());
        assert!(
            text.starts_with("cpus(reservations: [(DYNAMIC,dev"),
            "{text}"
        );
        assert!(text.ends_with(" other resources"), "{text}");
        let none = Resources::new().checked_sub(&piece(2, "dev")).unwrap_err();
        assert_eq!(none.available, "{}");
    }
}
