//! Reserving and unreserving whole collections: pushing on and popping off the reservation stacks.

use std::convert::Infallible;

use crate::{Reservation, ReservationError, Resources};

impl Resources {
    /// Reserves everything further: one more entry on each stack.
    ///
    /// # Errors
    /// When the entry cannot stand on one of the stacks.
    pub fn push_reservation(&self, reservation: &Reservation) -> Result<Self, ReservationError> {
        self.try_map(|resource| resource.push_reservation(reservation.clone()))
    }

    /// Gives everything back to whom it belonged before: one entry less on each stack.
    ///
    /// # Errors
    /// When something is not reserved.
    pub fn pop_reservation(&self) -> Result<Self, ReservationError> {
        self.try_map(crate::Resource::pop_reservation)
    }

    /// The same resources without any reservation.
    #[must_use]
    pub fn to_unreserved(&self) -> Self {
        match self.try_map(|resource| Ok::<_, Infallible>(resource.to_unreserved())) {
            Ok(unreserved) => unreserved,
        }
    }

    /// The same resources, all revocable or all not.
    #[must_use]
    pub fn with_revocable(&self, revocable: bool) -> Self {
        match self.try_map(|resource| Ok::<_, Infallible>(resource.with_revocable(revocable))) {
            Ok(changed) => changed,
        }
    }

    /// What both sides were before their reservations parted: `self`, with reservations popped until
    /// the stacks are the same. Each side must be reserved alike throughout.
    #[must_use]
    pub fn reservation_ancestor(&self, that: &Self) -> Self {
        let stack = |side: &Self| {
            side.iter()
                .next()
                .map(|first| first.reservations().to_vec())
        };
        let (Some(mine), Some(theirs)) = (stack(self), stack(that)) else {
            return self.clone();
        };
        let shared = mine
            .iter()
            .zip(&theirs)
            .take_while(|(mine, theirs)| mine == theirs)
            .count();
        let mut ancestor = self.clone();
        for _ in shared..mine.len() {
            match ancestor.pop_reservation() {
                Ok(popped) => ancestor = popped,
                Err(_) => break,
            }
        }
        ancestor
    }
}
