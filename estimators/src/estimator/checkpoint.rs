//! The encoding of an estimator's learned state over a restart of the agent.
//!
//! A version byte, then fixed-width little-endian fields and counted strings. The storage adds the checksum. Invariant:
//! decoding allocates no more than the present bytes justify, for any input.

use std::time::Duration;

use meseta_resources::{ExecutorId, FrameworkId, ID_BYTES_MAX};

use crate::histogram::{BUCKETS, DecayingHistogram};
use crate::{CheckpointError, ExecutorKey};

#[derive(Debug)]
pub(super) struct Encoder(Vec<u8>);

impl Encoder {
    pub(super) fn new(version: u8) -> Self {
        Self(vec![version])
    }

    pub(super) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    /// Encodes a count of things in memory, which is far below four billion.
    pub(super) fn count(&mut self, value: usize) {
        self.u32(u32::try_from(value).unwrap_or(u32::MAX));
    }

    pub(super) fn f32(&mut self, value: f32) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn f64(&mut self, value: f64) {
        self.0.extend(value.to_le_bytes());
    }

    pub(super) fn duration(&mut self, value: Duration) {
        let nanos = u64::try_from(value.as_nanos()).unwrap_or(u64::MAX);
        self.0.extend(nanos.to_le_bytes());
    }

    pub(super) fn bytes(&mut self, value: &[u8]) {
        self.count(value.len());
        self.0.extend(value);
    }

    pub(super) fn key(&mut self, key: &ExecutorKey) {
        self.bytes(key.framework.as_str().as_bytes());
        self.bytes(key.executor.as_str().as_bytes());
    }

    /// Encodes the non-empty buckets.
    pub(super) fn histogram(&mut self, histogram: &DecayingHistogram) {
        let weights: Vec<(u8, f32)> = histogram.weights().collect();
        self.count(weights.len());
        for (bucket, weight) in weights {
            self.u8(bucket);
            self.f32(weight);
        }
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }
}

#[derive(Debug)]
pub(super) struct Decoder<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(version: u8, bytes: &'a [u8]) -> Result<Self, CheckpointError> {
        match bytes.split_first() {
            None => Err(CheckpointError::Truncated(0)),
            Some((found, rest)) if *found == version => Ok(Self { rest, at: 1 }),
            Some((found, _)) => Err(CheckpointError::Version(*found)),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CheckpointError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(CheckpointError::Truncated(self.at))?;
        self.rest = rest;
        self.at += N;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, CheckpointError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Result<u32, CheckpointError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn count(
        &mut self,
        what: &'static str,
        max: usize,
    ) -> Result<usize, CheckpointError> {
        let count = usize::try_from(self.u32()?).unwrap_or(usize::MAX);
        match count > max {
            true => Err(CheckpointError::TooMany { what, count, max }),
            false => Ok(count),
        }
    }

    /// Decodes a finite, non-negative number, as all counts here are.
    pub(super) fn f32(&mut self, what: &'static str) -> Result<f32, CheckpointError> {
        let value = f32::from_le_bytes(self.array()?);
        sound(value.into(), what).map(|_| value)
    }

    /// Decodes a number as [`Decoder::f32`] does.
    pub(super) fn f64(&mut self, what: &'static str) -> Result<f64, CheckpointError> {
        sound(f64::from_le_bytes(self.array()?), what)
    }

    pub(super) fn duration(&mut self) -> Result<Duration, CheckpointError> {
        Ok(Duration::from_nanos(u64::from_le_bytes(self.array()?)))
    }

    pub(super) fn bytes(
        &mut self,
        what: &'static str,
        max: usize,
    ) -> Result<&'a [u8], CheckpointError> {
        let length = self.count(what, max)?;
        let (head, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(CheckpointError::Truncated(self.at))?;
        self.rest = rest;
        self.at += length;
        Ok(head)
    }

    pub(super) fn text(
        &mut self,
        what: &'static str,
        max: usize,
    ) -> Result<&'a str, CheckpointError> {
        str::from_utf8(self.bytes(what, max)?).map_err(|_| CheckpointError::Invalid(what))
    }

    pub(super) fn key(&mut self) -> Result<ExecutorKey, CheckpointError> {
        let framework = self.text("framework id", ID_BYTES_MAX)?;
        let executor = self.text("executor id", ID_BYTES_MAX)?;
        Ok(ExecutorKey {
            framework: FrameworkId::new(framework)
                .map_err(|_| CheckpointError::Invalid("framework id"))?,
            executor: ExecutorId::new(executor)
                .map_err(|_| CheckpointError::Invalid("executor id"))?,
        })
    }

    pub(super) fn histogram(&mut self) -> Result<DecayingHistogram, CheckpointError> {
        let mut histogram = DecayingHistogram::default();
        for _ in 0..self.count("buckets", BUCKETS)? {
            let (bucket, weight) = (self.u8()?, self.f32("weight")?);
            if !histogram.set(bucket, weight) {
                return Err(CheckpointError::Invalid("bucket"));
            }
        }
        Ok(histogram)
    }

    pub(super) fn finish(self) -> Result<(), CheckpointError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(CheckpointError::Trailing(bytes)),
        }
    }
}

fn sound(value: f64, what: &'static str) -> Result<f64, CheckpointError> {
    let is_sound = value.is_finite() && value >= 0.0;
    is_sound
        .then_some(value)
        .ok_or(CheckpointError::Invalid(what))
}
