//! A framework's knowledge of its reservations and volumes, compared with agent, master and disk.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::faults::oracle;
use crate::http;

/// The label that distinguishes a reservation.
const LABEL: &str = "number";
const MEGABYTES: f64 = 8.0;
/// The role of all tasks and reservations.
pub const ROLE: &str = "dev";

/// The places to compare updates with reality.
#[derive(Clone, Debug)]
pub struct Place {
    pub master_url: String,
    pub agent_url: String,
    pub work_dir: PathBuf,
    /// The marks of tasks, on a disk whose power is not cut.
    pub marks: PathBuf,
}

/// The state of a reservation.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Holding {
    #[default]
    Nothing,
    Reserved,
    Volume,
}

impl Holding {
    const ALL: [Self; 3] = [Self::Nothing, Self::Reserved, Self::Volume];

    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Reserved => "reserved",
            Self::Volume => "volume",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// An operation on a reservation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    Reserve,
    Create,
    Destroy,
    Unreserve,
}

impl Verb {
    pub const ALL: [Self; 4] = [Self::Reserve, Self::Create, Self::Destroy, Self::Unreserve];

    pub fn after(self) -> Holding {
        match self {
            Self::Reserve | Self::Destroy => Holding::Reserved,
            Self::Create => Holding::Volume,
            Self::Unreserve => Holding::Nothing,
        }
    }

    /// Returns the operation of the API, on a resource of an offer, or on a new one.
    pub fn operation(self, id: &str, number: usize, offered: Option<&Value>) -> Value {
        let plain = || offered.cloned().unwrap_or_else(|| reserved(number));
        let (name, part) = match self {
            Self::Reserve => ("RESERVE", json!({"resources": [reserved(number)]})),
            Self::Create => ("CREATE", json!({"volumes": [volume(plain(), number)]})),
            Self::Destroy => ("DESTROY", json!({"volumes": [plain()]})),
            Self::Unreserve => ("UNRESERVE", json!({"resources": [plain()]})),
        };
        json!({"type": name, "id": {"value": id}, name.to_lowercase(): part})
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Reserve => "reserve",
            Self::Create => "create",
            Self::Destroy => "destroy",
            Self::Unreserve => "unreserve",
        };
        f.write_str(name)
    }
}

/// A reservation, as its framework knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reservation {
    pub told: Holding,
    /// The sent operation without a status yet, by its id.
    pub in_flight: Option<(String, Verb)>,
    /// The task that writes to the volume.
    pub writer: Option<String>,
    /// The number of tasks that have written to the volume.
    pub writers: usize,
}

impl Reservation {
    fn may_be(&self, found: Holding) -> bool {
        let after = self.in_flight.as_ref().map(|(_, verb)| verb.after());
        found == self.told || after == Some(found)
    }
}

/// Returns the path of a volume's file for its tasks, below the work directory.
fn log_of(place: &Place, number: usize) -> PathBuf {
    folder_of(place, number).join("log")
}

fn folder_of(place: &Place, number: usize) -> PathBuf {
    let volumes = place.work_dir.join("volumes/roles").join(ROLE);
    volumes.join(persistence_id(number))
}

/// Returns the file with the last number whose sync a task has seen.
pub fn synced_mark(place: &Place, number: usize) -> PathBuf {
    place
        .marks
        .join(format!("{}.synced", persistence_id(number)))
}

fn persistence_id(number: usize) -> String {
    format!("volume-{number}")
}

/// Returns the last number whose sync a task has seen.
pub fn synced(place: &Place, number: usize) -> Option<u64> {
    numbers(&synced_mark(place, number)).max()
}

/// Returns the command of a task on a volume: it appends a number, syncs file and folder, and notes that outside,
/// repeatedly.
pub fn writing(place: &Place, number: usize, times: usize) -> String {
    let mark = synced_mark(place, number).display().to_string();
    format!(
        "i=$(tail -n 1 {mark} 2>/dev/null); i=${{i:-0}}; for n in $(seq {times}); do i=$((i+1)); \
         printf '\\n%d\\n' $i >> data/log && sync data/log data && echo $i >> {mark}; sleep 0.05; done"
    )
}

fn reserved(number: usize) -> Value {
    let labels = json!({"labels": [{"key": LABEL, "value": number.to_string()}]});
    json!({"name": "disk", "type": "SCALAR", "scalar": {"value": MEGABYTES},
        "reservations": [{"type": "DYNAMIC", "role": ROLE, "labels": labels}]})
}

fn volume(mut reserved: Value, number: usize) -> Value {
    reserved["disk"] = json!({"persistence": {"id": persistence_id(number)},
        "volume": {"mode": "RW", "container_path": "data"}});
    reserved
}

/// Returns the number and state of a reserved resource; `None` for a free one.
pub fn numbered(resource: &Value) -> Option<(usize, Holding)> {
    let labels = resource["reservations"].as_array()?.last()?["labels"]["labels"].as_array()?;
    let label = labels.iter().find(|label| label["key"] == LABEL)?;
    let number = label["value"].as_str()?.parse().ok()?;
    let id = &resource["disk"]["persistence"]["id"];
    let holding = match id.as_str() {
        None => Holding::Reserved,
        Some(_) => Holding::Volume,
    };
    Some((number, holding))
}

/// Returns the differences from the updates: in the agent's id, in reservations and volumes, and in their contents.
pub fn wrongs(
    place: &Place,
    agent_id: &str,
    reservations: &BTreeMap<usize, Reservation>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let agent = page(&place.agent_url, "/state");
    let slaves = page(&place.master_url, "/slaves");
    let known = &slaves["slaves"];
    if agent["id"] != agent_id || known[0]["id"] != agent_id || !known[1].is_null() {
        let ids = [&agent["id"], &known[0]["id"], &known[1]["id"]];
        wrong.push(format!("it was the agent {agent_id}, now there is {ids:?}"));
    }
    for (who, state) in [("agent", &agent), ("master", &known[0])] {
        let found = holdings(&state["reserved_resources_full"]);
        for (number, one) in reservations {
            let is = found.get(number).copied().unwrap_or_default();
            if !one.may_be(is) {
                wrong.push(format!(
                    "reservation {number} was told to be {:?} ({:?}), for the {who} it is {is:?}",
                    one.told, one.in_flight
                ));
            }
        }
        for number in found
            .keys()
            .filter(|number| !reservations.contains_key(number))
        {
            wrong.push(format!("the {who} has a reservation {number} of nobody"));
        }
    }
    let settled = reservations.iter().filter(|(_, one)| {
        one.told == Holding::Volume
            && !matches!(one.in_flight, Some((_, verb)) if verb != Verb::Create)
    });
    for (number, _) in settled {
        wrong.extend(wrong_of_data(place, *number));
    }
    wrong
}

/// Returns the agent's reservations, once no operation is in flight.
pub fn settled(
    place: &Place,
    reservations: &BTreeMap<usize, Reservation>,
) -> BTreeMap<usize, Reservation> {
    let found = holdings(&page(&place.agent_url, "/state")["reserved_resources_full"]);
    let settled = |(number, one): (&usize, &Reservation)| {
        let told = found.get(number).copied().unwrap_or_default();
        let one = Reservation {
            told,
            in_flight: None,
            writer: None,
            writers: one.writers,
        };
        (*number, one)
    };
    reservations.iter().map(settled).collect()
}

/// Returns the error about synced data that is missing from a volume.
fn wrong_of_data(place: &Place, number: usize) -> Option<String> {
    let synced = synced(place, number)?;
    let there = numbers(&log_of(place, number)).max().unwrap_or(0);
    (there < synced)
        .then(|| format!("volume {number} has {there} numbers of {synced} that were synced"))
}

/// Returns tasks that are still known once all have ended, and data of destroyed volumes.
pub fn left_over(place: &Place, reservations: &BTreeMap<usize, Reservation>) -> Vec<String> {
    let mut left = Vec::new();
    for (who, url) in [("master", &place.master_url), ("agent", &place.agent_url)] {
        let tasks = oracle::tasks(&page(url, "/state"));
        if !tasks.is_empty() {
            left.push(format!("the {who} still has tasks: {tasks:?}"));
        }
    }
    let gone = reservations
        .iter()
        .filter(|(_, one)| one.told != Holding::Volume && one.in_flight.is_none());
    let folders = gone.map(|(number, _)| folder_of(place, *number));
    // An empty folder belongs to an interrupted CREATE: the next volume of that name uses it.
    let has_data =
        |folder: &PathBuf| fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    let there = folders.filter(has_data);
    left.extend(there.map(|folder| format!("{} is left of a volume", folder.display())));
    left
}

/// Returns the numbers in a file, one per line; truncated lines do not reduce the maximum.
fn numbers(path: &Path) -> impl Iterator<Item = u64> + use<> {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<u64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    lines.into_iter()
}

fn holdings(by_role: &Value) -> BTreeMap<usize, Holding> {
    let resources = by_role[ROLE].as_array().into_iter().flatten();
    resources.filter_map(numbered).collect()
}

fn page(url: &str, path: &str) -> Value {
    let answer = http::try_get(&format!("{url}{path}"));
    answer.map_or(Value::Null, |answer| answer.json())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_operation_may_have_taken_effect() {
        let mut one = Reservation {
            told: Holding::Reserved,
            ..Reservation::default()
        };
        assert!(one.may_be(Holding::Reserved));
        assert!(!one.may_be(Holding::Nothing) && !one.may_be(Holding::Volume));
        one.in_flight = Some(("create-1".to_owned(), Verb::Create));
        assert!(one.may_be(Holding::Volume) && !one.may_be(Holding::Nothing));
    }

    #[test]
    fn a_resource_tells_its_number() {
        assert_eq!(numbered(&reserved(7)), Some((7, Holding::Reserved)));
        let volume = volume(reserved(7), 7);
        assert_eq!(numbered(&volume), Some((7, Holding::Volume)));
        assert_eq!(numbered(&json!({"name": "disk"})), None);
    }
}
