//! The codec of our gRPC services: prost's, with `required` checked before a handler sees anything.

use std::marker::PhantomData;

use bytes::Buf as _;
use prost::Message;
use tonic::Status;
use tonic::codec::{BufferSettings, DecodeBuf, EncodeBuf};

use crate::protobuf;
use crate::schema::{self, WireMessage};

/// The largest message of the agent protocol: an agent's return with all its tasks. Clients and servers must set it as
/// `max_decoding_message_size`; tonic's own limit is 4 MiB.
pub const MESSAGE_MAX_BYTES: usize = 64 << 20;

/// The limit on the decoded size of one message: four times the largest message, or a hundred thousand tasks.
const DECODED_MAX_BYTES: usize = 4 * MESSAGE_MAX_BYTES;

/// The initial buffer size of each stream in each direction. Agents and frameworks keep a stream for their whole life and
/// send little most of the time; buffers grow with the messages.
const BUFFER_BYTES: usize = 1024;

/// The approximate size up to which waiting messages are sent together.
const TOGETHER_BYTES: usize = 32 * 1024;

/// The size of a message whose decoding delays others on the same thread noticeably.
const LARGE_BYTES: usize = 256 * 1024;

/// Whether the other work of this thread can move to another thread.
fn may_block() -> bool {
    use tokio::runtime::{Handle, RuntimeFlavor};
    Handle::try_current()
        .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread)
}

#[derive(Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> tonic::codec::Codec for Codec<T, U>
where
    T: Message + Send + 'static,
    U: WireMessage + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = Encoder<T>;
    type Decoder = Decoder<U>;

    fn encoder(&mut self) -> Encoder<T> {
        Encoder(PhantomData)
    }

    fn decoder(&mut self) -> Decoder<U> {
        Decoder(PhantomData)
    }
}

#[derive(Debug)]
pub struct Encoder<T>(PhantomData<T>);

impl<T: Message> tonic::codec::Encoder for Encoder<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, message: T, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message
            .encode(out)
            .map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, TOGETHER_BYTES)
    }
}

#[derive(Debug)]
pub struct Decoder<U>(PhantomData<U>);

impl<U: WireMessage> tonic::codec::Decoder for Decoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        let bytes = source.copy_to_bytes(source.remaining());
        let decoded = schema::decoded_bytes(U::SCHEMA, &bytes);
        if decoded > DECODED_MAX_BYTES {
            return Err(Status::resource_exhausted(format!(
                "a message of {} bytes needs {decoded} bytes of memory, more than \
                 {DECODED_MAX_BYTES}: divide it",
                bytes.len()
            )));
        }
        let read = || protobuf::from_slice(&bytes);
        let message = if bytes.len() > LARGE_BYTES && may_block() {
            #[expect(
                clippy::disallowed_methods,
                reason = "a codec answers at once and cannot give its bytes away to wait for them"
            )]
            tokio::task::block_in_place(read)
        } else {
            read()
        };
        message
            .map(Some)
            .map_err(|error| Status::invalid_argument(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, TOGETHER_BYTES)
    }
}
