//! Several estimators at once; the most cautious one counts.
//!
//! The maximum is over the predicted use. So the offer has the least amount that any member offers of each resource, and only
//! resources that all members offer. Invariant: no member offers less than the whole.

use std::time::Duration;

use meseta_resources::{Moment, Resource, Resources, Scalar, Value};

use super::checkpoint::{Decoder, Encoder};
use crate::{CheckpointError, Estimate, Forecast, Gate, ResourceEstimator, UsageSample};

const VERSION: u8 = 1;
/// The maximum number of members: more than the number of built-in estimators is a mistake.
pub const MEMBERS_MAX: usize = 8;
/// The members' own bound on their checkpoints.
const MEMBER_BYTES_MAX: usize = 32 << 20;

#[derive(Debug)]
pub struct Max {
    members: Vec<Box<dyn ResourceEstimator>>,
}

impl Max {
    pub(crate) const NAME: &'static str = "max";

    #[must_use]
    pub const fn new(members: Vec<Box<dyn ResourceEstimator>>) -> Self {
        Self { members }
    }
}

/// The lesser amount of each resource that is in both.
fn lesser(one: &Resources, other: &Resources) -> Resources {
    let least = |resource: &Resource| match resource.value() {
        Value::Scalar(amount) => {
            let there: Scalar = other
                .iter()
                .filter(|candidate| candidate.name() == resource.name())
                .filter_map(Resource::scalar)
                .fold(Scalar::ZERO, |sum, scalar| sum + scalar);
            Some(resource.with_value(Value::Scalar((*amount).min(there))))
        }
        // Ports and names are oversubscribed by fixed amounts only: all or nothing of a set.
        Value::Ranges(_) | Value::Set(_) => {
            other.contains_resource(resource).then(|| resource.clone())
        }
    };
    one.iter().filter_map(least).collect()
}

fn merge(mut forecasts: Vec<Forecast>, more: Vec<Forecast>) -> Vec<Forecast> {
    for forecast in more {
        match forecasts
            .iter_mut()
            .find(|known| known.resource == forecast.resource)
        {
            Some(known) => {
                known.peak = known.peak.max(forecast.peak);
                known.total = known.total.min(forecast.total);
            }
            None => forecasts.push(forecast),
        }
    }
    forecasts
}

impl ResourceEstimator for Max {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn stale_after(&self) -> Option<Duration> {
        let members = self.members.iter();
        members.filter_map(|member| member.stale_after()).min()
    }

    fn estimate(&mut self, sample: &UsageSample, gate: Gate) -> Estimate {
        let answers = self
            .members
            .iter_mut()
            .map(|member| member.estimate(sample, gate));
        // Every member sees every sample, even when another has answered that nothing can be oversubscribed.
        let answers: Vec<Estimate> = answers.collect();
        let whole = answers.into_iter().reduce(|whole, answer| Estimate {
            oversubscribable: match (whole.oversubscribable, answer.oversubscribable) {
                (Some(one), Some(other)) => Some(lesser(&one, &other)),
                _ => None,
            },
            forecasts: merge(whole.forecasts, answer.forecasts),
            held_back: whole.held_back.or(answer.held_back),
        });
        whole.unwrap_or_default()
    }

    fn checkpoint(&self, now: Moment) -> Vec<u8> {
        let mut bytes = Encoder::new(VERSION);
        for member in &self.members {
            bytes.bytes(&member.checkpoint(now));
        }
        bytes.finish()
    }

    fn restore(&mut self, now: Moment, bytes: &[u8]) -> Result<(), CheckpointError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut decoder = Decoder::new(VERSION, bytes)?;
        let mut parts = Vec::new();
        for _ in &self.members {
            parts.push(decoder.bytes("member", MEMBER_BYTES_MAX)?);
        }
        decoder.finish()?;
        for (member, part) in self.members.iter_mut().zip(parts) {
            member.restore(now, part)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimator::{Fixed, Noop};

    fn fixed(text: &str) -> Box<dyn ResourceEstimator> {
        Box::new(Fixed::new(&[("resources", text)].into_iter().collect()).unwrap())
    }

    fn offered(members: Vec<Box<dyn ResourceEstimator>>) -> Option<Resources> {
        Max::new(members)
            .estimate(&UsageSample::default(), Gate::Open)
            .oversubscribable
    }

    #[test]
    fn max_offers_the_smallest_estimate() {
        let members = vec![
            fixed("cpus:4;mem:100"),
            fixed("cpus:6;mem:50"),
            fixed("mem:70;cpus:5"),
        ];
        let answer = offered(members).unwrap();
        assert_eq!(answer.cpus().unwrap().to_f64(), 4.0);
        assert_eq!(answer.mem().unwrap().to_f64(), 50.0);
        assert_eq!(answer, answer.revocable());
        let partial = offered(vec![fixed("cpus:4;mem:100"), fixed("cpus:6")]).unwrap();
        assert_eq!(partial.mem(), None);
    }

    #[test]
    fn is_silent_if_one_is() {
        assert_eq!(offered(vec![fixed("cpus:4"), Box::new(Noop)]), None);
    }

    #[test]
    fn set_is_offered_whole_or_omitted() {
        let ports = "ports:[1-10]";
        assert!(
            offered(vec![fixed(ports), fixed("ports:[1-20]")])
                .unwrap()
                .ports()
                .is_some()
        );
        assert!(
            offered(vec![fixed(ports), fixed("ports:[2-20]")])
                .unwrap()
                .is_empty()
        );
    }
}
