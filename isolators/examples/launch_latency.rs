//! The latency of a launch, step by step, and the number of launches per second.
//!
//! `cargo run --release -p meseta-isolators --example launch_latency [launches] [pause_ms] [threads] [1]` as root. Launches
//! `/bin/true` in new groups and namespaces, with a fourth argument also hardened. Prints milliseconds at the median and the
//! 99th percentile for the launch until exec, until the supervisor's end, and for the destroy. A pause between launches shows
//! the cost of an idle gap, which a tight loop hides. At the end the program compares descriptors, groups, mounts and zombies
//! with those before the first launch: with 10000 launches this is the leak test.

mod bench;
#[path = "bench/once.rs"]
mod once;

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench::AnyError;
use meseta_isolators::{ContainerName, Containers, Host, Isolation};

fn main() -> ExitCode {
    bench::run(measure)
}

fn measure() -> Result<(), AnyError> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let launches = args.next().transpose()?.unwrap_or(200);
    let pause = Duration::from_millis(args.next().transpose()?.unwrap_or(0));
    let threads = args.next().transpose()?.unwrap_or(1);
    let folder = tempfile::tempdir()?;
    let host = Host::detect()?;
    let isolation = match args.next() {
        Some(_) => Isolation::hardened_for(&host),
        None => Isolation::default_for(&host),
    };
    let began = Instant::now();
    let containers = bench::open(&host, isolation, folder.path(), "bench")?;
    eprintln!("{:?}, opened in {:?}", host.mode, began.elapsed());
    // The first launch makes everything that later launches reuse.
    once::launch(&containers, folder.path(), launches)?;
    let before = Traces::read(&host, &containers)?;
    let times = Mutex::new(vec![Vec::new(), Vec::new(), Vec::new()]);
    let next = AtomicU64::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let worker = || -> Result<(), AnyError> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= launches {
                    return Ok(());
                }
                let spent = once::launch(&containers, folder.path(), number)?;
                if let Ok(mut times) = times.lock() {
                    for (all, one) in times.iter_mut().zip(spent) {
                        all.push(one);
                    }
                }
                std::thread::sleep(pause);
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            worker.join().map_err(|_| "a worker panicked")??;
        }
        Ok::<_, AnyError>(())
    })?;
    let rate = f64::from(u32::try_from(launches)?) / began.elapsed().as_secs_f64();
    let mut times = times.into_inner()?;
    for (name, times) in ["launch to exec", "exec to end", "destroy"]
        .iter()
        .zip(&mut times)
    {
        times.sort_unstable();
        let at = |percent: usize| {
            times
                .get(times.len() * percent / 100)
                .copied()
                .unwrap_or_default()
        };
        eprintln!(
            "{name:16} min {:?} p50 {:?} p99 {:?}",
            at(0),
            at(50),
            at(99)
        );
    }
    eprintln!("{rate:.0} launches per second, pauses included");
    let after = Traces::read(&host, &containers)?;
    eprintln!("before {before:?}\nafter  {after:?}");
    if before != after {
        return Err("something was left behind".into());
    }
    containers.close();
    Ok(())
}

/// Resources that a launch must not leave behind.
#[derive(Debug, Eq, PartialEq)]
struct Traces {
    descriptors: usize,
    launchers_descriptors: usize,
    groups: usize,
    mounts: usize,
    zombies: usize,
    runtime_files: usize,
}

impl Traces {
    fn read(host: &Host, containers: &Containers) -> Result<Self, AnyError> {
        let launcher = containers.launcher_pid().ok_or("no launcher")?;
        let count = |path: String| std::fs::read_dir(path).map(Iterator::count);
        let instance = containers.groups(&ContainerName::new("none")?);
        let parents = instance.dirs.iter().filter_map(|group| group.dir.parent());
        let groups = parents.map(|dir| count(dir.to_string_lossy().into_owned()).unwrap_or(0));
        let runtime = containers.runtime_dir(&ContainerName::new("none")?);
        let runtime = runtime.parent().ok_or("no folder")?;
        let stats = std::fs::read_dir(&host.proc)?
            .flatten()
            .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        let ours = format!(" {launcher} ");
        let own = format!(" {} ", std::process::id());
        let zombies = stats.filter(|stat| {
            // State and parent follow the name.
            let rest = stat.rsplit(')').next().unwrap_or_default();
            rest.starts_with(" Z")
                && [&ours, &own]
                    .iter()
                    .any(|pid| rest[2..].starts_with(pid.as_str()))
        });
        Ok(Self {
            descriptors: count("/proc/self/fd".to_owned())?,
            launchers_descriptors: count(format!("/proc/{launcher}/fd"))?,
            groups: groups.sum(),
            mounts: std::fs::read_to_string("/proc/self/mounts")?
                .lines()
                .count(),
            zombies: zombies.count(),
            runtime_files: count(runtime.to_string_lossy().into_owned())?,
        })
    }
}
