//! The ranges of the attributes of a queue pair, to name the attribute for which a change was refused.

use verbs_abi::*;

use crate::context::Context;

/// PSNs and queue pair numbers have 24 bits.
const MAX_24_BIT_VALUE: u32 = (1 << 24) - 1;

/// The largest values that the device and the port allow; `u32::MAX` if unknown.
struct AttributeLimits {
    max_port_num: u32,
    pkey_table_len: u32,
    max_mtu: u32,
    max_rd_atomic: u32,
    max_dest_rd_atomic: u32,
}

impl AttributeLimits {
    fn of(context: &Context, port_num: u8) -> Self {
        let device = context.query_device().ok();
        let port = context.query_port(port_num).ok();
        let (device, port) = (device.as_ref(), port.as_ref());
        Self {
            max_port_num: device.map_or(u32::MAX, |d| d.phys_port_cnt.into()),
            pkey_table_len: port.map_or(u32::MAX, |p| p.pkey_tbl_len.into()),
            max_mtu: port.map_or(u32::MAX, |p| p.max_mtu as u32),
            max_rd_atomic: device.map_or(u32::MAX, |d| d.max_qp_init_rd_atom),
            max_dest_rd_atomic: device.map_or(u32::MAX, |d| d.max_qp_rd_atom),
        }
    }
}

/// Returns name, value and largest allowed value of each attribute in `mask`, by `ibv_modify_qp(3)` and the limits of
/// the device.
pub(crate) fn attribute_values_and_maxima(
    context: &Context,
    port_num: u8,
    a: &ibv_qp_attr,
    mask: i32,
) -> Vec<(&'static str, u32, u32)> {
    let most = AttributeLimits::of(context, port_num);
    let pkey_index = most.pkey_table_len.saturating_sub(1);
    let (rd, dest_rd) = (most.max_rd_atomic, most.max_dest_rd_atomic);
    let (max_rd, max_dest_rd) = (a.max_rd_atomic.into(), a.max_dest_rd_atomic.into());
    let all = [
        (
            IBV_QP_PORT,
            "port_num",
            a.port_num.into(),
            most.max_port_num,
        ),
        (
            IBV_QP_PKEY_INDEX,
            "pkey_index",
            a.pkey_index.into(),
            pkey_index,
        ),
        (IBV_QP_PATH_MTU, "path_mtu", a.path_mtu, most.max_mtu),
        (
            IBV_QP_DEST_QPN,
            "dest_qp_num",
            a.dest_qp_num,
            MAX_24_BIT_VALUE,
        ),
        (IBV_QP_RQ_PSN, "rq_psn", a.rq_psn, MAX_24_BIT_VALUE),
        (IBV_QP_SQ_PSN, "sq_psn", a.sq_psn, MAX_24_BIT_VALUE),
        (IBV_QP_AV, "sl", a.ah_attr.sl.into(), 15),
        (IBV_QP_TIMEOUT, "timeout", a.timeout.into(), 31),
        (IBV_QP_RETRY_CNT, "retry_cnt", a.retry_cnt.into(), 7),
        (IBV_QP_RNR_RETRY, "rnr_retry", a.rnr_retry.into(), 7),
        (IBV_QP_MAX_QP_RD_ATOMIC, "max_rd_atomic", max_rd, rd),
        (
            IBV_QP_MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            max_dest_rd,
            dest_rd,
        ),
    ];
    let named = all.into_iter().filter(|(bit, ..)| mask & bit != 0);
    named
        .map(|(_, name, value, limit)| (name, value, limit))
        .collect()
}
