//! Which of what is held covers what is wanted, whatever it is reserved for.

use std::cmp::Reverse;

use crate::{Resource, Resources};

impl Resources {
    /// The part of these that covers `wanted`, of which only names and values count: what is reserved
    /// first, the most refined before that, then what is free. None if they do not hold so much.
    ///
    /// Disks of a kind of their own, what is lent and what a provider has are left alone: who wants those
    /// asks for them as such.
    #[must_use]
    pub fn cover(&self, wanted: &Self) -> Option<Self> {
        let mut plain: Vec<&Resource> = self.iter().filter(|held| is_plain(held)).collect();
        plain.sort_by_key(|held| Reverse(held.reservations().len()));
        let mut cover = Self::new();
        for wanted in wanted {
            let mut left = wanted.value().clone();
            for held in plain.iter().filter(|held| held.name() == wanted.name()) {
                let Some(part) = held.value().common(&left) else {
                    continue;
                };
                left.subtract(&part);
                cover.insert(held.with_value(part));
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
    fn what_is_reserved_is_taken_first_and_the_rest_from_what_is_free() {
        let held = parse("cpus:4;mem:512;cpus(eng):1;ports(eng):[5-6];ports:[1-4]");
        let cover = held.cover(&parse("cpus:1.5;mem:64;ports:[4-5]")).unwrap();
        let expected = parse("cpus(eng):1;cpus:0.5;mem:64;ports(eng):[5-5];ports:[4-4]");
        assert_eq!(cover, expected);
        assert!(held.contains(&cover));
    }

    #[test]
    fn less_than_is_wanted_covers_nothing() {
        let held = parse("cpus:1;cpus(eng):1;ports:[1-4]");
        for wanted in ["cpus:2.001", "gpus:1", "ports:[4-5]", "cpus:[1-2]"] {
            assert_eq!(held.cover(&parse(wanted)), None, "{wanted}");
        }
        assert_eq!(held.cover(&Resources::new()), Some(Resources::new()));
    }
}
