//! A file system whose server does not answer: a mount of FUSE, as of a network file system whose server is gone.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::Missing;

const DEVICE: &str = "/dev/fuse";
/// The length of the header of a request, in bytes, and the place of its number there.
const REQUEST_HEADER: usize = 40;
const UNIQUE: std::ops::Range<usize> = 8..16;
/// The longest request that the kernel may send before it has an answer.
const REQUEST_MAX: usize = 1 << 20;

/// The reason why no such file system can be had here.
pub fn unless_fuse() -> Missing {
    (!Path::new(DEVICE).exists()).then(|| format!("needs {DEVICE}"))
}

/// Mounted until it is dropped; whoever waits for it then gets an error.
#[derive(Debug)]
pub struct DeadMount {
    dir: PathBuf,
    /// The server's end. The kernel gives the file system up when it is closed.
    _server: File,
}

impl DeadMount {
    /// Makes the folder and mounts it there. The server answers the kernel's greeting and nothing else.
    pub fn at(dir: &Path) -> Self {
        std::fs::create_dir(dir).expect("a directory");
        let mut server = File::options()
            .read(true)
            .write(true)
            .open(DEVICE)
            .expect("the device");
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
            server.as_raw_fd()
        );
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("dead"), dir, Some("fuse"), flags, Some(&*options)).expect("mounted");
        greet(&mut server);
        Self {
            dir: dir.to_owned(),
            _server: server,
        }
    }
}

/// Answers the kernel's first request, FUSE_INIT.
fn greet(server: &mut File) {
    let mut request = vec![0; REQUEST_MAX];
    let length = server.read(&mut request).expect("a request");
    assert!(length >= REQUEST_HEADER, "{length}");
    let mut body = Vec::new();
    // Major and minor version, read-ahead, flags, two limits of background requests, the longest write.
    for word in [7_u32, 31, 0, 0, 0, 4096] {
        body.extend(word.to_ne_bytes());
    }
    body.resize(64, 0);
    let length = u32::try_from(16 + body.len()).expect("short");
    let mut answer = length.to_ne_bytes().to_vec();
    answer.extend(0_i32.to_ne_bytes());
    answer.extend(&request[UNIQUE]);
    answer.extend(body);
    server.write_all(&answer).expect("answered");
}

impl Drop for DeadMount {
    fn drop(&mut self) {
        let _ = umount2(&self.dir, MntFlags::MNT_DETACH);
    }
}
