//! The parser of clients' job files, outside the runtime: an author can make a megabyte slow to parse.
//!
//! Entered through [`FileReader::read`]. Invariant: two files are parsed at a time, at most one per principal, or per
//! network without authentication; the number of waiting files is bounded.

use axum::body::Bytes;
use http::StatusCode;
use meseta_daemon::authentication::Caller;
use meseta_daemon::fair_semaphore::{FairSemaphore, Rules};
use meseta_proto::budget::Charge;

use super::Reply;
use crate::file::Mistakes;

/// Files that are read at the same time.
const READING_MAX: usize = 2;
/// Waiting files of one group of callers, and of all groups together.
const WAITING_OF_GROUP_MAX: usize = 8;
const WAITING_MAX: usize = 64;

/// The parser of job files, see the module. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct FileReader(FairSemaphore);

impl FileReader {
    pub(crate) fn new() -> Self {
        Self(FairSemaphore::new(Rules {
            units_max: READING_MAX,
            leaves_half: true,
            stall_timeout: None,
            newest_first: false,
            waiting_of_group_max: WAITING_OF_GROUP_MAX,
            waiting_max: WAITING_MAX,
        }))
    }

    /// Reads the jobs in a file, whose bytes are charged to its caller meanwhile.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        caller: &Caller,
        (file, charge): (Bytes, Option<Charge>),
        read: fn(&str) -> Result<T, Mistakes>,
    ) -> Result<T, Reply> {
        if std::str::from_utf8(&file).is_err() {
            let text = "the body is not UTF-8";
            return Err(Reply::error(StatusCode::BAD_REQUEST, text));
        }
        let permit = self.0.take(caller.group().into(), 1).await;
        let permit = permit.map_err(|_| {
            Reply::later(
                "too many files are waiting; try again \
            later",
            )
        })?;
        let reading = tokio::task::spawn_blocking(move || {
            let read = read(std::str::from_utf8(&file).unwrap_or_default());
            // The file is read to its end, even if its client has left.
            drop((permit, charge));
            read
        });
        match reading.await {
            Ok(Ok(read)) => Ok(read),
            Ok(Err(mistakes)) => Err(Reply::json_with(StatusCode::BAD_REQUEST, &mistakes)),
            Err(_) => {
                let text = "failed to read the file because of a defect: please report it";
                Err(Reply::error(StatusCode::INTERNAL_SERVER_ERROR, text))
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;

    use meseta_access::{Acls, Authorizer};

    use super::*;

    pub(in crate::http) fn caller(principal: &str) -> Caller {
        caller_of(Some(principal), None)
    }

    fn caller_of(principal: Option<&str>, address: Option<&str>) -> Caller {
        let acls = Acls::parse("{}").expect("ACLs");
        let approver = Authorizer::new(acls, true).approver(principal.map(str::to_owned));
        let address = address.map(|address| address.parse().expect("an address"));
        Caller {
            approver,
            certificate: None,
            address,
            connection: None,
            container: None,
            user: None,
            uid: None,
        }
    }

    /// The channel that lets the readings of a test continue.
    static GO_ON: Mutex<Option<mpsc::Receiver<()>>> = Mutex::new(None);

    fn wait(_: &str) -> Result<(), Mistakes> {
        let go_on = GO_ON.lock().expect("no panic");
        go_on.as_ref().expect("a channel").recv().expect("told");
        Ok(())
    }

    #[tokio::test]
    async fn file_read_delays_no_other_caller() {
        let anonymous = |address| caller_of(None, Some(address));
        for callers in [
            (caller("ann"), caller("bob")),
            // Regression: without authentication, all callers shared one place.
            (anonymous("10.1.2.3:1"), anonymous("10.4.5.6:1")),
        ] {
            second_is_read_beside_first(callers).await;
        }
    }

    async fn second_is_read_beside_first((ann, bob): (Caller, Caller)) {
        let (go_on, waiting) = mpsc::channel();
        *GO_ON.lock().expect("no panic") = Some(waiting);
        let reader = FileReader::new();
        let empty = || (Bytes::new(), None);
        let first = reader.read(&ann, empty(), wait);
        let second = reader.read(&ann, empty(), wait);
        let of_another = async {
            let read = reader.read(&bob, (Bytes::from_static(b"a"), None), |text| {
                Ok(text.to_owned())
            });
            let read = tokio::time::timeout(Duration::from_secs(10), read).await;
            assert_eq!(read.ok().and_then(Result::ok), Some("a".to_owned()));
            assert_eq!(
                reader.0.used(),
                1,
                "of the two files of one principal one is read"
            );
            go_on.send(()).expect("the first waits");
            go_on.send(()).expect("the second comes");
        };
        let (first, second, ()) = tokio::join!(first, second, of_another);
        assert!(first.is_ok() && second.is_ok());
    }
}
