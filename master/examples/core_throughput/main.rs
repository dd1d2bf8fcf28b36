//! Measures the speed of the core alone.
//!
//! `cargo run --release -p meseta-master --example core_throughput -- [AGENTS] [TASKS]`: the number of tasks per
//! second from launch to acknowledged end.
//!
//! `... --example core_throughput -- operations [RESOURCES]`: the duration of one ACCEPT with the maximum number of
//! operations, on an agent that is divided into so many resources. The master does nothing else meanwhile.
//!
//! `... --example core_throughput -- reregistration [AGENTS] [TASKS]`: the time until a newly started master has all
//! agents back with their running tasks. The master decodes their frames and stores them immediately.

mod operations;
mod reregistration;
mod tasks;
mod world;

use std::error::Error;

fn number(text: Option<String>, otherwise: usize) -> Result<usize, Box<dyn Error>> {
    Ok(text.map_or(Ok(otherwise), |text| text.parse())?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|first| first == "operations").is_some() {
        return operations::run(number(arguments.next(), 3_000)?);
    }
    if arguments
        .next_if(|first| first == "reregistration")
        .is_some()
    {
        let agents = number(arguments.next(), 2_000)?;
        return reregistration::run(agents, number(arguments.next(), 200_000)?);
    }
    let agents = number(arguments.next(), 1_000)?;
    tasks::run(agents, number(arguments.next(), 100_000)?)
}
