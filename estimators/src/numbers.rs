//! Conversions into the doubles that the formulas work with, and back.

use meseta_resources::Scalar;

pub(crate) const MEGABYTE: f64 = 1024.0 * 1024.0;

/// Converts to the nearest double: exact below 8 PiB.
pub(crate) const fn bytes(count: u64) -> f64 {
    #[expect(
        clippy::cast_precision_loss,
        reason = "no machine has 2^53 bytes of memory"
    )]
    let bytes = count as f64;
    bytes
}

/// Cuts the fraction off; negative and undefined values count as zero.
pub(crate) fn whole(count: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and takes NaN for zero"
    )]
    let whole = count as u64;
    whole
}

/// Converts to `f32` for storage; saturates at infinity, which no share or weight here comes near.
pub(crate) const fn single(value: f64) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "fewer digits are meant")]
    let single = value as f32;
    single
}

/// A meaningful number: finite and not negative.
pub(crate) fn sound(value: f64) -> Option<f64> {
    (value.is_finite() && value >= 0.0).then_some(value)
}

/// Converts to a scalar; a negative or unrepresentable value becomes zero.
pub(crate) fn amount(value: f64) -> Scalar {
    Scalar::from_f64(value)
        .unwrap_or(Scalar::ZERO)
        .max(Scalar::ZERO)
}
