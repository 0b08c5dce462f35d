//! The entry points of the provider's tables, each with a trace line.
#![allow(unsafe_code)]

use std::any::TypeId;
use std::ffi::c_int;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use verbs_abi::*;

use super::TracedCall;
use super::names::{QP_STATES, write_named_value};
use crate::control_path;
use crate::provider::Provider;

/// Returns the tap's own tables for a provider, whose functions this module calls.
fn counting_symbols<P: Provider>() -> &'static (Symbols, Option<LaterSymbols>) {
    type Tables = Vec<(TypeId, &'static (Symbols, Option<LaterSymbols>))>;
    static TABLES: Mutex<Tables> = Mutex::new(Vec::new());
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    let of = TypeId::of::<P>();
    if let Some((_, known)) = tables.iter().find(|(id, _)| *id == of) {
        return known;
    }
    let new = Box::leak(Box::new((
        control_path::symbols::<P>(),
        control_path::later_symbols::<P>(),
    )));
    tables.push((of, new));
    new
}

macro_rules! trace_first {
    ($( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        /// Functions of libibverbs 1.0 and 1.1.
        mod first {
            use super::*;
            $( crate::traced_function! {
                pub(super) fn $name<P: Provider>($( $arg: $type ),*) $(-> $ret)?, stringify!($name),
                counting_symbols::<P>().0.$name
            } )*
        }

        /// Returns the provider's table of entry points with counting and tracing functions in it.
        pub(crate) fn symbols<P: Provider>() -> Symbols {
            let mut symbols = Symbols { $( $name: first::$name::<P>, )* };
            symbols.ibv_modify_qp = modify_qp::<P>;
            symbols
        }
    };
}

for_each_symbol!(trace_first);

macro_rules! trace_later {
    ($( $(#[$meta:meta])* fn $name:ident($( $arg:ident: $type:ty ),*) $(-> $ret:ty)?; )*) => {
        /// Functions that libibverbs got after version 1.1.
        mod later {
            use super::*;
            $( crate::traced_function! {
                pub(super) fn $name<P: Provider>($( $arg: $type ),*) $(-> $ret)?, stringify!($name),
                // Only a provider that has later functions installs this table.
                match &counting_symbols::<P>().1 {
                    Some(later) => later.$name,
                    None => unreachable!("the provider has no later functions"),
                }
            } )*
        }

        /// Returns the provider's table of later entry points with counting and tracing functions
        /// in it.
        pub(crate) fn later_symbols<P: Provider>() -> Option<LaterSymbols> {
            P::later_symbols()?;
            Some(LaterSymbols { $( $name: later::$name::<P>, )* })
        }
    };
}

for_each_later_symbol!(trace_later);

/// Traces `ibv_modify_qp`: the line has the attributes that the mask selects.
unsafe extern "C" fn modify_qp<P: Provider>(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    let mut call = TracedCall::begin_line("ibv_modify_qp");
    let mut set = String::new();
    // SAFETY: the caller promises `ibv_modify_qp(3)`: the attributes in the mask are set.
    unsafe {
        call.add_input("qp", qp);
        if let Some(attr) = attr.as_ref() {
            write_qp_attributes(attr, attr_mask, &mut set);
        }
        call.add_argument_text(&set);
        let result = (counting_symbols::<P>().0.ibv_modify_qp)(qp, attr, attr_mask);
        call.add_result(result);
        call.append_line();
        result
    }
}

/// Adds the attributes that the mask selects to the line.
fn write_qp_attributes(attr: &ibv_qp_attr, mask: c_int, text: &mut String) {
    // Writing to a string does not fail.
    if mask & IBV_QP_STATE != 0 {
        write_named_value(text, attr.qp_state, "IBV_QPS_", QP_STATES);
    }
    if mask & IBV_QP_AV != 0 {
        text.push_str(", to ");
        super::pointee::write_destination(&attr.ah_attr, text);
    }
    for (bit, name, value) in [
        (IBV_QP_CUR_STATE, "cur_qp_state", attr.cur_qp_state),
        (IBV_QP_ACCESS_FLAGS, "qp_access_flags", attr.qp_access_flags),
        (IBV_QP_PKEY_INDEX, "pkey_index", attr.pkey_index.into()),
        (IBV_QP_PORT, "port_num", attr.port_num.into()),
        (IBV_QP_PATH_MTU, "path_mtu", attr.path_mtu),
        (IBV_QP_TIMEOUT, "timeout", attr.timeout.into()),
        (IBV_QP_RETRY_CNT, "retry_cnt", attr.retry_cnt.into()),
        (IBV_QP_RNR_RETRY, "rnr_retry", attr.rnr_retry.into()),
        (IBV_QP_RQ_PSN, "rq_psn", attr.rq_psn),
        (IBV_QP_SQ_PSN, "sq_psn", attr.sq_psn),
        (
            IBV_QP_MAX_QP_RD_ATOMIC,
            "max_rd_atomic",
            attr.max_rd_atomic.into(),
        ),
        (
            IBV_QP_MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            attr.max_dest_rd_atomic.into(),
        ),
        (
            IBV_QP_MIN_RNR_TIMER,
            "min_rnr_timer",
            attr.min_rnr_timer.into(),
        ),
    ] {
        if mask & bit != 0 {
            let _ = write!(text, ", {name} {value}");
        }
    }
    for (bit, name, value) in [
        (IBV_QP_DEST_QPN, "dest_qp_num", attr.dest_qp_num),
        (IBV_QP_QKEY, "qkey", attr.qkey),
    ] {
        if mask & bit != 0 {
            let _ = write!(text, ", {name} {value:#x}");
        }
    }
}
