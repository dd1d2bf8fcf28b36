//! The memory of a burst of requests returns to the machine, and does not stay with the daemon.

use std::net::Ipv4Addr;
use std::time::Duration;

use meseta_access::basic;
use meseta_tests::daemon::Daemon;
use meseta_tests::raw::Raw;
use meseta_tests::secure::credentials;
use meseta_tests::{kernel, wait};
use tempfile::TempDir;

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        wrong_guesses_leave_no_memory_behind;
}

/// Guesses per address; each costs the master 19 MiB for a moment.
const GUESSES_PER_ADDRESS: u8 = 5;
/// The number of addresses: a few requests from each and for each principal, because more are not examined.
const ADDRESSES: u8 = 24;
const AT_ONCE: u8 = 4;
/// The limit, more than twice the heap of a master without nodes.
const HEAP_KIB_MAX: u64 = 40 << 10;
const LIMIT: Duration = Duration::from_secs(30);

fn wrong_guesses_leave_no_memory_behind() {
    let dir = TempDir::new().expect("a directory");
    let credentials_file = dir.path().join("people");
    credentials(&credentials_file, &[("ada", "wonder")]);
    let flags = [
        "--port=0".to_owned(),
        format!("--credentials={}", credentials_file.display()),
        "--authenticate_http_readonly".to_owned(),
    ];
    let master = Daemon::start("master", &dir.path().join("master"), &flags);
    std::thread::scope(|threads| {
        for thread in 0..AT_ONCE {
            let address = master.address();
            threads.spawn(move || {
                for host in (0..ADDRESSES).filter(|host| host % AT_ONCE == thread) {
                    guess(address, Ipv4Addr::new(127, 0, 1, host + 1));
                }
            });
        }
    });
    wait::eventually("the memory of guesses is given back", LIMIT, || {
        let heap = kernel::memory_kib(master.pid(), "RssAnon").expect("a running master");
        (heap < HEAP_KIB_MAX).then_some(())
    });
}

fn guess(address: &str, from: Ipv4Addr) {
    let mut connection = Raw::connect_from(from, address);
    for number in 0..GUESSES_PER_ADDRESS {
        let principal = format!("ada-{number}");
        let claim = format!("Authorization: {}", basic::header(&principal, b"guess"));
        connection.request("GET /state", &[&claim], "");
        assert_eq!(connection.answer().0.status, 401);
    }
}
