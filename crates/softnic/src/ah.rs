//! Address handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use verbs_abi::{ibv_ah, ibv_ah_attr, ibv_send_wr};

use crate::abi_cell::AbiCell;
use crate::device::{Port, PortPlace};
use crate::live_handles;
use crate::multicast::MulticastGroup;
use crate::path::note_packets_in_use;
use crate::pd::Pd;
use link::PacketFlow;

/// An address handle; the program's handle points to its first field.
#[repr(C)]
pub(crate) struct Ah {
    abi: AbiCell<ibv_ah>,
    /// Identifies the address handle: unlike an address, an id is never used twice.
    pub(crate) id: u64,
    pub(crate) pd_number: u32,
    /// The port of this host that is the destination, if it is one.
    pub(crate) local_dest_port: Option<PortPlace>,
    /// The GID of the destination, if there is one.
    pub(crate) dest_gid: Option<[u8; 16]>,
    /// True if packets reach the destination.
    pub(crate) is_reached_by_packets: bool,
    /// The flow of packets to the destination.
    pub(crate) packet_flow: Option<PacketFlow>,
    /// The GRH that receivers see.
    pub(crate) grh: Option<[u8; 40]>,
    /// The multicast group that the handle addresses.
    pub(crate) multicast_group: Option<MulticastGroup>,
    /// The path, as in `RingHeader::path`.
    pub(crate) completion_path_word: u64,
    /// The protection domain, which the handle uses until it is destroyed.
    pub(crate) held_pd: Arc<Pd>,
}

live_handles::object!(Ah, ibv_ah);

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Ah {
    pub(crate) fn new(domain: Arc<Pd>, port: &Port, attr: &ibv_ah_attr) -> Self {
        let nic = domain.context.nic;
        let mut abi = ibv_ah::zeroed();
        abi.context = domain.context.handle();
        abi.pd = domain.handle();
        domain.add_user();
        let grh = port.grh_at_receiver(attr);
        let destination = port.local_destination_port(attr);
        let group = if attr.is_global == 0 {
            None
        } else {
            MulticastGroup::from_gid(attr.grh.dgid.bytes())
        };
        let by_packets = group.is_none() && nic.uses_packets(destination.is_some(), true);
        if by_packets {
            note_packets_in_use();
        }
        Self {
            abi: AbiCell::new(abi),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            pd_number: domain.local_number,
            held_pd: domain,
            dest_gid: (attr.is_global != 0).then(|| attr.grh.dgid.bytes()),
            local_dest_port: destination,
            is_reached_by_packets: by_packets,
            packet_flow: port.packet_flow_to(attr),
            multicast_group: group,
            completion_path_word: u64::from(port.lid)
                | u64::from(port.receiver_completion_sl(attr, grh.as_ref())) << 16
                | u64::from(attr.src_path_bits) << 24
                | u64::from(grh.is_some()) << 32,
            grh,
        }
    }

    /// Returns the address handle behind a program's handle.
    ///
    /// # Safety
    /// `handle` is null or live.
    pub(crate) unsafe fn from_handle<'a>(handle: *mut ibv_ah) -> Option<&'a Self> {
        // SAFETY: null or the address of an `Ah`, as `live_handles::make_handle` makes handles (contract).
        unsafe { handle.cast::<Self>().as_ref() }
    }

    /// Returns a reference that keeps the address handle of a UD work request alive.
    ///
    /// # Safety
    /// As for [`Self::from_handle`], for `wr.wr.ud.ah` if the WR was posted to a UD queue pair.
    pub(crate) unsafe fn retain_for_wr(wr: &ibv_send_wr, ud: bool) -> Option<Arc<Self>> {
        if !ud {
            return None;
        }
        // SAFETY: the union's member for a work request of a UD queue pair. A live handle is the address of an `Arc`'s
        // object (`live_handles::make_handle`), to which the table of handles keeps a reference; this adds one.
        unsafe {
            let ah = wr.wr.ud.ah.cast::<Self>();
            if ah.is_null() {
                return None;
            }
            Arc::increment_strong_count(ah);
            Some(Arc::from_raw(ah))
        }
    }
}
