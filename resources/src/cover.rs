//! The choice of resources that cover a request, regardless of their reservations.

use std::cmp::Reverse;

use crate::{Resource, Resources};

impl Resources {
    /// The part of these resources that covers `requested`, which counts by names and values only: reserved resources first, the
    /// most refined of them before the others, then unreserved ones. `None` if there is not enough.
    ///
    /// Special disks, revocable resources and those of resource providers are excluded: a caller must request them as such.
    #[must_use]
    pub fn cover(&self, requested: &Self) -> Option<Self> {
        let mut plain: Vec<&Resource> = self
            .iter()
            .filter(|available| is_plain(available))
            .collect();
        plain.sort_by_key(|available| Reverse(available.reservations().len()));
        let mut cover = Self::new();
        for requested in requested {
            let mut left = requested.value().clone();
            for available in plain
                .iter()
                .filter(|available| available.name() == requested.name())
            {
                let Some(part) = available.value().common(&left) else {
                    continue;
                };
                left.subtract(&part);
                cover.insert(available.with_value(part));
            }
            if !left.is_empty() {
                return None;
            }
        }
        Some(cover)
    }
}

fn is_plain(resource: &Resource) -> bool {
    resource.disk().is_none()
        && !resource.is_revocable()
        && !resource.is_shared()
        && resource.provider_id().is_none()
}

#[cfg(test)]
mod tests {
    use crate::{Resources, Role};

    fn parse(text: &str) -> Resources {
        Resources::parse(text, &Role::star()).unwrap()
    }

    #[test]
    fn cover_prefers_reserved_over_unreserved() {
        let available = parse("cpus:4;mem:512;cpus(eng):1;ports(eng):[5-6];ports:[1-4]");
        let cover = available
            .cover(&parse("cpus:1.5;mem:64;ports:[4-5]"))
            .unwrap();
        let expected = parse("cpus(eng):1;cpus:0.5;mem:64;ports(eng):[5-5];ports:[4-4]");
        assert_eq!(cover, expected);
        assert!(available.contains(&cover));
    }

    #[test]
    fn less_than_requested_covers_nothing() {
        let available = parse("cpus:1;cpus(eng):1;ports:[1-4]");
        for requested in ["cpus:2.001", "gpus:1", "ports:[4-5]", "cpus:[1-2]"] {
            assert_eq!(available.cover(&parse(requested)), None, "{requested}");
        }
        assert_eq!(available.cover(&Resources::new()), Some(Resources::new()));
    }
}
