//! The volume of an instance to destroy: the named or shown one, and no other that the instance has by then.

use serde_json::{Value, json};

use super::super::{items, text};
use super::api::{self, Scheduler};
use crate::terminal;

/// Returns the request for an instance of a job. Without a named volume, it names the present volume of the instance, which
/// is printed if `is_told`; if there is none, the scheduler reports that.
pub(super) fn request(
    scheduler: &Scheduler,
    (name, index): (&str, u32),
    named: Option<&str>,
    is_told: bool,
) -> anyhow::Result<Value> {
    if let Some(id) = named {
        return Ok(json!({ "index": index, "volume_id": id }));
    }
    let job = scheduler.get(&format!("{}?tasks=false", api::path(name)?))?;
    let is_of = |volume: &&Value| volume.get("index").and_then(Value::as_u64) == Some(index.into());
    let volume = items(&job, "volumes").iter().find(is_of);
    let Some((volume, id)) = volume.and_then(|volume| Some((volume, volume.get("volume_id")?)))
    else {
        return Ok(json!({ "index": index }));
    };
    if is_told {
        terminal::say(&format!(
            "volume {} of instance {index}, on {}",
            text(volume, "volume_id"),
            text(volume, "hostname")
        ));
    }
    Ok(json!({ "index": index, "volume_id": id }))
}
