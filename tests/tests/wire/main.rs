//! The wire: bytes alone, the answers that clients rely on, and a comparison with answers recorded from Mesos.
//!
//! - `bytes`: recorded messages in both encodings; no daemon runs
//! - `peers`: the bytes of frames of earlier and later versions; no daemon runs
//! - `scheduler`, `operator`: the requests of clients of each API and the answers that they rely on, to the byte
//! - `requests`: their transmission over a plain socket
//! - `conversation`: from an offer to the end of a task, in both encodings
//! - `recorded`: exchanges, events and pages of a genuine Mesos (`tests/golden`), compared with ours
//!
//! Run one with `cargo build && cargo test -p meseta-tests --test wire -- NAME`.

mod bytes;
mod conversation;
mod operator;
mod peers;
mod recorded;
mod requests;
mod scheduler;

use std::process::ExitCode;

use meseta_tests::trials::{self, anywhere};

fn main() -> ExitCode {
    let groups = meseta_tests::groups![
        bytes,
        peers,
        scheduler,
        operator,
        conversation,
        recorded,
        recorded::scheduler,
        recorded::agent,
        recorded::executor,
        recorded::inverse_offers,
        recorded::pages
    ];
    trials::run(groups, &[], &[])
}
