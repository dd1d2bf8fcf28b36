//! The paths of an archive as paths below the layer's folder.
//!
//! [`clean`] is the only way from a name in an archive to a path. Invariant: a clean path has no empty component, no `.` and
//! no `..`, and does not begin with a slash; the empty path is the layer's folder itself.

use super::Refusal;

/// The longest path: one byte less than the kernel takes with its final zero byte.
pub(super) const PATH_BYTES_MAX: usize = 4095;
/// The longest name of a file, on all file systems that overlayfs supports.
const NAME_BYTES_MAX: usize = 255;
/// The number of nested folders. Real images have about 60 (`node_modules`); removing a tree opens as many descriptors.
pub(super) const DEPTH_MAX: usize = 256;

/// Turns a name of an archive into a path below the layer's folder. `..` does not lead above it.
pub(crate) fn clean(name: &[u8]) -> Result<Vec<u8>, Refusal> {
    if name.contains(&0) {
        return Err(Refusal::for_path("has a zero byte in its name", name));
    }
    let mut components = Vec::new();
    for component in name.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => {
                components.pop();
            }
            _ => components.push(component),
        }
    }
    let path = components.join(&b'/');
    check(&path)?;
    Ok(path)
}

/// Checks the lengths of a path.
pub(super) fn check(path: &[u8]) -> Result<(), Refusal> {
    if path.len() > PATH_BYTES_MAX {
        return Err(Refusal::for_path(
            "has a path of more than 4095 bytes",
            path,
        ));
    }
    let components = || path.split(|byte| *byte == b'/');
    if components().any(|component| component.len() > NAME_BYTES_MAX) {
        return Err(Refusal::for_path("has a name of more than 255 bytes", path));
    }
    if components().count() > DEPTH_MAX {
        return Err(Refusal::for_path(
            "is nested in more than 256 folders",
            path,
        ));
    }
    Ok(())
}

/// Divides a path into the path of its folder and its name; the name of the layer's folder is empty.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// Joins a folder's path and a name.
pub(super) fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    if folder.is_empty() {
        name.to_vec()
    } else {
        [folder, name].join(&b'/')
    }
}

/// Whether a path is this folder or lies below it.
pub(super) fn is_at_or_below(path: &[u8], folder: &[u8]) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| folder.is_empty() || rest.is_empty() || rest.starts_with(b"/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_the_folder() {
        for (name, path) in [
            ("a/b", "a/b"),
            ("./a//b/", "a/b"),
            ("/etc/passwd", "etc/passwd"),
            ("../../esc", "esc"),
            ("a/../../b", "b"),
            ("a/b/..", "a"),
            ("..", ""),
            ("./", ""),
            ("", ""),
        ] {
            let cleaned = clean(name.as_bytes()).expect("valid");
            assert_eq!(cleaned, path.as_bytes(), "{name}");
        }
    }

    #[test]
    fn long_names_are_refused() {
        assert!(clean(&[b'a'; 255]).is_ok());
        assert!(clean(&[b'a'; 256]).is_err());
        assert!(clean(&b"a/".repeat(256)).is_ok());
        assert!(clean(&b"a/".repeat(257)).is_err());
        assert!(clean(&[&[b'a'; 250][..], b"/"].concat().repeat(17)).is_err());
        assert!(clean(b"a\0b").is_err());
    }

    #[test]
    fn folders_contain_paths_by_component() {
        assert!(is_at_or_below(b"a/b", b"a"));
        assert!(is_at_or_below(b"a", b"a"));
        assert!(is_at_or_below(b"a", b""));
        assert!(!is_at_or_below(b"ab", b"a"));
        assert_eq!(split(b"a/b/c"), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"a"), (&b""[..], &b"a"[..]));
        assert_eq!(join(b"", b"a"), b"a");
        assert_eq!(join(b"a", b"b"), b"a/b");
    }
}
