//! Inputs near meaningful ones: seeds, cut, spliced and bent.
//!
//! Deterministic: the same seed gives the same inputs.

use fastrand::Rng;

/// Bytes with a special meaning for parsers.
const SYNTAX_BYTES: &[u8] = b"\"{}[]:,;-+.eE0129\\/*()\n\t \0\x7f\xff";

/// The longest input derived from a seed.
const LENGTH_MAX: usize = 4_096;

/// Runs the body on each seed, and on `count` variations of them.
pub fn run(body: fn(&[u8]), seeds: &[Vec<u8>], count: u32, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    for input in seeds {
        run_and_report(body, input);
    }
    for _ in 0..count {
        run_and_report(body, &variation(&mut rng, seeds));
    }
}

/// Prints the input when the body panics, so that it can become a seed.
fn run_and_report(body: fn(&[u8]), input: &[u8]) {
    struct OnPanic<'a>(&'a [u8]);
    impl Drop for OnPanic<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("the input was b\"{}\"", self.0.escape_ascii());
            }
        }
    }
    let shown = OnPanic(input);
    body(shown.0);
}

fn variation(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let pick = |rng: &mut Rng| seeds.get(rng.usize(..seeds.len().max(1))).cloned();
    let mut input = pick(rng).unwrap_or_default();
    for _ in 0..rng.usize(1..6) {
        let at = rng.usize(..=input.len());
        let end = rng.usize(at..=input.len().min(at + 16));
        match rng.u8(..8) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 => input.insert(at, syntax_byte(rng)),
            3 => input.insert(at, rng.u8(..)),
            4 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << rng.u8(..8);
                }
            }
            5 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = syntax_byte(rng);
                }
            }
            6 => {
                // Repeats a part of the input.
                let again = input.get(at..end).unwrap_or_default().to_vec();
                input.splice(at..at, again);
            }
            _ => {
                let other = pick(rng).unwrap_or_default();
                let from = rng.usize(..=other.len());
                let rest = other.get(from..).unwrap_or_default();
                input.splice(at..end, rest.iter().copied());
            }
        }
        input.truncate(LENGTH_MAX);
    }
    input
}

fn syntax_byte(rng: &mut Rng) -> u8 {
    SYNTAX_BYTES
        .get(rng.usize(..SYNTAX_BYTES.len()))
        .copied()
        .unwrap_or(0)
}
