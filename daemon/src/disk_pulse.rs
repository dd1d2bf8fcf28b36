//! The heartbeat of the thread that writes to the disk of the work directory, and the time for which it is missing.
//!
//! The thread reports to a [`DiskPulse`] when it begins to use the disk, each time that the disk has answered, and when it
//! is done. The daemon looks at the pulse once a second through a [`SilenceWatch`], which adds up the time without an
//! answer, and publishes the sum through a [`DiskSilence`]; [`watch`] does so for as long as it is polled. Invariant: no
//! caller here waits for the disk, and time in which the daemon's own process stood still is not counted as silence.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time without a response after which a disk is reported: longer than a slow disk takes for a burst of writes.
pub const SILENT_AFTER: Duration = Duration::from_secs(30);

/// The maximum that one look adds to the silence. A longer gap between looks means that the daemon itself stood still.
const LOOK_MAX: Duration = Duration::from_secs(2);

/// The time between two checks of [`watch`].
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The silence of the disk for which the end of a daemon waits: less than service managers wait before SIGKILL.
const END_SILENCE_MAX: Duration = Duration::from_secs(10);

/// The time between two looks at a thread that is to end.
const END_LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The heartbeat of a thread that uses the disk. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct DiskPulse {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    is_busy: AtomicBool,
    beats: AtomicU64,
}

impl DiskPulse {
    /// Notes that a call to the disk begins.
    pub fn begin(&self) {
        self.beat();
        self.shared.is_busy.store(true, Ordering::Release);
    }

    /// Notes that the disk has responded; more calls follow.
    pub fn beat(&self) {
        self.shared.beats.fetch_add(1, Ordering::Release);
    }

    /// Notes that the disk has responded to the last call.
    pub fn end(&self) {
        self.shared.is_busy.store(false, Ordering::Release);
    }
}

/// Measures the time for which the disk has not responded.
#[derive(Debug)]
pub struct SilenceWatch {
    pulse: DiskPulse,
    beats: u64,
    looked_at: Instant,
    silence: Duration,
}

impl SilenceWatch {
    /// Starts to watch this pulse.
    #[must_use]
    pub fn new(pulse: DiskPulse, now: Instant) -> Self {
        Self {
            pulse,
            beats: 0,
            looked_at: now,
            silence: Duration::ZERO,
        }
    }

    /// Returns the time for which the disk has not answered by now; zero while it answers.
    pub fn look(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.looked_at).min(LOOK_MAX);
        self.looked_at = now;
        let is_busy = self.pulse.shared.is_busy.load(Ordering::Acquire);
        let beats = self.pulse.shared.beats.load(Ordering::Acquire);
        let has_answered = std::mem::replace(&mut self.beats, beats) != beats;
        self.silence = match is_busy && !has_answered {
            true => self.silence.saturating_add(passed),
            false => Duration::ZERO,
        };
        self.silence
    }
}

/// The time for which the disk has not answered, for reports. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct DiskSilence {
    millis: Arc<AtomicU64>,
}

impl DiskSilence {
    /// Stores the result of a [`SilenceWatch`].
    pub fn set(&self, silence: Duration) {
        let millis = u64::try_from(silence.as_millis()).unwrap_or(u64::MAX);
        self.millis.store(millis, Ordering::Relaxed);
    }

    /// Returns the time, which is zero while the disk responds.
    #[must_use]
    pub fn get(&self) -> Duration {
        Duration::from_millis(self.millis.load(Ordering::Relaxed))
    }

    /// Returns the time if it must be reported: shorter times are normal for a slow disk.
    #[must_use]
    pub fn reported(&self) -> Option<Duration> {
        Some(self.get()).filter(|silence| *silence >= SILENT_AFTER)
    }

    /// Completes once there is a silence to be reported.
    pub async fn until_reported(&self) {
        while self.reported().is_none() {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }
}

/// Checks once a second whether the disk responds, and updates `silence`. Calls `report` with `true` when the disk has not
/// responded for [`SILENT_AFTER`], and with `false` when it responds again.
pub async fn watch(pulse: DiskPulse, silence: DiskSilence, report: impl Fn(bool)) -> Infallible {
    let mut watch = SilenceWatch::new(pulse, now());
    let mut is_reported = false;
    loop {
        silence.set(watch.look(now()));
        let is_silent = silence.reported().is_some();
        if std::mem::replace(&mut is_reported, is_silent) != is_silent {
            report(is_silent);
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Returns what work of a daemon's start gives that uses the disk, or `None` if the daemon is told to end before. The log names the
/// disk of `path` each time that the work has taken another [`SILENT_AFTER`]. The work must not block its thread.
pub async fn wait_at_start<T>(
    path: &Path,
    end: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::pin!(work);
    tokio::pin!(end);
    let mut waited = Duration::ZERO;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            () = &mut end => {
                tracing::warn!(path = %path.display(), "received a request to end during the \
                    start");
                return None;
            }
            () = tokio::time::sleep(SILENT_AFTER) => {
                waited += SILENT_AFTER;
                tracing::error!(
                    path = %path.display(), seconds = waited.as_secs(),
                    "the start waits for the disk of the work directory, which does not answer"
                );
            }
        }
    }
}

/// Waits for the end of a thread that writes to the disk, for as long as the disk answers. A daemon does not stay for a disk that
/// does not: nothing was promised of the writes that are left.
pub fn join_writer(writer: JoinHandle<()>, pulse: DiskPulse) {
    let begun = Instant::now();
    let mut watch = SilenceWatch::new(pulse, begun);
    while !writer.is_finished() {
        if watch.look(Instant::now()) >= END_SILENCE_MAX {
            tracing::error!("the disk does not answer: ending without the last writes");
            return;
        }
        std::thread::sleep(END_LOOK_INTERVAL);
    }
    if writer.join().is_err() {
        tracing::error!("the thread that writes to the disk panicked");
    }
}

/// Returns the time of the runtime, which tests control.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Looks once a second for this many seconds; returns the silence at the last look.
    fn look_for(watch: &mut SilenceWatch, now: &mut Instant, seconds: u32) -> Duration {
        let looks = (0..seconds).map(|_| {
            *now += SECOND;
            watch.look(*now)
        });
        looks.last().unwrap_or_default()
    }

    #[test]
    fn silence_lasts_from_call_to_answer() {
        let (pulse, mut now) = (DiskPulse::default(), Instant::now());
        let mut watch = SilenceWatch::new(pulse.clone(), now);
        assert_eq!(look_for(&mut watch, &mut now, 100), Duration::ZERO, "idle");
        pulse.begin();
        // The first check sees that the call has begun.
        assert_eq!(look_for(&mut watch, &mut now, 41), 40 * SECOND);
        pulse.beat();
        assert_eq!(look_for(&mut watch, &mut now, 1), Duration::ZERO);
        assert_eq!(look_for(&mut watch, &mut now, 9), 9 * SECOND);
        pulse.end();
        assert_eq!(look_for(&mut watch, &mut now, 1), Duration::ZERO);
    }

    #[test]
    fn slow_disk_is_never_silent() {
        let (pulse, mut now) = (DiskPulse::default(), Instant::now());
        let mut watch = SilenceWatch::new(pulse.clone(), now);
        pulse.begin();
        for _ in 0..100 {
            let silence = look_for(&mut watch, &mut now, 20);
            assert!(silence < SILENT_AFTER, "{silence:?}");
            pulse.beat();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_reported_once() {
        let (pulse, silence) = (DiskPulse::default(), DiskSilence::default());
        let told = std::sync::Mutex::new(Vec::new());
        let report = |is_silent| told.lock().unwrap().push(is_silent);
        let steps = async {
            pulse.begin();
            tokio::time::sleep(29 * SECOND).await;
            assert_eq!(silence.reported(), None);
            tokio::time::sleep(10 * SECOND).await;
            assert!(silence.reported().is_some());
            pulse.end();
            tokio::time::sleep(2 * SECOND).await;
            assert_eq!(silence.get(), Duration::ZERO);
        };
        tokio::select! {
            never = watch(pulse.clone(), silence.clone(), report) => match never {},
            () = steps => {}
        }
        assert_eq!(*told.lock().unwrap(), [true, false]);
    }

    #[test]
    fn paused_process_is_no_disk_silence() {
        let (pulse, mut now) = (DiskPulse::default(), Instant::now());
        let mut watch = SilenceWatch::new(pulse.clone(), now);
        pulse.begin();
        look_for(&mut watch, &mut now, 2);
        now += 3600 * SECOND;
        assert!(watch.look(now) <= 4 * SECOND);
    }
    /// SIGTERM did not end a daemon whose start waited for its disk.
    #[tokio::test(start_paused = true)]
    async fn hung_start_ends_when_told() {
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let hung = tokio::spawn(async move {
            let end = async {
                let _ended = told.await;
            };
            wait_at_start(Path::new("/w"), end, std::future::pending::<()>()).await
        });
        tokio::time::sleep(10 * SILENT_AFTER).await;
        assert!(!hung.is_finished());
        drop(tell);
        assert_eq!(hung.await.expect("no panic"), None);
        let slow = tokio::time::sleep(3 * SILENT_AFTER);
        let waited = wait_at_start(Path::new("/w"), std::future::pending(), slow).await;
        assert_eq!(waited, Some(()));
    }

    /// SIGTERM did not end a daemon whose last write waited for its disk.
    #[test]
    fn hung_writer_delays_end_briefly() {
        let pulse = DiskPulse::default();
        let (release, held) = std::sync::mpsc::channel::<()>();
        pulse.begin();
        let hung = std::thread::spawn(move || {
            let _ended = held.recv();
        });
        join_writer(hung, pulse.clone());
        drop(release);
        pulse.end();
        join_writer(std::thread::spawn(|| ()), pulse);
    }
}
