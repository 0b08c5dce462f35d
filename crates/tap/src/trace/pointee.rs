//! Trace text of the structures and objects to which arguments of the verbs point.
#![allow(unsafe_code)]
#![allow(
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    reason = "each asks for what the function that the value belongs to asks for, and needs no more"
)]

use std::ffi::{c_char, c_int};
use std::fmt::Write;

use libc::{fd_set, iovec, msghdr, pollfd, timeval};
use verbs_abi::*;

use super::names::*;
use super::value::{Pointee, TracedArgument};

/// Declares object types, and the names of their handles.
macro_rules! objects {
    ($( $type:ty = $name:literal, |$this:ident, $text:ident| $details:expr; )*) => {
        $(
            impl Pointee for $type {
                const HANDLE_KIND: Option<HandleKind> = Some(HandleKind($name));

                #[allow(unused_unsafe, reason = "most have nothing to say")]
                unsafe fn write_object_details($this: *const Self, $text: &mut String) {
                    let _ = unsafe { $details };
                }
            }
        )*
    };
}

objects! {
    ibv_context = "context", |_this, _text| ();
    ibv_pd = "pd", |_this, _text| ();
    ibv_mr = "mr", |this, text| write!(text, ", lkey {:#x}, rkey {:#x}", (*this).lkey, (*this).rkey);
    ibv_mw = "mw", |this, text| write!(text, ", rkey {:#x}", (*this).rkey);
    ibv_comp_channel = "comp_channel", |this, text| write!(text, ", fd {}", (*this).fd);
    ibv_cq = "cq", |this, text| write!(text, ", {} entries", (*this).cqe);
    ibv_cq_ex = "cq", |this, text| write!(text, ", {} entries", (*this).cqe);
    ibv_srq = "srq", |_this, _text| ();
    ibv_qp = "qp", |this, text| write!(text, ", QPN {:#x}", (*this).qp_num);
    ibv_ah = "ah", |_this, _text| ();
    ibv_xrcd = "xrcd", |_this, _text| ();
    ibv_td = "td", |_this, _text| ();
    ibv_dm = "dm", |_this, _text| ();
    ibv_flow = "flow", |_this, _text| ();
    ibv_wq = "wq", |this, text| write!(text, ", WQN {:#x}", (*this).wq_num);
    ibv_rwq_ind_table = "rwq_ind_table", |_this, _text| ();
    rdma_event_channel = "channel", |this, text| write!(text, ", fd {}", (*this).fd);
}

/// An extended queue pair has the same name as the queue pair: `ibv_qp_to_qp_ex(3)` returns the
/// same queue pair.
impl Pointee for ibv_qp_ex {
    const HANDLE_KIND: Option<HandleKind> = Some(HandleKind("qp"));
    const IS_NEW_WHEN_RETURNED: bool = false;
}

impl Pointee for rdma_cm_id {
    const HANDLE_KIND: Option<HandleKind> = Some(HandleKind("id"));
    const IS_NEW_IN_ARGUMENT: bool = true;
}

impl Pointee for ibv_device {
    unsafe fn write_input(this: *const Self, name: &str, text: &mut String) {
        let device = unsafe { (&raw const (*this).name).cast::<c_char>() };
        unsafe { device.write_input(name, text) };
    }
}

/// Declares structures of which a trace has only the name, or whose methods are defined elsewhere.
macro_rules! structures {
    ($( $type:ident )*) => {
        $( impl Pointee for $type {} )*
    };
}

structures! {
    ibv_device_attr ibv_port_attr ibv_srq_attr ibv_wc ibv_grh ibv_ece ibv_gid_entry ibv_device_attr_ex
    ibv_query_device_ex_input ibv_values_ex ibv_xrcd_init_attr ibv_td_init_attr ibv_parent_domain_init_attr
    ibv_sge ibv_mw_bind ibv_qp_attr rdma_addrinfo rdma_cm_join_mc_attr_ex ibv_qp_open_attr ibv_modify_cq_attr
    ibv_srq_init_attr_ex pollfd iovec msghdr fd_set timeval
}

impl Pointee for ibv_ops_wr {
    unsafe fn write_input(this: *const Self, _name: &str, text: &mut String) {
        let mut list = this;
        text.push('[');
        while let Some(op) = unsafe { list.as_ref() } {
            if list != this {
                text.push_str(", ");
            }
            write_named_value(text, op.opcode, "IBV_WR_", SRQ_OPCODES);
            let _ = write!(text, " wr_id={}", op.wr_id);
            let _ = match op.opcode {
                IBV_WR_TAG_ADD => {
                    let add = op.tm.add;
                    let (tag, mask) = (add.tag, add.mask);
                    write!(
                        text,
                        " recv_wr_id={} tag {tag:#x} mask {mask:#x}",
                        add.recv_wr_id
                    )
                }
                IBV_WR_TAG_DEL => write!(text, " handle {}", op.tm.handle),
                _ => Ok(()),
            };
            if op.opcode == IBV_WR_TAG_SYNC || op.flags.cast_unsigned() & IBV_OPS_TM_SYNC != 0 {
                let _ = write!(text, " unexpected_cnt {}", op.tm.unexpected_cnt);
            }
            list = op.next;
        }
        text.push(']');
    }
}

impl Pointee for ibv_gid {
    unsafe fn write_input(this: *const Self, _name: &str, text: &mut String) {
        let _ = this;
        text.push('&');
    }

    unsafe fn write_stored_value(this: *const Self, text: &mut String) {
        let _ = write!(text, "{}", std::net::Ipv6Addr::from(unsafe { (*this).raw }));
    }
}

impl Pointee for ibv_ah_attr {
    unsafe fn write_input(this: *const Self, name: &str, text: &mut String) {
        text.push_str("&ibv_ah_attr");
        // The `ah_attr` of `ibv_init_ah_from_wc(3)` holds no value before the call.
        if name == "attr" {
            write_destination(unsafe { &*this }, text);
        }
    }
}

/// Adds the destination in an address vector to the text.
pub(super) fn write_destination(attr: &ibv_ah_attr, text: &mut String) {
    let _ = write!(text, "{{dlid {:#x}", attr.dlid);
    if attr.is_global != 0 {
        // SAFETY: any bytes are a GID.
        let gid = std::net::Ipv6Addr::from(unsafe { attr.grh.dgid.raw });
        let _ = write!(text, ", dgid {gid}, sgid_index {}", attr.grh.sgid_index);
    }
    text.push('}');
}

/// Adds the attributes for the creation of a queue pair to the text.
fn write_qp_init_attr(
    [send_cq, recv_cq]: [*mut ibv_cq; 2],
    srq: *mut ibv_srq,
    cap: &ibv_qp_cap,
    qp_type: ibv_qp_type,
    sq_sig_all: c_int,
    text: &mut String,
) {
    text.push('{');
    write_named_value(text, qp_type, "IBV_QPT_", QP_TYPES);
    for (name, kind, handle) in [
        ("send_cq", "cq", send_cq.addr()),
        ("recv_cq", "cq", recv_cq.addr()),
        ("srq", "srq", srq.addr()),
    ] {
        if handle != 0 {
            let _ = write!(text, ", {name} ");
            write_handle_name(text, HandleKind(kind), handle, false);
        }
    }
    let _ = write!(
        text,
        ", max_send_wr {}, max_recv_wr {}, max_send_sge {}, max_recv_sge {}, max_inline_data {}, sq_sig_all {sq_sig_all}}}",
        cap.max_send_wr, cap.max_recv_wr, cap.max_send_sge, cap.max_recv_sge, cap.max_inline_data
    );
}

impl Pointee for ibv_qp_init_attr_ex {
    unsafe fn write_input_content(this: *const Self, text: &mut String) {
        let this = unsafe { &*this };
        let cqs = [this.send_cq, this.recv_cq];
        write_qp_init_attr(
            cqs,
            this.srq,
            &this.cap,
            this.qp_type,
            this.sq_sig_all,
            text,
        );
    }
}

impl Pointee for ibv_qp_init_attr {
    unsafe fn write_input(this: *const Self, name: &str, text: &mut String) {
        text.push_str("&ibv_qp_init_attr");
        // The `init_attr` of `ibv_query_qp(3)` holds no value before the call.
        if name == "qp_init_attr" {
            let this = unsafe { &*this };
            let cqs = [this.send_cq, this.recv_cq];
            write_qp_init_attr(
                cqs,
                this.srq,
                &this.cap,
                this.qp_type,
                this.sq_sig_all,
                text,
            );
        }
    }
}

impl Pointee for ibv_srq_init_attr {
    unsafe fn write_input_content(this: *const Self, text: &mut String) {
        let attr = unsafe { &(*this).attr };
        let _ = write!(text, "{{max_wr {}, max_sge {}}}", attr.max_wr, attr.max_sge);
    }
}

impl Pointee for ibv_cq_init_attr_ex {
    unsafe fn write_input_content(this: *const Self, text: &mut String) {
        let this = unsafe { &*this };
        let _ = write!(text, "{{cqe {}, channel ", this.cqe);
        unsafe { this.channel.write_input("", text) };
        let _ = write!(text, ", wc_flags {:#x}}}", this.wc_flags);
    }
}

impl Pointee for ibv_alloc_dm_attr {
    unsafe fn write_input_content(this: *const Self, text: &mut String) {
        let _ = write!(text, "{{length {}}}", unsafe { (*this).length });
    }
}

impl Pointee for ibv_flow_attr {
    unsafe fn write_input_content(this: *const Self, text: &mut String) {
        // Programs declare the structure as packed, so it need not be aligned.
        let attr = unsafe { this.read_unaligned() };
        text.push('{');
        write_named_value(text, attr.r#type, "IBV_FLOW_ATTR_", FLOW_KINDS);
        let _ = write!(text, ", priority {}", attr.priority);
        if attr.flags != 0 {
            let _ = write!(text, ", flags {:#x}", attr.flags);
        }
        let mut spec = this.wrapping_add(1).cast::<ibv_flow_spec_spec_hdr>();
        for _ in 0..attr.num_of_specs {
            let header = unsafe { spec.read_unaligned() };
            text.push_str(", ");
            write_named_value(text, header.r#type, "IBV_FLOW_SPEC_", FLOW_SPECS);
            if header.size == 0 {
                break;
            }
            spec = spec.wrapping_byte_add(header.size.into());
        }
        text.push('}');
    }
}

impl Pointee for ibv_wq_init_attr {
    unsafe fn write_input_content(this: *const Self, text: &mut String) {
        let attr = unsafe { &*this };
        let _ = write!(
            text,
            "{{max_wr {}, max_sge {}, cq ",
            attr.max_wr, attr.max_sge
        );
        write_handle_name(text, HandleKind("cq"), attr.cq.addr(), false);
        text.push('}');
    }
}

impl Pointee for ibv_wq_attr {
    unsafe fn write_input_content(this: *const Self, text: &mut String) {
        let attr = unsafe { &*this };
        if attr.attr_mask & IBV_WQ_ATTR_STATE != 0 {
            text.push('{');
            write_named_value(text, attr.wq_state, "IBV_WQS_", WQ_STATES);
            text.push('}');
        }
    }
}

impl Pointee for ibv_rwq_ind_table_init_attr {
    unsafe fn write_input_content(this: *const Self, text: &mut String) {
        let log_size = unsafe { (*this).log_ind_tbl_size };
        let _ = write!(text, "{{log_ind_tbl_size {log_size}}}");
    }
}

impl Pointee for ibv_async_event {
    unsafe fn write_stored_value(this: *const Self, text: &mut String) {
        let (event, element) = unsafe { ((*this).event_type, &(*this).element) };
        write_named_value(text, event, "IBV_EVENT_", EVENTS);
        text.push(' ');
        // SAFETY: `ibv_get_async_event(3)` says which member is valid for the event.
        unsafe {
            match event {
                IBV_EVENT_CQ_ERR => {
                    write_handle_name(text, HandleKind("cq"), element.cq.addr(), false)
                }
                IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                    write_handle_name(text, HandleKind("srq"), element.srq.addr(), false);
                }
                IBV_EVENT_WQ_FATAL => {
                    write_handle_name(text, HandleKind("wq"), element.wq.addr(), false)
                }
                IBV_EVENT_QP_FATAL
                | IBV_EVENT_QP_REQ_ERR
                | IBV_EVENT_QP_ACCESS_ERR
                | IBV_EVENT_COMM_EST
                | IBV_EVENT_SQ_DRAINED
                | IBV_EVENT_PATH_MIG
                | IBV_EVENT_PATH_MIG_ERR
                | IBV_EVENT_QP_LAST_WQE_REACHED => {
                    write_handle_name(text, HandleKind("qp"), element.qp.addr(), false);
                }
                _ => {
                    let _ = write!(text, "port {}", element.port_num);
                }
            }
        }
    }
}

impl Pointee for rdma_cm_event {
    unsafe fn write_stored_pointee(this: *const Self, text: &mut String) {
        let this = unsafe { &*this };
        write_named_value(text, this.event, "RDMA_CM_EVENT_", CM_EVENTS);
        text.push_str(", ");
        // The id of a connection request is a new object.
        let is_new = this.event == RDMA_CM_EVENT_CONNECT_REQUEST;
        write_handle_name(text, HandleKind("id"), this.id.addr(), is_new);
        if !this.listen_id.is_null() {
            text.push_str(" of ");
            write_handle_name(text, HandleKind("id"), this.listen_id.addr(), false);
        }
        if this.status != 0 {
            let _ = write!(text, ", status {}", this.status);
        }
    }
}

impl Pointee for rdma_conn_param {
    unsafe fn write_input_content(this: *const Self, text: &mut String) {
        let this = unsafe { &*this };
        let _ = write!(
            text,
            "{{private_data_len {}, responder_resources {}, initiator_depth {}, retry_count {}, rnr_retry_count {}, \
             qp_num {:#x}}}",
            this.private_data_len,
            this.responder_resources,
            this.initiator_depth,
            this.retry_count,
            this.rnr_retry_count,
            this.qp_num
        );
    }
}

impl Pointee for libc::sockaddr {
    unsafe fn write_input(this: *const Self, name: &str, text: &mut String) {
        // The buffer for the peer's address holds no value before the call.
        if name == "from" {
            text.push('&');
            return;
        }
        // SAFETY: an address has the length that its family implies.
        unsafe {
            match c_int::from((*this).sa_family) {
                libc::AF_INET => {
                    let v4 = this.cast::<libc::sockaddr_in>().read_unaligned();
                    let ip = std::net::Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                    let _ = write!(text, "{ip}:{}", u16::from_be(v4.sin_port));
                }
                libc::AF_INET6 => {
                    let v6 = this.cast::<libc::sockaddr_in6>().read_unaligned();
                    let ip = std::net::Ipv6Addr::from(v6.sin6_addr.s6_addr);
                    let _ = write!(text, "[{ip}]:{}", u16::from_be(v6.sin6_port));
                }
                verbs_abi::AF_IB => {
                    let ib = this.cast::<verbs_abi::sockaddr_ib>().read_unaligned();
                    let gid = std::net::Ipv6Addr::from(ib.sib_addr.ib_u);
                    let service_id = u64::from_be(ib.sib_sid);
                    let _ = write!(text, "gid {gid} service {service_id:#018x}");
                }
                family => {
                    let _ = write!(text, "an address of family {family}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_their_families_are() {
        let text = |addr: *const libc::sockaddr| {
            let mut text = String::new();
            // SAFETY: the address has the length that its family implies.
            unsafe { Pointee::write_input(addr, "addr", &mut text) };
            text
        };
        let mut ib = sockaddr_ib::zeroed();
        ib.sib_family = u16::try_from(AF_IB).unwrap();
        ib.sib_addr.ib_u[..2].copy_from_slice(&[0xfe, 0x80]);
        ib.sib_sid = 0x0106_1d2f_u64.to_be();
        assert_eq!(
            text((&raw const ib).cast()),
            "gid fe80:: service 0x0000000001061d2f"
        );
        ib.sib_family = 1;
        assert_eq!(text((&raw const ib).cast()), "an address of family 1");
    }

    #[test]
    fn operations_on_tags_are_written_with_what_they_acknowledge() {
        let mut sync = ibv_ops_wr::zeroed();
        (sync.wr_id, sync.opcode) = (9, IBV_WR_TAG_SYNC);
        let mut removal = ibv_ops_wr::zeroed();
        (removal.wr_id, removal.opcode) = (8, IBV_WR_TAG_DEL);
        removal.flags = IBV_OPS_TM_SYNC.cast_signed();
        removal.tm.handle = 3;
        removal.tm.unexpected_cnt = 5;
        removal.next = &raw mut sync;
        let mut text = String::new();
        // SAFETY: a list with two elements.
        unsafe { Pointee::write_input(&raw const removal, "op", &mut text) };
        assert_eq!(
            text,
            "[TAG_DEL wr_id=8 handle 3 unexpected_cnt 5, TAG_SYNC wr_id=9 unexpected_cnt 0]"
        );
    }
}
