//! Reason codes of a REJ (IBTA vol. 1, 12.6.7.2), without those for InfiniBand routing and reliable datagrams.

/// No queue pair is available.
pub const NO_QP: u16 = 1;
/// No resources are available.
pub const NO_RESOURCES: u16 = 3;
/// The awaited message did not arrive in time.
pub const TIMEOUT: u16 = 4;
/// The request is not supported.
pub const UNSUPPORTED: u16 = 5;
/// The communication id does not belong to a connection.
pub const INVALID_COMM_ID: u16 = 6;
/// The communication instance is not valid.
pub const INVALID_COMM_INSTANCE: u16 = 7;
/// No process listens at the service id.
pub const INVALID_SERVICE_ID: u16 = 8;
/// The transport service differs from the listener's.
pub const INVALID_TRANSPORT_TYPE: u16 = 9;
/// The queue pair belongs to an existing connection.
pub const STALE_CONNECTION: u16 = 10;
/// The remote GID of the primary path does not belong to the port.
pub const INVALID_GID: u16 = 12;
/// The path's traffic class is not accepted.
pub const INVALID_TRAFFIC_CLASS: u16 = 15;
/// The path's hop limit is not accepted.
pub const INVALID_HOP_LIMIT: u16 = 16;
/// The communication manager is at another port.
pub const PORT_CM_REDIRECT: u16 = 24;
/// The service is at another port.
pub const PORT_REDIRECT: u16 = 25;
/// The path MTU is not accepted.
pub const INVALID_MTU: u16 = 26;
/// The responder has fewer resources than the requester requires.
pub const INSUFFICIENT_RESPONDER_RESOURCES: u16 = 27;
/// The consumer rejects the request (`rdma_reject`); its private data may contain the reason.
pub const CONSUMER_DEFINED: u16 = 28;
/// The RNR retry count is not accepted.
pub const INVALID_RNR_RETRY: u16 = 29;
/// The communication id belongs to another connection of the same peer.
pub const DUPLICATE_LOCAL_COMM_ID: u16 = 30;
/// The class version is not supported.
pub const INVALID_CLASS_VERSION: u16 = 31;
/// The path's flow label is not accepted.
pub const INVALID_FLOW_LABEL: u16 = 32;
/// The vendor option is not supported.
pub const VENDOR_OPTION_NOT_SUPPORTED: u16 = 35;
