//! The cases of the suite's clients.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::messages::{
    EchoStatus, Empty, Payload, ResponseParameters, SimpleRequest, StreamingInputCallRequest,
    StreamingOutputCallRequest,
};
use crate::rpc::test::test_service_client::TestServiceClient;
use crate::rpc::unimplemented::unimplemented_service_client::UnimplementedServiceClient;
use crate::service::{
    ECHOED_INITIAL_METADATA_KEY, ECHOED_TRAILING_METADATA_KEY, MAX_MESSAGE_BYTES,
};

/// A client of the service.
pub type Client = TestServiceClient<Channel>;

/// Why a case fails.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

type CaseResult = Result<(), Failure>;

const REQUEST_BYTES: [usize; 4] = [27182, 8, 1828, 45904];
const RESPONSE_BYTES: [i32; 4] = [31415, 9, 2653, 58979];

/// A client that takes messages as long as the service sends.
pub fn client(channel: Channel) -> Client {
    TestServiceClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES)
}

/// Runs every case on a channel. Returns the names of the cases, all of which passed.
///
/// # Errors
/// The first case that fails, with its name; later cases do not run.
pub async fn run(channel: Channel) -> Result<Vec<&'static str>, Failure> {
    let mut passed = Vec::new();
    macro_rules! cases {
        ($($case:ident),* $(,)?) => {$(
            let name = stringify!($case);
            $case(&mut client(channel.clone())).await.map_err(|e| format!("{name}: {e}"))?;
            passed.push(name);
        )*};
    }
    cases!(
        empty_unary,
        large_unary,
        larger_unary,
        client_streaming,
        server_streaming,
        ping_pong,
        empty_stream,
        status_code_and_message,
        special_status_message,
        custom_metadata,
        unimplemented_method,
        deadline,
        cancel_after_begin,
        cancel_after_first_response,
    );
    let name = "unimplemented_service";
    unimplemented_service(channel.clone())
        .await
        .map_err(|e| format!("{name}: {e}"))?;
    passed.push(name);
    Ok(passed)
}

fn check(holds: bool, what: &str) -> CaseResult {
    if holds { Ok(()) } else { Err(what.into()) }
}

fn check_status<T>(result: Result<T, Status>, code: Code, message: Option<&str>) -> CaseResult {
    match result {
        Err(status) if status.code() == code => match message {
            Some(message) if status.message() != message => {
                Err(format!("the message is {:?}", status.message()).into())
            }
            _ => Ok(()),
        },
        Err(status) => Err(format!("{status} instead of {code:?}").into()),
        Ok(_) => Err(format!("it succeeds, and {code:?} was to come").into()),
    }
}

async fn empty_unary(client: &mut Client) -> CaseResult {
    client.empty_call(Empty {}).await?;
    Ok(())
}

async fn unary(client: &mut Client, request: usize, response: i32) -> CaseResult {
    let asks = SimpleRequest {
        response_size: response,
        payload: Some(Payload::zeros(request)),
        ..SimpleRequest::default()
    };
    let got = client.unary_call(asks).await?.into_inner();
    let body = got.payload.unwrap_or_default().body;
    check(i32::try_from(body.len()) == Ok(response), "a wrong length")?;
    check(body.iter().all(|&b| b == 0), "bytes that are not 0")
}

async fn large_unary(client: &mut Client) -> CaseResult {
    unary(client, 271_828, 314_159).await
}

/// Not of the suite: beyond every window of HTTP/2 and of the stream.
async fn larger_unary(client: &mut Client) -> CaseResult {
    unary(client, 8 << 20, 8 << 20).await
}

async fn client_streaming(client: &mut Client) -> CaseResult {
    let requests = REQUEST_BYTES.map(|len| StreamingInputCallRequest {
        payload: Some(Payload::zeros(len)),
    });
    let got = client
        .streaming_input_call(tokio_stream::iter(requests))
        .await?;
    let total = got.into_inner().aggregated_payload_size;
    check(total == 74922, "a wrong total")
}

fn response_parameters(size: i32) -> ResponseParameters {
    ResponseParameters {
        size,
        interval_us: 0,
    }
}

async fn server_streaming(client: &mut Client) -> CaseResult {
    let asks = StreamingOutputCallRequest {
        response_parameters: RESPONSE_BYTES.map(response_parameters).to_vec(),
        ..StreamingOutputCallRequest::default()
    };
    let mut responses = client.streaming_output_call(asks).await?.into_inner();
    for size in RESPONSE_BYTES {
        let got = responses.message().await?.ok_or("a response is missing")?;
        let len = got.payload.unwrap_or_default().body.len();
        check(i32::try_from(len) == Ok(size), "a wrong length")?;
    }
    check(responses.message().await?.is_none(), "too many responses")
}

fn streaming_request(request: usize, response: i32) -> StreamingOutputCallRequest {
    StreamingOutputCallRequest {
        response_parameters: vec![response_parameters(response)],
        payload: Some(Payload::zeros(request)),
        ..StreamingOutputCallRequest::default()
    }
}

async fn ping_pong(client: &mut Client) -> CaseResult {
    let (to, requests) = mpsc::channel(1);
    let call = client.full_duplex_call(ReceiverStream::new(requests));
    to.send(streaming_request(REQUEST_BYTES[0], RESPONSE_BYTES[0]))
        .await?;
    let mut responses = call.await?.into_inner();
    for (i, size) in RESPONSE_BYTES.into_iter().enumerate() {
        let got = responses.message().await?.ok_or("a response is missing")?;
        let len = got.payload.unwrap_or_default().body.len();
        check(i32::try_from(len) == Ok(size), "a wrong length")?;
        if let (Some(&request), Some(&response)) =
            (REQUEST_BYTES.get(i + 1), RESPONSE_BYTES.get(i + 1))
        {
            to.send(streaming_request(request, response)).await?;
        }
    }
    drop(to);
    check(responses.message().await?.is_none(), "too many responses")
}

async fn empty_stream(client: &mut Client) -> CaseResult {
    let call = client.full_duplex_call(tokio_stream::empty());
    let mut responses = call.await?.into_inner();
    check(responses.message().await?.is_none(), "a response")
}

async fn check_echoed_status(client: &mut Client, message: &str) -> CaseResult {
    let status = Some(EchoStatus {
        code: 2,
        message: message.to_owned(),
    });
    let asks = SimpleRequest {
        response_status: status.clone(),
        ..SimpleRequest::default()
    };
    let unary = client.unary_call(asks).await;
    check_status(unary, Code::Unknown, Some(message))?;
    let asks = StreamingOutputCallRequest {
        response_status: status,
        ..StreamingOutputCallRequest::default()
    };
    let call = client.full_duplex_call(tokio_stream::iter([asks]));
    let mut responses = call.await?.into_inner();
    let end = responses.message().await;
    check_status(end, Code::Unknown, Some(message))
}

async fn status_code_and_message(client: &mut Client) -> CaseResult {
    check_echoed_status(client, "test status message").await
}

async fn special_status_message(client: &mut Client) -> CaseResult {
    check_echoed_status(
        client,
        "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n",
    )
    .await
}

async fn custom_metadata(client: &mut Client) -> CaseResult {
    let initial = MetadataValue::from_static("test_initial_metadata_value");
    let trailing = MetadataValue::from_bytes(&[0xab; 3]);
    let mut asks = Request::new(tokio_stream::iter([streaming_request(1, 1)]));
    asks.metadata_mut()
        .insert(ECHOED_INITIAL_METADATA_KEY, initial.clone());
    asks.metadata_mut()
        .insert_bin(ECHOED_TRAILING_METADATA_KEY, trailing.clone());
    let response = client.full_duplex_call(asks).await?;
    let got = response.metadata().get(ECHOED_INITIAL_METADATA_KEY);
    check(got == Some(&initial), "no initial metadata")?;
    let mut responses = response.into_inner();
    while responses.message().await?.is_some() {}
    let trailers = responses.trailers().await?.unwrap_or_default();
    let got = trailers.get_bin(ECHOED_TRAILING_METADATA_KEY);
    check(got == Some(&trailing), "no trailing metadata")
}

async fn unimplemented_method(client: &mut Client) -> CaseResult {
    let called = client.unimplemented_call(Empty {}).await;
    check_status(called, Code::Unimplemented, None)
}

async fn unimplemented_service(channel: Channel) -> CaseResult {
    let mut client = UnimplementedServiceClient::new(channel);
    let called = client.unimplemented_call(Empty {}).await;
    check_status(called, Code::Unimplemented, None)
}

/// Not of the suite, whose case sets a deadline for a stream: tonic's ends with the first response. Here the server
/// waits for requests that do not come.
async fn deadline(client: &mut Client) -> CaseResult {
    let (to, requests) = mpsc::channel::<StreamingInputCallRequest>(1);
    let mut asks = Request::new(ReceiverStream::new(requests));
    asks.set_timeout(Duration::from_millis(10));
    let ended = client.streaming_input_call(asks).await;
    drop(to);
    // The timer of either side may be the one that ends the call, and tonic's says "cancelled".
    match ended {
        Err(s) if matches!(s.code(), Code::DeadlineExceeded | Code::Cancelled) => Ok(()),
        other => check_status(other, Code::DeadlineExceeded, None),
    }
}

async fn cancel_after_begin(client: &mut Client) -> CaseResult {
    let (to, requests) = mpsc::channel::<StreamingInputCallRequest>(1);
    let call = client.streaming_input_call(ReceiverStream::new(requests));
    // Dropped before any request: the server sees a cancelled call, and the connection is fine.
    let ended = tokio::time::timeout(Duration::from_millis(20), call).await;
    check(ended.is_err(), "a response to an unfinished stream")?;
    drop(to);
    empty_unary(client).await
}

async fn cancel_after_first_response(client: &mut Client) -> CaseResult {
    let (to, requests) = mpsc::channel(1);
    to.send(streaming_request(REQUEST_BYTES[0], RESPONSE_BYTES[0]))
        .await?;
    let call = client.full_duplex_call(ReceiverStream::new(requests));
    let mut responses = call.await?.into_inner();
    responses.message().await?.ok_or("no first response")?;
    drop(responses);
    drop(to);
    empty_unary(client).await
}
