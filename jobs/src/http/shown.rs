//! What is read of jobs: their list, one of them, what it was, and the volumes of all.
//!
//! Each takes its turn among the readers. Invariant: what is made of very many jobs or tasks is looked at a part at a time,
//! so that what the core has to decide comes between.

use http::StatusCode;
use meseta_daemon::query::Query;
use serde::Serialize;

use super::{Permitted, Reply, permission};
use crate::core::{JobView, State, TaskOrder, VolumeView};

/// Jobs and tasks that are looked at between two steps of the core.
const JOBS_PER_LOOK: usize = 200;
const TASKS_PER_LOOK: usize = 1_000;
/// What the text of a task takes, more or less.
const TASK_BYTES: usize = 512;

#[derive(Serialize)]
struct List {
    jobs: Vec<JobView>,
}

#[derive(Serialize)]
struct Volumes {
    volumes: Vec<VolumeView>,
}

/// One job, and what its reader may do to it.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    job: JobView,
    actions: Vec<&'static str>,
    /// How many tasks it has, where some of them are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks_total: Option<usize>,
}

/// Which of its tasks are asked for, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    offset: usize,
    limit: usize,
}

impl Page {
    fn of(query: &Query) -> Result<Self, Reply> {
        let number = |name: &str| match query.get(name) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                let text = format!("`{name}` is a whole number, not {text:?}");
                Reply::error(StatusCode::BAD_REQUEST, &text)
            }),
        };
        Ok(Self {
            offset: number("offset")?.unwrap_or_default(),
            limit: number("limit")?.unwrap_or(usize::MAX),
        })
    }

    /// Those of the page.
    fn cut(self, mut tasks: Vec<TaskOrder>) -> Vec<TaskOrder> {
        tasks.sort_unstable();
        let tasks = tasks.into_iter().skip(self.offset);
        tasks.take(self.limit).collect()
    }
}

pub(super) async fn list(permitted: Permitted) -> Result<Reply, Reply> {
    let context = &permitted.context;
    let mut turn = context.readers.turn(&permitted.caller).await?;
    let (mut jobs, mut last) = (Vec::new(), None);
    loop {
        let looked = move |state: &State| state.jobs_behind(last.as_deref(), JOBS_PER_LOOK);
        let (some, next) = turn.look(&context.handle, looked).await?;
        turn = next;
        last = some.last().map(|job: &JobView| job.name.clone());
        jobs.extend(some.into_iter().filter(|job| permitted.sees(&job.role)));
        if last.is_none() {
            return turn.answer_with(List { jobs }).await;
        }
    }
}

pub(super) async fn volumes(permitted: Permitted) -> Result<Reply, Reply> {
    let context = &permitted.context;
    let turn = context.readers.turn(&permitted.caller).await?;
    let looked = turn.look(&context.handle, State::volumes);
    let (mut volumes, turn) = looked.await?;
    volumes.retain(|volume| permitted.sees(&volume.role));
    turn.answer_with(Volumes { volumes }).await
}

pub(super) async fn job(permitted: Permitted, name: &str) -> Result<Reply, Reply> {
    let Permitted {
        context,
        caller,
        query,
        ..
    } = &permitted;
    let page = Page::of(query)?;
    let is_brief = query.get("tasks") == Some("false");
    let turn = context.readers.turn(caller).await?;
    let wanted = name.to_owned();
    let looked = move |state: &State| {
        let job = match is_brief {
            true => state.summary(&wanted),
            false => state.job_alone(&wanted),
        };
        Some((job?, state.authority_of(&wanted)?))
    };
    let (found, turn) = turn.look(&context.handle, looked).await?;
    let seen = found.filter(|(job, _)| permitted.sees(&job.role));
    let (job, authority) = seen.ok_or_else(|| Reply::no_job(name))?;
    let mut shown = Shown {
        job,
        actions: permission::actions(&caller.approver, &authority, &context.user),
        tasks_total: None,
    };
    if is_brief {
        return turn.answer_with(shown).await;
    }
    let wanted = name.to_owned();
    let looked = turn.look(&context.handle, move |state| state.tasks_of(&wanted));
    let (tasks, turn) = looked.await?;
    shown.tasks_total = Some(tasks.len());
    let (tasks, mut turn) = turn.make(move || page.cut(tasks)).await?;
    turn.reserve(tasks.len() * TASK_BYTES).await?;
    let mut json = ListWriter::new(&shown, "tasks")?;
    for some in tasks.chunks(TASKS_PER_LOOK) {
        let (wanted, some) = (name.to_owned(), some.to_vec());
        let looked = move |state: &State| state.task_views(&wanted, &some);
        let (views, next) = turn.look(&context.handle, looked).await?;
        turn = next;
        json.add(&views)?;
    }
    turn.answer(json.end()).await
}

pub(super) async fn history(permitted: Permitted, name: &str) -> Result<Reply, Reply> {
    let wanted = name.to_owned();
    let context = &permitted.context;
    let turn = context.readers.turn(&permitted.caller).await?;
    let looked = move |state: &State| {
        let role = state.role_of(&wanted)?.to_owned();
        Some((role, state.history(&wanted)?))
    };
    let (found, turn) = turn.look(&context.handle, looked).await?;
    match found.filter(|(role, _)| permitted.sees(role)) {
        Some((_, history)) => turn.answer_with(history).await,
        None => Err(Reply::no_job(name)),
    }
}

/// The text of an object with a list at its end, of which a part is there at a time.
struct ListWriter {
    json: Vec<u8>,
    is_first: bool,
}

impl ListWriter {
    /// The object has other fields than the list.
    fn new(object: &impl Serialize, list: &str) -> Result<Self, Reply> {
        let mut json = serde_json::to_vec(object).map_err(Reply::defect)?;
        json.pop();
        json.extend_from_slice(format!(",\"{list}\":[").as_bytes());
        Ok(Self {
            json,
            is_first: true,
        })
    }

    fn add<T: Serialize>(&mut self, items: &[T]) -> Result<(), Reply> {
        for item in items {
            if !std::mem::take(&mut self.is_first) {
                self.json.push(b',');
            }
            serde_json::to_writer(&mut self.json, item).map_err(Reply::defect)?;
        }
        Ok(())
    }

    fn end(mut self) -> Vec<u8> {
        self.json.extend_from_slice(b"]}");
        self.json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_two_whole_numbers_or_everything() {
        let all = Page {
            offset: 0,
            limit: usize::MAX,
        };
        let some = Page {
            offset: 200,
            limit: 100,
        };
        for (query, page) in [("x=1", all), ("offset=200&limit=100", some)] {
            assert_eq!(Page::of(&Query::parse(query)).ok(), Some(page), "{query}");
        }
        for query in ["limit=", "limit=-1", "offset=1.5", "offset=a"] {
            let refused = Page::of(&Query::parse(query)).expect_err(query);
            assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{query}");
        }
    }

    #[test]
    fn a_list_that_is_written_in_parts_is_one_list() {
        for parts in [vec![], vec![vec![1, 2], vec![], vec![3]]] {
            let mut writer = ListWriter::new(&serde_json::json!({ "a": 1 }), "b").expect("JSON");
            for part in &parts {
                writer.add(part).expect("JSON");
            }
            let written: serde_json::Value = serde_json::from_slice(&writer.end()).expect("JSON");
            let expected = serde_json::json!({ "a": 1, "b": parts.concat() });
            assert_eq!(written, expected);
        }
    }
}
