//! The operator API over gRPC, against a real master and agent: typed errors, awaited operations, a watch that resumes at
//! its position.

use meseta_proto::json;
use meseta_proto::meseta::v1::operator_client::OperatorClient;
use meseta_proto::meseta::v1::{AwaitOperationRequest, ExplainRequest, Nothing, WatchRequest};
use meseta_proto::mesos::v1::maintenance::Window;
use meseta_proto::mesos::v1::master::call;
use meseta_proto::mesos::v1::quota::QuotaRequest;
use meseta_proto::mesos::v1::{self, OperationState, Resource, WeightInfo, resource, value};
use meseta_tests::framework::framework_info;
use meseta_tests::{Cluster, Encoding, Framework};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        operations_are_awaited = || run(operations),
        errors_have_their_codes = || run(errors),
        watch_resumes_at_last_event = || run(watch);
}

fn run<F: Future<Output = ()>>(scenario: fn(OperatorClient<Channel>, v1::AgentId, String) -> F) {
    let cluster = Cluster::default();
    let agent = v1::AgentId {
        value: cluster.agent_id(),
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let url = cluster.master.url.clone();
        let channel = Channel::from_shared(url)
            .expect("an address")
            .connect()
            .await;
        let client = OperatorClient::new(channel.expect("connected"));
        scenario(client, agent, cluster.scheduler_url()).await;
    });
}

fn cpus(amount: f64, role: Option<&str>) -> Resource {
    let reservation = role.map(|role| resource::ReservationInfo {
        r#type: Some(resource::reservation_info::Type::Dynamic.into()),
        role: Some(role.to_owned()),
        ..resource::ReservationInfo::default()
    });
    Resource {
        name: "cpus".to_owned(),
        r#type: value::Type::Scalar.into(),
        scalar: Some(value::Scalar { value: amount }),
        reservations: reservation.into_iter().collect(),
        ..Resource::default()
    }
}

async fn operations(mut client: OperatorClient<Channel>, agent: v1::AgentId, _: String) {
    let reserve = call::ReserveResources {
        agent_id: agent.clone(),
        resources: vec![cpus(1.0, Some("ads"))],
        source: Vec::new(),
    };
    let taken = client
        .reserve_resources(reserve)
        .await
        .expect("taken")
        .into_inner();
    let operation_uuid = taken.operation_uuid.expect("a name");
    let requested = AwaitOperationRequest { operation_uuid };
    for _ in 0..2 {
        // The operation may be over before the query, and stays known for a while.
        let status = client
            .await_operation(requested.clone())
            .await
            .expect("over")
            .into_inner();
        assert_eq!(
            status.state(),
            OperationState::OperationFinished,
            "{status:?}"
        );
        assert_eq!(status.agent_id.as_ref(), Some(&agent));
    }
    let agents = client
        .get_agents(Nothing {})
        .await
        .expect("agents")
        .into_inner()
        .agents;
    let reserved = agents[0]
        .total_resources
        .iter()
        .filter(|one| !one.reservations.is_empty());
    assert_eq!(reserved.count(), 1, "{agents:?}");
    let unreserve = call::UnreserveResources {
        agent_id: agent,
        resources: vec![cpus(1.0, Some("ads"))],
    };
    let taken = client
        .unreserve_resources(unreserve)
        .await
        .expect("taken")
        .into_inner();
    let operation_uuid = taken.operation_uuid.expect("a name");
    let status = client
        .await_operation(AwaitOperationRequest { operation_uuid })
        .await;
    let status = status.expect("over").into_inner();
    assert_eq!(status.state(), OperationState::OperationFinished);
}

fn code<T: std::fmt::Debug>(answer: Result<T, Status>) -> Code {
    let status = answer.expect_err("refused");
    assert!(!status.message().is_empty(), "{status:?}");
    status.code()
}

async fn errors(mut client: OperatorClient<Channel>, agent: v1::AgentId, _: String) {
    let unknown = v1::AgentId {
        value: "nosuch".to_owned(),
    };
    let much = call::ReserveResources {
        agent_id: agent.clone(),
        resources: vec![cpus(1_000.0, Some("ads"))],
        source: Vec::new(),
    };
    assert_eq!(
        code(client.reserve_resources(much.clone()).await),
        Code::FailedPrecondition
    );
    let nobody = call::ReserveResources {
        agent_id: unknown.clone(),
        ..much
    };
    assert_eq!(
        code(client.reserve_resources(nobody).await),
        Code::InvalidArgument
    );
    let gone = call::MarkAgentGone { agent_id: unknown };
    assert_eq!(code(client.mark_agent_gone(gone).await), Code::NotFound);
    for (uuid, expected) in [
        (vec![1; 16], Code::NotFound),
        (vec![1], Code::InvalidArgument),
    ] {
        let operation_uuid = v1::Uuid { value: uuid };
        let answer = client
            .await_operation(AwaitOperationRequest { operation_uuid })
            .await;
        assert_eq!(code(answer), expected);
    }
    assert_eq!(
        code(client.explain(ExplainRequest::default()).await),
        Code::InvalidArgument
    );
    let quota = |amount: f64| call::SetQuota {
        quota_request: QuotaRequest {
            role: Some("dev".to_owned()),
            guarantee: vec![cpus(amount, None)],
            ..QuotaRequest::default()
        },
    };
    assert_eq!(
        code(client.set_quota(quota(1_000.0)).await),
        Code::FailedPrecondition
    );
    client.set_quota(quota(1.0)).await.expect("set");
    assert_eq!(
        code(client.set_quota(quota(1.0)).await),
        Code::InvalidArgument
    );
    let tree = client
        .quota_tree(Nothing {})
        .await
        .expect("a tree")
        .into_inner();
    assert_eq!(tree.roles[0].role, "dev");
    assert!((tree.roles[0].guarantees["cpus"].value - 1.0).abs() < 1e-9);
    let window: Window = json::from_slice(
        br#"{"machine_ids": [{"hostname": "node8"}], "unavailability": {"start": {"nanoseconds": 1}}}"#,
    )
    .expect("a window");
    client
        .add_maintenance_window(window.clone())
        .await
        .expect("added");
    assert_eq!(
        code(client.add_maintenance_window(window.clone()).await),
        Code::InvalidArgument
    );
    let schedule = client.get_maintenance_schedule(Nothing {}).await;
    let schedule = schedule.expect("a schedule").into_inner().schedule;
    assert_eq!(schedule.windows, [window]);
    let weight = call::UpdateWeights {
        weight_infos: vec![WeightInfo {
            role: Some("dev".to_owned()),
            weight: -1.0,
        }],
    };
    assert_eq!(
        code(client.update_weights(weight).await),
        Code::InvalidArgument
    );
}

async fn watch(mut client: OperatorClient<Channel>, agent: v1::AgentId, scheduler: String) {
    let mut events = client
        .watch(WatchRequest::default())
        .await
        .expect("a stream")
        .into_inner();
    let first = events.message().await.expect("an event").expect("an event");
    let state = first
        .event
        .subscribed
        .expect("the whole state")
        .get_state
        .expect("a state");
    let agents = state.get_agents.expect("agents").agents;
    assert_eq!(agents[0].agent_info.id.as_ref(), Some(&agent));
    drop(events);
    // No event is missing in between: the stream resumes behind the number, without the state.
    let request = WatchRequest {
        master_id: Some(first.master_id.clone()),
        after: Some(first.sequence),
    };
    let subscribing = tokio::task::spawn_blocking(move || {
        Framework::subscribe(&scheduler, Encoding::Json, &framework_info("dev")).id
    });
    let id = subscribing.await.expect("subscribed");
    let mut events = client.watch(request).await.expect("a stream").into_inner();
    let next = events.message().await.expect("an event").expect("an event");
    let added = next.event.framework_added.expect("the framework").framework;
    assert_eq!(added.framework_info.id.map(|id| id.value), Some(id));
    assert_eq!(next.sequence, first.sequence + 1);
    // Another master's sequence numbers have no meaning here.
    let request = WatchRequest {
        master_id: Some("another".to_owned()),
        after: Some(first.sequence),
    };
    let mut events = client.watch(request).await.expect("a stream").into_inner();
    let anew = events.message().await.expect("an event").expect("an event");
    assert!(anew.event.subscribed.is_some(), "{anew:?}");
}
