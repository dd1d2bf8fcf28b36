//! A small generator of numbers: the same choices in every run with the same seed.

/// A 64-bit Xorshift generator; its seed is never zero, because zero would stay forever.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(if seed == 0 { u64::MAX } else { seed })
    }

    /// Returns a number below `sides`, which must be above zero.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    /// Returns a random item, or `None` if there are none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let sides = u64::try_from(from.len()).ok().filter(|sides| *sides > 0)?;
        from.get(usize::try_from(self.roll(sides)).ok()?)
    }
}
