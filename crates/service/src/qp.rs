//! Queue pairs that services share.

use verbs::{
    Access, CompletionQueue, PortAndGidIndex, ProtectionDomain, QpEndpoint, QueuePair, Rc,
};

use crate::rendezvous::ClientRefusal;

/// Creates and connects an RC queue pair on which the server never posts. The client reaches memory
/// through it, with this access.
///
/// # Errors
/// When a verb fails.
pub fn connect_responder_qp(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    port: PortAndGidIndex,
    access: Access,
    client: &QpEndpoint,
) -> Result<(QpEndpoint, QueuePair<Rc>), ClientRefusal> {
    let qp = pd
        .qp_builder::<Rc>(cq, cq)
        .port_num(port.port_num)
        .gid_index(port.gid_index)
        .max_send_wr(1)
        .max_recv_wr(1)
        .max_inline_data_if_supported(0)
        .access(access)
        .build()
        .map_err(ClientRefusal::temporary)?;
    let endpoint = qp.endpoint();
    Ok((
        endpoint,
        qp.connect(client).map_err(ClientRefusal::temporary)?,
    ))
}
