//! Makes client and server of the test service from the list of its methods; `protoc` is not needed.

use tonic_build::manual::{Builder, Method, MethodBuilder, Service};

fn build_method(name: &str, route: &str, input: &str, output: &str) -> MethodBuilder {
    Method::builder()
        .name(name)
        .route_name(route)
        .input_type(format!("crate::messages::{input}"))
        .output_type(format!("crate::messages::{output}"))
        .codec_path("tonic_prost::ProstCodec")
}

fn main() {
    let input = "StreamingInputCallRequest";
    let (output, outputs) = ("StreamingOutputCallRequest", "StreamingOutputCallResponse");
    let test = Service::builder()
        .package("grpc.testing")
        .name("TestService")
        .method(build_method("empty_call", "EmptyCall", "Empty", "Empty").build())
        .method(build_method("unary_call", "UnaryCall", "SimpleRequest", "SimpleResponse").build())
        .method(
            build_method(
                "streaming_output_call",
                "StreamingOutputCall",
                output,
                outputs,
            )
            .server_streaming()
            .build(),
        )
        .method(
            build_method(
                "streaming_input_call",
                "StreamingInputCall",
                input,
                "StreamingInputCallResponse",
            )
            .client_streaming()
            .build(),
        )
        .method(
            build_method("full_duplex_call", "FullDuplexCall", output, outputs)
                .client_streaming()
                .server_streaming()
                .build(),
        )
        .method(build_method("unimplemented_call", "UnimplementedCall", "Empty", "Empty").build())
        .build();
    let unimplemented = Service::builder()
        .package("grpc.testing")
        .name("UnimplementedService")
        .method(build_method("unimplemented_call", "UnimplementedCall", "Empty", "Empty").build())
        .build();
    Builder::new().compile(&[test, unimplemented]);
}
