//! The service.

use std::pin::Pin;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Request, Response, Status, Streaming};

use crate::messages::{
    EchoStatus, Empty, Payload, SimpleRequest, SimpleResponse, StreamingInputCallRequest,
    StreamingInputCallResponse, StreamingOutputCallRequest, StreamingOutputCallResponse,
};
use crate::rpc::test::test_service_server::{TestService, TestServiceServer};

/// The longest message that the service takes or sends, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// Metadata that the server sends back, in front and behind.
pub(crate) const ECHOED_INITIAL_METADATA_KEY: &str = "x-grpc-test-echo-initial";
pub(crate) const ECHOED_TRAILING_METADATA_KEY: &str = "x-grpc-test-echo-trailing-bin";

/// The service, to be added to a server of tonic.
pub fn server() -> TestServiceServer<impl TestService> {
    TestServiceServer::new(Service)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

struct Service;

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The status that the client asks for.
fn requested_status(status: Option<EchoStatus>) -> Result<(), Status> {
    match status {
        Some(status) if status.code != 0 => {
            Err(Status::new(Code::from_i32(status.code), status.message))
        }
        _ => Ok(()),
    }
}

fn payload(size: i32) -> Result<Payload, Status> {
    match usize::try_from(size) {
        Ok(size) if size <= MAX_MESSAGE_BYTES => Ok(Payload::zeros(size)),
        _ => Err(Status::invalid_argument(format!(
            "a payload of {size} bytes: 0 to {MAX_MESSAGE_BYTES} are possible"
        ))),
    }
}

/// Sends metadata back as the client asks.
fn echo_initial_metadata<T, R>(request: &Request<T>, response: &mut Response<R>) {
    let from = request.metadata();
    if let Some(value) = from.get(ECHOED_INITIAL_METADATA_KEY) {
        response
            .metadata_mut()
            .insert(ECHOED_INITIAL_METADATA_KEY, value.clone());
    }
}

/// Sends the responses that a request asks for.
async fn respond(
    request: StreamingOutputCallRequest,
    to: &mpsc::Sender<Result<StreamingOutputCallResponse, Status>>,
) -> Result<(), Status> {
    for wanted in request.response_parameters {
        if let Ok(pause @ 1..) = u64::try_from(wanted.interval_us) {
            tokio::time::sleep(Duration::from_micros(pause)).await;
        }
        let payload = Some(payload(wanted.size)?);
        let sent = to.send(Ok(StreamingOutputCallResponse { payload })).await;
        if sent.is_err() {
            return Err(Status::cancelled("the client has gone"));
        }
    }
    requested_status(request.response_status)
}

#[tonic::async_trait]
impl TestService for Service {
    type StreamingOutputCallStream = ResponseStream<StreamingOutputCallResponse>;
    type FullDuplexCallStream = ResponseStream<StreamingOutputCallResponse>;

    async fn empty_call(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        Ok(Response::new(Empty {}))
    }

    async fn unary_call(
        &self,
        request: Request<SimpleRequest>,
    ) -> Result<Response<SimpleResponse>, Status> {
        let asks = request.get_ref();
        requested_status(asks.response_status.clone())?;
        let payload = (asks.response_size > 0)
            .then(|| payload(asks.response_size))
            .transpose()?;
        let mut response = Response::new(SimpleResponse { payload });
        echo_initial_metadata(&request, &mut response);
        Ok(response)
    }

    async fn streaming_output_call(
        &self,
        request: Request<StreamingOutputCallRequest>,
    ) -> Result<Response<Self::StreamingOutputCallStream>, Status> {
        let (to, responses) = mpsc::channel(4);
        tokio::spawn(async move {
            if let Err(status) = respond(request.into_inner(), &to).await {
                let _ = to.send(Err(status)).await;
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }

    async fn streaming_input_call(
        &self,
        request: Request<Streaming<StreamingInputCallRequest>>,
    ) -> Result<Response<StreamingInputCallResponse>, Status> {
        let mut requests = request.into_inner();
        let mut total = 0usize;
        while let Some(request) = requests.try_next().await? {
            total += request.payload.map_or(0, |payload| payload.body.len());
        }
        Ok(Response::new(StreamingInputCallResponse {
            aggregated_payload_size: i32::try_from(total).unwrap_or(i32::MAX),
        }))
    }

    async fn full_duplex_call(
        &self,
        request: Request<Streaming<StreamingOutputCallRequest>>,
    ) -> Result<Response<Self::FullDuplexCallStream>, Status> {
        let mut echoed = Response::new(());
        echo_initial_metadata(&request, &mut echoed);
        let trailing = request
            .metadata()
            .get_bin(ECHOED_TRAILING_METADATA_KEY)
            .cloned();
        let mut requests = request.into_inner();
        let (to, responses) = mpsc::channel(4);
        tokio::spawn(async move {
            let status = loop {
                match requests.try_next().await {
                    Ok(Some(request)) => {
                        if let Err(status) = respond(request, &to).await {
                            break status;
                        }
                    }
                    Ok(None) if trailing.is_none() => return,
                    Ok(None) => break Status::ok(""),
                    Err(status) => break status,
                }
            };
            let mut status = status;
            if let Some(value) = trailing {
                status
                    .metadata_mut()
                    .insert_bin(ECHOED_TRAILING_METADATA_KEY, value);
            }
            let _ = to.send(Err(status)).await;
        });
        let (metadata, (), extensions) = echoed.into_parts();
        let responses: Self::FullDuplexCallStream = Box::pin(ReceiverStream::new(responses));
        Ok(Response::from_parts(metadata, responses, extensions))
    }

    async fn unimplemented_call(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        Err(Status::unimplemented("this call is not implemented"))
    }
}
