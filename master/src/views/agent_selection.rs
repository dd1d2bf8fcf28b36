//! The selection of agents for `/slaves`: one agent, those with certain words, or a page of them.

use meseta_daemon::query::Query;
use meseta_proto::convert;
use meseta_proto::mesos::v1::AgentInfo;
use meseta_resources::AgentId;

use super::Paging;
use crate::core::{AgentView, Drain};

/// The selected agents, counted as they are taken, in the order of the answer.
#[derive(Debug)]
pub(crate) struct AgentSelection<'a> {
    id: Option<&'a str>,
    /// Words in lower case; a selected agent has all of them.
    words: Vec<String>,
    /// States as [`standing`] names them; a selected agent is in one of them.
    states: Option<Vec<&'a str>>,
    offset: usize,
    limit: Option<usize>,
    is_narrowed: bool,
    fitting: usize,
}

impl<'a> AgentSelection<'a> {
    /// The selection of a query. Without `filter`, `state`, `limit` and `offset` it selects all agents, and the
    /// answer is that of Mesos.
    pub(crate) fn from_query(query: &'a Query, paging: &Paging) -> Self {
        let words = query.get("filter").unwrap_or_default();
        let has = |name| query.get(name).is_some();
        Self {
            id: query.get("slave_id"),
            words: words.split_whitespace().map(str::to_lowercase).collect(),
            states: query.get("state").map(|states| states.split(',').collect()),
            offset: paging.offset,
            limit: paging.limit.filter(|_| has("limit")),
            is_narrowed: has("filter") || has("state") || has("limit") || has("offset"),
            fitting: 0,
        }
    }

    /// Whether the answer includes this agent; `of` returns the agent's searchable properties.
    pub(super) fn takes(&mut self, id: &AgentId, of: impl FnOnce() -> Told) -> bool {
        if self.id.is_some_and(|wanted| wanted != id.as_str()) {
            return false;
        }
        if (self.states.is_some() || !self.words.is_empty()) && !self.fits(&of()) {
            return false;
        }
        let position = self.fitting;
        self.fitting += 1;
        position >= self.offset
            && self
                .limit
                .is_none_or(|limit| position - self.offset < limit)
    }

    fn fits(&self, told: &Told) -> bool {
        let states = self.states.as_ref();
        let text = told.text.to_lowercase();
        states.is_none_or(|states| states.contains(&told.standing.as_str()))
            && self.words.iter().all(|word| text.contains(word))
    }

    /// The number of matching agents on all pages, if the query narrowed the selection.
    pub(super) fn total(&self) -> Option<usize> {
        self.is_narrowed.then_some(self.fitting)
    }
}

/// The searchable properties of an agent.
#[derive(Debug)]
pub(super) struct Told {
    standing: String,
    /// The text for word search: the address, the id, the state, attributes as `name:value`.
    text: String,
}

impl Told {
    pub(super) fn new(id: &AgentId, address: &str, standing: impl Into<String>) -> Self {
        let standing = standing.into();
        let text = format!("{address} {id} {standing}");
        Self { standing, text }
    }

    pub(super) fn with_attributes(mut self, info: &AgentInfo) -> Self {
        let attributes = convert::attributes(&info.attributes).unwrap_or_default();
        for attribute in attributes.iter() {
            let (name, value) = (attribute.name(), attribute.value());
            self.text.push_str(&format!(" {name}:{value}"));
        }
        self
    }
}

/// The state of a registered agent: `draining`, `drained`, `deactivated`, `active` or `disconnected`.
pub(super) fn standing(agent: &AgentView) -> String {
    let deactivation = agent.deactivation.as_ref();
    let drain = deactivation.and_then(|deactivation| deactivation.drain.as_ref());
    match (drain.map(Drain::to_wire), deactivation) {
        (Some(drain), _) => drain.state().as_str_name().to_lowercase(),
        (None, Some(_)) => "deactivated".into(),
        (None, None) if agent.is_active() => "active".into(),
        (None, None) => "disconnected".into(),
    }
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1::value::{Text, Type as ValueType};
    use meseta_proto::mesos::v1::{AgentInfo, Attribute};

    use super::*;

    /// The ids that a query selects from five agents in two racks.
    fn taken(query: &str) -> (Vec<usize>, Option<usize>) {
        let query = Query::parse(query);
        let paging = Paging::from_query(&query).expect("a page");
        let mut selection = AgentSelection::from_query(&query, &paging);
        let ids = (0..5).filter(|index| {
            let id = AgentId::new(&format!("S{index}")).expect("an id");
            let standing = ["active", "draining"][index / 3];
            let address = format!("Host{index}:5051 rack:r{}", index % 2);
            selection.takes(&id, || Told::new(&id, &address, standing))
        });
        (ids.collect(), selection.total())
    }

    #[test]
    fn attributes_match_their_displayed_text() {
        let text = |text: &str| Attribute {
            name: "rack".into(),
            r#type: ValueType::Text.into(),
            text: Some(Text { value: text.into() }),
            ..Attribute::default()
        };
        let info = AgentInfo {
            attributes: vec![text("r1")],
            ..AgentInfo::default()
        };
        let id = AgentId::new("S1").expect("an id");
        let told = Told::new(&id, "host:5051", "active").with_attributes(&info);
        assert_eq!(told.text, "host:5051 S1 active rack:r1");
    }

    #[test]
    fn agents_are_selected_by_text() {
        let all = vec![0, 1, 2, 3, 4];
        for (query, ids, total) in [
            ("", all.clone(), None),
            ("slave_id=S3", vec![3], None),
            ("limit=-1", all.clone(), Some(5)),
            ("limit=2", vec![0, 1], Some(5)),
            ("offset=3", vec![3, 4], Some(5)),
            ("filter=rack:R1", vec![1, 3], Some(2)),
            ("filter=host+r0&limit=1&offset=1", vec![2], Some(3)),
            ("filter=r0+active", vec![0, 2], Some(2)),
            ("state=draining,gone&filter=r0", vec![4], Some(1)),
            ("state=active&limit=1", vec![0], Some(3)),
            ("filter=r0+host9", vec![], Some(0)),
            ("filter=&limit=9&offset=9", vec![], Some(5)),
        ] {
            assert_eq!(taken(query), (ids, total), "{query}");
        }
    }
}
