//! `meseta.v1.AgentRegistry`: transports frames in both directions, and decides nothing.

use std::pin::Pin;
use std::task::{Context, Poll};

use meseta_proto::budget::Charge;
use meseta_proto::meseta::v1::agent_registry_server::AgentRegistry;
use meseta_proto::meseta::v1::{AgentFrame, MasterFrame};
use tokio::sync::oneshot;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::closed::Closed;
use crate::core::Input;
use crate::events::{self, Source};
use crate::handle::{Command, FRAMES_MAX, Handle};

#[derive(Debug)]
pub(super) struct Agents {
    handle: Handle,
    shutdown: CancellationToken,
}

impl Agents {
    pub(super) fn new(handle: Handle, shutdown: CancellationToken) -> Self {
        Self { handle, shutdown }
    }
}

#[tonic::async_trait]
impl AgentRegistry for Agents {
    type ConnectStream = Pin<Box<dyn Stream<Item = Result<MasterFrame, Status>> + Send>>;

    async fn connect(
        &self,
        request: Request<Streaming<AgentFrame>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let caller = super::caller(&request)?;
        let connection = self.handle.new_connection();
        let (sink, frames) = events::queue(self.handle.budgets.agent(), FRAMES_MAX);
        let sink = sink.on(caller.connection.clone());
        let frames = frames.fenced(&self.handle.standing.fence);
        let unread = frames.clone();
        let (answer, answered) = oneshot::channel();
        let connected = Command::AgentConnected {
            connection,
            frames: sink,
            caller,
            answer,
        };
        self.handle.send(connected).await?;
        let handle = self.handle.clone();
        let shutdown = self.shutdown.clone();
        let mut incoming = request.into_inner();
        tokio::spawn(async move {
            loop {
                let frame = tokio::select! {
                    () = shutdown.cancelled() => break,
                    () = unread.ended() => break,
                    frame = incoming.message() => frame,
                };
                let message = match frame {
                    Ok(Some(frame)) => frame.message,
                    Ok(None) => break,
                    Err(error) => {
                        tracing::debug!(%connection, %error, "agent stream failed");
                        break;
                    }
                };
                let Some(message) = message else { continue };
                if handle.agent_frame(connection, message).await.is_err() {
                    return;
                }
            }
            if handle.tell(Input::AgentGone { connection }).await.is_err() {
                tracing::debug!(%connection, "agent stream ended after the core");
            }
        });
        let frames: Self::ConnectStream = Box::pin(Frames { frames, last: None });
        let mut response = Response::new(frames);
        // This comes last: the task above notices an agent that disconnects meanwhile.
        let led = answered.await.map_err(|_| Closed)?;
        led.write(response.metadata_mut());
        Ok(response)
    }
}

/// Frames on their way to an agent.
struct Frames {
    frames: Source<MasterFrame>,
    /// The charge of the frame that the transport has taken. The transport polls for the next frame once this frame
    /// is sent.
    last: Option<Charge>,
}

impl Stream for Frames {
    type Item = Result<MasterFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.last = None;
        self.frames.poll_next(context).map(|next| {
            let (charge, frame) = next?;
            self.last = Some(charge);
            Some(Ok(*frame))
        })
    }
}
