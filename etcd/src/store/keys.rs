//! The keys in etcd, all under one prefix.

/// The keys of one cluster of daemons.
#[derive(Clone, Debug)]
pub struct Keys {
    /// The prefix with a slash at its end.
    prefix: String,
}

impl Keys {
    /// Keys below a prefix such as `/meseta`; slashes at its ends do not matter.
    pub fn new(prefix: &str) -> Self {
        let prefix = prefix.trim_matches('/');
        let prefix = match prefix {
            "" => "/".to_owned(),
            prefix => format!("/{prefix}/"),
        };
        Self { prefix }
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The leader's record; lives by the leader's lease.
    pub fn leader(&self) -> String {
        self.key("leader")
    }

    /// The prefix of the daemons of a kind; each key lives by its daemon's own lease.
    pub fn members(&self, kind: &str) -> String {
        self.key(&format!("{kind}/"))
    }

    /// The metadata of all records: format, epoch, cluster.
    pub fn meta(&self) -> String {
        self.key("meta")
    }

    /// The number of the last transaction.
    pub fn sequence(&self) -> String {
        self.key("sequence")
    }

    /// The pointer to staged parts that are valid and not yet all among the records.
    pub fn pointer(&self) -> String {
        self.key("pointer")
    }

    /// The prefix of the parts of a change that is too large for one transaction.
    pub fn all_staged(&self) -> String {
        self.key("staged/")
    }

    pub fn staged(&self, generation: u64) -> String {
        self.key(&format!("staged/{generation:020}/"))
    }

    pub fn staged_part(&self, generation: u64, part: u32) -> String {
        self.key(&format!("staged/{generation:020}/{part:010}"))
    }

    pub fn records(&self) -> String {
        self.key("records/")
    }

    pub fn record(&self, name: &str) -> String {
        self.key(&format!("records/{name}"))
    }

    /// The prefix of chunks of records whose values are too long for one key.
    pub fn all_chunks(&self) -> String {
        self.key("chunks/")
    }

    /// The prefix of the chunks of one record. The length comes first, so that no name is the beginning of another.
    pub fn chunks(&self, name: &str) -> String {
        self.key(&format!("chunks/{}:{name}/", name.len()))
    }

    pub fn chunk(&self, name: &str, number: u32) -> String {
        format!("{}{number:010}", self.chunks(name))
    }

    /// The name of the record to which a key below [`Self::all_chunks`] belongs.
    pub fn chunk_name<'a>(&self, key: &'a str) -> Option<&'a str> {
        let rest = key.strip_prefix(self.all_chunks().as_str())?;
        let (length, rest) = rest.split_once(':')?;
        rest.get(..length.parse().ok()?)
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lies_under_the_prefix() {
        for given in ["/meseta/prod", "meseta/prod", "/meseta/prod/"] {
            let keys = Keys::new(given);
            assert_eq!(keys.leader(), "/meseta/prod/leader");
            assert_eq!(keys.record("agent/A"), "/meseta/prod/records/agent/A");
        }
        assert_eq!(Keys::new("/").meta(), "/meta");
        let keys = Keys::new("m");
        assert!(keys.staged_part(7, 2).starts_with(&keys.staged(7)));
        assert!(keys.staged(10) > keys.staged(9));
        assert!(
            !keys
                .chunk("agent/A/1", 0)
                .starts_with(&keys.chunks("agent/A"))
        );
        let chunk = keys.chunk("agent/A:b", 3);
        assert_eq!(keys.chunk_name(&chunk), Some("agent/A:b"));
        assert_eq!(keys.chunk_name("/m/chunks/99:agent"), None);
    }
}
