//! `meseta.v1.AgentRegistry`: frames in and out, nothing decided.

use std::pin::Pin;

use meseta_proto::meseta::v1::agent_registry_server::AgentRegistry;
use meseta_proto::meseta::v1::{AgentFrame, MasterFrame};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::shell::{FRAMES_MAX, Handle};

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
        let (sender, frames) = mpsc::channel(FRAMES_MAX);
        let closed = sender.clone();
        self.handle
            .agent_connected(connection, sender, caller)
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let handle = self.handle.clone();
        let shutdown = self.shutdown.clone();
        let mut incoming = request.into_inner();
        tokio::spawn(async move {
            // Dropped here when the agent ends its side; the core's end is the other one.
            let closed = closed.downgrade();
            loop {
                let frame = tokio::select! {
                    () = shutdown.cancelled() => break,
                    () = ended(&closed) => break,
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
            if handle.agent_gone(connection).await.is_err() {
                tracing::debug!(%connection, "agent stream ended after the core");
            }
        });
        let frames = ReceiverStream::new(frames).map(|frame| Ok(*frame));
        Ok(Response::new(Box::pin(frames)))
    }
}

/// Completes when the core has given the stream up, or the transport has dropped it.
async fn ended(frames: &mpsc::WeakSender<Box<MasterFrame>>) {
    if let Some(frames) = frames.upgrade() {
        frames.closed().await;
    }
}
