//! The implementations that the build script wrote, one per message and enum.

use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::ser::EnumName;
use super::{de, ser};
use crate::schema::{self, WireMessage, tables};

include!(concat!(env!("OUT_DIR"), "/json.rs"));
