//! Files that a database did not finish creating, and errors that are no damage.

use std::sync::{Arc, Mutex};

use redb::{ReadableDatabase as _, StorageBackend, TableDefinition, TableError};

use super::*;

const TABLE: TableDefinition<'static, &'static str, u64> = TableDefinition::new("records");
const CACHE_BYTES: usize = 1024 * 1024;

/// An operation of a database on its file.
#[derive(Clone, Debug)]
enum Operation {
    SetLen(u64),
    Write(u64, Vec<u8>),
    Sync,
}

type Operations = Arc<Mutex<Vec<Operation>>>;

/// A file in memory, and the record of all operations on it.
#[derive(Debug)]
struct Recorder {
    file: InMemoryBackend,
    operations: Operations,
}

impl Recorder {
    fn note(&self, operation: Operation) {
        self.operations.lock().unwrap().push(operation);
    }
}

impl StorageBackend for Recorder {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.note(Operation::SetLen(len));
        self.file.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.note(Operation::Sync);
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.note(Operation::Write(offset, data.to_vec()));
        self.file.write(offset, data)
    }
}

/// Returns the contents of a file after these operations.
fn replay<'a>(operations: impl IntoIterator<Item = &'a Operation>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for operation in operations {
        match operation {
            Operation::SetLen(length) => bytes.resize(usize::try_from(*length).unwrap(), 0),
            Operation::Write(offset, data) => {
                let from = usize::try_from(*offset).unwrap();
                let end = from + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[from..end].copy_from_slice(data);
            }
            Operation::Sync => {}
        }
    }
    bytes
}

fn put(database: &Database, value: u64) {
    let mut transaction = database.begin_write().unwrap();
    transaction.set_two_phase_commit(true);
    let mut table = transaction.open_table(TABLE).unwrap();
    table.insert("record", value).unwrap();
    drop(table);
    transaction.commit().unwrap();
}

fn found(database: &Database) -> Option<u64> {
    match database.begin_read().unwrap().open_table(TABLE) {
        Ok(table) => table.get("record").unwrap().map(|found| found.value()),
        Err(TableError::TableDoesNotExist(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Starts as a daemon does, and returns the value found.
fn start(path: &Path, value: u64) -> Result<Option<u64>, Fault> {
    let mut before = None;
    if !is_blank(path)? {
        before = inspect(
            path,
            |fault| fault,
            |database, is_whole| {
                assert!(is_whole);
                Ok(found(database))
            },
        )?;
    }
    let database = open(path, CACHE_BYTES)?;
    assert_eq!(found(&database), before);
    put(&database, value);
    Ok(before)
}

/// Found by starting a daemon on a full disk, and by killing it at each of its first writes: it never started again.
#[test]
fn only_files_without_records_are_recreated() {
    let operations = Operations::default();
    let database = Database::builder()
        .create_with_backend(Recorder {
            file: InMemoryBackend::new(),
            operations: operations.clone(),
        })
        .unwrap();
    put(&database, 1);
    let done = operations.lock().unwrap().clone();
    drop(database);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.redb");
    let (mut blank, mut begun) = (0, 0);
    for count in 0..=done.len() {
        let done_by_then = &done[..count];
        let is_sync = |operation: &Operation| matches!(operation, Operation::Sync);
        let synced = done_by_then.iter().rposition(is_sync).unwrap_or(0);
        // Drop all unsynced operations, or all but one: a power cut leaves any of them.
        for without in std::iter::once(None).chain((synced..count).map(Some)) {
            let left = done_by_then.iter().enumerate();
            let left = left.filter(|(at, _)| Some(*at) != without);
            std::fs::write(&path, replay(left.map(|(_, operation)| operation))).unwrap();
            if is_blank(&path).unwrap() {
                blank += 1;
            } else {
                begun += 1;
            }
            let what = format!("{count} of {} operations, without {without:?}", done.len());
            let before = start(&path, 2).unwrap_or_else(|fault| panic!("{what}: {fault:?}"));
            let is_kept = count == done.len() && without.is_none();
            assert!(!is_kept || before == Some(1), "{what}: {before:?}");
            assert_eq!(start(&path, 3).unwrap(), Some(2), "{what}");
        }
    }
    assert!(
        blank > 3 && begun > 3,
        "{blank} files are blank, {begun} begun"
    );
}

#[test]
fn possible_records_are_not_blank() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.redb");
    assert!(is_blank(&path).unwrap(), "it is not there");
    start(&path, 1).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut without_header = whole.clone();
    without_header[..4096].fill(0);
    let mut last = vec![0; 70_000];
    last[69_999] = 1;
    for bytes in [without_header, whole[..9].to_vec(), vec![b'r'], last] {
        std::fs::write(&path, &bytes).unwrap();
        assert!(!is_blank(&path).unwrap(), "{} bytes", bytes.len());
        assert!(open(&path, CACHE_BYTES).is_err(), "{} bytes", bytes.len());
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
    for length in [0, 1, 9, 320, 1 << 20] {
        std::fs::write(&path, vec![0; length]).unwrap();
        assert!(is_blank(&path).unwrap(), "{length} zeros");
        assert_eq!(start(&path, 1).unwrap(), None);
    }
}

/// Another process may be creating the file at that moment.
#[test]
fn file_in_use_is_not_recreated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.redb");
    let zeros = vec![0; 1 << 20];
    std::fs::write(&path, &zeros).unwrap();
    let other = File::open(&path).unwrap();
    other.try_lock().unwrap();
    assert!(matches!(open(&path, CACHE_BYTES), Err(Fault::InUse)));
    assert_eq!(std::fs::read(&path).unwrap(), zeros);
}

#[test]
fn system_error_is_no_damage() {
    const ENOSPC: i32 = 28;
    const EIO: i32 = 5;
    for (number, expected) in [(ENOSPC, "free space"), (EIO, "the system's log")] {
        let error = redb::StorageError::Io(io::Error::from_raw_os_error(number));
        let Fault::File(error) = Fault::from(redb::Error::from(error)) else {
            panic!("error {number} of the system is taken for damage");
        };
        assert!(cure(&error).contains(expected), "{}", cure(&error));
    }
    let cut = redb::Error::Io(ErrorKind::UnexpectedEof.into());
    assert!(matches!(Fault::from(cut), Fault::Open(_)));
}
