//! The changes that operations make to a collection, restricted to the touched resources.
//!
//! An agent may be divided into thousands of resources while an operation names a single one: the rest is not visited.

use crate::{Conversion, ConversionError, NotContained, Resources};

/// A part of a collection, before and after; includes all resources of the kinds that the operations name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    before: Resources,
    after: Resources,
}

impl Change {
    /// The change of `resources` by `conversions` in their order.
    ///
    /// # Errors
    /// When a conversion is impossible.
    pub fn from_conversions(
        conversions: &[Conversion],
        resources: &Resources,
    ) -> Result<Self, ConversionError> {
        let named = conversions
            .iter()
            .flat_map(|one| one.consumed().iter().chain(one.produced().iter()));
        let before = resources.alike(named);
        let mut after = before.clone();
        for conversion in conversions {
            let done = conversion.apply_to(&mut after);
            done.map_err(|error| match error {
                ConversionError::NotContained(error) => {
                    NotContained::with_change(error.requested, resources, &before, &after).into()
                }
                other => other,
            })?;
        }
        Ok(Self { before, after })
    }

    #[must_use]
    pub const fn before(&self) -> &Resources {
        &self.before
    }

    #[must_use]
    pub const fn after(&self) -> &Resources {
        &self.after
    }

    /// The number of different resources after the change, for a collection with `len` before.
    #[must_use]
    pub fn len_after(&self, len: usize) -> usize {
        (len + self.after.len()).saturating_sub(self.before.len())
    }

    /// Applies the change to the collection that it was computed from.
    pub fn apply_to(&self, resources: &mut Resources) {
        resources.replace(&self.before, &self.after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, Reservation, Role, apply_all};

    fn parse(text: &str) -> Resources {
        Resources::parse(text, &Role::star()).unwrap()
    }

    fn reserved(text: &str, to: &str) -> Resources {
        let reservation = Reservation::dynamic(Role::new(to).unwrap(), None);
        parse(text).push_reservation(&reservation).unwrap()
    }

    fn reserve(of: &Resources) -> Conversion {
        Conversion::reserve(of).unwrap()
    }

    #[test]
    fn change_matches_conversions_and_touched_parts() {
        let mut total = parse("cpus:8;mem:1024;ports:[1-9]") + reserved("cpus:1;mem:64", "ads");
        let steps = [
            reserve(&reserved("cpus:2;ports:[2-3]", "dev")),
            Conversion::unreserve(&reserved("cpus:1", "dev")).unwrap(),
            reserve(&reserved("cpus:6", "ads")),
        ];
        let change = Change::from_conversions(&steps, &total).unwrap();
        assert_eq!(
            *change.before(),
            parse("cpus:8;ports:[1-9]") + reserved("cpus:1", "ads")
        );
        let expected = apply_all(&steps, &total).unwrap();
        assert_eq!(change.len_after(total.len()), expected.len());
        change.apply_to(&mut total);
        assert_eq!(total, expected);
    }

    #[test]
    fn impossible_change_names_available_resources() {
        let total = parse("cpus:2;mem:1024");
        let steps = [
            reserve(&reserved("cpus:1", "dev")),
            reserve(&reserved("cpus:2", "dev")),
        ];
        let text = Change::from_conversions(&steps, &total)
            .unwrap_err()
            .to_string();
        let own = apply_all(&steps, &total).unwrap_err().to_string();
        assert_eq!(text, own);
        let most = "cpus:1; cpus(reservations: [(DYNAMIC,dev)]):1; mem:1024";
        assert_eq!(text, format!("{most} does not contain cpus:2"));
        let none = Operation::Unreserve(reserved("cpus:1", "dev").iter().cloned().collect());
        let none = Change::from_conversions(&none.conversions().unwrap(), &total).unwrap_err();
        assert!(
            none.to_string().starts_with("cpus:2; mem:1024 does not"),
            "{none}"
        );
    }
}
