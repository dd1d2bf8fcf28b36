//! The address of the master.

use meseta_proto::leader::is_host_port;

use crate::failure::Failure;

/// The address of the master; one of several masters leads.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum MasterAddress {
    HostPorts(Vec<String>),
    /// The content of this file, read again for each attempt.
    File(std::path::PathBuf),
}

/// An unusable value of `--master`.
#[derive(Debug, thiserror::Error, Eq, PartialEq)]
pub enum MasterAddressError {
    /// A kind of address that is not supported.
    #[error(
        "--master={0:?} names ZooKeeper, which is not supported: give host:port (of several masters with commas between) \
         or file:///path"
    )]
    ZooKeeper(String),
    /// etcd, which agents do not use: they connect to masters only.
    #[error(
        "--master={0:?} names etcd, which agents do not support: give the masters as host:port, \
         separated by commas (for example master1:5050,master2:5050,master3:5050); agents find \
         the leader themselves"
    )]
    Etcd(String),
    /// The text is not `host:port`.
    #[error("--master={0:?} is not host:port (for example 10.0.0.1:5050), nor file:///path")]
    Malformed(String),
}

impl MasterAddress {
    pub(crate) fn parse(text: &str) -> Result<Self, MasterAddressError> {
        if let Some(path) = text.strip_prefix("file://") {
            return if path.starts_with('/') {
                Ok(Self::File(path.into()))
            } else {
                Err(MasterAddressError::Malformed(text.to_owned()))
            };
        }
        if text.starts_with("zk://") {
            return Err(MasterAddressError::ZooKeeper(text.to_owned()));
        }
        if text.starts_with("etcd://") {
            return Err(MasterAddressError::Etcd(text.to_owned()));
        }
        let host_ports = host_ports(text);
        host_ports
            .map(Self::HostPorts)
            .ok_or_else(|| MasterAddressError::Malformed(text.to_owned()))
    }

    /// The masters, each as `host:port`; at least one.
    pub(crate) fn resolve(&self) -> Result<Vec<String>, Failure> {
        match self {
            Self::HostPorts(all) => Ok(all.clone()),
            Self::File(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
                host_ports(&text).ok_or_else(|| {
                    Failure::new(format!("{} does not hold host:port", path.display()))
                })
            }
        }
    }
}

/// The addresses of a comma-separated list.
fn host_ports(text: &str) -> Option<Vec<String>> {
    text.split(',').map(host_port).collect()
}

fn host_port(text: &str) -> Option<String> {
    let text = text.trim();
    let bare = ["http://", "https://", "master@"]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))
        .unwrap_or(text);
    is_host_port(bare).then(|| bare.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_master_are_checked() {
        for good in ["127.0.0.1:5050", "master.example:5050", "[::1]:5050", "m:1"] {
            assert_eq!(
                MasterAddress::parse(good),
                Ok(MasterAddress::HostPorts(vec![good.to_owned()]))
            );
        }
        assert_eq!(
            MasterAddress::parse("a:5050, http://b:5050,master@c:5051"),
            Ok(MasterAddress::HostPorts(
                ["a:5050", "b:5050", "c:5051"].map(str::to_owned).into()
            ))
        );
        assert_eq!(
            MasterAddress::parse("file:///etc/master"),
            Ok(MasterAddress::File("/etc/master".into()))
        );
        for bad in [
            "",
            "host",
            "host:",
            ":5050",
            "host:0",
            "host:70000",
            "a b:1",
            "a:1,",
            "a:1,b",
            "file://x",
        ] {
            assert!(
                matches!(
                    MasterAddress::parse(bad),
                    Err(MasterAddressError::Malformed(_))
                ),
                "{bad:?}"
            );
        }
        assert!(matches!(
            MasterAddress::parse("zk://a:2181/x"),
            Err(MasterAddressError::ZooKeeper(_))
        ));
        let etcd = MasterAddress::parse("etcd://a:2379,b:2379/meseta");
        let said = etcd.expect_err("no master").to_string();
        assert!(said.contains("master1:5050,master2:5050"), "{said}");
    }
}
