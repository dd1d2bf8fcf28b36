//! The executors of hostile frameworks: the program `floods executor BEHAVIOUR TASK`, over `/api/v1/executor`.

use std::io::{self, BufReader, Write as _};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::executor::{Call, Event, call, event};
use prost::Message as _;

use crate::scheduler::{executor_id, task_id};
use crate::sockets::{
    Chunked, Client, Head, connect, connect_small_buffer, next_record, send_head,
};

const PATH: &str = "POST /api/v1/executor";
const MEDIA: &str = "application/x-protobuf";
/// The time after which an executor without its agent ends by itself.
const LIFETIME: Duration = Duration::from_secs(15 * 60);
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// The size of the messages of a `talker`, which pauses after each series.
const MESSAGE_BYTES: usize = 1 << 20;
const MESSAGES: usize = 100;
const MESSAGES_PAUSE: Duration = Duration::from_secs(2);
/// The data of a `bulky` status: the maximum that an agent accepts in one call, minus its frame.
const STATUS_BYTES: usize = 6 * 1024 * 1024 - 4096;

/// Acts as an executor until it is killed.
pub(crate) fn run(behaviour: &str, task: &str) -> anyhow::Result<()> {
    let executor = Executor::from_environment()?;
    match behaviour {
        // An executor that never reads a byte of its stream.
        "deaf" => executor.deaf(task),
        // An executor that sends messages as fast as they are accepted.
        "talker" => executor.talker(task),
        // An executor that reports each task with a status of the maximum size.
        "bulky" => executor.bulky(),
        _ => bail!("no executor behaves as {behaviour}"),
    }
}

#[derive(Debug)]
struct Executor {
    agent: SocketAddrV4,
    executor: String,
    framework: String,
    token: Option<String>,
}

impl Executor {
    fn from_environment() -> anyhow::Result<Self> {
        let variable = |name: &str| std::env::var(name).with_context(|| name.to_owned());
        let token = std::env::var("MESOS_EXECUTOR_AUTHENTICATION_TOKEN").ok();
        Ok(Self {
            agent: variable("MESOS_AGENT_ENDPOINT")?.parse()?,
            executor: variable("MESOS_EXECUTOR_ID")?,
            framework: variable("MESOS_FRAMEWORK_ID")?,
            token: token.map(|token| format!("Bearer {token}")),
        })
    }

    fn headers(&self) -> Vec<(&str, &str)> {
        let mut headers = vec![("Content-Type", MEDIA), ("Accept", MEDIA)];
        if let Some(token) = &self.token {
            headers.push(("Authorization", token));
        }
        headers
    }

    fn call(&self, kind: call::Type) -> Call {
        Call {
            executor_id: executor_id(&self.executor),
            framework_id: pb::FrameworkId {
                value: self.framework.clone(),
            },
            r#type: Some(kind.into()),
            subscribe: (kind == call::Type::Subscribe).then(call::Subscribe::default),
            update: None,
            message: None,
        }
    }

    fn send(&self, client: &mut Client, call: &Call) -> io::Result<u16> {
        let reply = client.send(PATH, &self.headers(), &call.encode_to_vec())?;
        Ok(reply.status)
    }

    fn running(&self, task: &str, data: Option<Vec<u8>>) -> Call {
        // The id differs in each life and for each task.
        let mut uuid = [0; 16];
        let id = std::process::id().to_le_bytes();
        let name = task.bytes().rev();
        for (byte, value) in uuid.iter_mut().zip(id.into_iter().chain(name)) {
            *byte = value;
        }
        let status = pb::TaskStatus {
            task_id: task_id(task),
            state: pb::TaskState::TaskRunning.into(),
            source: Some(pb::task_status::Source::Executor.into()),
            uuid: Some(uuid.to_vec()),
            data,
            ..pb::TaskStatus::default()
        };
        let mut call = self.call(call::Type::Update);
        call.update = Some(call::Update { status });
        call
    }

    fn subscribe(&self) -> io::Result<Chunked> {
        let mut stream = connect(self.agent, None)?;
        let body = self.call(call::Type::Subscribe).encode_to_vec();
        send_head(&mut stream, PATH, &self.headers(), body.len())?;
        stream.write_all(&body)?;
        let mut reader = BufReader::new(stream);
        let head = Head::read(&mut reader)?;
        if head.status != 200 {
            return Err(io::Error::other(format!("SUBSCRIBE: {}", head.status)));
        }
        Ok(Chunked::new(reader))
    }

    fn deaf(&self, task: &str) -> anyhow::Result<()> {
        let mut stream = connect_small_buffer(self.agent, None)?;
        let body = self.call(call::Type::Subscribe).encode_to_vec();
        send_head(&mut stream, PATH, &self.headers(), body.len())?;
        stream.write_all(&body)?;
        // The agent accepts an update only from a subscribed executor, and the subscription's answer cannot be read here.
        let mut client = Client::new(self.agent, None);
        let began = Instant::now();
        while self.send(&mut client, &self.running(task, None))? != 202 {
            if began.elapsed() > LIFETIME {
                bail!("the agent does not take an update");
            }
            std::thread::sleep(RECONNECT_PAUSE);
        }
        std::thread::sleep(LIFETIME);
        drop(stream);
        Ok(())
    }

    fn talker(&self, task: &str) -> anyhow::Result<()> {
        let mut records = self.subscribe()?;
        std::thread::spawn(move || while let Ok(Some(_)) = next_record(&mut records) {});
        let mut client = Client::new(self.agent, None);
        self.send(&mut client, &self.running(task, None))?;
        let mut message = self.call(call::Type::Message);
        message.message = Some(call::Message {
            data: vec![b'm'; MESSAGE_BYTES],
        });
        let began = Instant::now();
        while began.elapsed() < LIFETIME {
            for _ in 0..MESSAGES {
                let answer = self.send(&mut client, &message);
                writeln!(io::stderr(), "message: {answer:?}")?;
            }
            std::thread::sleep(MESSAGES_PAUSE);
        }
        Ok(())
    }

    fn bulky(&self) -> anyhow::Result<()> {
        let began = Instant::now();
        while began.elapsed() < LIFETIME {
            if let Ok(mut records) = self.subscribe() {
                while let Ok(Some(record)) = next_record(&mut records) {
                    let event = Event::decode(record.as_slice())?;
                    if event.r#type() == event::Type::Shutdown {
                        return Ok(());
                    }
                    if let Some(launch) = event.launch {
                        let data = Some(vec![b's'; STATUS_BYTES]);
                        let update = self.running(&launch.task.task_id.value, data);
                        let mut client = Client::new(self.agent, None);
                        let answer = self.send(&mut client, &update);
                        writeln!(io::stderr(), "update: {answer:?}")?;
                    }
                }
            }
            std::thread::sleep(RECONNECT_PAUSE);
        }
        Ok(())
    }
}
