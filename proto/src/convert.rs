//! Conversion between messages and the vocabulary of `meseta-resources`: here protobuf ends.
//!
//! Conversion into the vocabulary validates everything, and accepts every format of present and past versions. For the way
//! out, the caller chooses the [`Format`] that the receiver understands.

mod attribute;
mod domain;
mod framework;
mod id;
mod operation;
mod resource;

pub use attribute::{AttributeError, attributes, to_attributes};
pub use domain::{DomainTextError, parse_domain};
pub use framework::{FrameworkCapabilities, FrameworkRolesError, framework_roles, has_capability};
pub use operation::{OperationError, operation, to_operation};
pub use resource::{
    Format, NotRepresentable, ResourcesError, ResourcesTextError, parse_resources, quantities,
    raw_resource, resource, resources, to_resource, to_resources,
};

#[cfg(test)]
mod tests;
