//! How fast the core alone is.
//!
//! `cargo run --release -p meseta-master --example core_throughput -- [AGENTS] [TASKS]`: how many tasks per second it
//! takes from launch to acknowledged end.
//!
//! `... --example core_throughput -- operations [RESOURCES]`: how long one ACCEPT with as many operations as it may
//! have takes on an agent that is divided into so many resources; nothing else is done meanwhile.
//!
//! `... --example core_throughput -- reregistration [AGENTS] [TASKS]`: how long a master that has just started takes to
//! have all agents back, with the tasks that they run: their frames are decoded, and stored at once.

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
