//! A sealed copy of the running executable.
//!
//! The launcher runs from it, so that an upgrade may replace the binary on disk and a task may not write to it. The copy
//! contains only the segments that the program headers load, without debug information.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// Copies `/proc/self/exe` into a memfd that no process can change any more.
pub(super) fn seal_own_executable() -> io::Result<OwnedFd> {
    let own = File::open("/proc/self/exe")?;
    let size = own.metadata()?.len();
    let length = loaded_length(&own)
        .filter(|loaded| *loaded <= size)
        .unwrap_or(size);
    let base = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    // MFD_EXEC marks the file as executable; kernels before 6.3 refuse the flag.
    let exec = MFdFlags::from_bits_retain(libc::MFD_EXEC);
    let image = memfd_create(c"meseta-launcher", base | exec)
        .or_else(|_| memfd_create(c"meseta-launcher", base))?;
    let mut image = File::from(image);
    // The copy stays within the kernel, from one page cache to the other.
    let copied = io::copy(&mut own.take(length), &mut image)?;
    if copied < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let seals = SealFlag::F_SEAL_WRITE
        | SealFlag::F_SEAL_SHRINK
        | SealFlag::F_SEAL_GROW
        | SealFlag::F_SEAL_SEAL;
    seal(&image, seals)?;
    Ok(image.into())
}

/// Seals a file. The kernel refuses a seal against writes (EBUSY, fcntl(2)) while a page has another reference, such as its
/// own when it moves memory about; it waits for such a page, but not for long.
fn seal(image: &File, seals: SealFlag) -> nix::Result<()> {
    const TRIES: usize = 10;
    for _ in 1..TRIES {
        match fcntl(image, FcntlArg::F_ADD_SEALS(seals)) {
            Err(Errno::EBUSY) => {}
            sealed => return sealed.map(drop),
        }
    }
    fcntl(image, FcntlArg::F_ADD_SEALS(seals)).map(drop)
}

/// The end of the last loadable segment of a 64-bit little-endian ELF file.
fn loaded_length(file: &File) -> Option<u64> {
    const HEADER_BYTES: usize = 64;
    const PROGRAM_HEADER_BYTES: u64 = 56;
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).ok()?;
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = number(&header, 32)?;
    let entry_bytes = u64::from(short(&header, 54)?);
    let entries = u64::from(short(&header, 56)?);
    if entry_bytes != PROGRAM_HEADER_BYTES {
        return None;
    }
    let mut end = table + entries * PROGRAM_HEADER_BYTES;
    for entry in 0..entries {
        let mut bytes = [0; 56];
        file.read_exact_at(&mut bytes, table + entry * PROGRAM_HEADER_BYTES)
            .ok()?;
        end = end.max(number(&bytes, 8)?.checked_add(number(&bytes, 32)?)?);
    }
    Some(end)
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let (head, _) = bytes.get(at..)?.split_first_chunk()?;
    Some(u64::from_le_bytes(*head))
}

fn short(bytes: &[u8], at: usize) -> Option<u16> {
    let (head, _) = bytes.get(at..)?.split_first_chunk()?;
    Some(u16::from_le_bytes(*head))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn image_copy_is_sealed_and_trimmed() {
        let image = File::from(seal_own_executable().expect("sealed"));
        let own = File::open("/proc/self/exe").expect("opened");
        let length = image.metadata().expect("metadata").len();
        assert_eq!(Some(length), loaded_length(&own));
        assert!(length < own.metadata().expect("metadata").len());
        let mut writer = &image;
        assert!(writer.write(b"x").is_err());
        assert!(image.set_len(0).is_err());
    }

    #[test]
    fn non_elf_has_no_loaded_length() {
        let file = tempfile::tempfile().expect("a temporary file");
        file.write_all_at(&[b'x'; 100], 0).expect("written");
        assert_eq!(loaded_length(&file), None);
    }
}
