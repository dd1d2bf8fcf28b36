//! The inputs with which libFuzzer reached more of the code, kept with the sources: one stream of records for each target.
//!
//! `fuzz/run` continues the search from them, drops inputs that reach nothing new, and keeps the shortest that fit.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use meseta_proto::recordio;

/// The size limit of one target's file; all of them together take less than 1 MiB.
pub const FILE_BYTES_MAX: usize = 56 << 10;

fn path(target: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora");
    folder.join(format!("{target}.records"))
}

/// The inputs of a target; empty if nothing was kept.
///
/// # Errors
/// As for reading the file, or if the file does not hold records.
pub fn read(target: &str) -> io::Result<Vec<Vec<u8>>> {
    let path = path(target);
    let bytes = match fs::read(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read?,
    };
    let wrong = |error: recordio::Error| {
        let text = format!("{} is no file of records: {error}", path.display());
        io::Error::new(io::ErrorKind::InvalidData, text)
    };
    let mut decoder = recordio::Decoder::new(FILE_BYTES_MAX);
    decoder.push(&bytes);
    let mut inputs = Vec::new();
    while let Some(record) = decoder.next_record().map_err(wrong)? {
        inputs.push(record.to_vec());
    }
    decoder.finish().map_err(wrong)?;
    Ok(inputs)
}

/// Keeps the shortest of these inputs, as many as fit; returns their number.
///
/// # Errors
/// As for writing the file.
pub fn write(target: &str, mut inputs: Vec<Vec<u8>>) -> io::Result<usize> {
    inputs.sort_by(|one, other| (one.len(), one).cmp(&(other.len(), other)));
    inputs.dedup();
    let (mut bytes, mut kept) = (Vec::new(), 0);
    for input in inputs.iter().filter(|input| !input.is_empty()) {
        let record = recordio::encode(input);
        if bytes.len() + record.len() > FILE_BYTES_MAX {
            break;
        }
        bytes.extend_from_slice(&record);
        kept += 1;
    }
    let path = path(target);
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    fs::write(path, bytes)?;
    Ok(kept)
}
