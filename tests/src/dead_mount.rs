//! A file system whose server does not answer: a mount of FUSE, or of NFS with a stopped server.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::{Missing, unless_installed, unless_root};

const DEVICE: &str = "/dev/fuse";
/// The length of a request's header, in bytes, and the place of its number there.
const REQUEST_HEADER: usize = 40;
const UNIQUE: std::ops::Range<usize> = 8..16;
/// The longest request that the kernel may send before the first response.
const REQUEST_MAX: usize = 1 << 20;

/// Returns the reason why FUSE is unavailable here.
pub fn unless_fuse() -> Missing {
    (!Path::new(DEVICE).exists()).then(|| format!("needs {DEVICE}"))
}

/// Returns the reason why the machine's NFS server cannot be started and stopped: that is allowed only on a machine for
/// tests.
pub fn unless_nfs() -> Missing {
    let permission = "MESETA_TEST_MACHINE";
    unless_root()
        .or_else(|| {
            std::env::var_os(permission)
                .is_none()
                .then(|| format!("starts and stops the machine's NFS server; needs {permission}"))
        })
        .or_else(|| unless_installed("rpc.nfsd"))
        .or_else(|| unless_installed("exportfs"))
        .or_else(|| unless_installed("mount.nfs"))
}

/// A mount that exists until its drop.
#[derive(Debug)]
pub struct DeadMount {
    dir: PathBuf,
    server: Server,
}

#[derive(Debug)]
enum Server {
    /// The server's end of FUSE. When it is closed, the kernel gives the file system up, and waiting processes get an
    /// error.
    Fuse { _device: File },
    /// The export. The server starts again in the end, and waiting processes get an answer.
    Nfs { export: String },
}

impl DeadMount {
    /// Creates the folder and mounts FUSE there. The server answers only the kernel's greeting.
    pub fn fuse(dir: &Path) -> Self {
        std::fs::create_dir(dir).expect("a directory");
        let mut device = File::options()
            .read(true)
            .write(true)
            .open(DEVICE)
            .expect("the device");
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
            device.as_raw_fd()
        );
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("dead"), dir, Some("fuse"), flags, Some(&*options)).expect("mounted");
        greet(&mut device);
        Self {
            dir: dir.to_owned(),
            server: Server::Fuse { _device: device },
        }
    }

    /// Makes the folder and mounts the export of an NFS server of this machine; then the server stops.
    pub fn nfs(dir: &Path) -> Self {
        let source = dir.with_extension("exported");
        for made in [dir, &source] {
            std::fs::create_dir(made).expect("a directory");
        }
        let export = format!("127.0.0.1:{}", source.display());
        of_machine("mkdir", &["-p", "/var/lib/nfs/v4recovery"]);
        let options = "rw,no_root_squash,insecure,no_subtree_check,fsid=7";
        of_machine("exportfs", &["-o", options, &export]);
        // The first command loads the module; the second one needs it.
        of_machine("rpc.nfsd", &["--no-nfs-version", "3", "2"]);
        of_machine("rpc.mountd", &["--no-nfs-version", "3"]);
        let mounted = dir.to_str().expect("text");
        let options = "vers=4.2,hard,timeo=10";
        of_machine("mount", &["-t", "nfs", "-o", options, &export, mounted]);
        of_machine("rpc.nfsd", &["0"]);
        Self {
            dir: dir.to_owned(),
            server: Server::Nfs { export },
        }
    }
}

/// Runs a program in the network of the machine's first process, which has the NFS server.
fn of_machine(program: &str, arguments: &[&str]) {
    let status = Command::new("nsenter")
        .args(["--target=1", "--net", program])
        .args(arguments)
        .status();
    let status = status.expect("nsenter");
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

/// Responds to the kernel's first request, FUSE_INIT.
fn greet(server: &mut File) {
    let mut request = vec![0; REQUEST_MAX];
    let length = server.read(&mut request).expect("a request");
    assert!(length >= REQUEST_HEADER, "{length}");
    let mut body = Vec::new();
    // The words are the major and minor version, the read-ahead, flags, two limits of background requests, and the longest
    // write.
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
        if let Server::Nfs { export } = &self.server {
            of_machine("rpc.nfsd", &["--no-nfs-version", "3", "2"]);
            let _ = umount2(&self.dir, MntFlags::MNT_DETACH);
            of_machine("exportfs", &["-u", export]);
            of_machine("rpc.nfsd", &["0"]);
        } else {
            let _ = umount2(&self.dir, MntFlags::MNT_DETACH);
        }
    }
}
