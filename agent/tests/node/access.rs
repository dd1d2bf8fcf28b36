//! Every route and every call of the agent, combined with an anonymous caller, a wrong secret, a caller without rights,
//! and an operator.
//!
//! The routes and calls come from the agent's own table and the schema. A caller without rights must be refused
//! everything that is not listed here as open or filtered, so that a new route or call without a permission fails.

use std::os::unix::fs::PermissionsExt as _;

use http::{HeaderName, HeaderValue, Method, header};
use meseta_access::{Action, SecretHash, basic};
use meseta_daemon::client::{Call, Client, Reply};
use meseta_proto::mesos::v1::agent::call::Type;
use meseta_proto::recordio;

use crate::Test;
use crate::harness::World;

pub(crate) const TESTS: &[Test] = tests![every_route_and_call_needs_permission,];

const OPEN_ROUTES: [&str; 2] = ["/health", "/version"];
/// Answered to every authenticated principal, filtered by its permissions.
const FILTERED_ROUTES: [&str; 1] = ["/state"];
const FILTERED_CALLS: [Type; 10] = [
    Type::GetHealth,
    Type::GetVersion,
    Type::GetLoggingLevel,
    Type::GetAgent,
    Type::GetState,
    Type::GetTasks,
    Type::GetExecutors,
    Type::GetFrameworks,
    Type::GetContainers,
    Type::GetOperations,
];

struct Person {
    name: &'static str,
    header: Option<String>,
}

fn people() -> [Person; 4] {
    let person = |name, header| Person { name, header };
    [
        person("nobody", None),
        person("wrong", Some(basic::header("operator", b"guessed"))),
        person("powerless", Some(basic::header("powerless", b"p"))),
        person("operator", Some(basic::header("operator", b"o"))),
    ]
}

fn start() -> World {
    let dir = tempfile::tempdir().expect("a directory").keep();
    let file = dir.join("people");
    let hash = |secret: &[u8]| SecretHash::from_secret(secret, [4; 16]).expect("a hash");
    let lines = format!("operator {}\npowerless {}\n", hash(b"o"), hash(b"p"));
    std::fs::write(&file, lines).expect("a file");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&file, mode).expect("a mode");
    let lists = Action::ALL.iter().map(|action| {
        format!(
            r#""{}":[{{"principals":{{"values":["operator"]}},"{}":{{"type":"ANY"}}}}]"#,
            action.key(),
            action.object_key()
        )
    });
    let lists: Vec<_> = lists.collect();
    let flags = [
        format!("--http_credentials={}", file.display()),
        "--authenticate_http_readonly".to_owned(),
        "--authenticate_http_readwrite".to_owned(),
        format!(r#"--acls={{"permissive":false,{}}}"#, lists.join(",")),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (world, _link) = World::registered(&flags);
    std::fs::remove_dir_all(dir).expect("the agent has read it");
    world
}

fn ask(world: &World, person: &Person, mut call: Call) -> Reply {
    if let Some(value) = &person.header {
        let value = HeaderValue::from_str(value).expect("a header");
        call = call.header(header::AUTHORIZATION, value);
    }
    let answered = world.runtime.block_on(Client::default().request(call));
    answered.expect("an answer")
}

fn every_route_and_call_needs_permission() {
    let world = start();
    let people = people();
    for path in meseta_agent::routes().filter(|path| !path.starts_with("/api/")) {
        for person in &people {
            let call = Call::new(Method::GET, &world.url(&format!("{path}?path=/a")));
            let status = ask(&world, person, call).status.as_u16();
            let expected = match person.name {
                _ if OPEN_ROUTES.contains(&path) => None,
                "nobody" | "wrong" => Some(401),
                "powerless" if !FILTERED_ROUTES.contains(&path) => Some(403),
                _ => None,
            };
            judge(&format!("{path} by {}", person.name), status, expected);
        }
    }
    for kind in (1..256).filter_map(|number| Type::try_from(number).ok()) {
        // A wrong secret costs a hash, and the result does not depend on the call.
        let tried = |person: &&Person| person.name != "wrong" || kind == Type::GetHealth;
        for person in people.iter().filter(tried) {
            let status = ask(&world, person, call_of(&world, kind)).status.as_u16();
            let expected = match person.name {
                "nobody" | "wrong" => Some(401),
                "powerless" if !FILTERED_CALLS.contains(&kind) => Some(403),
                _ => None,
            };
            let place = format!("{} by {}", kind.as_str_name(), person.name);
            judge(&place, status, expected);
        }
    }
}

fn judge(place: &str, status: u16, expected: Option<u16>) {
    // On a fast machine the attempts exceed the rate limit of an address.
    const TOO_MANY: u16 = 429;
    match expected {
        Some(401) if status == TOO_MANY => assert!(place.ends_with("wrong"), "{place}"),
        Some(expected) => assert_eq!(status, expected, "{place}"),
        None => assert!(status != 401 && status != 403, "{place}: {status}"),
    }
}

/// A valid call, about a container that does not exist.
fn call_of(world: &World, kind: Type) -> Call {
    const ID: &str = r#"{"value":"x","parent":{"value":"p"}}"#;
    let name = kind.as_str_name();
    let key = name.to_lowercase();
    let body = match kind {
        Type::LaunchNestedContainer
        | Type::LaunchNestedContainerSession
        | Type::LaunchContainer => {
            format!(r#"{{"container_id":{ID},"command":{{"value":"true"}}}}"#)
        }
        Type::AttachContainerInput => {
            format!(r#"{{"type":"CONTAINER_ID","container_id":{ID}}}"#)
        }
        Type::ListFiles => r#"{"path":"/frameworks/f"}"#.to_owned(),
        Type::ReadFile => r#"{"path":"/frameworks/f","offset":0}"#.to_owned(),
        Type::SetLoggingLevel => r#"{"level":1,"duration":{"nanoseconds":1000000000}}"#.to_owned(),
        Type::AddResourceProviderConfig | Type::UpdateResourceProviderConfig => {
            r#"{"info":{"type":"t","name":"n"}}"#.to_owned()
        }
        Type::RemoveResourceProviderConfig => r#"{"type":"t","name":"n"}"#.to_owned(),
        Type::MarkResourceProviderGone => r#"{"resource_provider_id":{"value":"r"}}"#.to_owned(),
        Type::WaitContainer
        | Type::WaitNestedContainer
        | Type::KillContainer
        | Type::KillNestedContainer
        | Type::RemoveContainer
        | Type::RemoveNestedContainer
        | Type::AttachContainerOutput => format!(r#"{{"container_id":{ID}}}"#),
        _ => "{}".to_owned(),
    };
    let text = format!(r#"{{"type":"{name}","{key}":{body}}}"#);
    let json = HeaderValue::from_static("application/json");
    let call = Call::post(&world.url("/api/v1"));
    if kind == Type::AttachContainerInput {
        let streamed = HeaderValue::from_static("application/recordio");
        let inner = HeaderName::from_static("message-content-type");
        return call
            .header(header::CONTENT_TYPE, streamed)
            .header(inner, json)
            .body(recordio::encode(text.as_bytes()));
    }
    call.header(header::CONTENT_TYPE, json).body(text)
}
