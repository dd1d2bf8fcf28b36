//! Meseta's vocabulary and arithmetic: resources, roles, ids, durations.
//!
//! The lowest crate: every other crate uses these types, and this one depends on none of them. It knows no clock, no files,
//! no network, no protobuf; everything here is a value or a function of values.
//!
//! | to do | use |
//! |---|---|
//! | read `--resources`, `--attributes` | [`Resources::parse`], [`Attributes`]`::from_str` |
//! | validate the contents of a message | [`RawResource`], then `Resource::try_from` |
//! | build from typed parts | [`Resource::new`] of [`ResourceParts`] |
//! | add, take away, compare, filter, choose | [`Resources`] |
//! | count, regardless of reservations | [`ResourceQuantities`], [`ResourceLimits`] |
//! | reserve, make volumes | [`Operation`], its steps: [`Conversion`] |
//! | do not expire deadlines of peers during a pause of this process | [`process_clock`] |
//! | name things | [`Role`], [`AgentId`] and its siblings |
//! | join a host and a port | [`HostPort`] |
//!
//! Invariants:
//! - Every value is valid: an id can be a directory's name, a role can be a path in the hierarchy, a
//!   reservation stack is refined downwards. Constructors check the rules, and no other code does; an
//!   error says the mistake and the correct form.
//! - [`Scalar`]s are whole thousandths. No sum ever drifts.
//! - [`Resources`] are normalised: equal collections are equal entry by entry, regardless of their
//!   history. Values of the same thing are one entry, except indivisible ones.
//! - Resources that differ in any of name, type, reservations, disk, revocability, sharing, provider or
//!   allocation never mix, in no operation.
//! - Cloning is cheap everywhere: texts and identities are shared, and a comparison of two values with
//!   the same origin compares pointers.
//!
//! ```
//! use meseta_resources::{Resources, Role};
//!
//! let star = Role::star();
//! let total = Resources::parse("cpus:4;mem:2048;cpus(ads):8;ports:[31000-32000]", &star)?;
//! let task = Resources::parse("cpus:0.5;mem:64;ports:[31000-31000]", &star)?;
//! let rest = total.checked_sub(&task)?;
//! assert_eq!(rest.unreserved().to_string(), "cpus:3.5; mem:1984; ports:[31001-32000]");
//! assert_eq!(rest + &task, total);
//!
//! let wrong = Resources::parse("cpus:4;mem=64", &star).unwrap_err();
//! assert!(wrong.to_string().starts_with("'mem=64' at byte 7: missing or extra ':'"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attributes;
mod bytes;
mod change;
mod command_line;
mod conversion;
mod cover;
mod disk;
mod display;
pub mod duration;
mod filters;
mod host_port;
mod id;
mod labels;
pub mod name;
mod not_contained;
mod operation;
pub mod process_clock;
mod quantities;
mod ranges;
mod raw;
mod reservation;
mod resource;
mod resources;
mod role;
mod scalar;
mod set;
mod stack;
mod text;
pub mod time;
mod value;
pub mod work_counter;

pub use attributes::{Attribute, AttributeValue, Attributes};
pub use bytes::{ByteSize, ByteSizeError};
pub use change::Change;
pub use command_line::{CommandLineError, TypeConflict, validate_command_line_resources};
pub use conversion::{Conversion, ConversionError};
pub use disk::{Disk, DiskSource, DiskSourceKind, Persistence, Volume, VolumeMode};
pub use duration::{DURATION_MAX, DurationError, format_duration, parse_duration};
pub use host_port::{HostPort, HostPortError, usual_ip};
pub use id::{
    AgentId, CONTAINER_ID_BYTES_MAX, ContainerId, ExecutorId, FrameworkId, ID_BYTES_MAX, IdError,
    NESTING, OfferId, OperationId, ResourceProviderId, TaskId,
};
pub use labels::{Label, Labels};
pub use name::{EmptyName, ResourceName};
pub use not_contained::NotContained;
pub use operation::{Operation, apply_all};
pub use quantities::{ResourceLimits, ResourceQuantities};
pub use ranges::{InvertedRange, Range, Ranges};
pub use raw::{
    RawDisk, RawDiskSource, RawReservation, RawReservationKind, RawResource, RawResourceError,
};
pub use reservation::{Reservation, ReservationError, ReservationKind};
pub use resource::{Resource, ResourceError, ResourceParts};
pub use resources::{Iter, Resources};
pub use role::{Role, RoleError};
pub use scalar::{Scalar, ScalarError};
pub use set::ItemSet;
pub use stack::common_reservations;
pub use text::{ParseError, ParseReason, ValueError};
pub use time::{Moment, Now};
pub use value::{Value, ValueKind};
