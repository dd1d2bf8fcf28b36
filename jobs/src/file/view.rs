//! A table with a checked shape, read with the defaults of its declaration.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use meseta_resources::{ByteSize, parse_duration};

use super::fields::{Form, Presence, Section};
use super::tree::{self, Node};

const BYTES_PER_MB: f64 = 1_048_576.0;

/// The view of a table, see the module. An absent table has no entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    section: &'static Section,
    node: Option<&'a Node>,
    /// The byte where the table begins, or where its parent does.
    at: usize,
}

impl<'a> View<'a> {
    pub(super) const fn new(section: &'static Section, node: &'a Node) -> Self {
        Self {
            section,
            node: Some(node),
            at: node.at,
        }
    }

    /// Returns the table below `name`.
    pub(super) fn section(&self, name: &str) -> Self {
        let node = self.written(name);
        Self {
            section: match self.section.field(name).map(|field| &field.form) {
                Some(Form::Section(section) | Form::Sections { section, .. }) => section,
                _ => self.section,
            },
            node,
            at: node.map_or(self.at, |node| node.at),
        }
    }

    /// Returns the tables of the list `name`.
    pub(super) fn sections(&self, name: &str) -> Vec<Self> {
        let list = self.section(name);
        let items = list.node.map_or(&[][..], Node::items).iter();
        items.map(|item| Self::new(list.section, item)).collect()
    }

    pub(super) const fn at(&self) -> usize {
        self.at
    }

    pub(super) const fn title(&self) -> &'static str {
        self.section.title
    }

    /// Returns the text that stands for this table, if any.
    pub(super) fn short(&self) -> Option<&'a str> {
        self.node?.text()
    }

    /// Returns the value that the file has under `name`.
    pub(super) fn written(&self, name: &str) -> Option<&'a Node> {
        self.node?.get(name)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.written(name).is_some()
    }

    /// Returns the byte of the value of `name`, or of the table if the value is absent.
    pub(super) fn place(&self, name: &str) -> usize {
        self.written(name).map_or(self.at, |node| node.at)
    }

    /// Returns the value under `name`, or its default.
    fn node(&self, name: &str) -> Option<Cow<'a, Node>> {
        if let Some(node) = self.written(name) {
            return Some(Cow::Borrowed(node));
        }
        let Some(Presence::Default(text)) = self.section.field(name).map(|field| &field.presence)
        else {
            return None;
        };
        let tree = tree::from_toml(&format!("value = {text}")).ok()?;
        tree.get("value").cloned().map(Cow::Owned)
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        Some(self.node(name)?.text()?.to_owned())
    }

    /// Returns the texts of a list with their places.
    pub(super) fn texts(&self, name: &str) -> Vec<(usize, String)> {
        let node = self.node(name);
        let items = node.as_deref().map_or(&[][..], Node::items).iter();
        items
            .filter_map(|item| Some((item.at, item.text()?.to_owned())))
            .collect()
    }

    pub(super) fn text_map(&self, name: &str) -> BTreeMap<String, String> {
        let node = self.node(name);
        let entries = node.as_deref().map_or(&[][..], Node::entries).iter();
        entries
            .filter_map(|entry| Some((entry.name.clone(), entry.node.text()?.to_owned())))
            .collect()
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        let node = self.node(name);
        matches!(
            node.as_deref().map(|node| &node.value),
            Some(tree::Value::Flag(true))
        )
    }

    pub(super) fn integer(&self, name: &str) -> Option<u32> {
        match self.node(name)?.value {
            tree::Value::Integer(number) => u32::try_from(number).ok(),
            _ => None,
        }
    }

    pub(super) fn number(&self, name: &str) -> Option<f64> {
        self.node(name)?.number()
    }

    /// Returns a duration, or zero if it is absent and has no default.
    pub(super) fn duration(&self, name: &str) -> Duration {
        self.optional_duration(name).unwrap_or_default()
    }

    pub(super) fn optional_duration(&self, name: &str) -> Option<Duration> {
        parse_duration(self.node(name)?.text()?).ok()
    }

    /// Returns a size in megabytes of 2^20 bytes.
    pub(super) fn size_mb(&self, name: &str) -> Option<f64> {
        let size: ByteSize = self.node(name)?.text()?.parse().ok()?;
        #[expect(
            clippy::cast_precision_loss,
            reason = "sizes are at most 2^50 bytes, which is exact"
        )]
        Some(size.as_bytes() as f64 / BYTES_PER_MB)
    }
}
