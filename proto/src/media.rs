//! Media types: the encodings of a request and of its answer, and both codecs by type.
//!
//! A Content-Type is compared exactly, as Mesos does. An Accept header is read as HTTP defines it, with quality values;
//! between equals JSON wins, and a missing header accepts anything.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::budget::{Budget, Charge, Exhausted};
use crate::schema::{self, WireMessage};
use crate::{json, protobuf, recordio};

/// The header that names a scheduler's or an operator's stream; part of the answer to SUBSCRIBE, and required with other
/// calls.
pub const MESOS_STREAM_ID: HeaderName = HeaderName::from_static("mesos-stream-id");
/// The accepted encodings of the records of a RecordIO answer.
pub const MESSAGE_ACCEPT: HeaderName = HeaderName::from_static("message-accept");
/// The encoding of the records of a RecordIO body.
pub const MESSAGE_CONTENT_TYPE: HeaderName = HeaderName::from_static("message-content-type");

#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum MediaType {
    Json,
    Protobuf,
    RecordIo,
}

impl MediaType {
    /// The encodings of a single message, the preferred first.
    pub const MESSAGES: [Self; 2] = [Self::Json, Self::Protobuf];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Protobuf => "application/x-protobuf",
            Self::RecordIo => "application/recordio",
        }
    }

    #[must_use]
    pub fn header_value(self) -> HeaderValue {
        HeaderValue::from_static(self.as_str())
    }

    /// Parses exactly one of our types: no parameters, no other case.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Json, Self::Protobuf, Self::RecordIo]
            .into_iter()
            .find(|media| media.as_str() == text)
    }
}

#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    #[error("Expecting 'Content-Type' to be present")]
    NoContentType,
    #[error("Expecting 'Content-Type' of {}", join(.allowed, " or ", ""))]
    ContentType { allowed: Vec<MediaType> },
    #[error("Expecting 'Accept' to allow {}", join(.offered, " or ", "'"))]
    NotAcceptable { offered: Vec<MediaType> },
}

impl Error {
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::NoContentType => StatusCode::BAD_REQUEST,
            Self::ContentType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NotAcceptable { .. } => StatusCode::NOT_ACCEPTABLE,
        }
    }
}

fn join(types: &[MediaType], separator: &str, quote: &str) -> String {
    let quoted: Vec<String> = types
        .iter()
        .map(|media| format!("{quote}{}{quote}", media.as_str()))
        .collect();
    quoted.join(separator)
}

/// The type of a request's body, which must be one of `allowed`.
pub fn content_type(headers: &HeaderMap, allowed: &[MediaType]) -> Result<MediaType, Error> {
    let value = headers.get(CONTENT_TYPE).ok_or(Error::NoContentType)?;
    value
        .to_str()
        .ok()
        .and_then(MediaType::parse)
        .filter(|media| allowed.contains(media))
        .ok_or_else(|| Error::ContentType {
            allowed: allowed.to_vec(),
        })
}

/// The type of the answer that `Accept` allows, out of the types of single messages.
pub fn accept(headers: &HeaderMap) -> Result<MediaType, Error> {
    Accept::from_headers(headers, &ACCEPT)
        .choose(&MediaType::MESSAGES)
        .ok_or_else(|| {
            // In the order of Mesos's own text.
            Error::NotAcceptable {
                offered: vec![MediaType::Protobuf, MediaType::Json],
            }
        })
}

/// A parsed `Accept` or `Message-Accept` header.
#[derive(Clone, Debug, PartialEq)]
pub struct Accept(Vec<MediaRange>);

#[derive(Clone, Debug, PartialEq)]
struct MediaRange {
    main: String,
    sub: String,
    /// The quality in thousandths, the precision of HTTP.
    quality: u16,
}

impl Accept {
    /// Reads all headers of the name together; without any, everything is acceptable.
    #[must_use]
    pub fn from_headers(headers: &HeaderMap, name: &HeaderName) -> Self {
        if !headers.contains_key(name) {
            return Self::parse("*/*");
        }
        let values = headers
            .get_all(name)
            .iter()
            .filter_map(|value| value.to_str().ok());
        Self(values.flat_map(|value| Self::parse(value).0).collect())
    }

    /// Parses a header; malformed items accept nothing.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let ranges = text.split(',').filter_map(|item| {
            let mut parts = item.split(';').map(str::trim);
            let (main, sub) = parts.next()?.split_once('/')?;
            let quality = parts
                .filter_map(|parameter| parameter.split_once('='))
                .find(|(name, _)| name.trim().eq_ignore_ascii_case("q"))
                .map_or(Some(1000), |(_, value)| quality(value.trim()))?;
            let (main, sub) = (main.to_ascii_lowercase(), sub.to_ascii_lowercase());
            Some(MediaRange { main, sub, quality })
        });
        Self(ranges.collect())
    }

    /// The best of the offered types; between equals, the first.
    #[must_use]
    pub fn choose(&self, offered: &[MediaType]) -> Option<MediaType> {
        let mut best = None;
        for media in offered {
            let quality = self.quality(*media);
            if quality > best.map_or(0, |(quality, _)| quality) {
                best = Some((quality, *media));
            }
        }
        best.map(|(_, media)| media)
    }

    /// The quality of the most specific item that matches.
    fn quality(&self, media: MediaType) -> u16 {
        let (main, sub) = media.as_str().split_once('/').unwrap_or_default();
        let specificity = |range: &MediaRange| match (range.main.as_str(), range.sub.as_str()) {
            (m, s) if m == main && s == sub => Some(2),
            (m, "*") if m == main => Some(1),
            ("*", "*") => Some(0),
            _ => None,
        };
        let matching = self
            .0
            .iter()
            .filter_map(|item| Some((specificity(item)?, item.quality)));
        matching.max().map_or(0, |(_, quality)| quality)
    }
}

/// Parses `0` to `1` with at most three decimals, in thousandths.
fn quality(text: &str) -> Option<u16> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 3 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let fraction: u16 = format!("{fraction:0<3}").parse().ok()?;
    match whole {
        "0" => Some(fraction),
        "1" if fraction == 0 => Some(1000),
        _ => None,
    }
}

/// Errors of decoding a body.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error(transparent)]
    Json(json::Error),
    #[error(transparent)]
    Protobuf(protobuf::Error),
}

/// Reads a message; RecordIO is read as JSON, the default of its records.
pub fn decode<T: WireMessage>(media: MediaType, body: &[u8]) -> Result<T, BodyError> {
    match media {
        MediaType::Json | MediaType::RecordIo => json::from_slice(body).map_err(BodyError::Json),
        MediaType::Protobuf => protobuf::from_slice(body).map_err(BodyError::Protobuf),
    }
}

/// Errors of decoding a body that is charged to a budget.
#[derive(Debug, thiserror::Error)]
pub enum ChargedError {
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error("Not enough memory for this request now: {0}")]
    Exhausted(#[from] Exhausted),
    #[error("Failed to read the request: the reading was interrupted")]
    Interrupted,
}

/// Reads a message, and charges its decoded size, which may be many times the body.
pub fn decode_charged<T: WireMessage>(
    media: MediaType,
    body: &[u8],
    budget: &Budget,
) -> Result<(T, Charge), ChargedError> {
    match media {
        MediaType::Json | MediaType::RecordIo => {
            // The message's texts are no longer than the body.
            let charge = budget.charge(body.len())?;
            let read = json::from_slice_charged(body, charge)?;
            Ok(read.map_err(BodyError::Json)?)
        }
        MediaType::Protobuf => {
            let charge = budget.charge(schema::decoded_bytes(T::SCHEMA, body))?;
            let message = protobuf::from_slice(body).map_err(BodyError::Protobuf)?;
            Ok((message, charge))
        }
    }
}

#[must_use]
pub fn encode<T: WireMessage>(media: MediaType, message: &T) -> Vec<u8> {
    match media {
        MediaType::Json | MediaType::RecordIo => json::to_vec(message),
        MediaType::Protobuf => protobuf::to_vec(message),
    }
}

/// The message as one RecordIO record.
#[must_use]
pub fn encode_record<T: WireMessage>(media: MediaType, message: &T) -> Bytes {
    recordio::encode(&encode(media, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mesos::v1::scheduler::Event;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn content_types_are_compared_exactly() {
        let of = |value| content_type(&headers(CONTENT_TYPE, value), &MediaType::MESSAGES);
        assert_eq!(of("application/json"), Ok(MediaType::Json));
        assert_eq!(of("application/x-protobuf"), Ok(MediaType::Protobuf));
        for other in [
            "application/json; charset=utf-8",
            "Application/JSON",
            "",
            "text/plain",
            "application/recordio",
            "application/*",
        ] {
            let error = of(other).unwrap_err();
            assert_eq!(error.status(), 415, "{other}");
            let text = "Expecting 'Content-Type' of application/json or application/x-protobuf";
            assert_eq!(error.to_string(), text);
        }
        let error = content_type(&HeaderMap::new(), &MediaType::MESSAGES).unwrap_err();
        assert_eq!(
            (error.status().as_u16(), &*error.to_string()),
            (400, "Expecting 'Content-Type' to be present")
        );
    }

    #[test]
    fn json_wins_unless_protobuf_is_preferred() {
        let chosen = |value| Accept::parse(value).choose(&MediaType::MESSAGES);
        for (value, expected) in [
            ("*/*", Some(MediaType::Json)),
            ("application/*", Some(MediaType::Json)),
            ("application/json", Some(MediaType::Json)),
            ("application/x-protobuf", Some(MediaType::Protobuf)),
            (
                "application/x-protobuf, application/json",
                Some(MediaType::Json),
            ),
            (
                "application/x-protobuf;q=1.0,application/json;q=0.5",
                Some(MediaType::Protobuf),
            ),
            (
                "application/x-protobuf ; q=0.001",
                Some(MediaType::Protobuf),
            ),
            ("application/json;q=0, */*;q=0.1", Some(MediaType::Protobuf)),
            ("text/html, */*;q=0", None),
            ("application/json;q=0", None),
            ("APPLICATION/JSON", Some(MediaType::Json)),
            ("application/json;charset=utf-8", Some(MediaType::Json)),
            ("text/html", None),
            ("application/json;q=2", None),
            ("application/json;q=x", None),
            ("json", None),
            ("", None),
        ] {
            assert_eq!(chosen(value), expected, "{value}");
        }
        assert_eq!(accept(&HeaderMap::new()), Ok(MediaType::Json));
        let error = accept(&headers(ACCEPT, "text/html")).unwrap_err();
        assert_eq!(error.status(), 406);
        assert_eq!(
            error.to_string(),
            "Expecting 'Accept' to allow 'application/x-protobuf' or 'application/json'"
        );
        let record_io = Accept::parse("application/recordio").choose(&[MediaType::RecordIo]);
        assert_eq!(record_io, Some(MediaType::RecordIo));
    }

    #[test]
    fn small_body_is_charged_decoded_size() {
        use crate::mesos::v1::TaskInfo;
        use crate::mesos::v1::offer::operation::Launch;
        let launch = Launch {
            task_infos: vec![TaskInfo::default(); 10_000],
        };
        let real = 10_000 * size_of::<TaskInfo>();
        let json = format!(
            r#"{{"task_infos":[{}]}}"#,
            vec![r#"{"name":"","task_id":{"value":""},"agent_id":{"value":""}}"#; 10_000].join(",")
        );
        let protobuf = encode(MediaType::Protobuf, &launch);
        assert!(real > 20 * protobuf.len(), "{real} of {}", protobuf.len());
        for (media, body) in [
            (MediaType::Protobuf, protobuf.as_slice()),
            (MediaType::Json, json.as_bytes()),
        ] {
            let budget = Budget::new(2 * real);
            let (read, charge) = decode_charged::<Launch>(media, body, &budget).unwrap();
            assert_eq!(read, launch, "{media:?}");
            assert!((real..2 * real).contains(&charge.bytes()), "{media:?}");
            assert_eq!(budget.used(), charge.bytes());
            // The waiting data leaves no room for the message.
            let refused = decode_charged::<Launch>(media, body, &budget);
            assert!(
                matches!(refused, Err(ChargedError::Exhausted(_))),
                "{media:?}"
            );
            drop(charge);
            assert_eq!(budget.used(), 0);
        }
        // Reading without a budget charges nothing.
        assert_eq!(
            decode::<Launch>(MediaType::Json, json.as_bytes()).unwrap(),
            launch
        );
    }

    #[test]
    fn both_encodings_round_trip_the_message() {
        let event = Event {
            r#type: Some(8),
            ..Default::default()
        };
        for media in MediaType::MESSAGES {
            assert_eq!(
                decode::<Event>(media, &encode(media, &event)).unwrap(),
                event
            );
        }
        let record = encode_record(MediaType::Json, &event);
        assert_eq!(&record[..], b"20\n{\"type\":\"HEARTBEAT\"}");
        let error = decode::<Event>(MediaType::Protobuf, b"{\"type\":1}").unwrap_err();
        assert_eq!(
            error.to_string(),
            "Failed to parse body into Event protobuf"
        );
    }
}
