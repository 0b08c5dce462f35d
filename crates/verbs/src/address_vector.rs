//! Address vectors.

use verbs_abi as abi;

use crate::types::{Gid, Lid, LinkLayer};

/// The values of an address vector.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AddressVector {
    pub(crate) port_num: u8,
    pub(crate) sgid_index: u8,
    pub(crate) link_layer: LinkLayer,
    pub(crate) lid: Lid,
    pub(crate) gid: Gid,
    pub(crate) sl: u8,
}

impl AddressVector {
    /// Returns the C structure. RoCE addresses by GID and needs a GRH; InfiniBand addresses by LID.
    pub(crate) fn to_raw(self) -> abi::ibv_ah_attr {
        let mut a = abi::ibv_ah_attr::zeroed();
        a.port_num = self.port_num;
        a.sl = self.sl;
        a.dlid = self.lid.0;
        if self.link_layer == LinkLayer::Ethernet || self.lid == Lid(0) {
            a.is_global = 1;
            a.grh.dgid.raw = self.gid.0;
            a.grh.sgid_index = self.sgid_index;
            a.grh.hop_limit = 64;
        }
        a
    }
}
