//! Runs seeds: `cargo run -p meseta-simulation --example simulate -- [SEED] [SEEDS] [STEPS]`.
//!
//! Runs so many seeds from the first on, each for so many steps, and ends at the first broken promise with the seed and
//! the steps before it.

use std::error::Error;
use std::io::Write;

use meseta_simulation::Cluster;

fn number(text: Option<String>, otherwise: u64) -> Result<u64, Box<dyn Error>> {
    Ok(text.map_or(Ok(otherwise), |text| text.parse())?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let first = number(arguments.next(), 1)?;
    let seeds = number(arguments.next(), 1)?;
    let steps = number(arguments.next(), 3_000)?;
    let mut out = std::io::stdout();
    for seed in first..first.saturating_add(seeds) {
        let mut cluster = Cluster::new(seed)?;
        match cluster.run(steps) {
            Ok(hash) => writeln!(
                out,
                "seed {seed}: {} tasks, hash {hash:016x}",
                cluster.tasks()
            )?,
            Err(story) => {
                writeln!(out, "{story}")?;
                return Err("a promise was broken".into());
            }
        }
    }
    Ok(())
}
