//! Estimators and controllers in other processes, over gRPC.
//!
//! A separate task calls each plug-in with the newest sample, one call at a time, each with a deadline. The answers
//! come back through a channel, validated: an invalid answer counts as none. Invariant: only the plug-in's own task
//! waits for it.

use std::sync::Arc;
use std::time::Duration;

use meseta_estimators::{
    Action, Assessment, ContainerUsage, Correction, Estimate, Explanation, Throttle, Unit,
};
use meseta_proto::convert;
use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::qo_s_controller_client::QoSControllerClient;
use meseta_proto::meseta::v1::resource_estimator_client::ResourceEstimatorClient;
use meseta_proto::{Invalid, invalid};
use meseta_resources::{ContainerId, ExecutorId, FrameworkId, Resources};
use tokio::sync::{mpsc, watch};
use tonic::transport::{Channel, Endpoint};

/// The deadline of a call, from the sample to the answer.
const DEADLINE: Duration = Duration::from_secs(2);
/// The default limit of gRPC servers for the size of a request.
const QUESTION_BYTES_USUAL: usize = 4 << 20;
/// The largest answer that is accepted.
const ANSWER_BYTES_MAX: usize = 1 << 20;
/// Corrections in one answer; more are garbage.
const CORRECTIONS_MAX: usize = 4096;
/// The characters kept of a plug-in's own texts.
const REASON_CHARS_MAX: usize = 512;
/// The detector name for counting the corrections of plug-ins.
pub(crate) const DETECTOR: &str = "plugin";
/// The kinds of [`Failure`].
pub(crate) const FAILURE_KINDS: [&str; 4] = ["deadline", "garbage", "refused", "unreachable"];

#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub(crate) enum Role {
    /// The value of `--resource_estimator`.
    Estimator,
    /// The value of `--qos_controller`.
    Controller,
}

impl Role {
    /// The name in metrics and logs.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Estimator => "resource_estimator",
            Self::Controller => "qos_controller",
        }
    }
}

/// The reason why there is no answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Failure {
    /// The kind, for a metric's label: one of [`FAILURE_KINDS`].
    pub(crate) kind: &'static str,
    /// The reason, as a text.
    pub(crate) why: String,
}

impl Failure {
    fn garbage(why: impl Into<String>) -> Self {
        Self {
            kind: "garbage",
            why: why.into(),
        }
    }

    fn from_status(status: &tonic::Status, question: &Question) -> Self {
        let kind = match status.code() {
            tonic::Code::Unavailable => "unreachable",
            tonic::Code::DeadlineExceeded | tonic::Code::Cancelled => "deadline",
            tonic::Code::OutOfRange | tonic::Code::Internal => "garbage",
            // The client's own error for an answer that cannot be parsed.
            tonic::Code::InvalidArgument if status.message().contains("Failed to parse body") => {
                "garbage"
            }
            _ => "refused",
        };
        let mut why = format!("{}: {}", status.code(), status.message());
        let bytes = prost::Message::encoded_len(&*question.usage);
        if bytes > QUESTION_BYTES_USUAL {
            why.push_str(&format!(
                " (the request has {bytes} bytes for all executors: let the plug-in accept \
                 messages of more than {QUESTION_BYTES_USUAL} bytes)"
            ));
        }
        Self { kind, why }
    }

    fn late() -> Self {
        Self {
            kind: "deadline",
            why: format!("no answer within {DEADLINE:?}"),
        }
    }
}

/// The data of a call.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) usage: Arc<wire::Usage>,
    /// The resources of revocable work at that time.
    pub(crate) allocated: Resources,
}

/// The answer of a plug-in.
#[derive(Debug)]
pub(crate) enum Answer {
    Estimate(Box<Result<(Resources, Estimate), Failure>>),
    Assessment(Box<Result<Assessment, Failure>>),
}

/// A plug-in that is called with the newest sample whenever it is idle.
#[derive(Debug)]
pub(crate) struct Plugin {
    question: watch::Sender<Option<Question>>,
}

impl Plugin {
    pub(crate) fn start(
        role: Role,
        address: &str,
        answers: mpsc::Sender<Answer>,
    ) -> Result<Self, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(address.to_owned())?.connect_timeout(DEADLINE);
        let channel = endpoint.connect_lazy();
        let (question, questions) = watch::channel(None);
        match role {
            Role::Estimator => tokio::spawn(ask_estimator(channel, questions, answers)),
            Role::Controller => tokio::spawn(ask_controller(channel, questions, answers)),
        };
        Ok(Self { question })
    }

    /// Replaces the waiting call with a newer one.
    pub(crate) fn ask(&self, question: Question) {
        self.question.send_replace(Some(question));
    }
}

/// Checks the form of a plug-in's address.
pub(crate) fn check_address(address: &str) -> Result<(), Invalid> {
    if address.starts_with("https://") {
        return Err("plug-ins are reached over unix:///path.sock or http://host:port".into());
    }
    if let Some(path) = address.strip_prefix("unix://")
        && !path.starts_with('/')
    {
        return Err(format!("{path:?} is not an absolute path: give unix:///path.sock").into());
    }
    Endpoint::from_shared(address.to_owned())
        .map(drop)
        .map_err(|error| invalid!("it is not an address: {error}"))
}

async fn next(questions: &mut watch::Receiver<Option<Question>>) -> Option<Question> {
    loop {
        questions.changed().await.ok()?;
        let question = questions.borrow_and_update().clone();
        if question.is_some() {
            return question;
        }
    }
}

fn request(question: &Question) -> tonic::Request<wire::Usage> {
    let mut request = tonic::Request::new((*question.usage).clone());
    request.set_timeout(DEADLINE);
    request
}

async fn ask_estimator(
    channel: Channel,
    mut questions: watch::Receiver<Option<Question>>,
    answers: mpsc::Sender<Answer>,
) {
    let mut client =
        ResourceEstimatorClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    while let Some(question) = next(&mut questions).await {
        let called = tokio::time::timeout(DEADLINE, client.estimate(request(&question))).await;
        let answer = match called {
            Err(_) => Err(Failure::late()),
            Ok(Err(status)) => Err(Failure::from_status(&status, &question)),
            Ok(Ok(response)) => estimate(&response.into_inner()),
        };
        let answer = answer.map(|estimate| (question.allocated, estimate));
        if answers
            .send(Answer::Estimate(Box::new(answer)))
            .await
            .is_err()
        {
            return;
        }
    }
}

async fn ask_controller(
    channel: Channel,
    mut questions: watch::Receiver<Option<Question>>,
    answers: mpsc::Sender<Answer>,
) {
    let mut client = QoSControllerClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    while let Some(question) = next(&mut questions).await {
        let called = tokio::time::timeout(DEADLINE, client.correct(request(&question))).await;
        let answer = match called {
            Err(_) => Err(Failure::late()),
            Ok(Err(status)) => Err(Failure::from_status(&status, &question)),
            Ok(Ok(response)) => assessment(response.into_inner()),
        };
        if answers
            .send(Answer::Assessment(Box::new(answer)))
            .await
            .is_err()
        {
            return;
        }
    }
}

/// Converts an estimate, or fails with the reason.
fn estimate(answer: &wire::Oversubscribable) -> Result<Estimate, Failure> {
    let resources = convert::resources(&answer.resources)
        .map_err(|error| Failure::garbage(error.to_string()))?;
    for resource in &resources {
        let wrong = if resource.is_reserved() {
            "is reserved"
        } else if resource.is_persistent_volume() {
            "is a persistent volume"
        } else if !resource.is_revocable() {
            "is not marked as revocable"
        } else {
            continue;
        };
        return Err(Failure::garbage(format!("{resource} {wrong}")));
    }
    Ok(Estimate {
        oversubscribable: Some(resources),
        ..Estimate::default()
    })
}

/// Converts corrections, or fails with the reason.
fn assessment(answer: wire::Corrections) -> Result<Assessment, Failure> {
    if answer.corrections.len() > CORRECTIONS_MAX {
        return Err(Failure::garbage(format!(
            "more than {CORRECTIONS_MAX} corrections"
        )));
    }
    let throttle = match answer.throttle_cpus {
        None => None,
        Some(cpus) if cpus.is_finite() && cpus > 0.0 => Some(Throttle {
            cpus,
            why: explanation(""),
        }),
        Some(cpus) => return Err(Failure::garbage(format!("a throttle of {cpus} cpus"))),
    };
    let corrections = answer.corrections.into_iter().map(correction);
    Ok(Assessment {
        stop_offering: answer.stop_offering.map(|why| explanation(&why)),
        throttle,
        corrections: corrections.collect::<Result<_, _>>()?,
        ..Assessment::default()
    })
}

fn correction(correction: wire::QoSCorrection) -> Result<Correction, Failure> {
    use wire::qo_s_correction::Type;
    let action = match Type::try_from(correction.r#type) {
        Ok(Type::Kill) => Action::Kill,
        Ok(Type::Freeze) => Action::Freeze,
        Ok(Type::Thaw) => Action::Thaw,
        Ok(Type::Unknown) | Err(_) => {
            return Err(Failure::garbage(format!(
                "a correction of type {}",
                correction.r#type
            )));
        }
    };
    let bad = |error: &dyn std::fmt::Display| Failure::garbage(format!("a correction: {error}"));
    let named = correction.kill;
    let container = named.container_id.map(|id| ContainerId::new(&id.value));
    Ok(Correction {
        action,
        framework: FrameworkId::new(&named.framework_id.value).map_err(|error| bad(&error))?,
        executor: ExecutorId::new(&named.executor_id.value).map_err(|error| bad(&error))?,
        container: container.transpose().map_err(|error| bad(&error))?,
        why: explanation(correction.reason.as_deref().unwrap_or_default()),
    })
}

/// The assessment that replaces an expired one of a silent controller: nothing stays throttled or frozen, and nothing
/// is oversubscribed without supervision.
pub(crate) fn unwatched(containers: &[ContainerUsage]) -> Assessment {
    let why = || explanation("the QoS controller does not answer");
    let frozen = containers.iter().filter(|container| container.frozen);
    let thaw = |container: &ContainerUsage| Correction {
        action: Action::Thaw,
        framework: container.framework.clone(),
        executor: container.executor.clone(),
        container: container.container.clone(),
        why: why(),
    };
    Assessment {
        stop_offering: Some(why()),
        corrections: frozen.map(thaw).collect(),
        ..Assessment::default()
    }
}

/// The plug-in's own text, truncated and without control characters.
fn explanation(words: &str) -> Explanation {
    let words: String = words
        .chars()
        .map(|one| if one.is_control() { ' ' } else { one })
        .take(REASON_CHARS_MAX)
        .collect();
    Explanation {
        detector: DETECTOR,
        value: 0.0,
        threshold: 0.0,
        unit: Unit::Share,
        held: Duration::ZERO,
        gap: None,
        victim: None,
        words: (!words.is_empty()).then_some(words),
    }
}

#[cfg(test)]
mod serving;

#[cfg(test)]
mod tests {
    use super::*;
    use meseta_proto::mesos::v1 as pb;

    fn cpus(value: f64) -> pb::Resource {
        pb::Resource {
            name: "cpus".to_owned(),
            r#type: pb::value::Type::Scalar.into(),
            scalar: Some(pb::value::Scalar { value }),
            revocable: Some(pb::resource::RevocableInfo {}),
            ..pb::Resource::default()
        }
    }

    fn read(resource: pb::Resource) -> Result<Estimate, Failure> {
        estimate(&wire::Oversubscribable {
            resources: vec![resource],
        })
    }

    #[test]
    fn every_failure_kind_is_counted() {
        let question = Question {
            usage: Arc::default(),
            allocated: Resources::default(),
        };
        let of = |code| {
            Failure::from_status(&tonic::Status::new(tonic::Code::from(code), ""), &question)
        };
        let mut all: Vec<_> = (0..17).map(of).collect();
        all.extend([Failure::garbage(""), Failure::late()]);
        for failure in all {
            assert!(FAILURE_KINDS.contains(&failure.kind), "{failure:?}");
        }
    }

    #[test]
    fn invalid_oversubscription_is_garbage() {
        let oversubscribed = read(cpus(2.5)).unwrap().oversubscribable.unwrap();
        assert_eq!(oversubscribed.revocable().cpus().unwrap().to_f64(), 2.5);
        let regular = pb::Resource {
            revocable: None,
            ..cpus(1.0)
        };
        let reserved = pb::Resource {
            reservations: vec![pb::resource::ReservationInfo {
                r#type: Some(pb::resource::reservation_info::Type::Static.into()),
                role: Some("ads".to_owned()),
                ..pb::resource::ReservationInfo::default()
            }],
            ..cpus(1.0)
        };
        let persistent = pb::Resource {
            name: "disk".to_owned(),
            disk: Some(Box::new(pb::resource::DiskInfo {
                persistence: Some(pb::resource::disk_info::Persistence {
                    id: "p".to_owned(),
                    principal: None,
                }),
                ..pb::resource::DiskInfo::default()
            })),
            ..cpus(1.0)
        };
        let ranges = pb::Resource {
            r#type: pb::value::Type::Ranges.into(),
            ..cpus(1.0)
        };
        for bad in [
            cpus(-1.0),
            cpus(f64::INFINITY),
            cpus(f64::NAN),
            regular,
            reserved,
            persistent,
            ranges,
        ] {
            let failure = read(bad.clone()).unwrap_err();
            assert_eq!(failure.kind, "garbage", "{bad:?}");
        }
    }

    #[test]
    fn corrections_are_checked() {
        let kill = |framework: &str, kind: i32| wire::QoSCorrection {
            r#type: kind,
            kill: wire::qo_s_correction::Kill {
                framework_id: pb::FrameworkId {
                    value: framework.to_owned(),
                },
                executor_id: pb::ExecutorId {
                    value: "e".to_owned(),
                },
                container_id: None,
            },
            reason: Some("too\nloud".to_owned()),
        };
        let read = |one| {
            assessment(wire::Corrections {
                corrections: vec![one],
                ..Default::default()
            })
        };
        let good = read(kill("f", 1)).unwrap();
        assert_eq!(good.corrections[0].action, Action::Kill);
        assert!(good.corrections[0].why.to_string().contains("too loud"));
        let of_executor = |executor: &str, container: Option<&str>| {
            let mut one = kill("f", 1);
            one.kill.executor_id.value = executor.to_owned();
            one.kill.container_id = container.map(|value| pb::ContainerId {
                value: value.to_owned(),
                parent: None,
            });
            one
        };
        let good = read(of_executor("e", Some("c"))).unwrap();
        assert!(good.corrections[0].container.is_some());
        for bad in [
            kill("f", 0),
            kill("f", 77),
            kill("../f", 1),
            kill("", 1),
            of_executor("../up", None),
            of_executor("e", Some("../up")),
        ] {
            assert_eq!(read(bad).unwrap_err().kind, "garbage");
        }
        for cpus in [-1.0, f64::NAN, f64::INFINITY, 0.0] {
            let answer = wire::Corrections {
                throttle_cpus: Some(cpus),
                ..Default::default()
            };
            assert_eq!(assessment(answer).unwrap_err().kind, "garbage");
        }
    }

    /// Regression: containers that a silent controller had frozen stayed frozen for as long as the agent ran.
    #[test]
    fn containers_of_silent_controller_thaw() {
        let container = |executor: &str, frozen| ContainerUsage {
            container: Some(ContainerId::new(&format!("c-{executor}")).unwrap()),
            frozen,
            ..ContainerUsage::new(
                FrameworkId::new("f").unwrap(),
                ExecutorId::new(executor).unwrap(),
                Resources::new(),
            )
        };
        let assessment = unwatched(&[container("cold", true), container("warm", false)]);
        assert!(assessment.stop_offering.is_some());
        assert_eq!(assessment.throttle, None);
        let [thaw] = assessment.corrections.as_slice() else {
            panic!("{:?}", assessment.corrections);
        };
        assert_eq!(thaw.action, Action::Thaw);
        assert_eq!(thaw.executor.as_str(), "cold");
        let id = thaw.container.as_ref().map(ContainerId::as_str);
        assert_eq!(id, Some("c-cold"));
        assert!(thaw.why.to_string().contains("does not answer"));
    }

    #[test]
    fn oversized_question_is_named() {
        let refused = |executors: usize| {
            let executor = pb::resource_usage::Executor {
                container_id: pb::ContainerId {
                    value: "c".repeat(1 << 20),
                    parent: None,
                },
                ..pb::resource_usage::Executor::default()
            };
            let question = Question {
                usage: Arc::new(wire::Usage {
                    resources: pb::ResourceUsage {
                        executors: vec![executor; executors],
                        total: Vec::new(),
                    },
                    ..wire::Usage::default()
                }),
                allocated: Resources::new(),
            };
            Failure::from_status(&tonic::Status::out_of_range("too large"), &question).why
        };
        assert!(refused(3).ends_with("too large"));
        assert!(
            refused(4).contains("the request has 4194"),
            "{}",
            refused(4)
        );
    }

    #[test]
    fn addresses_are_checked() {
        for good in ["unix:///run/e.sock", "http://127.0.0.1:9000"] {
            assert_eq!(check_address(good), Ok(()));
        }
        for bad in ["unix://e.sock", "https://host:1", "http://a b"] {
            assert!(check_address(bad).is_err(), "{bad}");
        }
    }
}
