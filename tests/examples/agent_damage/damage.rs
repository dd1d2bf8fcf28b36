//! The damages that this example does to a file.

use std::path::Path;

use meseta_tests::dice::Dice;

/// Longest run of zeroes.
const ZEROES_MAX: u64 = 64;

#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) enum Harm {
    /// Changes up to three bits of the file.
    Flip,
    /// The file's end is cut off.
    Cut,
    /// A part of the file is overwritten with zeroes.
    Zeroes,
    Empty,
    Garbage,
    /// The file has its contents from some time ago.
    Old,
    Gone,
    /// Replaces the file by a folder.
    Folder,
}

pub(crate) const ALL: [Harm; 8] = [
    Harm::Flip,
    Harm::Cut,
    Harm::Zeroes,
    Harm::Old,
    Harm::Empty,
    Harm::Garbage,
    Harm::Gone,
    Harm::Folder,
];

impl Harm {
    /// Damages the file; returns whether that changed anything.
    pub(crate) fn apply(self, path: &Path, old: Option<&Vec<u8>>, dice: &mut Dice) -> bool {
        let before = std::fs::read(path).unwrap_or_default();
        let mut roll = |below: usize| {
            let below = u64::try_from(below.max(1)).expect("a length");
            usize::try_from(dice.roll(below)).expect("below a length")
        };
        let mut after = before.clone();
        match self {
            Self::Flip => {
                for _ in 0..=roll(3) {
                    let at = roll(after.len());
                    if let Some(byte) = after.get_mut(at) {
                        *byte ^= 1 << roll(8);
                    }
                }
            }
            Self::Cut => after.truncate(roll(before.len())),
            Self::Zeroes => {
                let at = roll(after.len());
                let most = usize::try_from(ZEROES_MAX).expect("few");
                let end = (at + 1 + roll(most)).min(after.len());
                after[at.min(end)..end].fill(0);
            }
            Self::Empty => after.clear(),
            Self::Garbage => {
                for byte in &mut after {
                    *byte = u8::try_from(roll(256)).expect("a byte");
                }
            }
            Self::Old => after.clone_from(old.unwrap_or(&before)),
            Self::Gone => return std::fs::remove_file(path).is_ok(),
            Self::Folder => {
                return std::fs::remove_file(path).is_ok() && std::fs::create_dir(path).is_ok();
            }
        }
        after != before && std::fs::write(path, after).is_ok()
    }
}
