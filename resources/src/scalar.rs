//! Scalars: quantities counted in thousandths, so that sums are exact.
//!
//! A double enters once, by [`Scalar::from_f64`], and is rounded half away from zero; all further arithmetic is on integers.
//! Invariant: a scalar that came from a double is within ±[`Scalar::LIMIT`], so that it converts back to the same double and
//! millions of them can be summed.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Neg, Sub, SubAssign};

const THOUSANDTHS: i64 = 1000;

/// A quantity in thousandths of a unit.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Scalar(i64);

/// Errors of converting a double to a scalar.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ScalarError {
    #[error("{0} is not a finite number")]
    NotFinite(f64),
    #[error("{0} is out of range: a scalar is within ±{limit}", limit = Scalar::LIMIT)]
    OutOfRange(f64),
    #[error("value < 0: {0} is negative")]
    Negative(f64),
    #[error("value <= 0: {0} vanishes, the smallest quantity is 0.001")]
    Vanishing(f64),
}

impl Scalar {
    pub const ZERO: Self = Self(0);
    pub const MAX: Self = Self(i64::MAX);
    /// The largest magnitude of outside values, about 10^12 units (an exabyte, in megabytes). Up to 2^50 thousandths a double is
    /// finer than a thousandth even after multiplication, and thousands of such scalars can be summed before an `i64` overflows.
    pub const LIMIT: Self = Self(1 << 50);

    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Converts a whole number of units; saturates.
    #[must_use]
    pub const fn from_units(units: u64) -> Self {
        let units = if units > i64::MAX.unsigned_abs() {
            i64::MAX
        } else {
            units.cast_signed()
        };
        Self(units.saturating_mul(THOUSANDTHS))
    }

    /// Rounds to the nearest thousandth, half away from zero.
    ///
    /// # Errors
    /// When the value is NaN, infinite, or beyond [`Scalar::LIMIT`].
    pub fn from_f64(value: f64) -> Result<Self, ScalarError> {
        if !value.is_finite() {
            return Err(ScalarError::NotFinite(value));
        }
        let millis = (value * 1000.0).round();
        // 2^50, exactly.
        if millis.abs() > 1_125_899_906_842_624.0 {
            return Err(ScalarError::OutOfRange(value));
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "integral and within ±2^50, see above"
        )]
        let millis = millis as i64;
        Ok(Self(millis))
    }

    /// Checks the rules for the scalar of a resource: not negative, and not rounded to zero unless it is zero.
    ///
    /// # Errors
    /// As [`Scalar::from_f64`], and when the value is negative or rounds to zero.
    pub fn quantity_from_f64(value: f64) -> Result<Self, ScalarError> {
        let scalar = Self::from_f64(value)?;
        if value < 0.0 {
            Err(ScalarError::Negative(value))
        } else if value > 0.0 && scalar == Self::ZERO {
            Err(ScalarError::Vanishing(value))
        } else {
            Ok(scalar)
        }
    }

    #[must_use]
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// The nearest double: whole units plus a fraction below one, as clients expect it printed.
    #[must_use]
    pub fn to_f64(self) -> f64 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "exact within LIMIT, nearest beyond it"
        )]
        let (units, rest) = ((self.0 / THOUSANDTHS) as f64, (self.0 % THOUSANDTHS) as f64);
        units + rest / 1000.0
    }

    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    #[must_use]
    pub const fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// Whether the scalar is a whole number.
    #[must_use]
    pub const fn is_integral(self) -> bool {
        self.0 % THOUSANDTHS == 0
    }

    /// The number of whole units, without the fraction; zero when negative.
    #[must_use]
    pub const fn whole_units(self) -> u64 {
        if self.0 < 0 {
            0
        } else {
            (self.0 / THOUSANDTHS).unsigned_abs()
        }
    }

    #[must_use]
    pub const fn checked_add(self, that: Self) -> Option<Self> {
        match self.0.checked_add(that.0) {
            Some(sum) => Some(Self(sum)),
            None => None,
        }
    }

    #[must_use]
    pub const fn checked_sub(self, that: Self) -> Option<Self> {
        match self.0.checked_sub(that.0) {
            Some(difference) => Some(Self(difference)),
            None => None,
        }
    }

    #[must_use]
    pub const fn saturating_add(self, that: Self) -> Self {
        Self(self.0.saturating_add(that.0))
    }

    #[must_use]
    pub const fn saturating_sub(self, that: Self) -> Self {
        Self(self.0.saturating_sub(that.0))
    }

    /// The difference, never below zero.
    #[must_use]
    pub fn floor_sub(self, that: Self) -> Self {
        self.saturating_sub(that).max(Self::ZERO)
    }
}

// The operators saturate: an overflow needs thousands of quantities at the limit, and a clamped total
// serves the daemons better than a panic.
impl Add for Scalar {
    type Output = Self;
    fn add(self, that: Self) -> Self {
        self.saturating_add(that)
    }
}

impl Sub for Scalar {
    type Output = Self;
    fn sub(self, that: Self) -> Self {
        self.saturating_sub(that)
    }
}

impl AddAssign for Scalar {
    fn add_assign(&mut self, that: Self) {
        *self = *self + that;
    }
}

impl SubAssign for Scalar {
    fn sub_assign(&mut self, that: Self) {
        *self = *self - that;
    }
}

impl Neg for Scalar {
    type Output = Self;
    fn neg(self) -> Self {
        Self(self.0.saturating_neg())
    }
}

impl Sum for Scalar {
    fn sum<I: Iterator<Item = Self>>(scalars: I) -> Self {
        scalars.fold(Self::ZERO, Add::add)
    }
}

impl<'a> Sum<&'a Self> for Scalar {
    fn sum<I: Iterator<Item = &'a Self>>(scalars: I) -> Self {
        scalars.copied().sum()
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let (units, rest) = (self.0.unsigned_abs() / 1000, self.0.unsigned_abs() % 1000);
        if rest == 0 {
            return write!(f, "{sign}{units}");
        }
        let digits = format!("{rest:03}");
        write!(f, "{sign}{units}.{}", digits.trim_end_matches('0'))
    }
}

crate::display::debug_as_display!(Scalar);
