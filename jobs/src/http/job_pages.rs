//! The jobs for readers: the list, a single job, its history, and the volumes of all jobs.
//!
//! Each request takes its turn among the readers. Invariants: a list of very many jobs or tasks is made one page at a time,
//! so that the core can decide between two pages; no page shows a reader anything of another role.

use http::StatusCode;
use meseta_daemon::query::Query;
use serde::Serialize;

use super::jobs::Nothing;
use super::{Permitted, Reply, names, permission};
use crate::core::{Authority, JobView, NoPlace, Quotas, State, TaskOrder, VolumeParts, VolumeView};
use crate::file;

/// Tasks and volumes that are examined between two steps of the core.
const TASKS_PER_LOOK: usize = 1_000;
const VOLUMES_PER_LOOK: usize = 1_000;
/// The approximate size of the text of a task or a volume.
const TASK_BYTES: usize = 512;
const VOLUME_BYTES: usize = 512;
/// Tasks of a job in an answer by default: as many as one step launches.
const TASKS_DEFAULT: usize = 20_000;
/// The maximum number of tasks in an answer, whatever the request.
const TASKS_MAX: usize = 100_000;

#[derive(Serialize)]
struct List {
    jobs: Vec<JobView>,
}

/// A job, and the actions that its reader may take.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    job: JobView,
    actions: Vec<&'static str>,
    /// The number of its tasks, if the answer has only some of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    tasks_total: Option<usize>,
}

/// The requested tasks, in their order: behind an offset, or behind the last task of the page before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page {
    offset: usize,
    after: Option<TaskOrder>,
    limit: usize,
}

impl Page {
    fn from_query(query: &Query) -> Result<Self, Reply> {
        let number = |name: &str| match query.get(name) {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| {
                let text = format!("`{name}` must be a whole number, not {text:?}");
                Reply::error(StatusCode::BAD_REQUEST, &text)
            }),
        };
        let refused = |text: String| Reply::error(StatusCode::BAD_REQUEST, &text);
        let (offset, after) = (number("offset")?, query.get("after"));
        if offset.is_some() && after.is_some() {
            return Err(refused(
                "give either `offset` or `after`, not both".to_owned(),
            ));
        }
        let after = after.map(|text| {
            let place: Result<TaskOrder, NoPlace> = text.parse();
            place.map_err(|error| refused(format!("`after` is {text:?}: {error}")))
        });
        Ok(Self {
            offset: offset.unwrap_or_default(),
            after: after.transpose()?,
            limit: number("limit")?.unwrap_or(TASKS_DEFAULT).min(TASKS_MAX),
        })
    }

    /// Returns the place after which the page begins.
    fn place(self, state: &State, name: &str) -> Option<TaskOrder> {
        self.after.or_else(|| state.task_place(name, self.offset))
    }
}

pub(super) async fn list(permitted: Permitted) -> Result<Reply, Reply> {
    let context = &permitted.context;
    let mut turn = context.readers.turn(&permitted.caller).await?;
    let (mut jobs, mut last) = (Vec::new(), None);
    loop {
        let looked = move |state: &State| state.jobs_behind(last.as_deref());
        let (some, next) = turn.look(&context.handle, looked).await?;
        turn = next;
        last = some.last().map(|job: &JobView| job.key.clone());
        jobs.extend(some.into_iter().filter(|job| permitted.sees(&job.role)));
        if last.is_none() {
            return turn.answer_with(List { jobs }).await;
        }
    }
}

pub(super) async fn volumes(permitted: Permitted) -> Result<Reply, Reply> {
    let context = &permitted.context;
    let turn = context.readers.turn(&permitted.caller).await?;
    let (counts, mut turn) = turn.look(&context.handle, State::volume_counts).await?;
    turn.reserve(permitted.seen_of(&counts) * VOLUME_BYTES)
        .await?;
    let mut json = ListWriter::from_object(&Nothing {}, "volumes")?;
    let mut parts = VolumeParts::default();
    loop {
        let behind = parts.behind.take();
        let looked = move |state: &State| state.volumes_behind(behind.as_ref(), VOLUMES_PER_LOOK);
        let (part, next) = turn.look(&context.handle, looked).await?;
        turn = next;
        let is_seen = |volume: &VolumeView| permitted.sees(&volume.role);
        json.add(&parts.take(part, VOLUMES_PER_LOOK, is_seen))?;
        if parts.is_over {
            return turn.answer(json.end()).await;
        }
    }
}

pub(super) async fn job(permitted: Permitted, name: &str) -> Result<Reply, Reply> {
    let Permitted {
        context,
        caller,
        query,
        ..
    } = &permitted;
    let page = Page::from_query(query)?;
    let is_brief = query.get("tasks") == Some("false");
    let turn = context.readers.turn(caller).await?;
    let (key, turn) = names::find_in_turn((context, caller), turn, name).await?;
    let look = |quotas: Option<Quotas>| {
        let wanted = key.clone();
        move |state: &State| {
            // A waiting job needs the quotas: it may have very many tasks.
            if quotas.is_none()
                && let Some(role) = state.role_of_waiting(&wanted)
            {
                return Err(role.to_owned());
            }
            let quotas = quotas.unwrap_or_default();
            let job = match is_brief {
                true => state.brief(&wanted, &quotas),
                false => state.job_alone(&wanted, &quotas),
            };
            // The counts and the first tasks come from one look, so that they agree.
            let most = match is_brief {
                true => 0,
                false => page.limit.min(TASKS_PER_LOOK),
            };
            let place = page.place(state, &wanted);
            let first = state.task_views((&wanted, None), place, most);
            let tasks = (state.task_count(&wanted), first);
            let found = job.zip(state.authorities_of(&wanted));
            let can_be_rebalanced = state.can_be_rebalanced(&wanted);
            Ok(found.map(|(job, authorities)| (job, (authorities, can_be_rebalanced), tasks)))
        }
    };
    let (mut found, mut turn) = turn.look(&context.handle, look(None)).await?;
    if let Err(role) = &found {
        if !permitted.sees(role) {
            return Err(Reply::no_job(name));
        }
        // Other readers have their turns meanwhile.
        drop(turn);
        let all = context.quotas.read().await;
        let quotas = all.seen_of(role, |role| permitted.sees(role));
        turn = context.readers.turn(caller).await?;
        (found, turn) = turn.look(&context.handle, look(Some(quotas))).await?;
    }
    let seen = found.ok().flatten();
    let seen = seen.filter(|(job, ..)| permitted.sees(&job.role));
    let (job, (authorities, can_be_rebalanced), (total, first)) =
        seen.ok_or_else(|| Reply::no_job(name))?;
    let mut actions = permission::actions(&caller.approver, &authorities, &context.user);
    actions.retain(|action| *action != "rebalance" || can_be_rebalanced);
    let mut shown = Shown {
        job,
        actions,
        tasks_total: None,
    };
    if is_brief {
        return turn.answer_with(shown).await;
    }
    shown.tasks_total = Some(total);
    turn.reserve(total.min(page.limit) * TASK_BYTES).await?;
    let mut json = ListWriter::from_object(&shown, "tasks")?;
    let (mut views, mut behind) = first;
    let mut left = page.limit;
    loop {
        left = left.saturating_sub(views.len());
        json.add(&views)?;
        if behind.is_none() || left == 0 {
            return turn.answer(json.end_before(behind)?).await;
        }
        let (wanted, most) = (key.clone(), left.min(TASKS_PER_LOOK));
        let role = shown.job.role.clone();
        let looked = move |state: &State| state.task_views((&wanted, Some(&role)), behind, most);
        ((views, behind), turn) = turn.look(&context.handle, looked).await?;
    }
}

pub(super) async fn history(permitted: Permitted, name: &str) -> Result<Reply, Reply> {
    let context = &permitted.context;
    let turn = context.readers.turn(&permitted.caller).await?;
    let (wanted, turn) = names::find_in_turn((context, &permitted.caller), turn, name).await?;
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

/// A version of a job as a file has it.
#[derive(Serialize)]
pub(super) struct JobFile {
    pub(super) version: u64,
    pub(super) job: serde_json::Value,
}

/// Returns the file that makes a version of a job, for callers who may change the job: its environment may contain secrets.
pub(super) async fn job_file(permitted: Permitted, name: &str) -> Result<Reply, Reply> {
    let version = permitted.query.get("version").map(|text| {
        text.parse::<u64>().map_err(|_| {
            let text = format!("version={text} is not a version number");
            Reply::error(http::StatusCode::BAD_REQUEST, &text)
        })
    });
    let version = version.transpose()?;
    let context = &permitted.context;
    let turn = context.readers.turn(&permitted.caller).await?;
    let (wanted, turn) = names::find_in_turn((context, &permitted.caller), turn, name).await?;
    let looked = move |state: &State| {
        let authority = state.authorities_of(&wanted)?.present;
        Some((authority, state.version(&wanted, version)))
    };
    let (found, turn) = turn.look(&context.handle, looked).await?;
    let found = found.filter(|(authority, _)| permitted.sees(&authority.role));
    let (authority, found) = found.ok_or_else(|| Reply::no_job(name))?;
    permission::change(&permitted.caller.approver, &authority)?;
    let (version, spec) = found?;
    permission::change(&permitted.caller.approver, &Authority::from_spec(&spec))?;
    let job = file::to_json(&spec);
    turn.answer_with(JobFile { version, job }).await
}

/// The text of a list, alone or at the end of an object, written part by part.
pub(super) struct ListWriter {
    json: Vec<u8>,
    is_first: bool,
    is_alone: bool,
}

impl ListWriter {
    pub(super) fn alone() -> Self {
        Self {
            json: b"[".to_vec(),
            is_first: true,
            is_alone: true,
        }
    }

    /// Starts a list after the other fields of an object.
    fn from_object(object: &impl Serialize, list: &str) -> Result<Self, Reply> {
        let mut json = serde_json::to_vec(object).map_err(Reply::defect)?;
        json.pop();
        let comma = if json.len() > 1 { "," } else { "" };
        json.extend_from_slice(format!("{comma}\"{list}\":[").as_bytes());
        Ok(Self {
            json,
            is_first: true,
            is_alone: false,
        })
    }

    pub(super) fn add<T: Serialize>(&mut self, items: &[T]) -> Result<(), Reply> {
        for item in items {
            if !std::mem::take(&mut self.is_first) {
                self.json.push(b',');
            }
            serde_json::to_writer(&mut self.json, item).map_err(Reply::defect)?;
        }
        Ok(())
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        let end: &[u8] = if self.is_alone { b"]" } else { b"]}" };
        self.json.extend_from_slice(end);
        self.json
    }

    /// Ends the list, with the place of the next page if there is more.
    fn end_before(mut self, next: Option<TaskOrder>) -> Result<Vec<u8>, Reply> {
        let Some(next) = next else {
            return Ok(self.end());
        };
        self.json.extend_from_slice(b"],\"next\":");
        serde_json::to_writer(&mut self.json, &next.to_string()).map_err(Reply::defect)?;
        self.json.push(b'}');
        Ok(self.json)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn page_has_offset_and_bounded_length() {
        let page = |offset, after: Option<&str>, limit| Page {
            offset,
            after: after.map(|text| text.parse().expect("a place")),
            limit,
        };
        for (query, expected) in [
            ("x=1", page(0, None, TASKS_DEFAULT)),
            ("offset=200&limit=100", page(200, None, 100)),
            ("after=0.7.1.2&limit=100", page(0, Some("0.7.1.2"), 100)),
            ("limit=1000000", page(0, None, TASKS_MAX)),
        ] {
            let read = Page::from_query(&Query::parse(query)).ok();
            assert_eq!(read, Some(expected), "{query}");
        }
        for query in [
            "limit=",
            "limit=-1",
            "offset=1.5",
            "offset=a",
            "after=",
            "after=web.1.0.3.1",
            "after=0.7.1.2&offset=1",
        ] {
            let refused = Page::from_query(&Query::parse(query)).expect_err(query);
            assert_eq!(refused.status(), StatusCode::BAD_REQUEST, "{query}");
        }
    }

    #[test]
    fn list_in_parts_is_one_list() {
        for parts in [vec![], vec![vec![1, 2], vec![], vec![3]]] {
            let all = parts.concat();
            let written = |mut writer: ListWriter, next: Option<&str>| -> Value {
                for part in &parts {
                    writer.add(part).expect("JSON");
                }
                let next = next.map(|text| text.parse().expect("a place"));
                let text = writer.end_before(next).expect("JSON");
                serde_json::from_slice(&text).expect("JSON")
            };
            let of = |object: Value| ListWriter::from_object(&object, "b").expect("JSON");
            assert_eq!(written(ListWriter::alone(), None), json!(all));
            assert_eq!(written(of(json!({})), None), json!({ "b": all }));
            let behind = json!({ "a": 1, "b": all, "next": "0.1.2.3" });
            assert_eq!(written(of(json!({ "a": 1 })), Some("0.1.2.3")), behind);
        }
    }
}
