//! Writes the initial inputs of libFuzzer, the seeds and the corpus of every target: one file each in `fuzz/corpus/TARGET/`.

use std::io;
use std::path::Path;

fn main() -> io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for target in meseta_fuzz::ALL {
        let folder = corpus.join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (kind, inputs) in [
            ("seed", (target.seeds)()),
            ("kept", meseta_fuzz::corpus::read(target.name)?),
        ] {
            for (number, input) in inputs.iter().enumerate() {
                std::fs::write(folder.join(format!("{kind}-{number}")), input)?;
            }
        }
    }
    Ok(())
}
