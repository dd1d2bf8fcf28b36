//! Reserving and unreserving whole collections: pushing on and popping off the reservation stacks.

use std::convert::Infallible;

use crate::{Reservation, ReservationError, Resource, Resources};

/// The number of common reservations of all these resources, from the bottom of the stack.
pub fn common_reservations<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> usize {
    let mut resources = resources.into_iter().map(Resource::reservations);
    let Some(first) = resources.next() else {
        return 0;
    };
    resources.fold(first.len(), |common, other| {
        let both = first.iter().zip(other).take(common);
        both.take_while(|(one, other)| one == other).count()
    })
}

impl Resources {
    /// Adds a reservation to each stack.
    ///
    /// # Errors
    /// When the entry is not allowed on one of the stacks.
    pub fn push_reservation(&self, reservation: &Reservation) -> Result<Self, ReservationError> {
        self.try_map(|resource| resource.push_reservation(reservation.clone()))
    }

    /// Returns everything to the previous role: one entry less on each stack.
    ///
    /// # Errors
    /// When a resource is not reserved.
    pub fn pop_reservation(&self) -> Result<Self, ReservationError> {
        self.try_map(crate::Resource::pop_reservation)
    }

    /// A copy of the resources without any reservation.
    #[must_use]
    pub fn to_unreserved(&self) -> Self {
        match self.try_map(|resource| Ok::<_, Infallible>(resource.to_unreserved())) {
            Ok(unreserved) => unreserved,
        }
    }

    /// A copy of the resources, all revocable or all not.
    #[must_use]
    pub fn with_revocable(&self, revocable: bool) -> Self {
        match self.try_map(|resource| Ok::<_, Infallible>(resource.with_revocable(revocable))) {
            Ok(changed) => changed,
        }
    }
}
