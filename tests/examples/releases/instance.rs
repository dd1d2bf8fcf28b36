//! An instance of the service: an HTTP server that drains on SIGTERM, and misbehaves as its release requires.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use meseta_tests::interrupt::on_interrupt;

use crate::message;

/// The duration of a request; an instance handles one at a time, so ten of them handle ten at once.
const WORK: Duration = Duration::from_millis(40);
/// The time after which an instance of a dying release ends.
const LIFE: Duration = Duration::from_secs(3);
/// The time after which an instance with a late failing check answers 503.
const GOOD_FOR: Duration = Duration::from_secs(6);
/// The time that an instance continues after SIGTERM: longer than a proxy needs to see that it is no longer listed.
const DRAIN: Duration = Duration::from_millis(1_500);
/// The time for a client to send its request, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The behaviour of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Good,
    Dies,
    FailsLate,
    Hangs,
}

impl Behaviour {
    pub(crate) const ALL: [Self; 4] = [Self::Good, Self::Dies, Self::FailsLate, Self::Hangs];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Dies => "dies",
            Self::FailsLate => "fails-late",
            Self::Hangs => "hangs",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// Serves on the port of the task until SIGTERM and the time to drain.
pub(crate) fn serve(behaviour: Behaviour) -> anyhow::Result<()> {
    let port: u16 = std::env::var("PORT_HTTP")
        .context("PORT_HTTP is unset")?
        .parse()?;
    let is_drained = Arc::new(AtomicBool::new(false));
    let drained = Arc::clone(&is_drained);
    on_interrupt(move || {
        if behaviour != Behaviour::Hangs {
            std::thread::sleep(DRAIN);
        }
        drained.store(true, Ordering::SeqCst);
    })?;
    let began = Instant::now();
    if behaviour != Behaviour::Hangs {
        let listener = TcpListener::bind(("127.0.0.1", port)).context("failed to listen")?;
        let work = Mutex::new(());
        let answers = Arc::new(move |stream| answer(stream, &work, behaviour, began));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let answers = Arc::clone(&answers);
                std::thread::spawn(move || answers(stream));
            }
        });
    }
    while !is_drained.load(Ordering::SeqCst) {
        if behaviour == Behaviour::Dies && began.elapsed() >= LIFE {
            anyhow::bail!("this release dies after {LIFE:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn answer(mut stream: TcpStream, work: &Mutex<()>, behaviour: Behaviour, began: Instant) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.set_write_timeout(Some(PATIENCE));
    let Ok(head) = message::read_head(&mut stream) else {
        return;
    };
    let is_check = head.starts_with("GET /health ");
    let is_ill = behaviour == Behaviour::FailsLate && began.elapsed() >= GOOD_FOR;
    let status = if is_ill {
        "503 Service Unavailable"
    } else {
        "200 OK"
    };
    if !is_check && !is_ill {
        let _turn = work.lock().unwrap_or_else(PoisonError::into_inner);
        std::thread::sleep(WORK);
    }
    let _ = stream.write_all(&message::response(status));
}
