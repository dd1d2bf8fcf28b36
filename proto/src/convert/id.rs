//! Ids: a wrapped string in messages, validated types inside.

use meseta_resources as res;
use meseta_resources::IdError;

use crate::mesos::v1;

macro_rules! ids {
    ($($message:ident <=> $id:ident),* $(,)?) => {
        $(
            impl From<&res::$id> for v1::$message {
                fn from(id: &res::$id) -> Self {
                    Self { value: id.as_str().to_owned() }
                }
            }

            impl From<res::$id> for v1::$message {
                fn from(id: res::$id) -> Self {
                    Self::from(&id)
                }
            }

            impl TryFrom<&v1::$message> for res::$id {
                type Error = IdError;
                fn try_from(message: &v1::$message) -> Result<Self, IdError> {
                    Self::new(&message.value)
                }
            }

            impl TryFrom<v1::$message> for res::$id {
                type Error = IdError;
                fn try_from(message: v1::$message) -> Result<Self, IdError> {
                    Self::new(&message.value)
                }
            }
        )*
    };
}

ids! {
    AgentId <=> AgentId,
    FrameworkId <=> FrameworkId,
    TaskId <=> TaskId,
    ExecutorId <=> ExecutorId,
    OfferId <=> OfferId,
    OperationId <=> OperationId,
    ResourceProviderId <=> ResourceProviderId,
}

impl From<&res::ContainerId> for v1::ContainerId {
    fn from(id: &res::ContainerId) -> Self {
        let mut out: Option<Self> = None;
        for component in id.components() {
            out = Some(Self {
                value: component.to_owned(),
                parent: out.map(Box::new),
            });
        }
        out.unwrap_or_default()
    }
}

impl TryFrom<&v1::ContainerId> for res::ContainerId {
    type Error = IdError;
    fn try_from(message: &v1::ContainerId) -> Result<Self, IdError> {
        let innermost_first: Vec<&str> =
            std::iter::successors(Some(message), |id| id.parent.as_deref())
                .map(|id| id.value.as_str())
                .collect();
        let (outermost, nested) = innermost_first.split_last().unwrap_or((&"", &[]));
        let outermost = Self::named(None, outermost)?;
        nested
            .iter()
            .rev()
            .try_fold(outermost, |outer, name| outer.child(name))
    }
}
