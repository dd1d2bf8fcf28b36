//! Keeps the findings of libFuzzer, `fuzz/corpus/TARGET/`, in `fuzz/corpora/TARGET.records`: the shortest inputs, as many as
//! fit.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::io;
use std::path::Path;

use meseta_fuzz::corpus;

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in meseta_fuzz::ALL {
        let seeds = (target.seeds)();
        let mut inputs = Vec::new();
        for file in std::fs::read_dir(folder.join(target.name))? {
            let input = std::fs::read(file?.path())?;
            if !seeds.contains(&input) {
                inputs.push(input);
            }
        }
        let found = inputs.len();
        let kept = corpus::write(target.name, inputs)?;
        println!("{}: {kept} of {found} inputs are kept", target.name);
    }
    Ok(())
}
