//! The cost of a sample, compared with a floor that reads the same files and ignores their contents.
//!
//! `cargo run --release -p meseta-isolators --example sampling [containers] [sweeps]` as root. Starts the given number of
//! sleeping containers, then sweeps over them, the sampler and the floor by turns. Prints the CPU time of this thread, so
//! that other work on the machine counts little: for each container and sweep, and as a share of a core at one sweep a
//! second. The floor has its own descriptors of the very files that the sampler keeps open, and reads each as often.

mod bench;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bench::AnyError;
use meseta_isolators::{
    ContainerName, Containers, DestroyOptions, Host, Isolation, SLOW_EVERY, Sampler,
};

/// Files read in every sweep; the others are read in every fifth.
const HOT: [&str; 9] = [
    "cpuacct.stat",
    "cpu.stat",
    "memory.usage_in_bytes",
    "memory.oom_control",
    "memory.current",
    "memory.events",
    "pids.current",
    "pids.events",
    "memory.swap.current",
];

fn main() -> ExitCode {
    bench::run(measure)
}

fn measure() -> Result<(), AnyError> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u32>());
    let count = args.next().transpose()?.unwrap_or(1000);
    let sweeps = args.next().transpose()?.unwrap_or(60);
    let folder = tempfile::tempdir()?;
    let host = Host::detect()?;
    let isolation = Isolation::default_for(&host);
    let containers = bench::open(&host, isolation, folder.path(), "bench")?;
    let mut launched = Vec::new();
    for number in 0..count {
        let spec = bench::spec(number.into(), folder.path(), "/bin/sleep", &["100000"])?;
        let supervisor = containers.launch(&spec)?.supervisor;
        launched.push((spec.name, supervisor));
    }
    let result = compare(&containers, &launched, &bench::cgroups_root(), sweeps);
    for (name, supervisor) in &launched {
        containers.destroy(name, Some(supervisor), DestroyOptions::default())?;
        containers.forget(name)?;
    }
    containers.close();
    result
}

type Launched = [(ContainerName, meseta_isolators::ProcessIdentity)];

fn compare(
    containers: &Containers,
    launched: &Launched,
    root: &Path,
    sweeps: u32,
) -> Result<(), AnyError> {
    let mut sampler = Sampler::new(usize::MAX);
    let mut sweep = || -> Result<f64, AnyError> {
        let began = thread_secs()?;
        sampler.begin_sweep();
        for (name, supervisor) in launched {
            sampler.sample(containers, name, Some(supervisor), Duration::ZERO)?;
        }
        Ok(thread_secs()? - began)
    };
    // One round in advance, so that every container has its descriptors.
    for _ in 0..SLOW_EVERY {
        sweep()?;
    }
    let files = kept_files(root)?;
    let floor = Floor::open(&files)?;
    let (mut sampled, mut read) = (Vec::new(), Vec::new());
    for number in 0..sweeps {
        sampled.push(sweep()?);
        let began = thread_secs()?;
        floor.sweep(number)?;
        read.push(thread_secs()? - began);
    }
    let total = |times: &[f64]| times.iter().sum::<f64>() / f64::from(sweeps);
    let count = f64::from(u32::try_from(launched.len())?);
    let per_container = |secs: f64| secs * 1e6 / count;
    let (sampled, read) = (total(&sampled), total(&read));
    eprintln!(
        "{} containers, {} files each, {sweeps} sweeps",
        launched.len(),
        files.len() / launched.len().max(1)
    );
    eprintln!(
        "sampler {:.2} us a container, {:.2} % of a core",
        per_container(sampled),
        sampled * 100.0
    );
    eprintln!(
        "floor   {:.2} us a container, {:.2} % of a core",
        per_container(read),
        read * 100.0
    );
    eprintln!("ratio   {:.2}", sampled / read);
    Ok(())
}

/// The control files of its own containers that this process holds open.
fn kept_files(root: &Path) -> Result<Vec<PathBuf>, AnyError> {
    let mut roots: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    let needle = format!("/{}/", root.display());
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?.path();
        let Some(path) = fs::read_link(&entry).ok().filter(|_| entry.is_file()) else {
            continue;
        };
        let parent = path.parent().unwrap_or(Path::new("/")).to_owned();
        if path.to_string_lossy().contains(&needle) {
            roots.entry(parent).or_default().push(path);
        }
    }
    Ok(roots.into_values().flatten().collect())
}

struct Floor {
    hot: Vec<File>,
    slow: Vec<File>,
}

impl Floor {
    fn open(files: &[PathBuf]) -> Result<Self, AnyError> {
        let mut floor = Self {
            hot: Vec::new(),
            slow: Vec::new(),
        };
        for path in files {
            let name = path.file_name().and_then(|name| name.to_str());
            let file = File::open(path)?;
            if name.is_some_and(|name| HOT.contains(&name)) {
                floor.hot.push(file);
            } else {
                floor.slow.push(file);
            }
        }
        Ok(floor)
    }

    fn sweep(&self, number: u32) -> Result<(), AnyError> {
        let mut buffer = vec![0; 16 << 10];
        for file in &self.hot {
            file.read_at(&mut buffer, 0)?;
        }
        let share = self.slow.len().div_ceil(usize::try_from(SLOW_EVERY)?);
        let begin = share * usize::try_from(number % SLOW_EVERY)?;
        for file in self.slow.iter().skip(begin).take(share) {
            file.read_at(&mut buffer, 0)?;
        }
        Ok(())
    }
}

fn thread_secs() -> Result<f64, AnyError> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID)?;
    Ok(Duration::from(now).as_secs_f64())
}
