//! The test service of gRPC's interoperability suite, and cases that check it over any connection.
//!
//! [`server`] is the service by tonic. [`cases::run`] calls it as the suite's clients do: payloads, streams, metadata,
//! errors, deadlines and cancelled calls. Messages and methods are those of the suite, so its clients in other
//! languages work too.
//!
//! Source: `grpc:doc/interop-test-descriptions.md`, `grpc:src/proto/grpc/testing/{messages,test}.proto`.

#![forbid(unsafe_code)]

pub mod cases;
pub mod messages;
mod service;

pub use service::{MAX_MESSAGE_BYTES, server};

/// Client and server of the service, as tonic-build makes them.
#[allow(missing_docs, unreachable_pub, clippy::pedantic)]
pub mod rpc {
    /// Of the service that is tested.
    pub mod test {
        include!(concat!(env!("OUT_DIR"), "/grpc.testing.TestService.rs"));
    }

    /// Of a service that no server has.
    pub mod unimplemented {
        include!(concat!(
            env!("OUT_DIR"),
            "/grpc.testing.UnimplementedService.rs"
        ));
    }
}
