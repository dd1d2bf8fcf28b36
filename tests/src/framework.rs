//! A scheduler for tests: subscribes in JSON or protobuf, and passes its events on as JSON values.

use std::io::Read;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use meseta_proto::mesos::v1::scheduler::{Call, Event};
use prost::Message as _;
use serde_json::{Value, json};

use crate::audit::is_terminal;
use crate::http::{self, Answer};

/// Longest wait for an event that must come, in seconds; `MESETA_TEST_PATIENCE` raises it, as in an emulated machine.
const PATIENCE_SECS: u64 = 20;

pub(crate) fn patience() -> Duration {
    let given = std::env::var("MESETA_TEST_PATIENCE");
    let given = given.ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(PATIENCE_SECS))
}

/// The encoding of calls and events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Protobuf,
}

impl Encoding {
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/x-protobuf",
        }
    }

    /// Encodes a call: tests write calls as JSON, and protobuf goes through the product's own types.
    pub fn encode(self, call: &Value) -> Vec<u8> {
        match self {
            Self::Json => call.to_string().into_bytes(),
            Self::Protobuf => {
                let call: Call = serde_json::from_value(call.clone()).expect("a Call");
                call.encode_to_vec()
            }
        }
    }

    fn decode(self, record: &[u8]) -> Value {
        match self {
            Self::Json => serde_json::from_slice(record).expect("an event in JSON"),
            Self::Protobuf => {
                let event = Event::decode(record).expect("an event in protobuf");
                serde_json::to_value(&event).expect("JSON")
            }
        }
    }
}

/// A subscribed framework, with a thread that reads its stream until the framework ends.
#[derive(Debug)]
pub struct Framework {
    pub id: String,
    pub stream_id: String,
    pub subscribed: Value,
    url: String,
    encoding: Encoding,
    /// The time limit of a call.
    pub call_limit: Duration,
    events: Receiver<Value>,
    kept_events: Vec<Value>,
}

/// Returns the `FrameworkInfo` of a framework with one role and the capabilities of modern frameworks.
pub fn framework_info(role: &str) -> Value {
    json!({
        "user": "root", "name": "test", "roles": [role], "checkpoint": true, "failover_timeout": 60.0,
        "capabilities": [{"type": "MULTI_ROLE"}, {"type": "RESERVATION_REFINEMENT"},
                         {"type": "PARTITION_AWARE"}, {"type": "TASK_KILLING_STATE"}],
    })
}

impl Framework {
    /// Subscribes; panics if the master's response is not SUBSCRIBED.
    pub fn subscribe(url: &str, encoding: Encoding, info: &Value) -> Self {
        Self::try_subscribe(url, encoding, info).unwrap_or_else(|why| panic!("SUBSCRIBE: {why}"))
    }

    /// Subscribes, even if the master may be away or refuse.
    pub fn try_subscribe(url: &str, encoding: Encoding, info: &Value) -> Result<Self, String> {
        let mut call = json!({"type": "SUBSCRIBE", "subscribe": {"framework_info": info}});
        if let Some(id) = info.get("id") {
            call["framework_id"] = id.clone();
        }
        let media = encoding.media_type();
        let response = http::client(None)
            .post(url)
            .header("content-type", media)
            .header("accept", media)
            .send(&encoding.encode(&call))
            .map_err(|error| error.to_string())?;
        if response.status() != 200 {
            return Err(format!("the master answered {}", response.status()));
        }
        let header = |name: &str| {
            let value = response.headers().get(name).and_then(|v| v.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        assert_eq!(header("content-type"), media);
        let stream_id = header("mesos-stream-id");
        assert!(!stream_id.is_empty(), "no Mesos-Stream-Id");
        let (sender, events) = channel();
        let mut reader = response.into_body().into_reader();
        std::thread::spawn(move || {
            while let Some(record) = next_record(&mut reader) {
                if sender.send(encoding.decode(&record)).is_err() {
                    return;
                }
            }
        });
        let mut framework = Self {
            id: String::new(),
            stream_id,
            subscribed: Value::Null,
            url: url.to_owned(),
            encoding,
            call_limit: http::TIMEOUT,
            events,
            kept_events: Vec::new(),
        };
        framework.subscribed =
            framework.within(patience(), &|event| event["type"] == "SUBSCRIBED")?;
        let id = framework.subscribed["subscribed"]["framework_id"]["value"].as_str();
        framework.id = id.expect("a framework id").to_owned();
        Ok(framework)
    }

    /// Returns the next event of this type; other events are kept for later.
    pub fn wait_for(&mut self, kind: &str) -> Value {
        self.wait_until(kind, |event| event["type"] == kind)
    }

    /// Returns the next event that `matches` accepts, in the order of arrival; other events are kept.
    pub fn wait_until(&mut self, what: &str, matches: impl Fn(&Value) -> bool) -> Value {
        self.within(patience(), &matches).unwrap_or_else(|why| {
            panic!("{what} did not come: {why}; held: {:#?}", self.kept_events)
        })
    }

    /// Waits for an event like [`Self::wait_until`], for at most `limit`; returns the reason if it did not come.
    pub fn within(
        &mut self,
        limit: Duration,
        matches: &impl Fn(&Value) -> bool,
    ) -> Result<Value, &'static str> {
        if let Some(at) = self.kept_events.iter().position(matches) {
            return Ok(self.kept_events.remove(at));
        }
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.events.recv_timeout(left) {
                Ok(event) if matches(&event) => return Ok(event),
                Ok(event) => self.kept_events.push(event),
                Err(RecvTimeoutError::Timeout) => return Err("time is up"),
                Err(RecvTimeoutError::Disconnected) => return Err("the stream has ended"),
            }
        }
    }

    /// Returns the next unread offer of the OFFERS events.
    pub fn offer(&mut self) -> Value {
        let mut event = self.wait_for("OFFERS");
        let offers = event["offers"]["offers"].as_array_mut().expect("offers");
        let first = offers.remove(0);
        if !offers.is_empty() {
            self.kept_events.insert(0, event);
        }
        first
    }

    /// Whether the master has this offer outstanding.
    pub fn has_outstanding(&self, offer: &Value) -> bool {
        let master = self.url.trim_end_matches("/api/v1/scheduler");
        let page = http::get(&format!("{master}/frameworks?framework_id={}", self.id)).json();
        let offers = page["frameworks"][0]["offers"].as_array();
        let mut offers = offers.into_iter().flatten();
        offers.any(|one| one["id"] == offer["id"]["value"])
    }

    /// Returns the next update of a task.
    pub fn update(&mut self, task: &str) -> Value {
        self.update_within(patience(), task)
    }

    fn update_within(&mut self, limit: Duration, task: &str) -> Value {
        let is_of_task = |event: &Value| {
            event["type"] == "UPDATE" && event["update"]["status"]["task_id"]["value"] == task
        };
        let event = self.within(limit, &is_of_task).unwrap_or_else(|why| {
            let kept = &self.kept_events;
            panic!("an update of {task} did not come: {why}; held: {kept:#?}")
        });
        event["update"]["status"].clone()
    }

    /// Waits for a task's updates, acknowledging each, until one reports that it neither begins nor runs; returns that
    /// update. Each may take at most `limit`.
    pub fn until_end(&mut self, task: &str, limit: Duration) -> Value {
        loop {
            let status = self.update_within(limit, task);
            self.acknowledge(&status);
            if is_terminal(&status) {
                return status;
            }
        }
    }

    /// Waits for a task's updates until this state, acknowledges each, and returns the last.
    pub fn until_state(&mut self, task: &str, state: &str) -> Value {
        loop {
            let status = self.update(task);
            self.acknowledge(&status);
            if status["state"] == state {
                return status;
            }
            let terminal = [
                "TASK_FINISHED",
                "TASK_FAILED",
                "TASK_KILLED",
                "TASK_LOST",
                "TASK_ERROR",
            ];
            let ended = terminal.iter().any(|t| status["state"] == *t);
            assert!(!ended, "{task} ended before {state}: {status:#}");
        }
    }

    /// Sends a call; the framework's id is added.
    pub fn call(&self, call: Value) -> Answer {
        self.try_call(call)
            .unwrap_or_else(|e| panic!("POST {}: {e}", self.url))
    }

    /// Makes a call while the master may be away.
    pub fn try_call(&self, mut call: Value) -> Result<Answer, ureq::Error> {
        call["framework_id"] = json!({"value": self.id});
        let headers = [
            ("content-type", self.encoding.media_type()),
            ("mesos-stream-id", &self.stream_id),
        ];
        http::post_within(
            self.call_limit,
            &self.url,
            &headers,
            &self.encoding.encode(&call),
        )
    }

    /// Sends a call that must be accepted.
    pub fn accepted(&self, call: Value) {
        let answer = self.call(call);
        assert_eq!(answer.status, 202, "{}", answer.text());
    }

    /// Accepts an offer with these tasks.
    pub fn launch(&self, offer: &Value, tasks: &[Value]) {
        let operations = json!([{"type": "LAUNCH", "launch": {"task_infos": tasks}}]);
        self.accepted(json!({"type": "ACCEPT", "accept": {
            "offer_ids": [offer["id"]], "operations": operations, "filters": {"refuse_seconds": 0.0}}}));
    }

    /// Accepts an offer with one command task; `resources` are pairs of name and amount.
    pub fn launch_task(&self, offer: &Value, id: &str, command: &str, resources: &[(&str, f64)]) {
        self.launch(offer, &[task(offer, id, command, resources)]);
    }

    /// Launches a task and waits until it runs; returns that update.
    pub fn run_task(
        &mut self,
        offer: &Value,
        id: &str,
        command: &str,
        resources: &[(&str, f64)],
    ) -> Value {
        self.launch_task(offer, id, command, resources);
        self.until_state(id, "TASK_RUNNING")
    }

    pub fn decline(&self, offer: &Value, refuse_seconds: f64) {
        self.accepted(json!({"type": "DECLINE", "decline": {
            "offer_ids": [offer["id"]], "filters": {"refuse_seconds": refuse_seconds}}}));
    }

    /// Acknowledges an update with a uuid.
    pub fn acknowledge(&self, status: &Value) {
        if status.get("uuid").is_none() {
            return;
        }
        self.accepted(json!({"type": "ACKNOWLEDGE", "acknowledge": {
            "agent_id": status["agent_id"], "task_id": status["task_id"], "uuid": status["uuid"]}}));
    }

    pub fn kill(&self, task: &str) {
        self.accepted(json!({"type": "KILL", "kill": {"task_id": {"value": task}}}));
    }

    pub fn teardown(&self) {
        self.accepted(json!({"type": "TEARDOWN"}));
    }
}

/// Returns a command task on the agent of an offer; `resources` are pairs of name and amount.
pub fn task(offer: &Value, id: &str, command: &str, resources: &[(&str, f64)]) -> Value {
    let resources: Vec<_> = resources
        .iter()
        .map(|(name, value)| json!({"name": name, "type": "SCALAR", "scalar": {"value": value}}))
        .collect();
    json!({
        "name": id, "task_id": {"value": id}, "agent_id": offer["agent_id"],
        "command": {"value": command, "shell": true}, "resources": resources,
    })
}

/// Returns the bytes of a status's uuid.
pub fn uuid_bytes(status: &Value) -> Vec<u8> {
    let text = status["uuid"].as_str().expect("a uuid");
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .expect("base64")
}

/// Reads one RecordIO record: its length in decimal, a line feed, and its bytes. Returns `None` at the end.
pub(crate) fn next_record(reader: &mut impl Read) -> Option<Vec<u8>> {
    let mut digits = String::new();
    loop {
        let mut byte = [0];
        reader.read_exact(&mut byte).ok()?;
        if byte == *b"\n" {
            break;
        }
        assert!(
            byte[0].is_ascii_digit(),
            "not a record header: {digits:?} then {byte:?}"
        );
        digits.push(char::from(byte[0]));
    }
    let mut record = vec![0; digits.parse().expect("a length")];
    reader.read_exact(&mut record).ok()?;
    Some(record)
}
